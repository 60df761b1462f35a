"""Training metrics: averaged over a logging interval, written as CSV rows and TensorBoard events.

Values stay on their device until a row is due, so logging forces no host synchronisation in between. Resuming
is exact: rows after the checkpoint's step are cut from the CSV, and the unfinished interval is part of the
checkpoint.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpuenvs.errors import RunError
from learners.atomic import write_atomic, write_problem

# Columns every row has; the algorithm's own follow in the order of its dict.
COLUMNS = ("step", "iteration", "wall_s", "sps", "nonfinite_states", "episodes", "episode_return", "episode_length")
RECENT = 100  # episodes in the running mean, or one per env if there are more envs


def to_numpy(values: Any) -> np.ndarray:
    """A numpy, torch or cupy array (or a sequence) as float64 on the host, 1-D."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    elif hasattr(values, "get") and not isinstance(values, Mapping):
        values = values.get()
    return np.asarray(values, dtype=np.float64).reshape(-1)


class Interval:
    """Sums of one logging interval, and the last finished episodes.

    `recent` is how many episodes `recent_return()` looks back on.
    """

    def __init__(self, recent: int = RECENT) -> None:
        self._recent = recent
        self._recent_returns = np.zeros(0)
        self._episodes = 0  # finished since the run began
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._returns, self._lengths = np.zeros(0), np.zeros(0)
        self._pending: list[tuple[Any, Any]] = []  # episodes still on their device

    def add(self, metrics: Mapping[str, Any], returns: Any, lengths: Any) -> None:
        """Add one iteration: metrics (float or 0-d tensor each) and its finished episodes, (k,) each."""
        for key, value in metrics.items():
            # `+ 0` copies: the learner may write its next metrics into the same tensor.
            self._sums[key] = self._sums.get(key, 0) + value
            self._counts[key] = self._counts.get(key, 0) + 1
        self._pending.append((returns, lengths))

    def recent_return(self) -> float | None:
        """Mean return of the last episodes; None before any has finished."""
        self._gather()
        return float(self._recent_returns.mean()) if len(self._recent_returns) else None

    def flush(self) -> dict[str, float | int | None]:
        """The interval's means; starts the next one."""
        self._gather()
        row: dict[str, float | int | None] = {
            "episodes": self._episodes,
            "episode_return": float(self._returns.mean()) if len(self._returns) else None,
            "episode_length": float(self._lengths.mean()) if len(self._lengths) else None,
        }
        for key, total in self._sums.items():
            row[key] = float(total) / self._counts[key]
        self._sums, self._counts = {}, {}
        self._returns, self._lengths = np.zeros(0), np.zeros(0)
        return row

    def state_dict(self) -> dict[str, Any]:
        """Everything, for a checkpoint. Sums keep their dtype, so that a resumed mean rounds the same way."""
        self._gather()
        return {
            "episodes": self._episodes,
            "recent_returns": self._recent_returns,
            "sums": dict(self._sums),
            "counts": dict(self._counts),
            "returns": self._returns,
            "lengths": self._lengths,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self._episodes = int(state["episodes"])
        self._recent_returns = state["recent_returns"]
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
        self._returns, self._lengths = state["returns"], state["lengths"]
        self._pending = []

    def _gather(self) -> None:
        """Bring the pending episodes to the host."""
        if not self._pending:
            return
        returns = np.concatenate([to_numpy(returns) for returns, _ in self._pending])
        lengths = np.concatenate([to_numpy(lengths) for _, lengths in self._pending])
        self._pending = []
        self._episodes += len(returns)
        self._recent_returns = np.concatenate([self._recent_returns, returns])[-self._recent :]
        self._returns = np.concatenate([self._returns, returns])
        self._lengths = np.concatenate([self._lengths, lengths])


class MetricsWriter:
    """Appends rows to metrics.csv and to a TensorBoard event file.

    `resume_step` None starts both afresh; a step cuts the CSV back to it and tells TensorBoard to forget what
    follows.
    Raises `RunError` when a file cannot be written.
    """

    def __init__(self, csv_file: Path, tensorboard: Path, resume_step: int | None = None) -> None:
        self.rows = 0
        self._path = csv_file
        self._columns: list[str] = []
        if resume_step is None:
            write_atomic(csv_file, b"")
        else:
            self._columns, self.rows = cut_rows(csv_file, resume_step)
        self._events = EventFile(tensorboard, resume_step)
        try:
            self._file = open(csv_file, "a", newline="")  # noqa: SIM115 (closed by close())
        except OSError as error:
            raise write_problem(csv_file, error) from error

    def write(self, row: Mapping[str, float | int | None]) -> None:
        """Append one row; `row` has at least "step". A column not seen before is added to the whole file."""
        new = [key for key in row if key not in self._columns]
        if new:
            self._add_columns(new)
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow([_cell(row.get(key)) for key in self._columns])
        try:
            self._file.write(line.getvalue())
            self._file.flush()
        except OSError as error:
            raise write_problem(self._path, error) from error
        self.rows += 1
        self._events.write(int(row["step"] or 0), row)

    def sync(self) -> None:
        """Make all rows durable: called before each checkpoint, so that none is ahead of its metrics."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise write_problem(self._path, error) from error
        self._events.sync()

    def close(self) -> None:
        """Close both files; errors are not of interest any more."""
        for file in (self._file, self._events):
            with contextlib.suppress(OSError, RunError):
                file.close()

    def _add_columns(self, new: list[str]) -> None:
        known = self._columns or [key for key in COLUMNS if key in new]
        columns = known + [key for key in new if key not in known]
        self._file.close()
        lines = self._path.read_text().splitlines()[1:]
        padding = "," * (len(columns) - len(self._columns))
        text = "".join(f"{line}\n" for line in [",".join(columns), *(line + padding for line in lines)])
        write_atomic(self._path, text.encode())
        self._columns = columns
        try:
            self._file = open(self._path, "a", newline="")  # noqa: SIM115
        except OSError as error:
            raise write_problem(self._path, error) from error


class EventFile:
    """A TensorBoard event file written without a background thread; one event holds a whole row."""

    def __init__(self, folder: Path, resume_step: int | None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[attr-defined]
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event = Event
        self._path = _event_path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "wb")  # noqa: SIM115 (closed by close())
        except OSError as error:
            raise write_problem(self._path, error) from error
        self._records = RecordWriter(self._file)
        self._put(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resume_step is not None:
            start = SessionLog(status=SessionLog.START)
            self._put(Event(wall_time=time.time(), step=resume_step + 1, session_log=start))

    def write(self, step: int, row: Mapping[str, float | int | None]) -> None:
        """One event at `step` with a scalar per column."""
        event = self._event(wall_time=time.time(), step=step)
        for key, value in row.items():
            if key != "step" and value is not None:
                event.summary.value.add(tag=_tag(key), simple_value=float(value))
        self._put(event)

    def sync(self) -> None:
        """Make the events durable."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise write_problem(self._path, error) from error

    def close(self) -> None:
        self._file.close()

    def _put(self, event: Any) -> None:
        try:
            self._records.write(event.SerializeToString())
            self._file.flush()
        except OSError as error:
            raise write_problem(self._path, error) from error


def cut_rows(path: Path, step: int) -> tuple[list[str], int]:
    """Drop the rows of metrics.csv after `step` and an unfinished last line. Returns (columns, rows kept)."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"cannot read {path}: {error}") from error
    lines = text.split("\n")[:-1]  # what follows the last newline was cut by a kill
    columns = lines[0].split(",") if lines else []
    if columns and columns[0] != "step":
        raise RunError(f"{path} is damaged (its first column is not 'step'); move it away and resume again")
    kept = [line for line in lines[1:] if _row_step(line) <= step]
    write_atomic(path, "".join(f"{line}\n" for line in lines[:1] + kept).encode())
    return columns, len(kept)


def read_rows(path: Path) -> dict[str, np.ndarray]:
    """metrics.csv as columns, (rows,) float64 each, NaN where a cell is empty. Raises `RunError`."""
    try:
        with open(path, newline="") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RunError(f"cannot read {path}: {error}") from error
    if not rows:
        return {}
    header, width = rows[0], len(rows[0])
    body = [row for row in rows[1:] if len(row) == width]
    try:
        table = np.array([[float(cell) if cell else math.nan for cell in row] for row in body])
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from error
    table = table.reshape(len(body), width)
    return {name: table[:, index] for index, name in enumerate(header)}


def _row_step(line: str) -> float:
    """The step in a row's first cell; infinite, hence dropped, if it is none."""
    try:
        return int(line.split(",", 1)[0])
    except ValueError:
        return math.inf


def _cell(value: float | int | None) -> str:
    if value is None:
        return ""
    return repr(value) if isinstance(value, int) else repr(float(value))


def _tag(key: str) -> str:
    if key.startswith("episode"):
        return f"episode/{key.removeprefix('episode_')}"
    return f"time/{key}" if key in COLUMNS else f"train/{key}"


def _event_path(folder: Path) -> Path:
    """TensorBoard reads event files in name order: the time makes a later session come later."""
    stamp = f"{time.time_ns():020d}"
    return folder / f"events.out.tfevents.{stamp[:-9]}.{stamp[-9:]}.{os.getpid()}"
