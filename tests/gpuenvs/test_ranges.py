"""Params that are drawn, changed while a batch lives, and summed up metrics: the same on every backend."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

import gpuenvs
from gpuenvs import Range
from gpuenvs.checks import offline
from gpuenvs.contract.leaks import find_leaks
from gpuenvs.errors import ConfigError, SpecError
from gpuenvs.rng import Rng, split_seed, uniform
from gpuenvs.runtime.buffers import make_layout
from gpuenvs.runtime.cpu import _Source as Source
from gpuenvs.runtime.cuda_source import python_kernel
from gpuenvs.runtime.params import ParamTable
from gpuenvs.runtime.transition import PARAM_DRAWS
from tests.gpuenvs.ranged import RANGES, ROWS, SPECS, STEPS, Params, _spec, record, reset

ROOT = Path(__file__).parents[2]
SPEC = SPECS["compiled"]
KINDS = list(SPECS)


def make(kind="compiled", n=ROWS, **options):
    return gpuenvs.make(SPECS[kind], n, device="cpu", **options)


# --- what a Range is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0.4..0.6", "-1..2.5e-3", "3..7:episode", "1..1"])
def test_a_range_is_the_same_after_text(text):
    made = Range.parse(text)
    assert Range.parse(str(made)) == made
    assert str(made).endswith(":episode") == text.endswith(":episode")


@pytest.mark.parametrize("bounds", [(2, 1), (0, np.inf), (np.nan, 1), ("a", 1), (True, 2)])
def test_a_range_needs_two_numbers_in_order(bounds):
    with pytest.raises(ConfigError, match="two finite numbers"):
        Range(*bounds)


@pytest.mark.parametrize("text", ["0.4", "a..b", "1..2:day", ".."])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(ConfigError, match=r"range|Range"):
        Range.parse(text)


def test_ranges_among_the_params_are_ranges_of_the_spec_and_leave_their_defaults():
    spec = _spec("Ranged-v1", (reset, SPEC.step, SPEC.observe))
    assert spec.params == Params(gain=1.0, rate=0.1, offset=0.0, life=4)
    own = gpuenvs.EnvSpec(
        "Ranged-v2", SPEC.state, Params(gain=Range(0, 1, default=0.25), life=Range(1, 4)), reset, SPEC.step, SPEC.observe,  # type: ignore[arg-type]
        SPEC.observation_space, SPEC.action_space, metrics=SPEC.metrics,
    )  # fmt: skip
    assert own.params == Params(gain=0.25, life=2)
    assert list(own.ranges) == ["gain", "life"]


@pytest.mark.parametrize("ranges", [{"gian": Range(0, 1)}, {"gain": 3.0}, {"life": Range(0.5, 2)}])
def test_ranges_that_do_not_fit_are_refused_with_the_spec(ranges):
    parts = (SPEC.state, Params(), reset, SPEC.step, SPEC.observe, SPEC.observation_space, SPEC.action_space)
    with pytest.raises(SpecError, match="Bad-v0"):
        gpuenvs.EnvSpec("Bad-v0", *parts, metrics=SPEC.metrics, ranges=ranges)


# --- what is drawn ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_the_generator(kind, dtype):
    """A function of (seed, env, episode) and of the param's place: recomputed here."""
    found = record("cpu", kind, dtype)
    real = np.dtype(dtype).type

    def drawn(row, episode, place, low, high):
        words = Rng(*split_seed(5), np.uint32(3 + row), np.uint32(episode))
        return getattr(uniform, "py_func", uniform)(words, PARAM_DRAWS + place, real(low), real(high))

    episode = np.zeros(ROWS, int)
    for t in range(STEPS):
        low, high = (-2.0, 2.0) if t < STEPS // 2 else (5.0, 6.0)
        for row in range(ROWS):
            assert found["gain"][t, row] == pytest.approx(drawn(row, 0, 0, 0.5, 1.5), rel=1e-6)
            begun = found["offset"][t, row]
            fresh = t == 0 or found["done"][t - 1, row]
            if fresh and t != STEPS // 2:  # there the last episode began under the old range
                assert begun == pytest.approx(drawn(row, episode[row], 2, low, high), rel=1e-5, abs=1e-6)
                assert found["life"][t, row] == 2 + int(drawn(row, episode[row], 3, 0, 5))
        episode += found["done"][t]
    assert episode.min() > 4


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_keeps_what_was_drawn_until_its_episode_ends(kind, autoreset):
    found = record("cpu", kind, autoreset=autoreset)
    shift = 1 if autoreset == "next_step" else 0
    for name in ("offset", "life"):
        changed = found[name][1:] != found[name][:-1]
        ended = found["done"][:-1]
        begins = np.vstack([np.zeros((shift, ROWS), bool), ended[: len(ended) - shift]])
        assert not (changed & ~begins).any()
    assert len(np.unique(found["offset"])) > 3 * ROWS
    np.testing.assert_array_equal(found["gain"], np.tile(found["gain"][0], (STEPS, 1)))
    np.testing.assert_array_equal(found["obs"][:, :, 1], found["gain"])  # what the functions saw
    np.testing.assert_array_equal(found["obs"][:, :, 2], found["offset"])
    assert set(np.unique(found["life"])) == {2, 3, 4, 5, 6}


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_range_counts_from_the_next_episode_and_a_number_at_once(kind):
    found = record("cpu", kind)
    half = STEPS // 2
    late = found["offset"][half:]
    old = late < 2.0
    assert old[0].any()
    assert not old[-1].any()
    assert ((late >= 5) & (late <= 6))[~old].all()
    moved = np.diff(found["obs"][:, :, 0], axis=0)
    same = ~found["done"][:-1]
    rate = np.where(np.arange(STEPS - 1) < half, 0.1, 0.2)[:, None] * found["gain"][0]
    np.testing.assert_allclose(moved[same], rate[same], rtol=2e-4, atol=2e-6)


