"""Learning curves from metrics.csv: smoothing, and mean and band over the seeds of one setting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuenvs.errors import RunError
from learners import runs
from learners.metrics import read_rows

POINTS = 400


@dataclass(frozen=True)
class Curve:
    """Return of one run over environment steps and wall-clock seconds; all (rows,), rows with episodes only."""

    env_id: str
    label: str
    seed: int
    step: np.ndarray
    seconds: np.ndarray
    value: np.ndarray


@dataclass(frozen=True)
class Band:
    """Curves of several seeds on one grid: (points,) each. `low` and `high` are mean -+ one standard deviation."""

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
    label = f"{config['algo']} {config['schedule']}"
    step, seconds, value = (rows[name][seen] for name in ("step", "wall_s", "episode_return"))
    return Curve(config["env_id"], label, int(config["seed"]), step, seconds, value)


def group(curves: Iterable[Curve]) -> dict[str, dict[str, list[Curve]]]:
    """env_id -> label -> the seeds' curves, in the order they came."""
    grouped: dict[str, dict[str, list[Curve]]] = {}
    for curve in curves:
        grouped.setdefault(curve.env_id, {}).setdefault(curve.label, []).append(curve)
    return grouped


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
    """Mean and spread over `curves` along `axis`, `"step"` or `"seconds"`, where all of them have data."""
    xs = [getattr(curve, axis) for curve in curves]
    start, stop = max(x[0] for x in xs), min(x[-1] for x in xs)
    grid = np.linspace(start, max(start, stop), POINTS)
    table = np.stack([np.interp(grid, x, smooth(curve.value, window)) for x, curve in zip(xs, curves)])
    mean, spread = table.mean(0), table.std(0)
    return Band(grid, mean, mean - spread, mean + spread, len(curves))
