"""Observers of a running training: who is handed what, and what becomes of their results."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from gpuenvs.errors import ConfigError, RunError
from learners.observers.process import Observer, ObserverError
from learners.runs import RunDirectory
from learners.train import Progress, Trainer
from learners.video import check_output

EVALUATOR, VIEWER = "learners.observers.evaluator", "learners.observers.viewer"
FIGURES_SECONDS = 1.0  # between points of the page's curves
CLOSING_SECONDS = 1.0  # for the viewer
FINISHING_SECONDS = 20.0  # an evaluation under way at the end of the training may take so long
GRACE_SECONDS = 4.0  # between an observer's error and the hard end of a training that is in the middle of an iteration


@dataclass(frozen=True)
class ObserverOptions:
    """Which observers there are.

    Args:
        eval_every: seconds from one evaluation's beginning to the next one's; None for no evaluator. One that takes longer
            delays the next.
        eval_episodes: episodes of each.
        video_every: film an episode after every so many evaluations; 0 for none.
        watch: serve a page on which the policy acts.
        watch_port: of the page, or the next one that is free.
    """

    eval_every: float | None = None
    eval_episodes: int = 10
    video_every: int = 0
    watch: bool = False
    watch_port: int = 8080

    def check(self) -> None:
        """Raise `ConfigError` or `RunError` for what cannot work, before anything slow is done."""
        if self.video_every and self.eval_every is None:
            raise ConfigError("--video-every counts evaluations; add --eval-every SECONDS")
        if self.video_every:
            check_output(Path("evaluation.mp4"))
        if self.watch and importlib.util.find_spec("viser") is None:
            raise RunError(
                "--watch needs viser, which is not installed; install the watch extra: pip install 'gpurl[watch]'"
            )


class Observers:
    """Context manager around a training; call it with each `Progress`, on the thread that trains.

    Nothing of this changes the training: weights are read between iterations, or as the schedule publishes them.

    Args:
        trainer, run: of the training.
        options: which observers.
        say, warn: get lines for people.
        last_resort: end the whole process when the training has not noticed an observer's error after `GRACE_SECONDS`.

    Attributes:
        evaluator, viewer: None where there is none, and after the end.
        page: the viewer's address, once it is served.
        offered, evaluations: weights that it was handed, and results that have come back.

    Raises:
        ObserverError: from the call, or at the end: an observer raised.
    """

    def __init__(
        self,
        trainer: Trainer,
        run: RunDirectory,
        options: ObserverOptions,
        say: Callable[[str], None],
        warn: Callable[[str], None],
        last_resort: bool = False,
    ) -> None:
        self._trainer, self._run, self._options, self._say, self._warn = trainer, run, options, say, warn
        self._last_resort = last_resort
        self._noticed = threading.Event()
        self.evaluator: Observer | None = None
        self.viewer: Observer | None = None
        self.page = ""
        self._due = self._figures_due = 0.0
        self._evaluated: dict[str, float] = {}
        self._seen: tuple[float, int] | None = None  # time and step of the latest point of the curves
        self.offered = self.evaluations = 0

    def __enter__(self) -> Observers:
        options, run = self._options, str(self._run.path.absolute())
        if options.eval_every is not None:
            plan = {"run": run, "episodes": options.eval_episodes}
            self.evaluator = Observer("evaluator", EVALUATOR, plan, self._warn, self._on_failure)
            self._due = time.monotonic() + options.eval_every
        if options.watch:
            plan = {"run": run, "port": options.watch_port}
            self.viewer = Observer("viewer", VIEWER, plan, self._warn, self._on_failure)
        return self

    def __call__(self, progress: Progress) -> None:
        """Take in what has come back; hand out weights where they are asked for and due."""
        now = time.monotonic()
        if self.evaluator is not None:
            self._take(self._watched(self.evaluator.results))
            if now >= self._due and self.evaluator.wants:
                self._due = now + (self._options.eval_every or 0.0)
                self.offered += 1
                every = self._options.video_every
                self._offer(self.evaluator, progress, film=bool(every) and self.offered % every == 0)
        if self.viewer is not None:
            self._take(self._watched(self.viewer.results))
            if self.viewer.wants:
                self._offer(self.viewer, progress)
            if now >= self._figures_due:
                self._figures_due = now + FIGURES_SECONDS
                speed = (progress.step - self._seen[1]) / (now - self._seen[0]) if self._seen else progress.sps
                self._seen = now, progress.step
                self.viewer.tell("figures", {**figures(progress, speed), **self._evaluated})

    def _offer(self, observer: Observer, progress: Progress, **more: Any) -> None:
        with newest(self._trainer.schedule) as (policy, version):
            observer.offer(policy.state_dict(), version, progress.step, **more)

    def finish(self) -> None:
        """After the training's last iteration: an evaluation under way may be completed; the page ends."""
        if self.viewer is not None:
            viewer, self.viewer = self.viewer, None
            self._take(self._watched(lambda: viewer.finish(CLOSING_SECONDS)))
        if self.evaluator is not None:
            evaluator, self.evaluator = self.evaluator, None
            self._take(self._watched(lambda: evaluator.finish(FINISHING_SECONDS)))

    def _watched(self, results: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        try:
            return results()
        except ObserverError:
            self._noticed.set()
            raise

    def _take(self, results: list[dict[str, Any]]) -> None:
        for result in results:
            if "evaluation" in result:
                self.evaluations += 1
                found = result["evaluation"]
                stem = f"step-{found['step']:012d}-{found['on']}-s{found['seed']}"
                self._run.write_json(self._run.evaluations, stem, found)
                self._evaluated = {"eval_return": found["mean"], "eval_step": found["step"]}
                self._trainer.notes.update(self._evaluated)
                self._say(
                    f"evaluated at step {found['step']:,}: return {found['mean']:.1f} +- {found['stderr']:.1f} "
                    f"({found['episodes']} episodes in {found['seconds']:.1f} s)"
                )
            elif "video" in result:
                self._say(f"video of step {result['step']:,}: {result['video']}")
            elif result["page"] != self.page:
                self.page = result["page"]
                self._say(f"watch: {self.page}")
                if self.viewer is not None:
                    self.viewer.configure(port=result["port"])  # an open page finds it there again

    def _on_failure(self, error: ObserverError) -> None:
        if self._last_resort:
            threading.Thread(target=self._insist, args=(error,), name="gpurl-insist", daemon=True).start()

    def _insist(self, error: ObserverError) -> None:
        """An iteration may take longer than anybody wants to wait for the error."""
        if not self._noticed.wait(GRACE_SECONDS):
            os.write(2, f"\n{error.traceback.rstrip()}\nerror: {error}\n".encode())
            os._exit(1)  # the last checkpoint is whole

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._noticed.set()
        for observer in (self.evaluator, self.viewer):
            if observer is not None:
                observer.close()
        self.evaluator = self.viewer = None


@contextlib.contextmanager
def newest(schedule: Any) -> Iterator[tuple[Any, int]]:
    """(policy, version) to be read within, on the thread that trains and between two iterations."""
    snapshot = getattr(schedule, "snapshot", None)
    if snapshot is None:  # nobody changes the weights between iterations
        yield schedule.algo.policy, schedule.algo.version
    else:
        with snapshot() as pair:
            yield pair


def figures(progress: Progress, speed: float) -> dict[str, float]:
    """A point of each of the page's curves that there is one for; `step` is where.

    `speed` is in environment steps per second, for a schedule that does not measure its own.
    """
    pipeline, recent = progress.pipeline(), progress.recent_return()
    named = {name: pipeline[name] for name in ("update_frames_hz", "update_to_data") if name in pipeline}
    named |= {"lag": pipeline["lag_mean"]} if "lag_mean" in pipeline else {}
    named |= {} if recent is None else {"return": recent}
    return {"step": progress.step, "sampling_hz": pipeline.get("sampling_hz", speed), **named}
