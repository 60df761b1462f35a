"""Gymnasium's own environments as the judge: stepping them from injected states, at float64 throughout."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np

import gpuenvs
from gpuenvs.spec import EnvSpec
from tests.gpuenvs.classic import CLASSIC

IDS = [env_id for env_id in CLASSIC if gpuenvs.get(env_id).reference is not None]


def reference_env(spec: EnvSpec) -> Any:
    """Gymnasium's environment of `spec`, without the wrappers, reset once."""
    assert spec.reference is not None
    env = gymnasium.make(spec.reference.id, disable_env_checker=True).unwrapped
    env.reset(seed=0)
    return env


class _DoubleNumpy(ModuleType):
    """numpy whose float32 is float64."""

    float32 = np.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@contextlib.contextmanager
def float64_throughout(env: Any) -> Iterator[None]:
    """Make `env`'s module keep float64 where it would round to float32.

    Gymnasium's classic control computes in float64 and rounds what it hands out (MountainCarContinuous its state too).
    A comparison at 1e-12 needs the numbers before that rounding; the arithmetic is untouched.
    """
    module = sys.modules[type(env).__module__]
    plain = module.np
    module.np = _DoubleNumpy("numpy")
    try:
        yield
    finally:
        module.np = plain


@dataclass
class Steps:
    """Results of one step of n rows: `state` (n, fields), `obs` (n, obs_dim), `reward` (n,), `terminated` (n,) bool."""

    state: np.ndarray
    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray


def reference_action(spec: EnvSpec, action: Any) -> Any:
    """One row of an action array as Gymnasium takes it."""
    return int(action) if spec.discrete else np.array(action, np.float64)


def reference_steps(spec: EnvSpec, env: Any, state: np.ndarray, action: np.ndarray) -> Steps:
    """One step of Gymnasium's `env` from each row of `state` (n, fields) with each row of `action`."""
    assert spec.reference is not None
    rows = []
    for k in range(len(state)):
        spec.reference.to_reference(env, spec.state(*state[k].tolist()))
        obs, reward, terminated, truncated, _ = env.step(reference_action(spec, action[k]))
        assert not truncated
        rows.append((spec.reference.from_reference(env), obs, reward, terminated))
    states, obs, rewards, flags = zip(*rows)
    return Steps(*(np.array(part, np.float64) for part in (states, obs, rewards)), terminated=np.array(flags))


def batch_steps(spec: EnvSpec, state: np.ndarray, action: np.ndarray, dtype: str, **params: Any) -> Steps:
    """The same step through the batch runtime."""
    options = {"device": "cpu", "dtype": dtype, "autoreset": "disabled", **params}
    with gpuenvs.make(spec, len(state), **options) as env:
        env.reset(seed=0)
        env.set_state(spec.state(*state.T))
        rows = action if spec.discrete else action.astype(dtype)
        obs, reward, terminated, truncated, _ = env.step(rows)
        assert not truncated.any()
        return Steps(np.array(env.get_state()).T, np.array(obs), np.array(reward), np.array(terminated))


def undecided(spec: EnvSpec, env: Any, state: np.ndarray, action: Any, step: float, scale: np.ndarray) -> bool:
    """Whether Gymnasium's own `terminated` flips when the state moves by `step` times `scale` (fields,).

    Rounding moves a state as well, so a flag that flips here is not a property of the rounded state.
    """
    rng = np.random.default_rng(0)
    moves = np.concatenate([rng.choice([-1.0, 1.0], (48, state.size)), np.zeros((1, state.size))])
    near = state + step * scale * moves
    return len(set(reference_steps(spec, env, near, np.array([action] * len(near))).terminated.tolist())) == 2
