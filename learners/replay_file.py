"""The replay of a run's latest checkpoint: a file of its own beside it, so that only one of them takes its room.

It is written before its checkpoint, and the one before it is deleted after that: a run that is killed at any moment has a
latest checkpoint with its replay.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from learners import checkpoint
from learners.checkpoint import SUFFIX

_PREFIX = "replay-"


def replay_path(folder: Path, step: int) -> Path:
    """The file of the checkpoint of step number `step`."""
    return folder / f"{_PREFIX}{step:012d}{SUFFIX}"


def split(state: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """(a trainer's state without the replay, the replay's state or None)."""
    schedule = dict(state["schedule"])
    replay = schedule.pop("replay", None)
    return {**state, "schedule": schedule}, replay


def save(folder: Path, step: int, replay: Any) -> None:
    """Write the replay of a checkpoint that is about to be made. Raises `RunError` if the disk refuses."""
    checkpoint.save(replay_path(folder, step), replay, step=step)


def prune(folder: Path, step: int) -> None:
    """Delete the replays of all other checkpoints."""
    for path in folder.glob(f"{_PREFIX}*{SUFFIX}"):
        if path != replay_path(folder, step):
            with suppress(OSError):
                path.unlink()


def attach(folder: Path, step: int, state: dict[str, Any]) -> dict[str, Any]:
    """The loaded state of checkpoint `step` with its replay, if that was saved.

    Raises:
        CheckpointError: the file is damaged.
    """
    path = replay_path(folder, step)
    if not path.is_file():
        return state
    return {**state, "schedule": {**state["schedule"], "replay": checkpoint.load(path)}}
