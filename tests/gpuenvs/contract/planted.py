"""An environment that is right, and functions with one mistake each; the line of the mistake ends in `# PLANTED`."""

from __future__ import annotations

import dataclasses
import inspect
import random
import time
from typing import Any, NamedTuple

import numba
import numpy as np
from gymnasium.spaces import Box

from gpuenvs import EnvSpec, clip, f32, i32, njit, sin, uniform

LIST = [1.0, 2.0]
TABLE = np.linspace(0.0, 1.0, 5).astype(np.float32)
COUNT = 0


class State(NamedTuple):
    x: float
    n: int


class Params(NamedTuple):
    bound: float = 1.0


@njit
def reset(rng, params):
    return State(uniform(rng, 0, -params.bound, params.bound), i32(0))


@njit
def step(state, action, params):
    x = clip(state.x + action[0], -params.bound, params.bound)
    return State(x, i32(state.n + i32(1))), -abs(x), state.n > i32(5)


@njit
def observe(state, params):
    return state.x, f32(state.n)


SPEC = EnvSpec(
    id="Planted-v0",
    state=State,
    params=Params(),
    reset=reset,
    step=step,
    observe=observe,
    observation_space=Box(-np.inf, np.inf, (2,), np.float32),
    action_space=Box(-1.0, 1.0, (2,), np.float32),
    max_episode_steps=20,
)


def variant(**changes: Any) -> EnvSpec:
    return dataclasses.replace(SPEC, **changes)


def marked(function: Any) -> int:
    """Line number of the mark in a function, which must be there once."""
    lines, first = inspect.getsourcelines(getattr(function, "py_func", function))
    (offset,) = [k for k, line in enumerate(lines) if "# PLANTED" in line]
    return first + offset


# --- Python-only code ------------------------------------------------------------------------------------------------


@njit
def holds_dict(state, action, params):
    kept = {}  # PLANTED
    kept[0] = state.x
    return State(kept[0], state.n), state.x, False


@njit
def holds_list(state, action, params):
    both = [state.x, action[0]]  # PLANTED
    return State(both[0], state.n), state.x, False


@njit
def comprehension(state, action, params):
    total = sum([state.x * k for k in range(3)])  # PLANTED
    return State(total, state.n), state.x, False


@njit
def prints(state, action, params):
    print(state)  # PLANTED
    return state, state.x, False


@njit
def formats(state, action, params):
    label = f"{state.x}"  # PLANTED
    return state, f32(len(label)), False


@njit
def tries(state, action, params):
    try:
        x = state.x / action[0]  # PLANTED
    except Exception:
        x = state.x
    return State(x, state.n), state.x, False


@njit
def asserts(state, action, params):
    assert state.x < params.bound  # PLANTED
    return state, state.x, False


@njit
def numpy_random(state, action, params):
    x = state.x + f32(np.random.rand())  # PLANTED
    return State(x, state.n), state.x, False


@njit
def python_random(state, action, params):
    x = state.x + f32(random.random())  # PLANTED
    return State(x, state.n), state.x, False


@njit
def clock(state, action, params):
    x = f32(time.time())  # PLANTED
    return State(x, state.n), state.x, False


@njit
def global_list(state, action, params):
    return State(state.x * f32(LIST[0]), state.n), state.x, False  # PLANTED


@njit
def global_write(state, action, params):
    global COUNT
    COUNT = 1  # PLANTED
    return state, state.x, False


@njit
def assigns(state, action, params):
    state.x = action[0]  # PLANTED
    return state, state.x, False


@njit
def writes_outside(state, action, params):
    TABLE[state.n] = state.x  # PLANTED
    return state, state.x, False


@njit
def array_copy(state, action, params):
    copy = TABLE * f32(2.0) + np.ones(5, np.float32)  # PLANTED
    return State(copy[state.n], state.n), state.x, False


# --- names and calls --------------------------------------------------------------------------------------------------


def not_compiled(x):
    return x * x


@njit
def calls_plain_python(state, action, params):
    return State(not_compiled(state.x), state.n), state.x, False  # PLANTED


@njit
def undefined_name(state, action, params):
    return State(no_such_function(state.x), state.n), state.x, False  # noqa: F821  # PLANTED


@njit
def no_such_field(state, action, params):
    return State(state.y, state.n), state.x, False  # PLANTED


