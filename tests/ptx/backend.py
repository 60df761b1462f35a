"""The CUDA backends with the interpreter in the place of a device: `gpuenvs.make(..., device="cuda:0")` as it is on a GPU.

Arrays are numpy ones, at made-up addresses. Everything else is the product's: the kernels' PTX, the table of addresses, the
grid, and what the host does between launches.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

import gpuenvs
from gpuenvs.checks.ptxas import toolchain
from gpuenvs.runtime import cuda, disk_cache, traced_cpu, traced_cuda
from gpuenvs.runtime.buffers import Layout
from gpuenvs.runtime.cuda_source import python_kernel
from gpuenvs.trace import cpu as machine
from gpuenvs.trace.cuda import compile_ptx
from tests.ladder import offline, traced
from tests.ladder.offline import Case
from tests.ptx.machine import Program, Statistics
from tests.ptx.memory import Memory

ARCHITECTURE = "sm_90"
PROCESSORS = 132  # of an H100, for the choice of the block size

_programs: dict[Any, tuple[Program, Any]] = {}


def stored(what: str, source: bytes, make: Callable[[], bytes]) -> bytes:
    """What `make` compiles from `source`, kept on disk as the product keeps its kernels."""
    if os.environ.get("GPURL_CACHE", "1") == "0":
        return make()
    digest = hashlib.sha256(what.encode() + b"\0" + source).hexdigest()
    path = disk_cache.cache_directory() / f"test-{digest[:40]}"
    found = disk_cache.read_entry(path)
    if found is None:
        found = make()
        disk_cache.write_entry(path, found)
    return found


def traced_ptx(text: str, contract: bool = True) -> str:
    """PTX of a traced kernel's NVVM IR; without `contract` no multiplication and addition become one instruction."""
    if contract:
        architecture = ARCHITECTURE.replace("sm_", "compute_")
        return stored(f"{toolchain()} {architecture}", text.encode(), lambda: compile_ptx(text, architecture)).decode()
    text = text.replace("contract ", "")
    return stored(f"{toolchain()} {ARCHITECTURE} plain", text.encode(), lambda: _plain_ptx(text)).decode()


def _plain_ptx(text: str) -> bytes:
    from numba.cuda.cudadrv import nvvm

    library: Any = nvvm.NVVM()
    head = f'target triple = "nvptx64-nvidia-cuda"\ntarget datalayout = "{library.data_layout}"\n'
    compilation_unit: Any = nvvm.CompilationUnit
    unit = compilation_unit({"arch": ARCHITECTURE.replace("sm_", "compute_"), "opt": 3, "fma": 0})
    unit.add_module((head + text).encode())
    unit.verify()
    return unit.compile().rstrip(b"\0\n") + b"\n"


def program(layout: Layout, real: str, name: str, contract: bool = True) -> Program:
    """A kernel, decoded once per process."""
    spec = layout.spec
    key = (id(spec), layout.autoreset, layout.per_env_params, real, name, contract)
    if key not in _programs:
        registered = gpuenvs.get(spec.id) is spec and not layout.per_env_params
        case = Case(spec.id, real, layout.autoreset, name)
        if spec.traced:
            text = traced.text(case) if registered else traced_cuda.kernel_text(layout, real, name, real)
            text = traced_ptx(text, contract)
        else:
            text = offline.ptx(case, ARCHITECTURE) if registered else _numba_ptx(layout, real, name)
        _programs[key] = (Program(text), spec)
    return _programs[key][0]


def _numba_ptx(layout: Layout, real: str, name: str) -> str:
    from numba import cuda as numba_cuda
    from numba import types

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


