"""Learning curves from metrics.csv: smoothing, and mean and band over the seeds of one setting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpuenvs.errors import RunError
from learners import runs
from learners.metrics import LAGS_FILE, RECENT, SHARES, read_lags, read_rows

POINTS = 400


@dataclass(frozen=True)
class Pipeline:
    """How sampler and learner of a run worked together: (rows,) each, rows of all intervals.

    `shares` has what the schedule reported of `learners.metrics.SHARES`, `lags` is lag -> rows of the whole run.
    """

    step: np.ndarray
    shares: dict[str, np.ndarray]
    lags: dict[int, int]

    @property
    def concurrent(self) -> bool:
        """Whether there is anything to show: some row was old, or the schedule reported shares."""
        return bool(self.shares) or any(self.lags)


@dataclass(frozen=True)
class Curve:
    """Return of one run over environment steps and wall-clock seconds; all (rows,), rows with episodes only.

    `settings` is everything that was set in the run but its seed and its length. `counts` is how many episodes ended in
    each row's interval, `end` where the run stands in steps and seconds, `recent` over how many episodes its own
    running mean goes.
    """

    env_id: str
    name: str
    settings: dict[str, Any]
    step: np.ndarray
    seconds: np.ndarray
    value: np.ndarray
    counts: np.ndarray
    end: dict[str, float]
    seed: int = 0
    recent: int = RECENT
    path: Path = Path()
    pipeline: Pipeline = field(default_factory=lambda: Pipeline(np.zeros(0), {}, {}))

    def running(self, window: int) -> np.ndarray:
        """At each row the mean return of the last `window` episodes; NaN before so many have ended."""
        ended = np.cumsum(self.counts)
        total = np.cumsum(self.counts * self.value)
        first = ended - window
        before = np.interp(first, np.concatenate([[0], ended]), np.concatenate([[0], total]))
        return np.where(first >= 0, (total - before) / window, np.nan)


@dataclass(frozen=True)
class Band:
    """Curves of several runs on one grid: (points,) each. `low` and `high` are mean -+ one standard deviation."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    count: int


def read_curve(path: Path | str) -> Curve:
    """The curve of one run. Raises `RunError` when the run has no finished episode yet or is damaged."""
    run = runs.open_run(path)
    config = run.read_config()
    rows = read_rows(run.metrics_file)
    if not {"step", "wall_s", "episode_return"} <= rows.keys():
        raise RunError(f"{run.path} has no metrics yet")
    seen = ~np.isnan(rows["episode_return"])
    if not seen.any():
        raise RunError(f"{run.path} has no finished episode yet")
    ended = rows.get("episodes", np.arange(1.0, len(seen) + 1))
    settings = _settings(config)
    return Curve(
        env_id=config.get("env_name", config["env_id"]),
        name=f"{config['algo']} {config['schedule']}",
        settings=settings,
        step=rows["step"][seen],
        seconds=rows["wall_s"][seen],
        value=rows["episode_return"][seen],
        counts=np.diff(ended, prepend=0)[seen],
        end={"step": rows["step"][-1], "seconds": rows["wall_s"][-1]},
        seed=int(config.get("seed", 0)),
        recent=max(RECENT, int(settings.get("num_envs", 1))),
        path=run.path,
        pipeline=Pipeline(
            rows["step"],
            {name: rows[name] for name in SHARES if name in rows},
            read_lags(run.metrics_file.with_name(LAGS_FILE)),
        ),
    )


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    settings = {**config.get("settings", {}), **config.get("schedule_settings", {})}
    if config.get("env_backend") == "host":
        settings.update({name: config[name] for name in ("env_backend", "executors", "actors") if name in config})
    settings.update({f"env.{k}": v for k, v in config.get("env_params", {}).items()})
    settings.pop("total_steps", None)
    return settings


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


def total_lags(curves: Iterable[Curve]) -> dict[int, int]:
    """Lag -> rows of all the runs together, the lowest lag first."""
    total: dict[int, int] = {}
    for curve in curves:
        for lag, rows in curve.pipeline.lags.items():
            total[lag] = total.get(lag, 0) + rows
    return dict(sorted(total.items()))


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
