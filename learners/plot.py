"""Drawing learning curves with matplotlib, without a display."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gpuenvs
from gpuenvs.errors import ConfigError, UnknownEnvError
from learners.atomic import TEMPORARY_PREFIX, sync_folder, write_problem
from learners.curves import Curve, band, group

# Okabe and Ito's palette, told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
FORMATS = (".png", ".svg", ".pdf")
AXES = (("step", "environment steps"), ("seconds", "wall-clock (s)"))


def check_output(path: Path) -> None:
    """Raise `ConfigError` unless matplotlib can write a file with this ending."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"--out {path}: write it with an ending of {', '.join(FORMATS)}")


def draw(curves: Iterable[Curve], path: Path, window: int = 9, title: str | None = None) -> None:
    """A row of two panels per environment, return over steps and over wall-clock, into `path`.

    Runs that differ in the seed only become one line with a band of one standard deviation. Raises
    `ConfigError` for an unknown ending, `RunError` when the file cannot be written.
    """
    check_output(path)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    grouped = group(curves)
    style: dict[Any, Any] = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
    }
    with pyplot.rc_context(style):
        figure, panels = pyplot.subplots(
            len(grouped), 2, figsize=(10, 3.6 * len(grouped)), squeeze=False, layout="constrained", sharey="row"
        )
        try:
            for row, (env_id, settings) in zip(panels, grouped.items()):
                _draw_row(row, env_id, settings, window)
            if title:
                figure.suptitle(title)
            _save(figure, path)
        finally:
            pyplot.close(figure)


def _draw_row(panels: Any, env_id: str, settings: dict[str, list[Curve]], window: int) -> None:
    for panel, (axis, name) in zip(panels, AXES):
        for colour, (label, curves) in zip(_cycle(COLOURS), settings.items()):
            area = band(curves, axis, window)
            if len(curves) == 1:  # one run: its raw values behind the smoothed line
                only = curves[0]
                panel.plot(getattr(only, axis), only.value, color=colour, alpha=0.2, linewidth=0.8)
            else:
                panel.fill_between(area.x, area.low, area.high, color=colour, alpha=0.2, linewidth=0)
                label = f"{label} ({len(curves)} runs)"
            panel.plot(area.x, area.mean, color=colour, linewidth=1.8, label=label)
        threshold = _threshold(env_id)
        if threshold is not None:
            panel.axhline(threshold, color="0.4", linestyle="--", linewidth=1, label=f"solved at {threshold:g}")
        panel.set_xlim(left=0)
        panel.set_xlabel(name)
        panel.set_title(env_id, loc="left", fontweight="bold")
    panels[0].set_ylabel("episode return")
    panels[0].xaxis.set_major_formatter(_steps_format())
    panels[1].legend(loc="best", frameon=True, framealpha=0.8, edgecolor="none")


def _threshold(env_id: str) -> float | None:
    try:
        return gpuenvs.get(env_id).reward_threshold
    except UnknownEnvError:  # a user's own environment, not registered here
        return None


def _steps_format() -> Any:
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep="")


def _cycle(colours: tuple[str, ...]) -> Iterable[str]:
    import itertools

    return itertools.cycle(colours)


def _save(figure: Any, path: Path) -> None:
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(temporary, dpi=150)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise write_problem(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)
