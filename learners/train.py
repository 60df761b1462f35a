"""The training loop: drives a schedule to its last step, with metrics, checkpoints and a clean stop at any
moment.

Nothing here touches the numbers: when rows are written, checkpoints made or signals received never changes
what the schedule computes, so a run, an interrupted and resumed run, and a run without any files end in the
same weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuenvs.errors import NonFiniteError, ProcessError, RunError
from learners import checkpoint, replay_file
from learners.build import misfit
from learners.interrupts import StopRequest
from learners.metrics import Interval, MetricsWriter
from learners.runs import RunDirectory

if TYPE_CHECKING:
    from learners.schedules.common import IterationResult


@dataclass(frozen=True)
class LoopSettings:
    """When the loop writes what. None of it changes the training itself.

    Args:
        total_steps: environment steps to train for; the last iteration may overshoot.
        log_every: iterations per metrics row.
        checkpoint_every: environment steps between checkpoints …
        checkpoint_min_seconds: … but not before this long after the last one: a checkpoint waits for the disk.
        checkpoint_seconds: a checkpoint is also due after this long, so that a crash costs little.
        keep_checkpoints: how many of the latest to keep; the best is kept as well.
    """

    total_steps: int
    log_every: int
    checkpoint_every: int
    checkpoint_min_seconds: float = 0.0
    checkpoint_seconds: float = 60.0
    keep_checkpoints: int = 3


@dataclass(frozen=True)
class Progress:
    """One moment of a running training."""

    step: int
    total_steps: int
    iteration: int
    sps: float  # environment steps per second since this process began to train
    seconds_left: float
    recent_return: Callable[[], float | None]  # reads episodes from the device: call it a few times a second at most
    pipeline: Callable[[], Mapping[str, float]] = dict  # see `Interval.pipeline`


@dataclass(frozen=True)
class Outcome:
    """How a training ended."""

    step: int
    seconds: float  # wall-clock spent training, over all resumes
    signum: int  # the signal that came while training; 0 if none did
    checkpoint: Path
    recent_return: float | None
    nonfinite_states: int  # episodes ended because their state became NaN or infinite


class Trainer:
    """One run's loop around `schedule`, which is resumed from `start` (a loaded checkpoint) if given.

    `kind` (see `learners.build.kind_of`; with a digest of the environment) is written into every checkpoint.

    Raises:
        RunError: a file cannot be written (disk full, read-only, …), or nothing is left to do.
        NonFiniteError: the env returned a NaN reward or the weights became NaN; no checkpoint is made of
        either.
    """

    def __init__(
        self,
        run: RunDirectory,
        schedule: Any,
        settings: LoopSettings,
        kind: Mapping[str, Any],
        start: Mapping[str, Any] | None = None,
    ) -> None:
        self.run_directory = run
        self.kind = dict(kind)
        self.schedule = schedule
        self.settings = settings
        self.step = 0
        self.iteration = 0
        self.last_checkpoint: Path | None = None
        self.notes: dict[str, float] = {}  # columns of the next row that come from outside of the training
        self._stop: StopRequest | None = None
        self._seconds = 0.0  # trained before this process
        self._saved_step, self._saved_time = 0, 0.0
        self._row_step, self._row_seconds = 0, 0.0
        self._interval = Interval(recent=max(100, schedule.env.num_envs))
        if start is not None:
            self._load(start)
        self._first_step = self.step
        self._began = time.perf_counter()
        self._warm_step, self._warm_time, self._now = 0, self._began, self._began

    def train(self, stop: StopRequest | None = None, on_progress: Callable[[Progress], None] | None = None) -> Outcome:
        """Run to `total_steps`, or to the end of the iteration in which `stop` was signalled."""
        settings = self.settings
        if self.step >= settings.total_steps:
            raise RunError(
                f"nothing left to do: {self.run_directory.path} is at step {self.step} of "
                f"{settings.total_steps}; give a larger --total-steps"
            )
        try:
            return self._train(stop, on_progress)
        except (RunError, NonFiniteError, ProcessError) as error:
            kept = f"; last good checkpoint: {self.last_checkpoint}" if self.last_checkpoint else ""
            raise type(error)(f"{error}{kept}") from error

    def _train(self, stop: StopRequest | None, on_progress: Callable[[Progress], None] | None) -> Outcome:
        settings = self.settings
        resumed = self.step if self.last_checkpoint else None
        self._stop = stop
        self._writer = self._open_metrics(resumed)
        self._began = time.perf_counter()
        try:
            if self.last_checkpoint is None:
                self._checkpoint()  # from now on a killed run can be resumed
            self._saved_step, self._saved_time = self.step, self._began
            while self.step < settings.total_steps and not self._signum():
                self._iterate()
                if on_progress is not None:
                    on_progress(self._progress())
                if self._checkpoint_due(self.step - self._saved_step, self._seconds_unsaved()):
                    self._checkpoint()
                    self._saved_step, self._saved_time = self.step, time.perf_counter()
            if self.step >= settings.total_steps and self.step > self._row_step:
                self._write_row()
            if self.step > self._saved_step:
                self._checkpoint()
        finally:
            self._writer.close()
        assert self.last_checkpoint is not None
        return Outcome(
            step=self.step,
            seconds=self._elapsed(),
            signum=self._signum(),
            checkpoint=self.last_checkpoint,
            recent_return=self._interval.recent_return(),
            nonfinite_states=self._nonfinite()[0],
        )

    # What follows is decided by all processes together where several train (`learners.parallel`).

    def _open_metrics(self, resumed: int | None) -> MetricsWriter:
        return MetricsWriter(self.run_directory.metrics_file, self.run_directory.tensorboard, resumed)

    def _advance(self) -> IterationResult:
        """One iteration of the schedule."""
        return self.schedule.iterate()

    def _signum(self) -> int:
        """The signal that asked for a stop, 0 if none has."""
        return self._stop.signum if self._stop else 0

    def _seconds_unsaved(self) -> float:
        """Time since the last checkpoint."""
        return time.perf_counter() - self._saved_time

    def _nonfinite(self) -> tuple[int, int]:
        """How many states and rewards of the environments have become NaN or infinite."""
        return self.schedule.env.nonfinite_states, self.schedule.env.nonfinite_rewards

    def _save(self, path: Path) -> None:
        state, replay = replay_file.split(self.state_dict())
        if replay is not None:
            replay_file.save(path.parent, self.step, replay)
        checkpoint.save(path, state, step=self.step, score=self._interval.recent_return())
        checkpoint.prune(path.parent, self.settings.keep_checkpoints)
        if replay is not None:
            replay_file.prune(path.parent, self.step)

    def _iterate(self) -> None:
        result = self._advance()
        self.step += result.env_steps
        self.iteration += 1
        self._now = time.perf_counter()
        if not self._warm_step:
            self._warm_step, self._warm_time = self.step, self._now
        self._interval.add(result.metrics, result.episode_returns, result.episode_lengths, result.lags)
        if self.iteration % self.settings.log_every == 0:
            self._write_row()

    @property
    def sps(self) -> float:
        """Environment steps per second in this process, without the first iteration (which compiles) if possible."""
        steps, since = self.step - self._warm_step, self._warm_time
        if not self._warm_step or not steps:
            steps, since = self.step - self._first_step, self._began
        return steps / max(self._now - since, 1e-9)

    def _elapsed(self) -> float:
        return self._seconds + time.perf_counter() - self._began

    def _progress(self) -> Progress:
        sps = self.sps
        left = max(0, self.settings.total_steps - self.step) / max(sps, 1e-9)
        interval, end = self._interval, self.settings.total_steps
        return Progress(self.step, end, self.iteration, sps, left, interval.recent_return, interval.pipeline)

    def _write_row(self) -> None:
        nonfinite_states = self._require_health()
        seconds = self._elapsed()
        self._writer.write(
            {
                "step": self.step,
                "iteration": self.iteration,
                "wall_s": round(seconds, 4),
                "sps": round((self.step - self._row_step) / max(seconds - self._row_seconds, 1e-9), 1),
                "nonfinite_states": nonfinite_states,
                **self._interval.flush(),
                **self.notes,
            }
        )
        self.notes = {}
        self._row_step, self._row_seconds = self.step, seconds

    def _checkpoint_due(self, steps: int, seconds: float) -> bool:
        """Whether so many steps and seconds since the last checkpoint call for the next."""
        settings = self.settings
        if seconds >= settings.checkpoint_seconds:
            return True
        return steps >= settings.checkpoint_every and seconds >= settings.checkpoint_min_seconds

    def _checkpoint(self) -> None:
        """Metrics first, then the checkpoint: no checkpoint is ever ahead of its metrics."""
        self._require_health()
        self._writer.sync()
        path = checkpoint.checkpoint_path(self.run_directory.checkpoints, self.step)
        self._save(path)
        self.last_checkpoint = path

    def _require_health(self) -> int:
        """Refuse to go on with NaN: a checkpoint or row of it would replace good ones. Returns `nonfinite_states`."""
        states, rewards = self._nonfinite()
        if rewards:
            raise NonFiniteError(
                f"{self.schedule.env.spec.id} returned a NaN or infinite reward ({rewards} times by step {self.step})"
            )
        weights = self.schedule.algo.policy.state_dict().items()
        checkpoint.require_finite(weights, f"the policy after step {self.step}")
        return states

    def state_dict(self) -> dict[str, Any]:
        """Everything that continuing needs, schedule included."""
        return {
            "kind": self.kind,
            "schedule": self.schedule.state_dict(),
            "trainer": {
                "step": self.step,
                "iteration": self.iteration,
                "seconds": self._elapsed(),
                "row_step": self._row_step,
                "row_seconds": self._row_seconds,
                "interval": self._interval.state_dict(),
            },
        }

    def _load(self, start: Mapping[str, Any]) -> None:
        try:
            trainer = start["trainer"]
            self.schedule.load_state_dict(start["schedule"])
            self.step, self.iteration = trainer["step"], trainer["iteration"]
            self._seconds = trainer["seconds"]
            self._row_step, self._row_seconds = trainer["row_step"], trainer["row_seconds"]
            self._interval.load_state_dict(trainer["interval"])
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            raise misfit(error) from error
        self.last_checkpoint = checkpoint.checkpoint_path(self.run_directory.checkpoints, self.step)
