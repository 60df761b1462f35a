"""Traced environments (the MuJoCo tasks) on a real device: parity with the CPU, determinism, graphs, a kernel's cache."""

from __future__ import annotations

import numpy as np
import pytest

import gpuenvs
from gpuenvs.runtime import traced_cuda
from gpuenvs.runtime.cuda import cuda_problem, simulated
from tests.gpu.test_hardware import equal, run
from tests.ladder.rollout import EVERY_MODE, differences, draw_scenario, play, traced_variants

PROBLEM = "the simulator is no device" if simulated() else cuda_problem(0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(PROBLEM is not None, reason=str(PROBLEM))]

# Physics with contacts: hundreds of operations deep, and fused differently by each compiler.
TOLERANCE = {"float32": 1e-3, "float64": 1e-9}
VARIANTS = [v for v in traced_variants() if v[0] in (EVERY_MODE, "Hopper-v5", "HalfCheetah-v5", "Ant-v5")]


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_rollout_agrees_with_the_cpu(variant):
    env_id, real, mode = variant
    scenario = draw_scenario(env_id)
    found = play("cuda:0", env_id, real, mode, scenario)
    expected = play("cpu", env_id, real, mode, scenario, follow=found)
    problems = differences(found, expected, TOLERANCE[real])
    assert not problems, "\n".join(problems)
    assert expected["step1/totals"][3] >= 1  # the NaN was seen and counted


def test_two_runs_are_bit_identical():
    first, second = (run("Hopper-v5", 4097, 60) for _ in range(2))
    assert not equal(first, second)
    assert first["episode"].max() > 0  # rows ended and began anew within the kernel


def test_rows_do_not_depend_on_the_batch():
    """Nor on the size of a thread block, which follows from the number of rows."""
    whole = run("Hopper-v5", 70_001, 20)
    for n, offset in ((1, 0), (127, 1000), (129, 69_872)):
        for name, value in run("Hopper-v5", n, 20, offset=offset).items():
            if name != "totals":
                assert np.array_equal(value, whole[name][:, offset : offset + n]), (name, n, offset)


def test_a_bad_state_ends_its_row_alone():
    import cupy

    with gpuenvs.make("HalfCheetah-v5", 300, device="cuda:0") as env:
        env.reset(seed=4)
        before = env.get_state()
        action = cupy.zeros((300, 6), cupy.float32)
        env.step(action)
        clean = env.snapshot()
        for poison in (np.nan, np.inf, 1e30):
            state = [field.copy() for field in before]
            state[3][17] = poison
            env.reset(seed=4)
            env.set_state(state)
            env.step(action)
            others = np.arange(300) != 17
            for name, value in env.snapshot().items():
                if name != "totals":
                    assert np.array_equal(value[:, others], clean[name][:, others]), (poison, name)
            assert np.isfinite(env.obs.get()).all()


def test_steps_can_be_captured_into_a_graph():
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream, gpuenvs.make("Hopper-v5", 1000, device="cuda:0", seed=1) as env:
        env.reset()
        action = cupy.full((1000, 3), 0.25, cupy.float32)
        env.step(action)  # compiles
        stream.synchronize()
        stream.begin_capture()
        for _ in range(5):
            env.step(action)
        graph = stream.end_capture()
        env.reset(seed=9)
        graph.launch(stream)
        replayed = env.snapshot()
        env.reset(seed=9)
        for _ in range(5):
            env.step(action)
        assert not equal(replayed, env.snapshot())


def test_machine_code_from_disk_is_the_compiled_one(monkeypatch, tmp_path):
    monkeypatch.setenv("GPURL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(traced_cuda, "_cache", {})
    fresh = run("InvertedPendulum-v5", 500, 20)
    assert list(tmp_path.glob("traced-*"))
    monkeypatch.setattr(traced_cuda, "_cache", {})
    monkeypatch.setattr(traced_cuda, "compile_ptx", None)  # not called again
    assert not equal(fresh, run("InvertedPendulum-v5", 500, 20))
