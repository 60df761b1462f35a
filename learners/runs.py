"""Run directories: where a training run keeps its config, metrics, checkpoints, evaluations and videos.

runs/<env>/<algo>-<schedule>-s<seed>-<time>/
    config.json             everything needed to build the run again, versions and machine included
    metrics.csv             one row per logging interval
    lags.csv                how many rows had which policy lag, per logging interval
    tensorboard/            the same numbers as TensorBoard events
    checkpoints/            step-<env steps>.safetensors
    evaluations/            one JSON per evaluation
    videos/
    run.lock                held (flock) by the process that writes here; the system frees it on any death
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from gpuenvs.errors import RunError
from learners import checkpoint
from learners.atomic import remove_unfinished, sync_folder, write_atomic, write_problem

CONFIG_FORMAT = 1


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run. Creating the object touches nothing on disk."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations"

    @property
    def videos(self) -> Path:
        return self.path / "videos"

    @property
    def lock_file(self) -> Path:
        return self.path / "run.lock"

    def read_config(self) -> dict[str, Any]:
        """The run's config. Raises `RunError` if the folder is no run or the file is damaged."""
        try:
            config = json.loads(self.config_file.read_text())
        except FileNotFoundError as error:
            raise RunError(f"{self.path} is not a run directory (it has no config.json)") from error
        except NotADirectoryError as error:
            raise RunError(f"{self.path} is not a run directory") from error
        except OSError as error:
            raise RunError(f"cannot read {self.config_file}: {error.strerror or error}") from error
        except ValueError as error:
            raise RunError(f"{self.config_file} is damaged (not JSON); restore it or start a new run") from error
        if not isinstance(config, dict) or "env_id" not in config or "format" not in config:
            raise RunError(f"{self.config_file} is not a gpurl run's config")
        if config["format"] != CONFIG_FORMAT:
            raise RunError(f"{self.config_file} has format {config['format']}; this gpurl reads {CONFIG_FORMAT}")
        return config

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write config.json atomically, `format` added."""
        text = json.dumps({"format": CONFIG_FORMAT, **config}, indent=2) + "\n"
        write_atomic(self.config_file, text.encode())

    def find_checkpoint(self, which: str | int = "latest") -> Path:
        """A checkpoint by "latest", "best" or step number. Raises `CheckpointError` if it is not there."""
        if which == "latest":
            return checkpoint.latest(self.checkpoints)
        if which == "best":
            return checkpoint.best(self.checkpoints)
        steps = dict(checkpoint.list_steps(self.checkpoints))
        try:
            return steps[int(which)]
        except (ValueError, KeyError):
            known = ", ".join(str(step) for step in steps) or "none"
            raise checkpoint.CheckpointError(
                f"no checkpoint {which!r} in {self.checkpoints}; there are: latest, best, {known}"
            ) from None

    def write_json(self, folder: Path, stem: str, document: Mapping[str, Any]) -> Path:
        """Write one result atomically as `<folder>/<stem>.json` (with `-2`, `-3` … if that is taken)."""
        make_folder(folder)
        path = _free_name(folder / f"{stem}.json")
        write_atomic(path, (json.dumps(document, indent=2) + "\n").encode())
        return path


class RunLock:
    """Exclusive use of a run directory, as a context manager. The system frees it when the process dies."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._file: TextIO | None = None

    def __enter__(self) -> RunLock:
        import fcntl

        try:
            file = open(self._run.lock_file, "a+")
        except OSError as error:
            raise write_problem(self._run.lock_file, error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            owner = file.read(32).strip()
            file.close()
            by = f" (process {owner})" if owner else ""
            raise RunError(
                f"{self._run.path} is in use by another gpurl{by}; wait for it or use another folder"
            ) from error
        with contextlib.suppress(OSError):  # the owner's number is a courtesy: a full disk must not stop a resume
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def make_folder(path: Path) -> None:
    """Create `path` and its parents. Raises `RunError` when the system refuses."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_problem(path, error) from error


def default_path(root: Path, env_id: str, algo: str, schedule: str, seed: int) -> Path:
    """`root/<env>/<algo>-<schedule>-s<seed>-<time>`, with the env id made safe for a folder name."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", env_id).strip("._") or "env"
    return _free_name(root / name / f"{algo}-{schedule}-s{seed}-{stamp}")


def find_runs(path: Path) -> list[Path]:
    """The run at `path`, or every run below it in name order. Raises `RunError` if there is none."""
    if path.is_dir() and not (path / "config.json").is_file():
        found = sorted(config.parent for config in path.glob("**/config.json"))
        if found:
            return found
    return [open_run(path).path]


@contextlib.contextmanager
def new_run(path: Path) -> Iterator[RunDirectory]:
    """Make and lock a new run's folders.

    Raises `RunError` if `path` holds a run, is in use or cannot be written.
    """
    run = RunDirectory(path)
    _refuse_existing(run)
    make_folder(path)
    with RunLock(run):
        _refuse_existing(run)  # another process may have come first
        for folder in (run.checkpoints, run.tensorboard):
            make_folder(folder)
        sync_folder(path)
        yield run


@contextlib.contextmanager
def existing_run(path: Path | str) -> Iterator[RunDirectory]:
    """Lock a run for continuing it, litter of killed writers removed. Raises `RunError`."""
    run = open_run(path)
    with RunLock(run):
        for folder in (run.path, run.checkpoints):
            remove_unfinished(folder)
        yield run


def check_new(path: Path) -> None:
    """Raise `RunError` if a new run at `path` is bound to fail: a cheap look before anything slow is done."""
    _refuse_existing(RunDirectory(path))
    parent = path.absolute()
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise write_problem(path, NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
    if not os.access(parent, os.W_OK | os.X_OK):
        raise write_problem(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _refuse_existing(run: RunDirectory) -> None:
    if run.config_file.exists():
        raise RunError(f"{run.path} already holds a run; go on with `gpurl resume {run.path}` or choose another folder")


def open_run(path: Path | str) -> RunDirectory:
    """An existing run. A file inside one (a checkpoint, say) stands for the run it belongs to.

    Raises `RunError` when there is no run at `path`.
    """
    path = Path(path)
    if not path.exists():
        raise RunError(f"no run at {path}")
    for candidate in (path, *path.absolute().parents[:2]):
        if (candidate / "config.json").is_file():
            return RunDirectory(candidate)
    raise RunError(f"{path} is not a run directory (it has no config.json)")


def _free_name(path: Path) -> Path:
    """`path`, or `path` with `-2`, `-3` … before its ending if that exists."""
    candidate, number = path, 2
    while candidate.exists():
        suffix = path.suffix if path.suffix == ".json" else ""
        candidate = path.with_name(f"{path.name.removesuffix(suffix)}-{number}{suffix}")
        number += 1
    return candidate
