"""A rollout while it is being filled: its arrays, its noise, and how many environments have not finished it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from learners.rollout import Rollout

# Weights in the form in which an `Inference` acts with them, and their version.
Weights = tuple[Any, int]

# What an environment reports of every step, and what only of one that ended an episode.
_ALWAYS = ("reward", "terminated", "truncated")
_AT_THE_END = ("final_obs", "episode_return", "episode_length")


class Horizon:
    """Numpy views of a rollout on the CPU, and what the actors need to fill it.

    Args:
        rollout: where rows go.
        noise: (T, n, k) of its steps; kept, not copied.
        weights: asked before every inference; the same each time unless rows are to have the newest weights.

    Attributes:
        obs: (T + 1, n, ...) and the other fields by their names.
        flat_obs: obs as (T + 1, d, n) where observations are vectors, as they lie in memory.
        missing: environments that have not finished it.
    """

    def __init__(self, rollout: Rollout, noise: Tensor, weights: Callable[[], Weights]) -> None:
        self.rollout, self.weights = rollout, weights
        self.num_steps, self.missing = rollout.num_steps, rollout.num_envs
        self.noise: np.ndarray = noise.numpy()
        self.obs: np.ndarray = rollout.obs.numpy()
        self.flat_obs = self.obs.transpose(0, 2, 1) if self.obs.ndim == 3 else self.obs
        self.action: np.ndarray = rollout.action.numpy()
        self.log_prob: np.ndarray = rollout.log_prob.numpy()
        self.version: np.ndarray = rollout.version.numpy()
        self._fields = {name: getattr(rollout, name).numpy() for name in (*_ALWAYS, *_AT_THE_END)}

    def store(self, pool: Any, rows: np.ndarray, times: np.ndarray) -> None:
        """What the step `times` (m,) of the environments `rows` (m,) returned."""
        fields = self._fields
        for name in _ALWAYS:
            fields[name][times, rows] = getattr(pool, name)[rows]
        ended = pool.terminated[rows] | pool.truncated[rows]
        if ended.any():
            rows, times = rows[ended], times[ended]
            for name in _AT_THE_END:
                fields[name][times, rows] = getattr(pool, name)[rows]
