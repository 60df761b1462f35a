"""States and actions for tests of every environment: what episodes visit, and what an environment's own table adds."""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuenvs
from gpuenvs.spec import EnvSpec
from tests.gpuenvs.classic import states as classic

EXTREMES = {**classic.EXTREMES}
THRESHOLDS = {**classic.THRESHOLDS}
WRAPPED = {**classic.WRAPPED}


def random_actions(spec: EnvSpec, rng: np.random.Generator, n: int) -> np.ndarray:
    """(n,) int32, or (n, k) float64: inside the bounds, exactly at them, and up to three times beyond."""
    if spec.discrete:
        return rng.integers(0, spec.action_space.n, n).astype(np.int32)
    high = np.minimum(np.asarray(spec.action_space.high, np.float64), 1e3)
    action = rng.uniform(-1.0, 1.0, (n, len(high))) * high
    action[: n // 5] *= 3.0
    action[n // 5 : n // 4] = rng.choice([-1.0, 1.0], (n // 4 - n // 5, 1)) * high
    return rng.permutation(action)


def pumping_actions(spec: EnvSpec, obs: np.ndarray) -> np.ndarray:
    """Full power in the direction of the last observation: swings up what can swing, unlike random actions."""
    forward = np.asarray(obs)[:, -1] >= 0
    if spec.discrete:
        return np.where(forward, spec.action_space.n - 1, 0).astype(np.int32)
    high = np.minimum(np.asarray(spec.action_space.high, np.float64), 1e3)
    return np.where(forward, 1.0, -1.0)[:, None] * high


def mixed_actions(spec: EnvSpec, rng: np.random.Generator, obs: np.ndarray) -> np.ndarray:
    """Random actions in the even rows, pumping ones in the odd rows."""
    actions = random_actions(spec, rng, len(obs))
    actions[1::2] = pumping_actions(spec, obs)[1::2]
    return actions if spec.discrete else actions.astype(np.asarray(obs).dtype)


def visited_states(spec: EnvSpec, rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, fields): states that 64 rows of episodes pass through."""
    with gpuenvs.make(spec, 64, device="cpu", dtype="float64") as env:
        obs, _ = env.reset(seed=int(rng.integers(1 << 30)))
        found: list[Any] = []
        while len(found) * 64 < n:
            found.append(np.array(env.get_state()).T)
            obs, *_ = env.step(mixed_actions(spec, rng, obs))
    return np.concatenate(found)[:n]


def sample_states(spec: EnvSpec, rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, fields): a quarter visited, the others extreme where the environment has a table of extremes."""
    extreme = EXTREMES.get(spec.id)
    if extreme is None:
        return visited_states(spec, rng, n)
    return np.concatenate([visited_states(spec, rng, n // 4), extreme(rng, n - n // 4)])
