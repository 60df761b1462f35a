"""What settings may learn sooner, by measured speeds and a model of what learning needs. A proposal, not a verdict: trainings
decide (`learners.tuning.verdict`).

Learning from a replay, with batch B, x environment steps collected per update and B / rate seconds for an update:

    updates needed  ~  (1 + CRITICAL_BATCH / B) (1 + STALE x0 / x)
    seconds of one  =  B / update_frames_hz(B) + x / sampling_hz(num_envs, num_steps)

The first factor is that of McCandlish et al. 2018, "An Empirical Model of Large-Batch Training" (arXiv 1812.06162): below
the critical batch more rows save updates, above it they do not. The second says the same of data, beginning with what the
preset collects (x0): fresher and more varied rows save updates, up to a fifth of them. Learning rates follow the batch by
`learners.rates.scaled_rate`. Seconds add up because sampler and learner share the cores.

On-policy, with N rows of a horizon (N0 of the preset):

    steps needed  ~  1 + N / N0,    seconds of one  =  1 / training_hz(num_envs)

A candidate's `total_steps` grow with what the model says is needed, so that a run gets as far as the preset's.

The critical sizes are assumptions: the ones that presets are good at. So is STALE; at 1, half of the updates would do with
much more data, and trainings of SAC on Pendulum-v1 did not get as far with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from learners.tuning.knee import knee

CRITICAL_BATCH = 256
STALE = 0.25
MOST_DATA = 8.0  # times the preset's steps per update
MOST_UPDATES = 16.0  # owed for one horizon: weights that act are at most so old, unless the preset allows more
NEAR = 1.02  # times the shortest time: the smallest horizon within it is proposed
DEFAULT = "default"


@dataclass(frozen=True)
class Sampling:
    """Environment steps per second of collecting alone."""

    num_envs: int
    num_steps: int
    hz: float


@dataclass(frozen=True)
class Updating:
    """Rows learned from per second of updating alone."""

    batch_size: int
    frames_hz: float


@dataclass(frozen=True)
class Training:
    """Environment steps per second of a whole on-policy training."""

    num_envs: int
    num_steps: int
    hz: float


@dataclass(frozen=True)
class Candidate:
    """Settings that may learn sooner; `speedup` is the model's, over the default's."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    speedup: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def off_policy(
    default: dict[str, Any], samplings: Sequence[Sampling], updatings: Sequence[Updating], fixed: Iterable[str] = ()
) -> list[Candidate]:
    """The default, then, best first, what the model prefers to it: its best, and its best with the batch at the knee or with
    the default's.

    Args:
        default: settings (`num_envs`, `num_steps`, `batch_size`, `update_to_data`, `total_steps`); both lists have them too.
        fixed: names of those that must stay as they are.
    """
    fixed = set(fixed)
    free = not default["update_to_data"]
    steps0 = 1.0 if free else default["batch_size"] / default["update_to_data"]
    allowed = [s for s in samplings if _keeps(s, default, fixed)]
    batches = [u for u in updatings if _keeps(u, default, fixed)]
    age = _age(default, steps0)
    found: dict[int, list[tuple[float, int, dict[str, Any]]]] = {}
    for batch in batches:
        update = batch.batch_size / batch.frames_hz
        for sampling in allowed:
            step, rows = 1 / sampling.hz, sampling.num_envs * sampling.num_steps
            if free:
                steps = update / step
            elif "update_to_data" in fixed:
                steps = batch.batch_size / default["update_to_data"]
            else:
                # Where the product of both factors is least, within bounds.
                best = math.sqrt(STALE * steps0 * update / step)
                steps = min(max(best, rows / age, steps0), MOST_DATA * steps0)
            if rows > age * steps * (1 + 1e-9):
                continue
            ratio = default["update_to_data"] if free or "update_to_data" in fixed else _round(batch.batch_size / steps)
            settings = {
                "num_envs": sampling.num_envs,
                "num_steps": sampling.num_steps,
                "batch_size": batch.batch_size,
                "update_to_data": ratio,
            }
            seconds = _seconds(batch.batch_size, steps, steps0, update, step)
            if not free and "total_steps" not in fixed:
                more = _updates(batch.batch_size, steps, steps0) / _updates(default["batch_size"], steps0, steps0)
                settings["total_steps"] = round(default["total_steps"] * more * steps / steps0)
            found.setdefault(batch.batch_size, []).append((seconds, rows, settings))
    own = _of_default(default, samplings, updatings, steps0, free)
    best_of = {size: _nearly_best(entries) for size, entries in found.items()}
    if not best_of:
        return [Candidate(DEFAULT)]
    wanted = [min(best_of, key=lambda size: best_of[size][0])]
    wanted += [knee([(u.batch_size, u.frames_hz) for u in batches]), default["batch_size"]]
    return _named(default, own, [best_of[size] for size in dict.fromkeys(wanted) if size in best_of])


