"""Environments that compile and yet have something wrong, one thing each; the line of it ends in `# PLANTED`."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numba
import numpy as np
from gymnasium.spaces import Box

from gpuenvs import EnvSpec, clip, f32, i32, njit, uniform

TABLE = np.linspace(0.0, 1.0, 5).astype(np.float32)


class State(NamedTuple):
    x: float
    v: float
    n: int


class Params(NamedTuple):
    dt: float = 0.1
    bound: float = 1.0


@njit
def reset(rng, params):
    return State(uniform(rng, 0, -params.bound, params.bound), uniform(rng, 1, -params.bound, params.bound), i32(0))


@njit
def step(state, action, params):
    v = clip(state.v + params.dt * clip(action[0], f32(-1.0), f32(1.0)), -params.bound, params.bound)
    x = clip(state.x + params.dt * v, f32(-2.0), f32(2.0))
    return State(x, v, i32(state.n + i32(1))), -abs(x), abs(x) > f32(1.5)


@njit
def observe(state, params):
    return state.x, state.v


GOOD = EnvSpec(
    id="Good-v0",
    state=State,
    params=Params(),
    reset=reset,
    step=step,
    observe=observe,
    observation_space=Box(-2.0, 2.0, (2,), np.float32),
    action_space=Box(-1.0, 1.0, (1,), np.float32),
    max_episode_steps=100,
)


def variant(**changes: Any) -> EnvSpec:
    return dataclasses.replace(GOOD, **changes)


@njit
def observes_outside(state, params):
    return f32(3.0) * state.x, state.v


@njit
def divides_by_zero(state, action, params):
    v = state.v + params.dt * action[0]
    x = state.x / (v - v) if v > f32(1.4) else state.x  # PLANTED
    return State(x, v, state.n), v, abs(x) > f32(1.5)


@njit
def grows_without_a_clip(state, action, params):
    v = action[0] * action[0] * action[0] * action[0] * action[0] * action[0] * action[0]  # PLANTED
    return State(state.x, v, state.n), f32(1.0), abs(state.x) > params.bound


@njit
def infinite_reward(state, action, params):
    return state, f32(1.0) / (state.x - state.x), state.x > params.bound


@njit
def reset_alike(rng, params):
    return State(params.bound * f32(0.0), params.dt * f32(0.0), i32(0))


@njit
def reset_to_infinity(rng, params):
    return State(params.bound / (params.dt - params.dt), params.dt, i32(0))


@njit
def reset_with_one_number(rng, params):
    return State(uniform(rng, 0, -params.bound, params.bound), uniform(rng, 0, f32(0.0), params.bound), i32(0))


@njit
def never_ends(state, action, params):
    return State(state.x, state.v, i32(state.n + i32(1))), state.x, False


@njit
def ends_at_once(state, action, params):
    return state, state.x, True


@njit
def indexes_a_tuple(state, action, params):
    three = (state.x, state.v, params.dt)
    x = three[state.n]  # PLANTED
    return State(clip(x, f32(-2.0), f32(2.0)), state.v, i32(state.n + i32(1))), x, False


@njit
def indexes_an_array(state, action, params):
    x = TABLE[min(state.n, i32(9))]  # PLANTED
    return State(state.x, state.v, i32(state.n + i32(1))), f32(0.0) * x, False


@njit
def leaves_a_variable_unset(state, action, params):
    if state.x > f32(0.0):
        y = state.x
    return State(y, state.v, state.n), state.v, False  # PLANTED


@njit
def leaks(state, action, params):
    x = f32(state.x * 0.999)  # PLANTED
    return State(x, state.v, state.n), state.v, False


@njit
def widens(state, action, params):
    n = state.n + i32(1)
    return State(state.x, state.v, n * i32(1)), state.v, False  # PLANTED


@njit(fastmath=True)
def fast(state, action, params):
    return state, state.v, False


@numba.njit
def numbas_own(state, action, params):
    return state, state.v, False


@njit
def tells_backends_apart(state, action, params):
    """2**31 wraps around in machine code only."""
    n = 2147483647 if state.x < f32(5.0) else 0
    big = i32(n) + i32(1)
    return State(state.x, state.v, state.n), f32(big) * f32(1e-9), False


@njit
def numpys_root(state, action, params):
    return state, np.sqrt(abs(state.x)), abs(state.x) > f32(1.0)  # PLANTED
