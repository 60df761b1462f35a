"""The CPU backend of traced environments: machine code from `gpuenvs.trace.cpu`, called without the GIL."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gpuenvs.runtime import disk_cache, traced
from gpuenvs.runtime.buffers import Layout
from gpuenvs.runtime.cpu import TAIL, CpuBackend
from gpuenvs.trace import cpu as machine

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class TracedCpuBackend(CpuBackend):
    """Arrays and kernels of one batch of a traced environment; see `CpuBackend`."""

    def _make_scratch(self) -> tuple[np.ndarray, list[np.ndarray]]:
        return np.zeros(8, np.int64), []  # only the counts of a step

    def _function(self, name: str, action_dtype: np.dtype | None = None) -> tuple[Any, int]:
        """(callable, address) of a kernel, compiled when first asked for."""
        dtype = action_dtype or self._action_dtype
        found = self._kernels.get((name, dtype))
        if found is None:
            code = _compiled(self.layout, self.real.name, name, dtype.name)
            found = self._kernels[name, dtype] = (_FUNCTION(code.address), code.address)  # type: ignore[assignment]
        return found  # type: ignore[return-value]

    def kernel(self, name: str, action_dtype: np.dtype | None = None) -> Any:
        """Compile a kernel now; returns it."""
        return self._function(name, action_dtype)[0]

    def step(self, action: np.ndarray) -> tuple[int, int, int]:
        """Step every row with `action` (rows of the action buffer, contiguous); (ended rows, bad states, bad rewards)."""
        function = self.kernel("step_kernel", action.dtype)
        self._table[self._action_slot] = action.ctypes.data
        table = self._table.ctypes.data

        def work(thread: int, start: int, stop: int) -> None:
            counts = self._scratch[thread][0]
            counts[:] = 0
            function(start, stop, table, None, counts.ctypes.data)

        if self._threads.count == 1:
            work(0, 0, self.num_envs)
            ended, states, rewards = self._scratch[0][0][:3].tolist()
            return ended, states, rewards
        self._threads.run(work)
        counts = sum(scratch[0] for scratch in self._scratch)
        return int(counts[0]), int(counts[1]), int(counts[2])  # type: ignore[index]

    def native_step(self) -> tuple[Any, int]:
        """See `CpuBackend.native_step`."""
        dtype = np.dtype(np.int64) if self.layout.spec.discrete else self._action_dtype
        self._set("step_function", self._function("step_kernel", dtype)[1])
        return call_step, self._action_slot

    def wrong_actions(self, action: np.ndarray, choices: int) -> int:
        """Number of integer actions outside of 0..choices - 1."""
        return int(np.count_nonzero((action < 0) | (action >= choices)))

    def begin(self, rows: np.ndarray) -> None:
        """Begin episode `episode[i]` in these rows."""
        self._over("begin_kernel", rows)

    def observe(self, rows: np.ndarray) -> None:
        """Refresh obs of these rows from their state."""
        self._over("observe_kernel", rows)

    def _over(self, name: str, rows: np.ndarray) -> None:
        """Run a kernel over `rows`, one run of consecutive rows after the other.

        A kernel over a list would gather and scatter, and LLVM takes tens of seconds for hundreds of scatters.
        """
        function, counts = self.kernel(name), self._scratch[0][0]
        chosen = np.asarray(rows, np.int64)
        ends = np.append(np.flatnonzero(np.diff(chosen) != 1), len(chosen) - 1)
        first = 0
        for last in ends[: len(chosen)].tolist():
            start, stop = int(chosen[first]), int(chosen[last]) + 1
            function(start, stop, self._table.ctypes.data, None, counts.ctypes.data)
            first = last + 1


@intrinsic
def _call(typingctx: Any, address: Any, start: Any, stop: Any, table: Any, counts: Any) -> Any:
    """Call machine code at an address with the arguments of a step kernel."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [word] * 5)
        function = builder.inttoptr(args[0], kind.as_pointer())
        builder.call(function, [args[1], args[2], args[3], ir.Constant(word, 0), args[4]])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


@numba.njit(nogil=True)
def call_step(start, stop, table, scratch):
    """`step_kernel(start, stop, table, scratch) -> (ended rows, bad states, bad rewards)` for compiled callers."""
    for k in range(3):
        scratch[k] = 0
    _call(table[table.size - 1], start, stop, table.ctypes.data, scratch.ctypes.data)  # type: ignore[call-arg]
    return np.int32(scratch[0]), np.int32(scratch[1]), np.int32(scratch[2])


_compile_lock = threading.Lock()
_cache: dict[tuple[Any, ...], tuple[machine.Loaded, Any]] = {}


def _compiled(layout: Layout, real: str, name: str, action_dtype: str) -> machine.Loaded:
    """Kernels are shared by all batches of one layout in the process. Specs are compared by identity."""
    key = (id(layout.spec), *layout.key, real, name, action_dtype)
    with _compile_lock:
        if key not in _cache:
            _cache[key] = (machine.Loaded(_object_code(layout, real, name, action_dtype), "kernel"), layout.spec)
        return _cache[key][0]


def _object_code(layout: Layout, real: str, name: str, action_dtype: str) -> bytes:
    """From disk, or traced and compiled and then kept there."""
    path = traced.cache_entry(layout, real, name, action_dtype, machine.machine_identity())
    code = disk_cache.read_entry(path) if path is not None else None
    if code is None:
        code = machine.compile_object(kernel_text(layout, real, name, action_dtype))
        if path is not None:
            disk_cache.write_entry(path, code)
    return code


def kernel_text(layout: Layout, real: str, name: str, action_dtype: str) -> str:
    """LLVM IR of a kernel."""
    slots = traced.slots(layout)
    program = traced.record_kernel(layout, real, name, action_dtype)
    size = len(layout.buffers) + len(TAIL)
    return machine.CpuPrinter(program, real, "kernel", size, slots["num_envs"], len(traced.COUNTED)).text()
