"""Training metrics: averaged over a logging interval, written as CSV rows and TensorBoard events.

Values stay on their device until a row is due, so logging forces no host synchronisation in between. Resuming
is exact: rows after the checkpoint's step are cut from the CSV, and the unfinished interval is part of the
checkpoint.

A policy lag is how many updates the learner was ahead of the weights that chose a row's action. How many rows had which
lag goes into `lags.csv` beside the CSV, with the columns step, lag and rows: one line per logging interval and lag.
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
from typing import IO, Any

import numpy as np

from gpuenvs.errors import RunError
from learners.atomic import write_atomic, write_problem

# Columns every row has; the algorithm's own follow in the order of its dict.
COLUMNS = ("step", "iteration", "wall_s", "sps", "nonfinite_states", "episodes", "episode_return", "episode_length")
RECENT = 100  # episodes in the running mean, or one per env if there are more envs
LAGS_FILE = "lags.csv"
LAG_COLUMNS = ["step", "lag", "rows"]
# Shares of the wall-clock in 0..1 that a pipelined schedule reports among its metrics.
SHARES = ("overlap", "sampler_idle", "learner_idle")
# What a schedule with a replay reports: steps collected and rows learned from, per second, and their ratio.
RATES = ("sampling_hz", "update_frames_hz", "update_to_data", "update_to_data_target")
_BUSY = "_busy"  # columns with the share of the time that a part was at work


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
        self._lags: dict[int, int] = {}
        self._last_pipeline: dict[str, float] = {}

    def add(
        self, metrics: Mapping[str, Any], returns: Any, lengths: Any, lags: Mapping[int, int] | None = None
    ) -> None:
        """Add one iteration: metrics (float or 0-d tensor each), its finished episodes, (k,) each, and lag -> rows."""
        for key, value in metrics.items():
            # `+ 0` copies: the learner may write its next metrics into the same tensor.
            self._sums[key] = self._sums.get(key, 0) + value
            self._counts[key] = self._counts.get(key, 0) + 1
        self._pending.append((returns, lengths))
        for lag, rows in (lags or {}).items():
            self._lags[int(lag)] = self._lags.get(int(lag), 0) + int(rows)

    def recent_return(self) -> float | None:
        """Mean return of the last episodes; None before any has finished."""
        self._gather()
        return float(self._recent_returns.mean()) if len(self._recent_returns) else None

    def pipeline(self) -> dict[str, float]:
        """`lag_mean`, `lag_max`, `SHARES`, `RATES` and how busy each part was, as far as the schedule has them: of this
        interval, else of the last one."""
        keys = [key for key in self._sums if key in SHARES or key in RATES or key.endswith(_BUSY)]
        means = {key: float(self._sums[key]) / self._counts[key] for key in keys}
        return {**lag_statistics(self._lags), **means} or self._last_pipeline

    def flush(self) -> dict[str, Any]:
        """The interval's means (float, int or None each); starts the next one. `lags` is lag -> rows if there are any."""
        self._gather()
        self._last_pipeline = self.pipeline()
        row: dict[str, Any] = {
            "episodes": self._episodes,
            "episode_return": float(self._returns.mean()) if len(self._returns) else None,
            "episode_length": float(self._lengths.mean()) if len(self._lengths) else None,
        }
        for key, total in self._sums.items():
            row[key] = float(total) / self._counts[key]
        if self._lags:
            row.update(lag_statistics(self._lags), lags=self._lags)
        self._sums, self._counts, self._lags = {}, {}, {}
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
            "lags": dict(self._lags),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self._episodes = int(state["episodes"])
        self._recent_returns = state["recent_returns"]
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
        self._returns, self._lengths = state["returns"], state["lengths"]
        self._lags = dict(state.get("lags", {}))  # checkpoints of earlier versions have none
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


def lag_statistics(lags: Mapping[int, int]) -> dict[str, float]:
    """`lag_mean` over the rows and `lag_max` of lag -> rows; empty if there are no rows."""
    rows = sum(lags.values())
    if not rows:
        return {}
    return {"lag_mean": sum(lag * count for lag, count in lags.items()) / rows, "lag_max": max(lags)}


