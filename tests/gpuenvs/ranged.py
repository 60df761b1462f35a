"""An environment whose params are drawn, compiled by numba and traced, and what it does on any backend.

As a program (`python -m tests.gpuenvs.ranged DEVICE KIND FILE`) it saves a recording, for backends that need a process of
their own.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box

import gpuenvs
from gpuenvs import EnvSpec, Range, f32, i32, njit

ROWS, STEPS = 7, 40


class State(NamedTuple):
    x: float
    age: int


class Params(NamedTuple):
    gain: float = 1.0  # per env
    rate: float = 0.1  # the same everywhere
    offset: float = 0.0  # per episode
    life: int = 5  # per episode: steps until it ends


RANGES = {
    "gain": Range(0.5, 1.5),
    "offset": Range(-2.0, 2.0, resample="episode"),
    "life": Range(2, 6, resample="episode"),
}


@njit
def reset(rng, params):
    return State(params.offset, i32(0))


@njit
def step(state, action, params):
    x = state.x + params.gain * params.rate + action[0] * f32(0.0)
    age = i32(state.age + i32(1))
    return State(x, age), x, age >= params.life, (params.gain, x)


@njit
def observe(state, params):
    return state.x, params.gain, params.offset


def traced_reset(rng, params):
    return State(params.offset, 0)


def traced_step(state, action, params):
    x = state.x + params.gain * params.rate + action[0] * 0.0
    age = state.age + 1
    return State(x, age), x, age >= params.life, (params.gain, x)


def traced_observe(state, params):
    return state.x, params.gain, params.offset


def _spec(id: str, functions: Any, **more: Any) -> EnvSpec:
    space = Box(-np.inf, np.inf, (3,), np.float32)
    return EnvSpec(
        id, State, Params(), *functions, space, Box(-1, 1, (1,)), metrics=("gain", "x"), ranges=RANGES, **more
    )


SPECS = {
    "compiled": _spec("Ranged-v0", (reset, step, observe)),
    "traced": _spec("RangedTraced-v0", (traced_reset, traced_step, traced_observe), traced=True),
}


def record(device: str, kind: str, dtype: str = "float32", autoreset: str = "same_step") -> dict[str, np.ndarray]:
    """What a batch does: observations, params as they are, and sums of metrics; its ranges change in the middle."""
    out: dict[str, list[Any]] = {name: [] for name in ("obs", "gain", "offset", "life", "done", "metrics")}
    options = {
        "device": device,
        "seed": 5,
        "env_offset": 3,
        "dtype": dtype,
        "autoreset": autoreset,
        "metric_totals": True,
    }
    with gpuenvs.make(SPECS[kind], ROWS, **options) as env:
        env.reset()
        for t in range(STEPS):
            if t == STEPS // 2:
                env.set_params(rate=0.2, offset=Range(5.0, 6.0, resample="episode"))
            params = env.get_params()
            for name in ("gain", "offset", "life"):
                out[name].append(getattr(params, name))
            out["obs"].append(np.array(env.obs))
            env.step(np.zeros((ROWS, 1), dtype))
            out["done"].append(np.array(env.terminated))
            if t % 10 == 9:
                out["metrics"].append(list(env.take_metrics().values()))
    return {name: np.array(values) for name, values in out.items()}


if __name__ == "__main__":
    np.savez(sys.argv[3], **record(sys.argv[1], sys.argv[2]))
