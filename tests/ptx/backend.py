"""The CUDA backends with the interpreter in the place of a device: `gpuenvs.make(..., device="cuda:0")` as it is on a GPU.

Arrays are numpy ones, at made-up addresses. Everything else is the product's: the kernels' PTX, the table of addresses, the
grid, and what the host does between launches.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

from gpuenvs.runtime import cuda, traced_cuda
from gpuenvs.runtime.buffers import Layout
from gpuenvs.runtime.cuda_source import python_kernel
from tests.ladder import offline, traced
from tests.ladder.offline import Case
from tests.ptx.machine import Program, Statistics
from tests.ptx.memory import Memory

ARCHITECTURE = "sm_90"
PROCESSORS = 132  # of an H100, for the choice of the block size

_programs: dict[Any, tuple[Program, Any]] = {}


@functools.cache
def program(case: Case) -> Program:
    """A kernel of a registered environment, decoded once per process."""
    is_traced = case.env_id in traced.MUJOCO
    return Program((traced if is_traced else offline).ptx(case, ARCHITECTURE))


def _program_of(layout: Layout, real: str, name: str) -> Program:
    """The same for any layout."""
    import gpuenvs

    case = Case(layout.spec.id, real, layout.autoreset, name)
    with contextlib.suppress(KeyError):
        if gpuenvs.get(layout.spec.id) is layout.spec and not layout.per_env_params:
            return program(case)
    key = (id(layout.spec), layout.autoreset, layout.per_env_params, real, name)
    if key not in _programs:
        _programs[key] = (Program(_text(layout, real, name)), layout.spec)
    return _programs[key][0]


def _text(layout: Layout, real: str, name: str) -> str:
    from numba import cuda as numba_cuda
    from numba import types

    if layout.spec.traced:
        from gpuenvs.trace.cuda import compile_ptx

        text = traced_cuda.kernel_text(layout, real, name, real)
        return compile_ptx(text, ARCHITECTURE.replace("sm_", "compute_")).decode()
    signature = types.void(*offline.argument_types(layout.spec, real, name))
    with offline.device_stub(ARCHITECTURE):
        kernel = python_kernel(layout, np.dtype(real), name, numba_cuda)
        text, _ = numba_cuda.compile(  # type: ignore[attr-defined]
            kernel, signature, cc=offline.capability(ARCHITECTURE), device=False, abi="numba", output="ptx"
        )
    return text


def array_arguments(address: int, array: Any) -> list[int]:
    """What a kernel of numba-cuda receives for an array: two unused pointers, counts, address, shape, strides."""
    return [0, 0, array.size, array.itemsize, address, *array.shape, *array.strides]


class Allocations(Memory):
    """Memory whose allocations are numpy arrays, added when first asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[int, int], int] = {}

    def address(self, array: np.ndarray) -> np.int64:
        """Address of an array; 0 of an empty one."""
        if array.size == 0:
            return np.int64(0)
        key = (array.ctypes.data, array.nbytes)
        if key not in self._known:
            self._known[key] = self.add(f"array {len(self._known)} {array.dtype}{array.shape}", array)
        return np.int64(self._known[key])


@contextlib.contextmanager
def interpreted(log: list[tuple[str, Statistics]] | None = None) -> Iterator[None]:
    """Within it `cuda:0` is the interpreter; `log` receives (kernel, what it executed) of each launch."""

    def record(name: str, statistics: Statistics) -> None:
        if log is not None:
            log.append((name, statistics))

    def launch(backend: Any, name: str, threads: int, *arguments: Any) -> None:
        memory = Allocations()
        values = [
            v for array in (*arguments, *backend._fixed) for v in array_arguments(int(memory.address(array)), array)
        ]
        blocks = -(-threads // cuda.THREADS_PER_BLOCK)
        found = _program_of(backend.layout, backend.real.name, name)
        record(name, found.launch(memory, blocks, cuda.THREADS_PER_BLOCK, values))

    def run(backend: Any, name: str, count: int, action: Any, rows: Any) -> None:
        memory = Allocations()
        with mock.patch.object(traced_cuda, "_address", memory.address):
            backend._table[:] = backend._host_table()
            backend._processors, backend._addresses = (
                PROCESSORS,
                [memory.address(backend._table), memory.address(backend._totals)],
            )
            kernel, grid, block, values = backend._launch_arguments(name, count, action, rows)
        record(name, kernel.launch(memory, grid, block, list(values)))

    def kernel(backend: Any, name: str, action_dtype: Any = None) -> Program:
        return _program_of(backend.layout, backend.real.name, name)

    with (
        mock.patch.object(cuda, "simulated", lambda: True),
        mock.patch.object(traced_cuda, "simulated", lambda: True),
        mock.patch.object(cuda.CudaBackend, "_launch", launch),
        mock.patch.object(traced_cuda.TracedCudaBackend, "_run", run),
        mock.patch.object(traced_cuda.TracedCudaBackend, "kernel", kernel),
    ):
        yield
