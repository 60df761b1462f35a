"""A spec that uses what no built-in environment does: integer state, integer params, metrics, no time limit, bad rewards."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import gpuenvs
from gpuenvs.rng import uniform
from gpuenvs.scalar import f32, i32, lit, njit
from gpuenvs.spec import EnvSpec

MODES = ("same_step", "next_step", "disabled")
WALK, EXPLODE, BAD_REWARD = 0, 1, 2


class State(NamedTuple):
    position: float
    count: int
    start: float


class Params(NamedTuple):
    stride: float = 0.1
    goal: int = 4


@njit
def reset(rng, params):
    position = uniform(rng, 0, lit(-0.05, params.stride), lit(0.05, params.stride))
    return State(position, i32(0), position)


@njit
def step(state, action, params):
    """Walks `stride` a step and ends after `goal` steps."""
    position = state.position + params.stride
    zero = position - position
    position = position / zero if action == 1 else position
    count = i32(state.count + i32(1))
    reward = f32(1.0) / zero if action == 2 else position - state.position
    return State(position, count, state.start), reward, count >= params.goal, (position - state.start, f32(count))


@njit
def observe(state, params):
    return state.position, f32(state.count)


SPEC = EnvSpec(
    id="Walk-v0",
    state=State,
    params=Params(),
    reset=reset,
    step=step,
    observe=observe,
    observation_space=Box(-np.inf, np.inf, (2,)),
    action_space=Discrete(3),
    metrics=("distance", "steps"),
)


def make(n: int, **options: Any) -> gpuenvs.BatchEnv:
    return gpuenvs.make(SPEC, n, device="cpu", **options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", MODES)
def test_integers_and_metrics(mode: str, dtype: str) -> None:
    """Metrics of an ended row are those of its last step, not of its reset."""
    goals = np.array([4, 2, 3])
    with make(3, autoreset=mode, dtype=dtype, goal=goals) as env:
        env.reset(seed=0)
        assert env.get_state().count.dtype == np.int32
        assert env.info["distance"].shape == (3,)
        assert env.info["distance"].dtype == dtype
        going = np.ones(3, bool)
        for k in range(1, 5):
            env.step(np.full(3, WALK))
            np.testing.assert_allclose(env.info["distance"][going], 0.1 * k, rtol=1e-5)
            np.testing.assert_array_equal(env.info["steps"][going], k)
            np.testing.assert_array_equal(env.terminated[going], (goals == k)[going])
            assert not env.truncated.any()  # there is no limit
            ended = going & env.terminated
            np.testing.assert_array_equal(env.info["final_obs"][ended, 1], k)
            np.testing.assert_allclose(env.info["episode_return"][ended], 0.1 * k, rtol=1e-5)
            going &= ~env.terminated
        if mode == "same_step":
            np.testing.assert_array_equal(env.get_state().count, [0, 0, 1])
        assert not going.any()


@pytest.mark.parametrize("mode", MODES)
def test_a_step_that_explodes_keeps_the_last_finite_state(mode: str) -> None:
    with make(4, autoreset=mode) as env:
        env.reset(seed=0)
        env.step(np.full(4, WALK))
        before, ended = env.obs.copy(), np.arange(4) == 2
        env.step(np.where(ended, EXPLODE, WALK))
        np.testing.assert_array_equal(env.info["nonfinite"], ended)
        np.testing.assert_array_equal(env.terminated, ended)
        np.testing.assert_array_equal(env.info["final_obs"][2], before[2])
        assert env.reward[2] == 0
        assert env.info["episode_return"][2] == pytest.approx(0.1)
        assert np.isfinite(env.obs).all()
        assert (env.nonfinite_states, env.nonfinite_rewards) == (1, 0)


def test_a_bad_reward_is_counted_and_leaves_the_next_episode_alone() -> None:
    with make(2) as env:
        env.reset(seed=0)
        env.step(np.array([BAD_REWARD, WALK]))
        assert not np.isfinite(env.reward[0])
        assert (env.nonfinite_states, env.nonfinite_rewards) == (0, 1)
        assert not env.terminated.any()
        for _ in range(7):
            env.step(np.full(2, WALK))
        assert env.terminated.all()
        np.testing.assert_allclose(env.info["episode_return"], 0.4, rtol=1e-5)


def test_snapshot_holds_integers() -> None:
    with make(5) as env:
        env.reset(seed=0)
        env.step(np.full(5, WALK))
        saved = env.snapshot()
        env.step(np.full(5, WALK))
        env.restore(saved)
        np.testing.assert_array_equal(env.get_state().count, 1)


def test_metrics_of_a_row_that_is_only_reset_are_zero() -> None:
    with make(2, autoreset="next_step", goal=np.array([1, 9])) as env:
        env.reset(seed=0)
        acts = np.zeros(2, np.int64)
        env.step(acts)
        assert env.terminated.tolist() == [True, False]
        env.step(acts)
        assert env.info["steps"].tolist() == [0.0, 2.0]
        assert env.info["distance"][0] == 0.0
        env.step(acts)
        assert env.info["steps"].tolist() == [1.0, 3.0]
