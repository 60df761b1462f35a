"""What all schedules hand to the training loop, and check first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from gpuenvs.errors import ConfigError
from learners.rollout import Rollout


@dataclass(frozen=True)
class IterationResult:
    """What one iteration of a schedule did.

    `lags` counts the rows that were learned from by their policy lag: updates between the weights that chose the action and
    the weights that learned from it.
    """

    env_steps: int
    metrics: dict[str, Tensor | float]
    episode_returns: np.ndarray  # (episodes,) float32, of the episodes that ended
    episode_lengths: np.ndarray  # (episodes,) int32
    lags: dict[int, int] = field(default_factory=dict)


def episodes(rollout: Rollout) -> tuple[np.ndarray, np.ndarray]:
    """Returns and lengths of the episodes that ended in a horizon, on the host."""
    returns, lengths = (values.cpu().numpy() for values in rollout.finished_episodes())
    return returns, lengths


def require_rows(env: Any, algo: Any) -> None:
    """Raises ConfigError unless the environment has the rows that the algorithm learns from."""
    if env.num_envs != algo.num_envs:
        raise ConfigError(f"num_envs={algo.num_envs}: the environment has {env.num_envs} rows")


def env_metrics(env: Any, rollout: Any) -> dict[str, float]:
    """The environments' own metrics, means over the steps of a horizon, as columns of the training's metrics."""
    totals = rollout.totals
    if totals is None:
        return {}
    means = env.metric_means(totals if isinstance(totals, np.ndarray) else totals.get())
    return {f"metric/{name}": value for name, value in means.items()}