def most_rows(default: dict[str, Any]) -> float:
    """Steps of the longest horizon that `off_policy` would propose; infinite where the ratio is free."""
    if not default["update_to_data"]:
        return math.inf
    steps0 = default["batch_size"] / default["update_to_data"]
    return _age(default, steps0) * MOST_DATA * steps0


def on_policy(default: dict[str, Any], trainings: Sequence[Training], fixed: Iterable[str] = ()) -> list[Candidate]:
    """The default, and the numbers of environments that the model prefers to it, best first."""
    rows0 = default["num_envs"] * default["num_steps"]
    timed = [
        (
            (1 + t.num_envs * t.num_steps / rows0) / t.hz,
            t.num_envs,
            {"num_envs": t.num_envs, "num_steps": t.num_steps},
        )
        for t in trainings
        if _keeps(t, default, set(fixed))
    ]
    own = next((seconds for seconds, _, s in timed if _same(s, default)), math.inf)
    return _named(default, own, [(seconds, settings) for seconds, _, settings in sorted(timed, key=lambda e: e[:2])])


def _age(default: dict[str, Any], steps0: float) -> float:
    """Most updates that may be owed for one horizon."""
    return max(MOST_UPDATES, default["num_envs"] * default["num_steps"] / steps0)


def _seconds(batch: int, steps: float, steps0: float, update: float, step: float) -> float:
    """Relative time to a return."""
    return _updates(batch, steps, steps0) * (update + steps * step)


def _updates(batch: int, steps: float, steps0: float) -> float:
    """Relative number of updates to a return."""
    return (1 + CRITICAL_BATCH / batch) * (1 + STALE * steps0 / steps)


def _of_default(
    default: dict[str, Any], samplings: Sequence[Sampling], updatings: Sequence[Updating], steps0: float, free: bool
) -> float:
    step = next((1 / s.hz for s in samplings if _same(asdict(s), default)), math.inf)
    rate = next((u.frames_hz for u in updatings if u.batch_size == default["batch_size"]), 0.0)
    if not rate or math.isinf(step):
        return math.inf
    update = default["batch_size"] / rate
    return _seconds(default["batch_size"], update / step if free else steps0, steps0, update, step)


def _nearly_best(entries: Sequence[tuple[float, int, dict[str, Any]]]) -> tuple[float, dict[str, Any]]:
    """Of those within `NEAR` of the shortest time the one with the smallest horizon."""
    least = min(seconds for seconds, _, _ in entries)
    seconds, _, settings = min((e for e in entries if e[0] <= NEAR * least), key=lambda e: (e[1], e[0]))
    return seconds, settings


def _named(default: dict[str, Any], own: float, timed: Iterable[tuple[float, dict[str, Any]]]) -> list[Candidate]:
    candidates = [Candidate(DEFAULT)]
    for seconds, settings in sorted(timed, key=lambda entry: entry[0]):
        changed = {name: value for name, value in settings.items() if value != default[name]}
        if changed.keys() - {"total_steps"} and seconds < own:
            name = " ".join(f"{key}={value:g}" for key, value in changed.items() if key != "total_steps")
            candidates.append(Candidate(name, changed, round(own / seconds, 3) if math.isfinite(own) else 1.0))
    return candidates


def _keeps(point: Any, default: dict[str, Any], fixed: set[str]) -> bool:
    return all(name not in fixed or value == default[name] for name, value in asdict(point).items() if name in default)


def _same(point: dict[str, Any], default: dict[str, Any]) -> bool:
    return point["num_envs"] == default["num_envs"] and point["num_steps"] == default["num_steps"]


def _round(value: float) -> float:
    """Three digits: a ratio that people can read."""
    return float(f"{value:.3g}")