@njit
def state_too_short(state, action, params):
    return State(state.x), state.x, False  # PLANTED


@njit
def sine_of_an_integer(state, action, params):
    return State(sin(state.n), state.n), state.x, False  # PLANTED


@njit
def constant_index(state, action, params):
    return State(action[2], state.n), state.x, False  # PLANTED


@njit
def adds_a_tuple(state, action, params):
    return State(state.x + action, state.n), state.x, False  # PLANTED


# --- what is returned ---------------------------------------------------------------------------------------------------


@njit
def two_values(state, action, params):
    return state, state.x  # PLANTED


@njit
def plain_tuple(state, action, params):
    return (state.x, state.n), state.x, False  # PLANTED


@njit
def nothing(state, action, params):
    pass  # PLANTED


@njit
def float64_reward(state, action, params):
    reward = 1.0 - state.x  # PLANTED
    return state, reward, False


@njit
def float64_by_name(state, action, params):
    return state, state.x * np.float64(1.5), False  # PLANTED


@njit
def float64_state(state, action, params):
    return State(state.x * 0.99, state.n), state.x, False  # PLANTED


@njit
def fraction_for_an_integer(state, action, params):
    return State(state.x, state.x), state.x, False  # PLANTED


@njit
def reward_for_terminated(state, action, params):
    return state, state.x, state.x  # PLANTED


@njit
def two_kinds(state, action, params):
    if state.x > params.bound:
        return state, state.x, False
    return state.x, state.x, False  # PLANTED


@njit
def short_observation(state, params):
    return (state.x,)  # PLANTED


@njit
def bare_observation(state, params):
    return state.x  # PLANTED


@njit
def reset_to_numbers(rng, params):
    return uniform(rng, 0, -params.bound, params.bound), i32(0)  # PLANTED


# --- in a helper, and by index ------------------------------------------------------------------------------------------


@njit
def half(x):
    return x * 0.5  # PLANTED


@njit
def leaks_in_a_helper(state, action, params):
    return State(half(state.x), state.n), state.x, False


@njit
def indexes(state, action, params):
    pair = (state.x, -state.x)
    x = pair[state.n]  # PLANTED
    return State(state.x + f32(1.0), state.n), x, False


@numba.njit
def numbas_own(state, action, params):
    return state, state.x, False


STEPS = [
    (holds_dict, "a dict is Python-only"),
    (holds_list, "a list is Python-only"),
    (comprehension, "a list is Python-only"),
    (prints, "print cannot be compiled"),
    (formats, "text is Python-only"),
    (tries, "try is Python-only"),
    (asserts, "return terminated=True instead"),
    (numpy_random, "random numbers come from gpuenvs.rng"),
    (python_random, "random numbers come from gpuenvs.rng"),
    (clock, "count time in a State field"),
    (global_list, "LIST is a list outside of the function"),
    (global_write, "writes a global variable"),
    (assigns, "a tuple, which cannot be changed"),
    (writes_outside, "writes to an element"),
    (array_copy, "makes an array"),
    (calls_plain_python, "decorate it with gpuenvs.scalar.njit"),
    (undefined_name, "no_such_function is not defined"),
    (no_such_field, "State has no field 'y'"),
    (state_too_short, "State has 2 fields (x, n), here it is given 1"),
    (sine_of_an_integer, "cannot be called with (int32)"),
    (constant_index, "an index lies outside of its tuple"),
    (adds_a_tuple, "`+` does not work on"),
    (two_values, "returns 2 values; expected step(state, action, params) -> (State, reward, terminated)"),
    (plain_tuple, "instead of a State as its first value"),
    (nothing, "returns nothing"),
    (float64_reward, "returns a float64 as reward"),
    (float64_by_name, "returns a float64 as reward"),
    (float64_state, "returns a float64 as State.x"),
    (fraction_for_an_integer, "State.n, which is declared int"),
    (reward_for_terminated, "float32 as terminated, not a bool"),
    (two_kinds, "its return statements give different types"),
]
OTHERS = [
    ({"observe": short_observation}, "returns 1 value where observation_space has 2"),
    ({"observe": bare_observation}, "returns one value (float32)"),
    ({"reset": reset_to_numbers}, "returns 2 values instead of a State; expected reset(rng, params) -> State"),
]
