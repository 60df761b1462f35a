"""Which settings reach a return first: a decision on recorded trainings alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from learners.tuning.model import DEFAULT

SHARE = 0.9  # of what the best training gained
SURE = 3.0  # standard errors by which the best must be above the beginning for anything to have been learned
WORTH = 1.1  # times sooner than the default


@dataclass(frozen=True)
class Point:
    """An evaluation: seconds of training before it, environment steps, mean return and its standard error."""

    seconds: float
    step: int
    mean: float
    stderr: float


@dataclass(frozen=True)
class Trial:
    """A short training of one candidate; its points in the order of time, the first before any update."""

    name: str
    seed: int
    seconds: float
    points: tuple[Point, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Trial:
        """From what `to_dict` gave."""
        return cls(**{**document, "points": tuple(Point(**point) for point in document["points"])})

    @property
    def last(self) -> float:
        """Mean of the last two evaluations: one alone may be luck."""
        return sum(point.mean for point in self.points[-2:]) / len(self.points[-2:])

    def time_to(self, goal: float) -> float:
        """Seconds until the return first was `goal`, on straight lines between evaluations; infinite if it never was."""
        before = None
        for point in self.points:
            if point.mean >= goal:
                if before is None:
                    return point.seconds
                share = (goal - before.mean) / (point.mean - before.mean)
                return before.seconds + share * (point.seconds - before.seconds)
            before = point
        return math.inf


@dataclass(frozen=True)
class Verdict:
    """What the trials say.

    Attributes:
        chosen: a candidate's name.
        goal: the return it was about; None where nothing was learned.
        why: in words.
        confirm: another candidate was ahead, and only one seed has been seen.
    """

    chosen: str
    goal: float | None
    why: str
    confirm: bool = False


def goal_of(trials: Sequence[Trial]) -> float | None:
    """The return to reach: `SHARE` of the way from the beginning to where the best training of the first seed ended. None
    where no training is clearly above the beginning."""
    first = [trial for trial in trials if trial.seed == trials[0].seed]
    start = sum(trial.points[0].mean for trial in first) / len(first)
    best = max(first, key=lambda trial: trial.last)
    noise = best.points[-1].stderr + first[0].points[0].stderr
    if len(best.points) < 2 or not best.last - start > SURE * noise:
        return None
    return start + SHARE * (best.last - start)


def decide(trials: Sequence[Trial]) -> Verdict:
    """The candidate that reached the goal first, if it beats the default with every seed that both were trained with.

    A training that did not reach the goal counts as the longest one's length, where the two must be told apart.
    """
    if not trials:
        return Verdict(DEFAULT, None, "there was no time for a training; the default stays")
    goal = goal_of(trials)
    if goal is None:
        length = max(trial.seconds for trial in trials)
        return Verdict(DEFAULT, None, f"no training learned anything in {length:.1f} s; the default stays")
    length = max(trial.seconds for trial in trials)
    times = {(trial.name, trial.seed): trial.time_to(goal) for trial in trials}
    reached = {name: time for (name, seed), time in times.items() if seed == trials[0].seed}
    least = min(reached.values())
    # Of those as good as the first the default, else the one that the model prefers: their order.
    name = DEFAULT if reached[DEFAULT] <= WORTH * least else next(n for n, t in reached.items() if t <= WORTH * least)
    if name == DEFAULT:
        return Verdict(DEFAULT, goal, f"nothing was surely sooner than the default at {goal:.4g}")
    seeds = [seed for (n, seed) in times if n == name and (DEFAULT, seed) in times]
    own, others = ([times[n, seed] for seed in seeds] for n in (name, DEFAULT))
    shown = f"{_shown(own, length)} against {_shown(others, length)} of the default to {goal:.4g}"
    lost = any(a > b for a, b in zip(own, others, strict=True))
    if lost or WORTH * sum(min(t, length) for t in own) > sum(min(t, length) for t in others):
        return Verdict(DEFAULT, goal, f"{name} is not surely sooner ({shown}); the default stays")
    return Verdict(name, goal, f"{name}: {shown}", confirm=len(seeds) < 2)


def _shown(times: Sequence[float], length: float) -> str:
    return " and ".join(f"{time:.2f} s" if math.isfinite(time) else f"over {length:.1f} s" for time in times)
