"""Comparing runs: the return at a given time and the time to a given return, over seeds and with their uncertainty.

The two measures are those of Liu, Yeh and Schwing, "High-Throughput Synchronous Deep RL" (arXiv 2012.09849); over seeds
they are summed up as Agarwal et al., "Deep RL at the Edge of the Statistical Precipice" (arXiv 2108.13264), recommend: the
interquartile mean, with the 95% interval of a bootstrap that resamples seeds within each environment.

A run's return at a moment is the mean of the last `window` episodes before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuenvs.errors import RunError
from learners.curves import Curve, group, total_lags
from learners.metrics import SHARES, lag_statistics

RESAMPLES = 2000
CONFIDENCE = 0.95
AXES = ("seconds", "step")


@dataclass(frozen=True)
class Estimate:
    """An interquartile mean over runs and its interval; infinite where runs never came there.

    `values` are those of the runs in their order: NaN for a run that ended before or had too few episodes, infinite for one
    that never came there.
    `low` and `high` are NaN for fewer than two runs, everything is for none.
    """

    iqm: float
    low: float
    high: float
    values: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it: null for what is infinite or NaN."""
        numbers = {name: _finite(getattr(self, name)) for name in ("iqm", "low", "high")}
        return {**numbers, "values": [_finite(value) for value in self.values]}


@dataclass(frozen=True)
class Row:
    """Runs of one environment and one setting. `at` and `to` have an estimate for each of `AXES`.

    `at` is the return there, `to` the time (s) or the steps to the goal. `sps` is the median of the runs' environment
    steps per second, `pipeline` as of `Interval.pipeline`, over the whole runs.
    """

    label: str
    curves: tuple[Curve, ...]
    at: dict[str, Estimate]
    to: dict[str, Estimate]
    sps: float
    pipeline: dict[str, float]


@dataclass(frozen=True)
class Comparison:
    """The rows of one environment, what they were asked for, and over how many episodes a return goes."""

    env_id: str
    at: dict[str, float]  # axis -> where the returns were read
    goal: float
    window: int
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        asked = {"at_seconds": self.at["seconds"], "at_steps": self.at["step"], "to_return": _finite(self.goal)}
        return {"env": self.env_id, **asked, "episodes": self.window, "rows": [_row_dict(row) for row in self.rows]}


def compare(
    curves: Iterable[Curve],
    at_seconds: float | None = None,
    at_steps: float | None = None,
    to: float | None = None,
    window: int | None = None,
) -> list[Comparison]:
    """One comparison per environment.

    Args:
        curves: the runs; those that differ in the seed only make one row.
        at_seconds, at_steps: where to read the return; None is where the shortest run of the environment ends.
        to: the return to reach; None is the environment's reward threshold and, without one, what all but a
            quarter of each setting's runs have reached.
        window: episodes a return goes over; None is what the runs' own running mean has, 100 or one per environment.

    Raises:
        RunError: no run of an environment has that many episodes.
    """
    from learners.plot import reward_threshold

    comparisons = []
    for env_id, settings in group(curves).items():
        members = [curve for found in settings.values() for curve in found]
        episodes = window or max(curve.recent for curve in members)
        if not any(np.isfinite(curve.running(episodes)).any() for curve in members):
            raise RunError(
                f"no run of {env_id} has finished {episodes} episodes; take the mean of fewer with --episodes"
            )
        asked = {"seconds": at_seconds, "step": at_steps}
        at = {axis: asked[axis] or min(curve.end[axis] for curve in members) for axis in AXES}
        goal = to if to is not None else reward_threshold(env_id)
        if goal is None:
            goal = min(_reached_by_most(found, episodes) for found in settings.values())
        rows = [_row(label, found, at, goal, episodes) for label, found in settings.items()]
        comparisons.append(Comparison(env_id, at, goal, episodes, tuple(rows)))
    return comparisons


def overall(comparisons: Sequence[Comparison]) -> dict[str, Estimate]:
    """Setting -> its return at the given wall-clock over all environments, for those that every environment has.

    Returns are scaled per environment: 0 is the least that any run there began with, 1 the goal. The bootstrap resamples
    seeds within each environment. Empty for a single environment.
    """
    if len(comparisons) < 2:
        return {}
    shared = [row.label for row in comparisons[0].rows]
    shared = [label for label in shared if all(any(row.label == label for row in c.rows) for c in comparisons)]
    found = {}
    for label in shared:
        strata = []
        for comparison in comparisons:
            low = min(_first(curve, comparison.window) for row in comparison.rows for curve in row.curves)
            scale = comparison.goal - low
            row = next(row for row in comparison.rows if row.label == label)
            if scale > 0:
                strata.append((np.array(row.at["seconds"].values) - low) / scale)
        if strata:
            found[label] = estimate(*strata)
    return found


