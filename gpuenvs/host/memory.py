"""The arrays that the pool and its executors share. They have no name in any file system: memory that no process holds any
more is gone."""

from __future__ import annotations

import mmap
import os
import tempfile
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpuenvs.host.spec import HostSpec

ERROR_BYTES = 65536
_ALIGNMENT = 64

Arrays = dict[str, np.ndarray]


class Field(NamedTuple):
    """One shared array."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def fields(spec: HostSpec, num_envs: int, executors: int) -> list[Field]:
    """Every shared array.

    `episode`, `elapsed` and `running_return` are the row's running episode: its number, its steps so far and its return.
    `nonfinite` counts the row's non-finite observations and rewards. The errors have a slot for each executor and a last one
    for the process that starts them.
    """
    n, shape, obs_dtype = num_envs, spec.observation_space.shape, str(spec.observation_space.dtype)
    if spec.discrete:
        action = Field("action", (n,), "int64")
    else:
        action = Field("action", (n, *spec.action_space.shape), "float32")  # type: ignore[misc]
    return [
        Field("obs", (n, *shape), obs_dtype),
        action,
        Field("reward", (n,), "float32"),
        Field("terminated", (n,), "bool"),
        Field("truncated", (n,), "bool"),
        Field("final_obs", (n, *shape), obs_dtype),
        Field("episode_return", (n,), "float32"),
        Field("episode_length", (n,), "int32"),
        Field("episode", (n,), "int64"),
        Field("elapsed", (n,), "int64"),
        Field("running_return", (n,), "float64"),
        Field("nonfinite", (n, 2), "int64"),
        Field("log_start", (n,), "int64"),
        Field("mismatch", (n,), "bool"),
        Field("error", (executors + 1, ERROR_BYTES), "uint8"),
        Field("error_length", (executors + 1,), "int64"),
        Field("error_time", (executors + 1,), "int64"),
    ]


def create(table: list[Field]) -> int:
    """A descriptor of new memory, all zeros, that holds these arrays."""
    descriptor = anonymous_file()
    os.ftruncate(descriptor, _places(table)[1])
    return descriptor


def anonymous_file() -> int:
    """A descriptor of an empty file without a name, in memory where the system can do that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("gpurl")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def attach(descriptor: int, table: list[Field]) -> Arrays:
    """The arrays in that memory. They keep it alive; the descriptor may be closed."""
    places, size = _places(table)
    memory = mmap.mmap(descriptor, size)
    return {
        name: np.ndarray(shape, dtype, buffer=memory, offset=place)
        for (name, shape, dtype), place in zip(table, places)
    }


def _places(table: list[Field]) -> tuple[list[int], int]:
    """Offset of each array, and the size of all."""
    places, end = [], 0
    for _, shape, dtype in table:
        places.append(end)
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return places, max(end, 1)


def leave_error(arrays: Arrays, slot: int, time: int, line: str, trace: str) -> None:
    """Put an error into its slot: one line, then the traceback. `time` orders the errors of all slots."""
    text = f"{line}\n{trace}".encode(errors="replace")[:ERROR_BYTES]
    arrays["error"][slot, : len(text)] = np.frombuffer(text, np.uint8)
    arrays["error_time"][slot] = time
    arrays["error_length"][slot] = len(text)


def first_error(arrays: Arrays) -> tuple[str, str] | None:
    """Line and traceback of the earliest error; None when there is none."""
    slots = np.flatnonzero(arrays["error_length"])
    if not slots.size:
        return None
    slot = slots[np.argmin(arrays["error_time"][slots])]
    text = arrays["error"][slot, : arrays["error_length"][slot]].tobytes().decode(errors="replace")
    line, _, trace = text.partition("\n")
    return line, trace


def split_rows(num_envs: int, executors: int) -> list[range]:
    """The rows of each executor: neighbours, as evenly as possible."""
    cuts = [num_envs * k // executors for k in range(executors + 1)]
    return [range(first, last) for first, last in pairwise(cuts)]
