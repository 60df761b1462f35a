"""The CUDA backend on a real device: parity with the CPU, determinism, streams, DLPack, memory."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import gpuenvs
from gpuenvs import scalar
from gpuenvs.errors import ActionError, DeviceError
from gpuenvs.runtime.buffers import AUTORESET_MODES
from gpuenvs.runtime.cuda import cuda_problem, simulated
from tests.gpuenvs.classic import CLASSIC
from tests.ladder.rollout import differences, draw_scenario, play, variants

PROBLEM = "the simulator is no device" if simulated() else cuda_problem(0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(PROBLEM is not None, reason=str(PROBLEM))]

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


@pytest.fixture(scope="module")
def scenarios():
    return {env_id: draw_scenario(env_id) for env_id in CLASSIC}


@pytest.mark.parametrize("variant", variants(), ids="-".join)
def test_rollout_agrees_with_the_cpu(variant, scenarios):
    env_id, real, mode = variant
    found = play("cuda:0", env_id, real, mode, scenarios[env_id])
    expected = play("cpu", env_id, real, mode, scenarios[env_id], follow=found)
    problems = differences(found, expected, TOLERANCE[real])
    assert not problems, "\n".join(problems)


def test_random_numbers_agree_with_the_cpu():
    import cupy
    from numba import cuda

    from tests.ladder.simulated import COORDINATES, random_numbers
    from tests.ladder.test_simulator import numbers_on_cpu

    scalar.register_cuda()
    n = len(COORDINATES)
    host = np.zeros(n, np.uint32), np.zeros((n, 2), np.float32), np.zeros((n, 2))
    numbers_on_cpu(COORDINATES, *host)
    device = [cupy.zeros_like(cupy.asarray(a)) for a in host]
    random_numbers[n, 1](*(cuda.as_cuda_array(a) for a in (cupy.asarray(COORDINATES), *device)))
    bits, singles, doubles = (a.get() for a in device)
    assert np.array_equal(bits, host[0])
    assert np.array_equal(singles[:, 0], host[1][:, 0])
    assert np.array_equal(doubles[:, 0], host[2][:, 0])
    np.testing.assert_allclose(singles[:, 1], host[1][:, 1], rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(doubles[:, 1], host[2][:, 1], rtol=1e-14, atol=1e-14)


def run(env_id, n, steps, *, offset=0, stream=None, autoreset="same_step", seed=3):
    """Final snapshot of `steps` random steps, the actions being a function of the row's number and the time."""
    import cupy

    spec = gpuenvs.get(env_id)
    where = stream if stream is not None else contextlib.nullcontext()
    with where, gpuenvs.make(env_id, n, device="cuda:0", env_offset=offset, autoreset=autoreset) as env:
        env.reset(seed=seed)
        row = cupy.arange(offset, offset + n)
        for t in range(steps):
            noise = (row * 7919 + t * 104729) % 1009
            if spec.discrete:
                env.step((noise % int(spec.action_space.n)).astype(cupy.int32))
            else:
                unit = (noise.astype(cupy.float32) / 504.5 - 1.0)[:, None]
                env.step(cupy.repeat(unit, spec.action_dim, axis=1))
        return env.snapshot()


def equal(a, b):
    return [name for name in a if not np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f")]


@pytest.mark.parametrize("autoreset", AUTORESET_MODES)
@pytest.mark.parametrize("env_id", CLASSIC)
def test_two_runs_are_bit_identical(env_id, autoreset):
    first, second = (run(env_id, 4097, 300, autoreset=autoreset) for _ in range(2))
    assert not equal(first, second)


@pytest.mark.parametrize("env_id", CLASSIC)
def test_rows_do_not_depend_on_the_batch(env_id):
    whole = run(env_id, 65_537, 20)
    for n, offset in ((1, 0), (127, 1000), (128, 65_409), (129, 65_408)):
        part = run(env_id, n, 20, offset=offset)
        for name, value in part.items():
            if name != "totals":
                assert np.array_equal(value, whole[name][:, offset : offset + n]), (name, n, offset)


def test_work_goes_to_the_current_stream():
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    assert not equal(run("CartPole-v1", 5000, 50, stream=stream), run("CartPole-v1", 5000, 50))


def test_steps_can_be_captured_into_a_graph():
    """Nothing in a step waits for the device or moves a buffer, and a new seed needs no new capture."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream, gpuenvs.make("CartPole-v1", 1000, device="cuda:0", seed=1) as env:
        env.reset()
        action = cupy.ones(1000, cupy.int64)
        env.step(action)  # compiles
        stream.synchronize()
        stream.begin_capture()
        for _ in range(10):
            env.step(action)
        graph = stream.end_capture()
        env.reset(seed=9)
        graph.launch(stream)
        replayed = env.snapshot()
        env.reset(seed=9)
        for _ in range(10):
            env.step(action)
        assert not equal(replayed, env.snapshot())


def test_torch_reads_the_arrays_in_place():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    with gpuenvs.make("CartPole-v1", 33, device="cuda:0") as env:
        env.reset(seed=0)
        obs, done = torch.from_dlpack(env.obs), torch.from_dlpack(env.terminated)
        assert obs.data_ptr() == env.obs.data.ptr
        assert obs.shape == (33, 4)
        assert obs.stride() == (1, 33)
        assert done.dtype == torch.bool
        before = obs.clone()
        env.step(torch.ones(33, dtype=torch.int64, device="cuda:0"))
        torch.cuda.synchronize()
        assert not torch.equal(before, obs)


def test_wrong_actions_are_counted():
    import cupy

    with gpuenvs.make("CartPole-v1", 3, device="cuda:0") as env:
        env.reset()
        env.step(cupy.array([0, 7, -1]))
        with pytest.raises(ActionError, match="2 actions"):
            _ = env.nonfinite_states
        env.step(cupy.array([0, 1, 1]))
        assert env.nonfinite_states == 0


def test_too_little_memory_is_one_clear_line():
    with pytest.raises(DeviceError, match=r"too little free memory.* MiB; use fewer envs"):
        gpuenvs.make("Acrobot-v1", 2**31 - 1, device="cuda:0", dtype="float64")


def test_a_device_that_is_not_there_is_one_clear_line():
    with pytest.raises(DeviceError, match="there is no cuda:99"):
        gpuenvs.make("CartPole-v1", 1, device="cuda:99")
