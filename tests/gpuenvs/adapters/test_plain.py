"""A batch in plain Python beside the compiled one: same steps, ends and resets, and the user's own lines are what runs."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import gpuenvs
from gpuenvs.adapters.plain import PlainBatch
from gpuenvs.classic import cartpole
from gpuenvs.scalar import sincos
from tests.gpuenvs.sampling import mixed_actions
from tests.gpuenvs.test_custom_spec import MODES, SPEC

ROWS = 3
DTYPES = ("float32", "float64")
# Every mode and dtype once on either kind of function, other environments in one of them.
CASES = [
    (env_id, mode, dtype) for env_id in ("CartPole-v1", "InvertedPendulum-v5") for mode in MODES for dtype in DTYPES
]
CASES += [(env_id, "same_step", "float32") for env_id in ("MountainCar-v0", "Pendulum-v1", "Acrobot-v1", "Hopper-v5")]


@pytest.mark.parametrize(("env_id", "mode", "dtype"), CASES)
def test_same_as_compiled(env_id: str, mode: str, dtype: str) -> None:
    spec, rng = gpuenvs.get(env_id), np.random.default_rng(0)
    options: dict[str, Any] = {"autoreset": mode, "dtype": dtype, "max_episode_steps": 4, "env_offset": 7}
    close = {"rtol": 2e-3, "atol": 2e-3} if dtype == "float32" else {"rtol": 1e-9, "atol": 1e-9}
    with PlainBatch(spec, ROWS, **options) as mine, gpuenvs.make(spec, ROWS, device="cpu", **options) as theirs:
        np.testing.assert_allclose(mine.reset(seed=2**40 + 3)[0], theirs.reset(seed=2**40 + 3)[0], **close)
        ended = np.zeros(ROWS, bool)
        for _ in range(9):
            if mode == "disabled" and ended.any():
                mine.reset(rows=ended)
                theirs.reset(rows=ended)
            actions = mixed_actions(spec, rng, theirs.obs)
            expected = theirs.step(actions)
            for got, want in zip(mine.step(actions)[:4], expected[:4]):
                np.testing.assert_allclose(got, want, **close)
            assert mine.info.keys() == theirs.info.keys()
            for name, array in theirs.info.items():
                np.testing.assert_allclose(mine.info[name], array, err_msg=name, **close)
            ended = theirs.terminated | theirs.truncated
        for name in ("elapsed", "episode", "running_return", "ended"):
            np.testing.assert_allclose(mine.arrays[name], theirs.arrays[name], err_msg=name, **close)


@pytest.mark.parametrize("mode", MODES)
def test_integers_metrics_per_env_params_and_bad_states(mode: str) -> None:
    """The spec that uses what no built-in environment does; action 1 makes the state NaN, 2 the reward infinite."""
    goals = np.array([4, 2, 3])
    rng = np.random.default_rng(1)
    options: dict[str, Any] = {"autoreset": mode, "goal": goals}
    with PlainBatch(SPEC, 3, **options) as mine, gpuenvs.make(SPEC, 3, device="cpu", **options) as theirs:
        mine.reset(seed=0)
        theirs.reset(seed=0)
        for _ in range(12):
            actions = rng.integers(0, 3, 3)
            mine.step(actions)
            theirs.step(actions)
            for name in ("state_real", "state_int", "reward", "terminated", "nonfinite", "metrics", "obs"):
                np.testing.assert_allclose(mine.arrays[name], theirs.arrays[name], 1e-6, 1e-7, err_msg=name)
        assert mine.nonfinite_states == theirs.nonfinite_states > 0
        assert mine.nonfinite_rewards == theirs.nonfinite_rewards > 0
        mine.set_state([np.array([0.5, 0.6, 0.7]), 1, 0.0])
        np.testing.assert_allclose(mine.obs, [[0.5, 1], [0.6, 1], [0.7, 1]], rtol=1e-6)


@pytest.mark.parametrize("resample", ["env", "episode"])
def test_drawn_params(resample: str) -> None:
    options: dict[str, Any] = {"m": gpuenvs.Range(0.5, 2.0, resample=resample), "max_episode_steps": 2}
    with PlainBatch(gpuenvs.get("Pendulum-v1"), 4, **options) as mine:
        with gpuenvs.make("Pendulum-v1", 4, device="cpu", **options) as theirs:
            mine.reset(seed=3)
            theirs.reset(seed=3)
            for _ in range(5):
                mine.step(np.ones((4, 1), np.float32))
                theirs.step(np.ones((4, 1), np.float32))
                np.testing.assert_allclose(mine.arrays["param_real_env"], theirs.arrays["param_real_env"], rtol=1e-6)
                np.testing.assert_allclose(mine.obs, theirs.obs, rtol=1e-4, atol=1e-5)
        assert len(np.unique(mine.arrays["param_real_env"])) == 4


def test_the_users_own_lines_run() -> None:
    """What a debugger needs: a trace function sees the lines of step() and of a helper, in their own file."""
    seen: set[tuple[str, str]] = set()

    def watch(frame: Any, event: str, argument: Any) -> Any:
        seen.add((frame.f_code.co_filename, frame.f_code.co_name))
        return None

    with PlainBatch(cartpole.SPEC, 1) as env:
        env.reset(seed=0)
        old = sys.gettrace()
        sys.settrace(watch)
        try:
            env.step(np.zeros(1, np.int64))
        finally:
            sys.settrace(old)
    assert (cartpole.__file__, "step") in seen
    assert (sincos.__code__.co_filename, "_sincos32") in seen
