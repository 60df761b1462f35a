"""Learning curves of `benchmarks.presets`: what is kept of them, and their picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import PresetCase

POINTS = 60
COLUMNS = 3
Run = dict[str, Any]


def kept(run: Path, points: int = POINTS) -> list[list[float]]:
    """A run's training return as at most `points` rows `[environment steps, wall-clock seconds, return]`.

    A row is the mean over the episodes that ended in one of as many equal stretches of steps, at the last of them.
    Raises `RunError` when no episode has ended.
    """
    from learners.curves import read_curve

    curve = read_curve(run)
    stretch = np.minimum((curve.step - 1) * points // curve.end["step"], points - 1)
    rows = []
    for number in np.unique(stretch):
        inside = stretch == number
        value = np.average(curve.value[inside], weights=curve.counts[inside])
        rows.append([int(curve.step[inside][-1]), round(float(curve.seconds[inside][-1]), 1), round(float(value), 2)])
    return rows


def draw(runs: Mapping[PresetCase, Sequence[Run]], path: Path) -> None:
    """A panel per environment: a line per seed, its evaluation as a dot at the end, the goal dashed."""
    from learners.plot import COLOURS, figure, steps_format

    rows = -(-len(runs) // COLUMNS)
    with figure(path, rows, (4,) * min(COLUMNS, len(runs))) as panels:
        for panel in panels.flat[len(runs) :]:
            panel.set_axis_off()
        for panel in panels[:, 0]:
            panel.set_ylabel("episode return")
        for panel, (case, seeds) in zip(panels.flat, runs.items()):
            for colour, run in zip(cycle(COLOURS), sorted(seeds, key=lambda run: run["seed"])):
                steps, _, returns = zip(*run["curve"])
                panel.plot(steps, returns, color=colour, linewidth=1.2, label=f"seed {run['seed']}")
                panel.plot(run["env_steps"], run["mean"], "o", color=colour, markersize=5, clip_on=False)
            panel.plot([], [], "o", color="0.4", markersize=5, label="evaluated")
            goal = case.mean_at_least
            panel.axhline(goal, color="0.4", linestyle="--", linewidth=1, label=f"goal {goal:,.0f}")
            panel.set_title(f"{case.env_id} ({case.algo.upper()})", loc="left", fontweight="bold")
            longest = _duration(max(run["training_seconds"] for run in seeds))
            panel.set_xlabel(f"environment steps (longest run: {longest})")
            panel.set_xlim(left=0)
            panel.xaxis.set_major_formatter(steps_format())
            panel.legend(loc="lower right", fontsize=8, frameon=True, framealpha=0.8, edgecolor="none")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
