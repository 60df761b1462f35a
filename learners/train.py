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
from typing import Any

from gpuenvs.errors import NonFiniteError, RunError
from learners import checkpoint
from learners.build import misfit
from learners.interrupts import StopRequest
from learners.metrics import Interval, MetricsWriter
from learners.runs import RunDirectory


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

    `kind` (see `learners.build.kind_of`) is written into every checkpoint.

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
        kind: Mapping[str, str],
        start: Mapping[str, Any] | None = None,
    ) -> None:
        self.run_directory = run
        self.kind = dict(kind)
        self.schedule = schedule
        self.settings = settings
        self.step = 0
        self.iteration = 0
        self.last_checkpoint: Path | None = None
        self._seconds = 0.0  # trained before this process
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
        except (RunError, NonFiniteError) as error:
            kept = f"; last good checkpoint: {self.last_checkpoint}" if self.last_checkpoint else ""
            raise type(error)(f"{error}{kept}") from error

    def _train(self, stop: StopRequest | None, on_progress: Callable[[Progress], None] | None) -> Outcome:
        run, settings = self.run_directory, self.settings
        resumed = self.step if self.last_checkpoint else None
        self._writer = MetricsWriter(run.metrics_file, run.tensorboard, resumed)
        self._began = time.perf_counter()
        try:
            if self.last_checkpoint is None:
                self._checkpoint()  # from now on a killed run can be resumed
            saved_step, saved_time = self.step, self._began
            while self.step < settings.total_steps and not (stop and stop.signum):
                self._iterate()
                if on_progress is not None:
                    on_progress(self._progress())
                if self._checkpoint_due(self.step - saved_step, time.perf_counter() - saved_time):
                    self._checkpoint()
                    saved_step, saved_time = self.step, time.perf_counter()
            if self.step >= settings.total_steps and self.step > self._row_step:
                self._write_row()
            if self.step > saved_step:
                self._checkpoint()
        finally:
            self._writer.close()
        assert self.last_checkpoint is not None
        return Outcome(
            step=self.step,
            seconds=self._elapsed(),
            signum=stop.signum if stop else 0,
            checkpoint=self.last_checkpoint,
            recent_return=self._interval.recent_return(),
            nonfinite_states=self.schedule.env.nonfinite_states,
        )

    def _iterate(self) -> None:
        result = self.schedule.iterate()
        self.step += result.env_steps
        self.iteration += 1
        self._now = time.perf_counter()
        if not self._warm_step:
            self._warm_step, self._warm_time = self.step, self._now
        self._interval.add(result.metrics, result.episode_returns, result.episode_lengths)
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
        return Progress(self.step, self.settings.total_steps, self.iteration, sps, left, self._interval.recent_return)

    def _write_row(self) -> None:
        self._require_health()
        seconds = self._elapsed()
        self._writer.write(
            {
                "step": self.step,
                "iteration": self.iteration,
                "wall_s": round(seconds, 4),
                "sps": round((self.step - self._row_step) / max(seconds - self._row_seconds, 1e-9), 1),
                "nonfinite_states": self.schedule.env.nonfinite_states,
                **self._interval.flush(),
            }
        )
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
        folder = self.run_directory.checkpoints
        path = checkpoint.checkpoint_path(folder, self.step)
        checkpoint.save(path, self.state_dict(), step=self.step, score=self._interval.recent_return())
        self.last_checkpoint = path
        checkpoint.prune(folder, self.settings.keep_checkpoints)

    def _require_health(self) -> None:
        """Refuse to go on with NaN: a checkpoint or row of it would replace good ones."""
        env = self.schedule.env
        if env.nonfinite_rewards:
            raise NonFiniteError(
                f"{env.spec.id} returned a NaN or infinite reward ({env.nonfinite_rewards} times by step {self.step})"
            )
        weights = self.schedule.algo.policy.state_dict().items()
        checkpoint.require_finite(weights, f"the policy after step {self.step}")

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
