"""Mistakes in traced functions are named with their line, too."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
from gymnasium.spaces import Box

import gpuenvs
from gpuenvs import EnvSpec
from gpuenvs.errors import SpecError
from gpuenvs.trace import random
from tests.gpuenvs.contract.planted import marked


class State(NamedTuple):
    x: float


class Params(NamedTuple):
    gain: float = 1.0


def reset(rng, params):
    return State(random.uniform(rng, 0, -1.0, 1.0))


def step(state, action, params):
    return State(state.x * 0.9 + action[0] * params.gain), -abs(state.x), state.x > 2.0


def observe(state, params):
    return (state.x,)


def sign(x):
    return 1.0 if x > 0 else -1.0  # PLANTED


def decides(state, action, params):
    return State(sign(state.x)), state.x, state.x > 2.0


def pythons_sine(state, action, params):
    return State(math.sin(state.x)), state.x, state.x > 2.0  # PLANTED


def no_such_field(state, action, params):
    return State(state.y), state.x, state.x > 2.0  # PLANTED


def two_values(state, action, params):  # PLANTED
    return state, state.x


def make_spec(**changes: Any) -> EnvSpec:
    parts = {
        "id": "Traced-v0", "state": State, "params": Params(), "reset": reset, "step": step, "observe": observe,
        "observation_space": Box(-5, 5, (1,)), "action_space": Box(-1, 1, (1,)), "max_episode_steps": 9, "traced": True,
    }  # fmt: skip
    return EnvSpec(**{**parts, **changes})


@pytest.mark.parametrize(
    ("function", "place", "words"),
    [
        (decides, ("sign", sign), "use T.where"),
        (pythons_sine, ("step", pythons_sine), "use gpuenvs.trace functions"),
        (no_such_field, ("step", no_such_field), "no attribute 'y'"),
        (two_values, ("step", two_values), "expected step(state, action, params) -> (State, reward, terminated)"),
    ],
)
def test_the_line_is_named(function: Any, place: tuple[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as caught, gpuenvs.make(make_spec(step=function), 2, device="cpu") as env:
        env.reset(seed=0)
        env.step([[0.0], [0.0]])
    message, (name, at) = str(caught.value), place
    assert message.startswith(f"Traced-v0: {name} (")
    assert f"test_traced.py, line {marked(at)})" in message
    assert words in message
    assert "\n" not in message