class MetricsWriter:
    """Appends rows to metrics.csv and to a TensorBoard event file, and their lags to lags.csv.

    `resume_step` None starts all afresh; a step cuts the CSVs back to it and tells TensorBoard to forget what
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
        self._lags = LagFile(csv_file.with_name(LAGS_FILE), resume_step)
        self._events = EventFile(tensorboard, resume_step)
        try:
            self._file = open(csv_file, "a", newline="")  # noqa: SIM115 (closed by close())
        except OSError as error:
            raise write_problem(csv_file, error) from error

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row: "step" and what `Interval.flush` gave. A column not seen before is added to the whole file."""
        step, lags = int(row["step"] or 0), row.get("lags", {})
        row = {key: value for key, value in row.items() if key != "lags"}
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
        self._lags.write(step, lags)
        self._events.write(step, row, lags)

    def sync(self) -> None:
        """Make all rows durable: called before each checkpoint, so that none is ahead of its metrics."""
        _make_durable(self._file, self._path)
        self._lags.sync()
        self._events.sync()

    def close(self) -> None:
        """Close all files; errors are not of interest any more."""
        for file in (self._file, self._lags, self._events):
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


class LagFile:
    """Appends policy lags to lags.csv; a step in `resume_step` cuts it back to that. Raises `RunError`."""

    def __init__(self, path: Path, resume_step: int | None) -> None:
        self._path = path
        if resume_step is None or not cut_rows(path, resume_step)[0]:
            write_atomic(path, f"{','.join(LAG_COLUMNS)}\n".encode())
        try:
            self._file = open(path, "a")  # noqa: SIM115 (closed by close())
        except OSError as error:
            raise write_problem(path, error) from error

    def write(self, step: int, lags: Mapping[int, int]) -> None:
        """One line per lag -> rows of the interval that ended at `step`."""
        try:
            self._file.writelines(f"{step},{lag},{rows}\n" for lag, rows in sorted(lags.items()))
            self._file.flush()
        except OSError as error:
            raise write_problem(self._path, error) from error

    def sync(self) -> None:
        """Make the lines durable."""
        _make_durable(self._file, self._path)

    def close(self) -> None:
        self._file.close()


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

    def write(self, step: int, row: Mapping[str, float | int | None], lags: Mapping[int, int]) -> None:
        """One event at `step` with a scalar per column and a histogram of lag -> rows, if there are any."""
        event = self._event(wall_time=time.time(), step=step)
        for key, value in row.items():
            if key != "step" and value is not None:
                event.summary.value.add(tag=_tag(key), simple_value=float(value))
        if lags:
            _add_histogram(event.summary.value.add(tag=_tag("lag_histogram")).histo, lags)
        self._put(event)

    def sync(self) -> None:
        """Make the events durable."""
        _make_durable(self._file, self._path)

    def close(self) -> None:
        self._file.close()

    def _put(self, event: Any) -> None:
        try:
            self._records.write(event.SerializeToString())
            self._file.flush()
        except OSError as error:
            raise write_problem(self._path, error) from error


def _make_durable(file: IO[Any], path: Path) -> None:
    """What was written to the open file is on the disk. Raises `RunError`."""
    try:
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
        raise write_problem(path, error) from error


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


def read_lags(path: Path) -> dict[int, int]:
    """Lag -> rows of a whole run from its lags.csv; empty where there is none. Raises `RunError`."""
    if not path.exists():
        return {}
    table = read_rows(path)
    total: dict[int, int] = {}
    for lag, rows in zip(*(table.get(name, np.zeros(0)).astype(int).tolist() for name in LAG_COLUMNS[1:])):
        total[lag] = total.get(lag, 0) + rows
    return dict(sorted(total.items()))


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
    if key in SHARES or key.startswith("lag_"):
        return f"schedule/{key}"
    return f"time/{key}" if key in COLUMNS else f"train/{key}"


def _add_histogram(histogram: Any, lags: Mapping[int, int]) -> None:
    """Fill a TensorBoard histogram: a bucket around each whole number from the least lag to the greatest."""
    low, high = min(lags), max(lags)
    histogram.min, histogram.max = low, high
    histogram.num = sum(lags.values())
    histogram.sum = sum(lag * rows for lag, rows in lags.items())
    histogram.sum_squares = sum(lag * lag * rows for lag, rows in lags.items())
    for lag in range(low, high + 1):
        histogram.bucket_limit.append(lag + 0.5)
        histogram.bucket.append(lags.get(lag, 0))


def _event_path(folder: Path) -> Path:
    """TensorBoard reads event files in name order: the time makes a later session come later."""
    stamp = f"{time.time_ns():020d}"
    return folder / f"events.out.tfevents.{stamp[:-9]}.{stamp[-9:]}.{os.getpid()}"
