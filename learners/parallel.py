"""The training loop of one of several processes: the same decisions in all of them, files written by process 0."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpuenvs.errors import CheckpointError
from learners.build import misfit
from learners.distributed import Group, learned
from learners.metrics import MetricsWriter
from learners.runs import RunDirectory
from learners.schedules.common import IterationResult
from learners.train import LoopSettings, Trainer

# Episodes that travel with the decisions of an iteration; if a process has finished more they take a second exchange.
_EPISODES = 256


class ParallelTrainer(Trainer):
    """`Trainer` of one process of a group. Steps, episodes and metrics are those of all processes.

    Each iteration ends with an exchange: which signal came, what process 0's clock says, which episodes ended. So all
    stop, write and save after the same one. A checkpoint is process 0's with the environments of the others beside.

    Raises, besides what `Trainer` raises:
        ProcessError: another process is gone.
    """

    def __init__(
        self,
        run: RunDirectory,
        schedule: Any,
        settings: LoopSettings,
        kind: Mapping[str, Any],
        group: Group,
        start: Mapping[str, Any] | None = None,
    ) -> None:
        self.group = group
        self._agreed_signum = 0
        self._agreed_unsaved = 0.0
        super().__init__(run, schedule, settings, kind, start)

    def _advance(self) -> IterationResult:
        result = self.schedule.iterate()
        episodes = torch.from_numpy(np.stack((result.episode_returns, result.episode_lengths), dtype=np.float64))
        count = episodes.shape[1]
        message = torch.zeros(3 + 2 * _EPISODES, dtype=torch.float64)
        message[:3] = torch.tensor([super()._signum(), super()._seconds_unsaved(), count], dtype=torch.float64)
        first = episodes[:, :_EPISODES]
        message[3:].view(2, -1)[:, : first.shape[1]] = first
        everybody = self.group.gather(message)
        self._agreed_signum = int(everybody[:, 0].max())
        self._agreed_unsaved = float(everybody[0, 1])
        counts = [int(k) for k in everybody[:, 2]]
        tables = everybody[:, 3:].view(self.group.size, 2, -1)
        if max(counts) > _EPISODES:
            padded = torch.zeros((2, max(counts)), dtype=torch.float64)
            padded[:, :count] = episodes
            tables = self.group.gather(padded)
        joined = torch.cat([table[:, :k] for table, k in zip(tables, counts, strict=True)], dim=1).numpy()
        return dataclasses.replace(
            result,
            env_steps=result.env_steps * self.group.size,
            episode_returns=joined[0].astype(np.float32),
            episode_lengths=joined[1].astype(np.int32),
        )

    def _signum(self) -> int:
        return self._agreed_signum

    def _seconds_unsaved(self) -> float:
        return self._agreed_unsaved

    def _nonfinite(self) -> tuple[int, int]:
        totals = self.group.gather(torch.tensor(super()._nonfinite(), dtype=torch.int64)).sum(0)
        return int(totals[0]), int(totals[1])

    def _open_metrics(self, resumed: int | None) -> MetricsWriter:
        return super()._open_metrics(resumed) if self.group.first else _NoMetrics()

    def _save(self, path: Path) -> None:
        algo = self.schedule.algo
        self.group.verify(learned(algo.actor_optimizer, algo.critic_optimizer), f"step {self.step}")
        self._parts = self.group.collect(_own_part(self.schedule.state_dict()))
        if self.group.first:
            super()._save(path)

    def state_dict(self) -> dict[str, Any]:
        """Everything that continuing needs, in process 0 while a checkpoint is made."""
        return {**super().state_dict(), "processes": {"count": self.group.size, "parts": self._parts[1:]}}


class _NoMetrics(MetricsWriter):
    """Writes nothing."""

    def __init__(self) -> None:
        pass

    def write(self, row: Mapping[str, float | int | None]) -> None:
        pass

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


def own_state(state: Mapping[str, Any], group: Group | None) -> dict[str, Any]:
    """The loaded checkpoint as this process continues from it.

    Raises:
        CheckpointError: it was made by another number of processes.
    """
    processes = state.get("processes") or {"count": 1, "parts": []}
    size = group.size if group else 1
    if processes["count"] != size:
        made = processes["count"]
        one, several = "one process", "{} processes (torchrun --nproc-per-node {})"
        have, had = (one if count == 1 else several.format(count, count) for count in (size, made))
        raise CheckpointError(f"the checkpoint was made by {had}, this is {have}; resume it with as many")
    if group is None or group.first:
        return dict(state)
    try:
        return {**state, "schedule": _with_part(state["schedule"], processes["parts"][group.rank - 1])}
    except (KeyError, IndexError, TypeError) as error:
        raise misfit(error) from error


def _own_part(schedule: Mapping[str, Any]) -> dict[str, Any]:
    """What a schedule's state holds of this process alone: all but the learner, and the returns so far of its rows."""
    part = {key: value for key, value in schedule.items() if key != "algo"}
    norm = schedule["algo"]["reward_norm"]
    return {**part, "running": norm["running"] if norm else None}


def _with_part(schedule: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """`schedule` of process 0 with the part of another."""
    part = dict(part)
    running, algo = part.pop("running"), dict(schedule["algo"])
    if running is not None:
        algo["reward_norm"] = {**algo["reward_norm"], "running": running}
    return {**part, "algo": algo}
