"""Files that a user might write, for tests that load, edit and break them."""

from __future__ import annotations

from pathlib import Path

ENV = '''
"""Drift: x moves by GAIN * push."""

from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box

import constants
from gpuenvs import EnvSpec, f32, njit, uniform
from helper import push


class State(NamedTuple):
    x: float


class Params(NamedTuple):
    rate: float = 1.0


def make_bias(value):
    @njit
    def bias(x):
        return x + f32(value)

    return bias


biased = make_bias(0.0)


@njit
def reset(rng, params):
    return State(uniform(rng, 0, f32(0.0), f32(0.0)))


@njit
def step(state, action, params):
    x = biased(state.x + params.rate * f32(constants.GAIN) * push(action[0]))
    return State(x), x, x > f32(1e6)


@njit
def observe(state, params):
    return (state.x,)


SPEC = EnvSpec(
    id="Drift-v0",
    state=State,
    params=Params(),
    reset=reset,
    step=step,
    observe=observe,
    observation_space=Box(-np.inf, np.inf, (1,)),
    action_space=Box(-1.0, 1.0, (1,)),
    max_episode_steps=50,
    doc=__doc__,
)


def build():
    return SPEC
'''

TRACED = """
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box

import constants
from gpuenvs import EnvSpec
from helper import push


class State(NamedTuple):
    x: float


class Params(NamedTuple):
    rate: float = 1.0


def reset(rng, params):
    return State(0.0)


def step(state, action, params):
    x = state.x + params.rate * constants.GAIN * push(action[0])
    return State(x), x, x > 1e6


def observe(state, params):
    return (state.x,)


SPEC = EnvSpec(
    "DriftTraced-v0", State, Params(), reset, step, observe, Box(-np.inf, np.inf, (1,)), Box(-1.0, 1.0, (1,)),
    traced=True, max_episode_steps=50,
)
"""


def write(folder: Path, gain: float = 2.0, factor: float = 1.0, env: str = ENV) -> Path:
    """drift.py with constants.py and helper.py beside it: one step with action 1 moves x by gain * factor."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "constants.py").write_text(f"GAIN = {gain!r}\n")
    plain = f"def push(x):\n    return x * {factor!r}\n"
    compiled = f"from gpuenvs import f32, njit\n\n\n@njit\ndef push(x):\n    return x * f32({factor!r})\n"
    (folder / "helper.py").write_text(plain if "traced=True" in env else compiled)
    file = folder / "drift.py"
    file.write_text(env)
    return file
