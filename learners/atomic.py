"""Files that are whole or absent: write beside the target, fsync, rename, fsync the folder."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuenvs.errors import RunError

TEMPORARY_PREFIX = ".unfinished-"

_ADVICE = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise the file size limit (ulimit -f)",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "choose a folder that can be written",
    errno.EPERM: "choose a folder that can be written",
    errno.ENOTDIR: "choose a path whose parents are folders",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def write_problem(path: Path | str, error: OSError) -> RunError:
    """The one-line error for a file or folder that could not be written."""
    advice = _ADVICE.get(error.errno or 0, "check the folder")
    return RunError(f"cannot write {path}: {error.strerror or error}; {advice} and try again")


def write_atomic(path: Path, chunks: bytes | Iterable[bytes]) -> None:
    """Write `chunks` to `path` so that a crash at any moment leaves the old file, the new one, or none.

    Raises `RunError` when the file system refuses; whatever stood at `path` before is then untouched.
    """
    pieces = [chunks] if isinstance(chunks, bytes) else chunks
    with replacing(path) as temporary, open(temporary, "wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file name beside `path` to write to; takes the place of `path` when the block ends without an error.

    Raises `RunError` when the file system refuses; whatever stood at `path` before is then untouched.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise write_problem(path, error) from error
    finally:
        # After the rename this name is gone; after any failure (also KeyboardInterrupt) it is litter.
        with contextlib.suppress(OSError):
            temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Make a rename or unlink inside `folder` durable (a file system that cannot do so is left alone)."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def remove_unfinished(folder: Path) -> None:
    """Delete what killed writers left in `folder`. Only for the process that holds the run's lock."""
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        with contextlib.suppress(OSError):
            path.unlink()