def known(curve: Curve, axis: str, window: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows,) places on `axis` and returns there, of the rows by which `window` episodes had ended."""
    values = curve.running(window)
    there = np.isfinite(values)
    return getattr(curve, axis)[there], values[there]


def returns_at(curve: Curve, axis: str, moments: np.ndarray, window: int) -> np.ndarray:
    """The run's return at each of `moments`: of its last row until then.

    Until `window` episodes have ended it is the return of those: a run that is slow to begin with must not be left out. NaN
    after the run's end, and for a run of fewer episodes.
    """
    places, values = known(curve, axis, window)
    if not len(values):
        return np.full(len(moments), np.nan)
    rows = np.searchsorted(places, moments, side="right") - 1
    return np.where(moments > curve.end[axis], np.nan, values[np.maximum(rows, 0)])


def reached_at(curve: Curve, axis: str, goal: float, window: int) -> float:
    """Where the run's return first was at least `goal`; infinite if it never was."""
    places, values = known(curve, axis, window)
    there = np.flatnonzero(values >= goal)
    return float(places[there[0]]) if len(there) else math.inf


def best(curve: Curve, window: int) -> float:
    """The highest return the run ever had; minus infinity without `window` episodes."""
    return float(np.max(known(curve, "step", window)[1], initial=-math.inf))


def iqm(values: np.ndarray) -> np.ndarray:
    """Interquartile mean along the last axis: a quarter of the values, rounded down, is cut at either end."""
    cut = values.shape[-1] // 4
    ordered = np.sort(values, axis=-1)
    return ordered[..., cut : values.shape[-1] - cut].mean(-1)


def estimate(*strata: Sequence[float] | np.ndarray, seed: int = 0) -> Estimate:
    """Interquartile mean of all values together; the bootstrap resamples within each of the `strata`."""
    values = [np.asarray(stratum, dtype=float) for stratum in strata]
    together = tuple(np.concatenate(values).tolist())
    some = [clean for stratum in values if len(clean := stratum[~np.isnan(stratum)])]
    if not some:
        return Estimate(math.nan, math.nan, math.nan, together)
    middle = float(iqm(np.concatenate(some)))
    if max(map(len, some)) < 2:
        return Estimate(middle, math.nan, math.nan, together)
    low, high = interval(
        np.concatenate([stratum[indices(len(stratum), seed + k)] for k, stratum in enumerate(some)], 1)
    )
    return Estimate(middle, float(low), float(high), together)


def indices(count: int, seed: int = 0) -> np.ndarray:
    """(RESAMPLES, count) numbers of the runs in each resample; the same ones whenever asked."""
    return np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))


def interval(resamples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper end of the percentile interval of the interquartile mean, of (RESAMPLES, ..., runs) values."""
    means = np.sort(iqm(resamples), axis=0)  # picked, not interpolated: some may be infinite
    tail = round((1 - CONFIDENCE) / 2 * (len(means) - 1))
    return means[tail], means[-1 - tail]


def _reached_by_most(curves: list[Curve], window: int) -> float:
    """What all but a quarter of the runs have reached, of those with enough episodes; infinite if none has.

    So their interquartile mean is finite.
    """
    values = sorted(value for curve in curves if math.isfinite(value := best(curve, window)))
    return values[len(values) // 4] if values else math.inf


def _row(label: str, curves: list[Curve], at: dict[str, float], goal: float, window: int) -> Row:
    shares = {}
    for name in SHARES:
        found = [c.pipeline.shares[name] for c in curves if name in c.pipeline.shares]
        values = np.concatenate(found) if found else np.zeros(0)
        if np.isfinite(values).any():
            shares[name] = float(np.nanmean(values))
    return Row(
        label=label,
        curves=tuple(curves),
        at={axis: estimate([_return_at(c, axis, at[axis], window) for c in curves]) for axis in AXES},
        to={axis: estimate([reached_at(c, axis, goal, window) for c in curves]) for axis in AXES},
        sps=float(np.median([c.end["step"] / max(c.end["seconds"], 1e-9) for c in curves])),
        pipeline={**lag_statistics(total_lags(curves)), **shares},
    )


def _row_dict(row: Row) -> dict[str, Any]:
    named = {"return_at_seconds": row.at["seconds"], "return_at_steps": row.at["step"]}
    named.update(seconds_to_return=row.to["seconds"], steps_to_return=row.to["step"])
    return {
        "setting": row.label,
        "runs": [{"path": str(c.path), "seed": c.seed, **c.end} for c in row.curves],
        **{name: value.to_dict() for name, value in named.items()},
        "steps_per_second": row.sps,
        **row.pipeline,
        "lags": {str(lag): rows for lag, rows in total_lags(row.curves).items()},
    }


def _return_at(curve: Curve, axis: str, moment: float, window: int) -> float:
    return float(returns_at(curve, axis, np.array([moment]), window)[0])


def _first(curve: Curve, window: int) -> float:
    return float(next(iter(known(curve, "step", window)[1]), math.inf))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