class Written:
    """Which bytes of some arrays hold something, from launch to launch; other arrays are written throughout."""

    def __init__(self) -> None:
        self._shadows: dict[tuple[int, int], np.ndarray] = {}

    def poison(self, array: np.ndarray) -> None:
        """From now on the array holds nothing."""
        self._shadows[array.ctypes.data, array.nbytes] = np.zeros(array.nbytes, np.uint8)

    def shadow(self, array: np.ndarray) -> Any:
        """What `Memory.add` takes as `initialised`."""
        return self._shadows.get((array.ctypes.data, array.nbytes), True)

    def of(self, array: np.ndarray) -> np.ndarray:
        """One byte per byte of a contiguous part of a poisoned array: whether it holds something. A view."""
        for (start, size), shadow in self._shadows.items():
            offset = array.ctypes.data - start
            if offset >= 0 and offset + array.nbytes <= size:
                return shadow[offset : offset + array.nbytes].reshape(*array.shape, array.itemsize)
        raise KeyError("not part of a poisoned array")


class Allocations(Memory):
    """Memory whose allocations are numpy arrays, added when first asked for."""

    def __init__(self, written: Written | None = None) -> None:
        super().__init__()
        self._known: dict[tuple[int, int], int] = {}
        self._written = written or Written()

    def address(self, array: np.ndarray) -> np.int64:
        """Address of an array; 0 of an empty one."""
        if array.size == 0:
            return np.int64(0)
        key = (array.ctypes.data, array.nbytes)
        if key not in self._known:
            name = f"array {len(self._known)} {array.dtype}{array.shape}"
            self._known[key] = self.add(name, array, self._written.shadow(array))
        return np.int64(self._known[key])


@contextlib.contextmanager
def interpreted(
    log: list[tuple[str, Statistics]] | None = None, contract: bool = True, written: Written | None = None
) -> Iterator[None]:
    """Within it `cuda:0` is the interpreter.

    Args:
        log: receives (kernel, what it executed) of each launch.
        contract: False for kernels of traced environments without fused multiply-adds, see `traced_ptx`.
        written: what counts as written before the first launch; default: everything, as it is on a device.
    """

    def record(name: str, statistics: Statistics) -> None:
        if log is not None:
            log.append((name, statistics))

    def launch(backend: Any, name: str, threads: int, *arguments: Any) -> None:
        memory = Allocations(written)
        values = [
            v for array in (*arguments, *backend._fixed) for v in array_arguments(int(memory.address(array)), array)
        ]
        blocks = -(-threads // cuda.THREADS_PER_BLOCK)
        found = program(backend.layout, backend.real.name, name)
        record(name, found.launch(memory, blocks, cuda.THREADS_PER_BLOCK, values))

    def run(backend: Any, name: str, count: int, action: Any, rows: Any) -> None:
        memory = Allocations(written)
        with mock.patch.object(traced_cuda, "_address", memory.address):
            backend._table[:] = backend._host_table()
            backend._processors, backend._addresses = (
                PROCESSORS,
                [memory.address(backend._table), memory.address(backend._totals)],
            )
            kernel, grid, block, values = backend._launch_arguments(name, count, action, rows)
        record(name, kernel.launch(memory, grid, block, list(values)))

    def kernel(backend: Any, name: str, action_dtype: Any = None) -> Program:
        return program(backend.layout, backend.real.name, name, contract)

    with (
        mock.patch.object(cuda, "simulated", lambda: True),
        mock.patch.object(traced_cuda, "simulated", lambda: True),
        mock.patch.object(cuda.CudaBackend, "_launch", launch),
        mock.patch.object(traced_cuda.TracedCudaBackend, "_run", run),
        mock.patch.object(traced_cuda.TracedCudaBackend, "kernel", kernel),
    ):
        yield


@contextlib.contextmanager
def without_contraction() -> Iterator[None]:
    """Within it the CPU kernels of traced environments have no fused multiply-adds."""
    kernels: dict[Any, Any] = {}

    def compiled(layout: Layout, real: str, name: str, action_dtype: str) -> machine.Loaded:
        key = (id(layout.spec), layout.autoreset, layout.per_env_params, real, name, action_dtype)
        if key not in kernels:
            text = traced_cpu.kernel_text(layout, real, name, action_dtype).replace("contract ", "")
            code = stored(machine.machine_identity(), text.encode(), lambda: machine.compile_object(text))
            kernels[key] = machine.Loaded(code, "kernel")
        return kernels[key]

    with mock.patch.object(traced_cpu, "_compiled", compiled):
        yield
