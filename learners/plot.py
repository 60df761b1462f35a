"""Drawing learning curves with matplotlib, without a display."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

import gpuenvs
from gpuenvs.errors import ConfigError, UnknownEnvError
from learners.atomic import TEMPORARY_PREFIX, sync_folder, write_problem
from learners.curves import Curve, band, group, smooth, total_lags

# Okabe and Ito's palette, told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
FORMATS = (".png", ".svg", ".pdf")
SHARE_LINES = {"overlap": "-", "sampler_idle": "--", "learner_idle": ":"}
AXES = (("step", "environment steps"), ("seconds", "wall-clock (s)"))


def check_output(path: Path) -> None:
    """Raise `ConfigError` unless matplotlib can write a file with this ending."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"--out {path}: write it with an ending of {', '.join(FORMATS)}")


def draw(curves: Iterable[Curve], path: Path, window: int = 9, title: str | None = None) -> None:
    """A row of two panels per environment, return over steps and over wall-clock, into `path`.

    Runs that differ in the seed only become one line with a band of one standard deviation. Where sampler and learner
    worked at once, a second row shows how many rows had which policy lag, and what shares of the time they overlapped and
    waited. Raises `ConfigError` for an unknown ending, `RunError` when the file cannot be written.
    """
    grouped = group(curves)
    # (what draws a row of panels, environment, label -> runs)
    rows = [(_draw_returns, env_id, settings) for env_id, settings in grouped.items()]
    rows += [(_draw_pipeline, env_id, settings) for env_id, settings in grouped.items() if _concurrent(settings)]
    rows.sort(key=lambda row: list(grouped).index(row[1]))
    with figure(path, len(rows), (5, 5), title) as panels:
        for (draw_row, env_id, settings), row in zip(rows, panels):
            draw_row(row, env_id, settings, window)


@contextlib.contextmanager
def figure(path: Path, rows: int, widths: Sequence[float], title: str | None = None) -> Iterator[Any]:
    """(rows, len(widths)) panels to draw in, `widths` in inches; saved to `path` at the end."""
    check_output(path)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style: dict[Any, Any] = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
    }
    with pyplot.rc_context(style):
        drawn, panels = pyplot.subplots(
            rows, len(widths), figsize=(sum(widths), 3.6 * rows), squeeze=False, layout="constrained",
            width_ratios=widths,
        )  # fmt: skip
        try:
            yield panels
            if title:
                drawn.suptitle(title)
            _save(drawn, path)
        finally:
            pyplot.close(drawn)


def _draw_returns(panels: Any, env_id: str, settings: dict[str, list[Curve]], window: int) -> None:
    panels[1].sharey(panels[0])
    for panel, (axis, name) in zip(panels, AXES):
        for colour, (label, curves) in zip(cycle(COLOURS), settings.items()):
            area = band(curves, axis, window)
            if len(curves) == 1:  # one run: its raw values behind the smoothed line
                only = curves[0]
                panel.plot(getattr(only, axis), only.value, color=colour, alpha=0.2, linewidth=0.8)
            else:
                panel.fill_between(area.x, area.low, area.high, color=colour, alpha=0.2, linewidth=0)
                label = f"{label} ({len(curves)} runs)"
            panel.plot(area.x, area.mean, color=colour, linewidth=1.8, label=label)
        threshold = reward_threshold(env_id)
        if threshold is not None:
            panel.axhline(threshold, color="0.4", linestyle="--", linewidth=1, label=f"solved at {threshold:g}")
        panel.set_xlim(left=0)
        panel.set_xlabel(name)
        panel.set_title(env_id, loc="left", fontweight="bold")
    panels[0].set_ylabel("episode return")
    panels[0].xaxis.set_major_formatter(steps_format())
    panels[1].legend(loc="best", frameon=True, framealpha=0.8, edgecolor="none")


def _concurrent(settings: dict[str, list[Curve]]) -> bool:
    """Whether sampler and learner worked at once in some of the runs."""
    return any(curve.pipeline.concurrent for curves in settings.values() for curve in curves)


def _draw_pipeline(panels: Any, env_id: str, settings: dict[str, list[Curve]], window: int) -> None:
    lags, shares = panels
    width = 0.8 / len(settings)
    for index, (colour, (label, curves)) in enumerate(zip(cycle(COLOURS), settings.items())):
        total = total_lags(curves)
        rows = max(1, sum(total.values()))
        x = np.array(list(total), dtype=float) + (index - (len(settings) - 1) / 2) * width
        lags.bar(x, [count / rows for count in total.values()], width, color=colour, label=label)
        for name, line in SHARE_LINES.items():
            for curve in curves:
                if name in curve.pipeline.shares:
                    value = smooth(curve.pipeline.shares[name], window)
                    shares.plot(curve.pipeline.step, value, color=colour, linestyle=line, linewidth=1.2)
    for name, line in SHARE_LINES.items():
        shares.plot([], [], color="0.3", linestyle=line, label=name.replace("_", " "))
    lags.set(xlabel="policy lag (updates)", ylabel="share of the rows", ylim=(0, 1))
    lags.xaxis.get_major_locator().set_params(integer=True)
    lags.set_title(env_id, loc="left", fontweight="bold")
    lags.legend(loc="best", frameon=True, framealpha=0.8, edgecolor="none")
    shares.set(xlabel="environment steps", ylabel="share of the time", ylim=(0, 1))
    shares.set_xlim(left=0)
    shares.xaxis.set_major_formatter(steps_format())
    shares.legend(loc="best", frameon=True, framealpha=0.8, edgecolor="none")


def reward_threshold(env_id: str) -> float | None:
    """The mean return at which the environment counts as solved; None if nobody has said."""
    import gymnasium

    try:
        return gpuenvs.get(env_id).reward_threshold
    except UnknownEnvError:  # an environment of Gymnasium's, or a user's own
        entry = gymnasium.registry.get(env_id)
        return entry.reward_threshold if entry else None


def steps_format() -> Any:
    """Labels of an axis of steps: 100k, 2M."""
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep="")


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
