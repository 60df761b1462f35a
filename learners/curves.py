"""Learning curves from metrics.csv: smoothing, and mean and band over the seeds of one setting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuenvs.errors import RunError
from learners import runs
from learners.metrics import read_rows

POINTS = 400


@dataclass(frozen=True)
class Curve:
    """Return of one run over environment steps and wall-clock seconds; all (rows,), rows with episodes only.

    `settings` is everything that was set in the run but its seed and its length.
    """

    env_id: str
    name: str
    settings: dict[str, Any]
    step: np.ndarray
    seconds: np.ndarray
    value: np.ndarray


@dataclass(frozen=True)
class Band:
    """Curves of several runs on one grid: (points,) each. `low` and `high` are mean -+ one standard deviation."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    count: int


def read_curve(path: Path | str) -> Curve:
    """The curve of one run. Raises `RunError` when the run has no finished episode yet."""
    run = runs.open_run(path)
    config = run.read_config()
    rows = read_rows(run.metrics_file)
    if not {"step", "wall_s", "episode_return"} <= rows.keys():
        raise RunError(f"{run.path} has no metrics yet")
    seen = ~np.isnan(rows["episode_return"])
    if not seen.any():
        raise RunError(f"{run.path} has no finished episode yet")
    name = f"{config['algo']} {config['schedule']}"
    settings = {**config.get("settings", {}), **{f"env.{k}": v for k, v in config.get("env_params", {}).items()}}
    settings.pop("total_steps", None)
    step, seconds, value = (rows[name][seen] for name in ("step", "wall_s", "episode_return"))
    return Curve(config["env_id"], name, settings, step, seconds, value)


def group(curves: Iterable[Curve]) -> dict[str, dict[str, list[Curve]]]:
    """env_id -> label -> curves that differ in their seed only, in the order they came.

    A label is the algorithm and schedule, and the settings in which its runs differ from others of the same.
    """
    by_env: dict[str, list[Curve]] = {}
    for curve in curves:
        by_env.setdefault(curve.env_id, []).append(curve)
    grouped: dict[str, dict[str, list[Curve]]] = {}
    for env_id, members in by_env.items():
        labels = grouped.setdefault(env_id, {})
        for curve in members:
            labels.setdefault(_label(curve, members), []).append(curve)
    return grouped


def _label(curve: Curve, others: list[Curve]) -> str:
    rivals = [other.settings for other in others if other.name == curve.name]
    names = dict.fromkeys(name for settings in rivals for name in settings)
    differing = [name for name in names if any(s.get(name) != curve.settings.get(name) for s in rivals)]
    return " ".join([curve.name, *(f"{name}={_text(curve.settings.get(name))}" for name in differing)])


def _text(value: Any) -> str:
    if value is None:
        return "default"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving mean of `values` (n,); at the ends over what is there."""
    if window <= 1 or len(values) < 3:
        return values
    half = min(window, len(values)) // 2
    total = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return (total[high] - total[low]) / (high - low)


def band(curves: list[Curve], axis: str, window: int) -> Band:
    """Mean and spread over `curves` at the steps that all of them have passed.

    Along `axis` "seconds" a step lies at the mean of the times at which the runs passed it.
    """
    start, stop = max(c.step[0] for c in curves), min(c.step[-1] for c in curves)
    grid = np.linspace(start, max(start, stop), POINTS)
    table = np.stack([np.interp(grid, c.step, smooth(c.value, window)) for c in curves])
    x = grid if axis == "step" else np.mean([np.interp(grid, c.step, c.seconds) for c in curves], axis=0)
    mean, spread = table.mean(0), table.std(0)
    return Band(x, mean, mean - spread, mean + spread, len(curves))
