"""Everything that a later step of a batch reads, taken to the host and put back."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuenvs.errors import ConfigError

_COUNTERS = ("elapsed", "episode", "running_return", "ended")
_PER_ENV = ("param_real_env", "param_int_env", "metric_totals")
_OUTPUTS = (
    "obs",
    "reward",
    "terminated",
    "truncated",
    "nonfinite",
    "final_obs",
    "episode_return",
    "episode_length",
)
ARRAYS = ("state_real", "state_int", *_COUNTERS, *_PER_ENV, *_OUTPUTS)
_NO_ARRAYS = ("totals", "params")


def require_fit(env: Any, snapshot: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a snapshot. Raises `ConfigError` if it is of another environment, batch size or dtype than `env`'s."""
    arrays = {name: value for name, value in snapshot.items() if name not in _NO_ARRAYS}
    for name, value in arrays.items():
        target = env.arrays.get(name)
        if target is None or target.shape != value.shape or target.dtype != value.dtype:
            raise ConfigError(
                f"{env.spec.id}: the snapshot's {name} does not fit this batch of {env.num_envs} ({env.dtype})"
            )
    return arrays


def pack_totals(seed: int, env_offset: int, states: int, rewards: int, started: bool) -> np.ndarray:
    """The numbers of a batch beside its arrays."""
    return np.array([seed & 0xFFFFFFFF, seed >> 32, env_offset, states, rewards, int(started)], np.int64)


def unpack_totals(totals: np.ndarray) -> tuple[int, int, int, int, bool]:
    """(seed, env_offset, bad states, bad rewards, started)."""
    low, high, offset, states, rewards, started = (int(v) for v in totals)
    return low | high << 32, offset, states, rewards, bool(started)
