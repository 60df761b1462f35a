"""The live line of a training: a bar on a terminal, a plain line now and then elsewhere. Goes to stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from learners.train import Progress

TERMINAL_SECONDS, PLAIN_SECONDS = 0.2, 10.0
BUSY = "_busy"  # ends the names of the parts' shares


class TrainingLine:
    """Context manager; call it with each `Progress`."""

    def __init__(self, title: str, quiet: bool = False) -> None:
        self._title = title
        self._quiet = quiet
        self._bar: Any = None
        self._next = 0.0

    def __enter__(self) -> TrainingLine:
        if not self._quiet and sys.stderr.isatty():
            self._bar = _make_bar()
            self._task = self._bar.add_task(self._title, total=None, sps="", result="compiling", pipeline="", left="")
            self._bar.start()
            self._bar.refresh()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """A line that stays, unless nothing was to be said."""
        if not self._quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """A line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def __call__(self, progress: Progress) -> None:
        """Show the moment, unless the last one was shown just now."""
        now = time.monotonic()
        final = progress.step >= progress.total_steps
        if self._quiet or (now < self._next and not final):
            return
        self._next = now + (TERMINAL_SECONDS if self._bar is not None else PLAIN_SECONDS)
        recent = progress.recent_return()
        result = "return -" if recent is None else f"return {recent:.1f}"
        measured = progress.pipeline()
        speed = rate(measured.get("sampling_hz", progress.sps))
        pipeline = "  ".join(filter(None, (update_rate(measured), lag_and_overlap(measured), busy(measured))))
        left = duration(progress.seconds_left)
        if self._bar is None:
            share = 100 * min(1.0, progress.step / progress.total_steps)
            parts = [f"{self._title} {share:3.0f}%", f"{progress.step:,} steps", speed, result]
            parts += [pipeline] if pipeline else []
            print("  ".join([*parts, f"ETA {left}"]), file=sys.stderr, flush=True)
            return
        self._bar.update(
            self._task,
            total=progress.total_steps,
            completed=min(progress.step, progress.total_steps),
            sps=speed,
            result=result,
            pipeline=pipeline,
            left=f"ETA {left}",
        )
        self._bar.refresh()


def _make_bar() -> Any:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from cli.tables import console

    # No refresh thread: it would take time from the training threads. The line moves when an iteration ends.
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.completed:,.0f} steps"),
        TextColumn("[cyan]{task.fields[sps]}"),
        TextColumn("[green]{task.fields[result]}"),
        TextColumn("{task.fields[pipeline]}"),
        TextColumn("{task.fields[left]}"),
        console=console(stderr=True),
        auto_refresh=False,
    )


def lag_and_overlap(pipeline: Mapping[str, float]) -> str:
    """`lag 1  overlap 83%`, `lag 2.3 (max 5)`; empty for a schedule that never acts with weights of an earlier update."""
    parts = []
    if pipeline.get("lag_max"):
        mean, most = pipeline["lag_mean"], pipeline["lag_max"]
        parts.append(f"lag {most:g}" if mean == most else f"lag {mean:.1f} (max {most:g})")
    if "overlap" in pipeline:
        parts.append(f"overlap {pipeline['overlap']:.0%}")
    return "  ".join(parts)


def update_rate(pipeline: Mapping[str, float]) -> str:
    """`updates 370k frames/s  ratio 255.8 of 256`: rows that updates learn from, and how many per environment step; empty
    for a schedule without a replay."""
    parts = []
    if "update_frames_hz" in pipeline:
        parts.append(f"updates {rate(pipeline['update_frames_hz'], 'frames/s')}")
    if "update_to_data" in pipeline:
        target = pipeline.get("update_to_data_target")
        parts.append(f"ratio {pipeline['update_to_data']:.4g}" + (f" of {target:g}" if target else ""))
    return "  ".join(parts)


def busy(pipeline: Mapping[str, float]) -> str:
    """`busy sampler 41% learner 98%`; empty for a schedule without parts."""
    shares = {name.removesuffix(BUSY): share for name, share in pipeline.items() if name.endswith(BUSY)}
    return " ".join(["busy", *(f"{name} {share:.0%}" for name, share in shares.items())]) if shares else ""


def rate(per_second: float, what: str = "steps/s") -> str:
    """`156k steps/s`."""
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_second >= scale:
            return f"{per_second / scale:.3g}{unit} {what}"
    return f"{per_second:.3g} {what}"


def duration(seconds: float) -> str:
    """`0:07`, `12:30` or `3:05:00`."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