def test_compiled_and_traced_kernels_agree():
    one, other = record("cpu", "compiled"), record("cpu", "traced")
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_simulator_gives_what_the_cpu_gives(kind, tmp_path):
    pytest.importorskip("numba.cuda")
    file = tmp_path / "simulated.npz"
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1", "GPURL_CACHE": "0"}
    command = [sys.executable, "-m", "tests.gpuenvs.ranged", "cuda", kind, str(file)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if "numba-cuda is not installed" in done.stderr:
        pytest.skip("numba-cuda is not installed")
    assert done.returncode == 0, done.stderr[-2000:]
    simulated, expected = np.load(file), record("cpu", kind)
    for name, values in expected.items():
        np.testing.assert_allclose(simulated[name], values, rtol=1e-5, atol=2e-6, err_msg=name)


def test_a_row_is_the_same_row_of_a_larger_batch_and_other_ranges_do_not_matter():
    with make(n=40) as large, make(n=5, env_offset=20) as small, make(n=40, gain=1.0, life=3) as fixed:
        for env in (large, small, fixed):
            env.reset(seed=1)
        np.testing.assert_array_equal(large.get_params().gain[20:25], small.get_params().gain)
        np.testing.assert_array_equal(large.get_params().offset, fixed.get_params().offset)
        assert fixed.get_params().gain == 1.0
        assert large.get_params().gain.std() > 0.2


def test_a_seed_brings_its_values_back():
    with make() as env:
        env.reset(seed=1)
        first = env.get_params().gain
        env.reset()
        np.testing.assert_array_equal(env.get_params().gain, first)
        env.reset(seed=2)
        assert (env.get_params().gain != first).all()
        env.reset(seed=1)
        np.testing.assert_array_equal(env.get_params().gain, first)


@pytest.mark.parametrize("kernel", ["step_kernel", "begin_kernel"])
def test_what_draws_and_sums_up_is_free_of_64_bit_arithmetic(kernel, monkeypatch):
    monkeypatch.setenv("GPURL_CACHE", "0")  # machine code from a cache has no types
    layout = make_layout(SPEC, "next_step", tuple(sorted(RANGES)), ParamTable(SPEC, 1, {}).drawn, totals=True)
    real, number, table = np.dtype(np.float32), numba.types.int64, numba.types.int64[::1]
    made = Source(layout, real, real).compile(kernel)
    made.compile((number, number, table, table) if kernel == "step_kernel" else (table, table, table))
    assert find_leaks(made.py_func, next(iter(made.overloads.values())).type_annotation) == []
    if offline.problem() is None:
        cuda = importlib.import_module("numba.cuda")
        function = python_kernel(layout, real, kernel, cuda)
        with offline.device_stub():
            types = offline.argument_types(SPEC, "float32", kernel)
            typed = cuda.jit(function, device=True).compile_device(types)
        assert find_leaks(function, typed.type_annotation) == []


# --- changes ---------------------------------------------------------------------------------------------------------


def test_arrays_change_and_wrong_kinds_of_values_are_refused_and_change_nothing():
    gains = np.linspace(0, 1, ROWS)
    with make(gain=gains, offset=0.0) as env:
        env.reset(seed=0)
        env.set_params(gain=gains + 1, rate=0.5)
        np.testing.assert_allclose(env.get_params().gain, gains + 1, rtol=1e-6)
        for values, words in (
            ({"gain": Range(0, 1)}, "not drawn"),
            ({"rate": gains}, "one number"),
            ({"life": gains}, "is drawn"),
            ({"gain": gains[:3]}, "must be a number or have shape"),
            ({"life": Range(1, 2)}, "drawn per episode"),
            ({"rat": 1.0}, "did you mean rate"),
        ):
            with pytest.raises(ConfigError, match=words):
                env.set_params(**{"rate": 9.0, **values})
        assert env.get_params().rate == 0.5
        env.set_params(gain=2.0)
        assert (env.get_params().gain == 2.0).all()


def test_a_number_for_a_drawn_param_counts_at_once_and_stays():
    with make() as env:
        env.reset(seed=0)
        env.set_params(gain=0.75, life=2)
        for _ in range(10):
            assert (env.get_params().gain == 0.75).all()
            assert (env.get_params().life == 2).all()
            env.step(np.zeros((ROWS, 1), np.float32))


def test_nothing_is_compiled_when_params_change(monkeypatch):
    from gpuenvs.runtime import cpu

    with make() as env:
        env.reset(seed=0)
        env.step(np.zeros((ROWS, 1), np.float32))
        monkeypatch.setattr(cpu, "_compiled", lambda *args: pytest.fail("compiles"))
        env.set_params(gain=Range(1, 2), rate=0.3)
        env.step(np.zeros((ROWS, 1), np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_holds_ranges_values_and_sums(kind):
    def go_on(env):
        for _ in range(15):
            env.step(np.zeros((ROWS, 1), np.float32))
        return env.obs.copy(), env.get_params(), env.take_metrics()

    with make(kind, metric_totals=True) as env, make(kind, metric_totals=True) as other:
        env.reset(seed=4)
        env.set_params(offset=Range(1, 2, resample="episode"), rate=0.4)
        env.step(np.zeros((ROWS, 1), np.float32))
        saved = env.snapshot()
        other.reset(seed=0)
        other.restore(saved)
        (obs, params, metrics), (obs2, params2, metrics2) = go_on(env), go_on(other)
        np.testing.assert_array_equal(obs, obs2)
        assert all(np.array_equal(a, b) for a, b in zip(params, params2, strict=True))
        assert metrics == metrics2
        with make(kind, gain=1.0, metric_totals=True) as fewer, pytest.raises(ConfigError, match="not fit"):
            fewer.restore(saved)


# --- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
@pytest.mark.parametrize("kind", KINDS)
def test_means_are_those_of_the_metrics_of_every_step(kind, autoreset):
    with make(kind, autoreset=autoreset, metric_totals=True) as env:
        env.reset(seed=0)
        assert np.isnan(env.take_metrics()["x"])
        seen, ended = [], np.zeros(ROWS, bool)
        for _ in range(12):
            env.step(np.zeros((ROWS, 1), np.float32))
            counted = ~ended if autoreset == "next_step" else np.ones(ROWS, bool)
            seen.append(np.array([env.info["gain"], env.info["x"]])[:, counted])
            ended = env.terminated & counted
        expected = np.concatenate(seen, axis=1).mean(axis=1)
        np.testing.assert_allclose(list(env.take_metrics().values()), expected, rtol=1e-5)


def test_nothing_is_summed_up_unasked():
    with make() as env:
        env.reset(seed=0)
        assert env.take_metrics() == {}
        assert "metric_totals" not in env.arrays
    with gpuenvs.make("CartPole-v1", 2, device="cpu", metric_totals=True) as env:
        assert env.take_metrics() == {}


def test_drawn_params_reach_gymnasium_and_text_is_taken():
    with make(gain="2..3", offset="0..1:episode") as env:
        env.reset(seed=0)
        gain = env.get_params().gain
        assert ((gain >= 2) & (gain <= 3)).all()
    assert RANGES["gain"] == Range(0.5, 1.5)
