"""The picture of a comparison: a row of four panels per environment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from learners.compare import Comparison, Estimate, Row, indices, interval, iqm, known, returns_at
from learners.plot import AXES, COLOURS, figure, steps_format

POINTS = 150


def draw_comparison(comparisons: Sequence[Comparison], path: Path, title: str | None = None) -> None:
    """Returns over wall-clock and over steps (interquartile mean of the runs, its interval as a band), the return at the
    given wall-clock and the wall-clock to the goal. Raises like `learners.plot.draw`.
    """
    with figure(path, len(comparisons), (5, 5, 3.5, 3.5), title) as panels:
        for row, comparison in zip(panels, comparisons):
            for panel, (axis, name) in zip(row, reversed(AXES)):
                _draw_curves(panel, comparison, axis)
                panel.set_xlabel(name)
            row[0].set_ylabel(f"mean return of {comparison.window} episodes")
            row[0].set_title(comparison.env_id, loc="left", fontweight="bold")
            row[0].legend(loc="best", frameon=True, framealpha=0.8, edgecolor="none")
            row[1].xaxis.set_major_formatter(steps_format())
            row[1].sharey(row[0])
            at, to = ([getattr(r, name)["seconds"] for r in comparison.rows] for name in ("at", "to"))
            _draw_estimates(row[2], at, f"return at {comparison.at['seconds']:.4g} s")
            _draw_estimates(row[3], to, f"seconds to {comparison.goal:.4g}")


def _draw_curves(panel: Any, comparison: Comparison, axis: str) -> None:
    for colour, row in zip(cycle(COLOURS), comparison.rows):
        x, table = on_grid(row, axis, comparison.window)
        if not len(x):
            continue
        count = table.shape[1]
        if count > 1:
            low, high = interval(np.moveaxis(table[:, indices(count)], 1, 0))
            panel.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        label = f"{row.label} ({count} run{'s' if count > 1 else ''})"
        panel.plot(x, iqm(table), color=colour, linewidth=1.8, label=label)
    panel.axvline(comparison.at[axis], color="0.4", linestyle=":", linewidth=1)
    panel.axhline(comparison.goal, color="0.4", linestyle="--", linewidth=1)
    panel.set_xlim(left=0)


def on_grid(row: Row, axis: str, window: int) -> tuple[np.ndarray, np.ndarray]:
    """(points,) places on `axis` from the first return of any run to the first end, and the returns there, (points, runs)."""
    curves = [curve for curve in row.curves if len(known(curve, axis, window)[0])]
    if not curves:
        return np.zeros(0), np.zeros((0, 0))
    start = min(known(curve, axis, window)[0][0] for curve in curves)
    grid = np.linspace(start, max(start, min(curve.end[axis] for curve in curves)), POINTS)
    table = np.stack([returns_at(curve, axis, grid, window) for curve in curves], axis=1)
    whole = np.isfinite(table).all(1)
    return grid[whole], table[whole]


def _draw_estimates(panel: Any, estimates: Sequence[Estimate], title: str) -> None:
    """A point with its interval per setting, every run beside it; "never" where there is no finite value."""
    for place, (colour, value) in enumerate(zip(cycle(COLOURS), estimates)):
        runs = [v for v in value.values if math.isfinite(v)]
        panel.plot([place + 0.15] * len(runs), runs, ".", color=colour, alpha=0.35)
        if not math.isfinite(value.iqm):
            panel.annotate(
                "never" if value.iqm > 0 else "-", (place, 0.02), xycoords=("data", "axes fraction"), ha="center"
            )
            continue
        panel.plot([place], [value.iqm], "o", color=colour)
        if math.isfinite(value.low) and math.isfinite(value.high):
            panel.plot([place, place], [value.low, value.high], color=colour, linewidth=2)
        elif math.isfinite(value.low):  # resamples in which runs never came there
            panel.annotate(
                "", (place, 1), (place, value.iqm), ("data", "axes fraction"), arrowprops={"arrowstyle": "->"}
            )
    panel.set_title(title, loc="left")
    panel.set_xlim(-0.6, len(estimates) - 0.4)
    panel.set_xticks([])
