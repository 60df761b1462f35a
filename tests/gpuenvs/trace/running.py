"""Small traced functions recorded and run: as CPU vectors, as Python row by row, as Python over all rows at once, as PTX."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from gpuenvs.trace.cpu import CpuPrinter, Loaded, compile_object, lanes
from gpuenvs.trace.cuda import CudaPrinter, compile_ptx
from gpuenvs.trace.elementary import precision
from gpuenvs.trace.graph import Program, as_value, record, statement
from gpuenvs.trace.python import PythonPrinter, load

REALS = ("float32", "float64")
# Slots of the address table: a buffer of each dtype to read from and to write to, then the number of rows.
DTYPES: tuple[str, ...] = ("real", "uint32", "int32", "bool")
_KINDS = {"real": "real", "uint32": "u32", "int32": "i32", "bool": "bool"}
_N_SLOT = 2 * len(DTYPES)


def recorded(function: Callable[..., list[Any]], kinds: str, real: str) -> Program:
    """A program that reads one value per letter of `kinds` (r, u, i, b), and stores what the function returns.

    `function` returns reals, u32, i32 or conditions, in any order.
    """
    with precision(real), record() as program:
        mask = statement("active", "bool", ())
        arguments, used = [], dict.fromkeys(DTYPES, 0)
        for letter in kinds:
            dtype = next(d for d in DTYPES if d.startswith(letter))
            slot = DTYPES.index(dtype)
            attr = (slot, used[dtype], real if dtype == "real" else dtype)
            arguments.append(statement("get", _KINDS[dtype], (), attr))
            used[dtype] += 1
        out = dict.fromkeys(DTYPES, 0)
        for value in function(*arguments):
            value = as_value(value, "bool" if isinstance(value, bool) else "real")
            dtype = next(d for d, kind in _KINDS.items() if kind == value.kind)
            slot = len(DTYPES) + DTYPES.index(dtype)
            statement("put", "none", (value, mask), (slot, out[dtype], real if dtype == "real" else dtype))
            out[dtype] += 1
    return program


class Run:
    """A function recorded once, run by name: "cpu", "one" (Python, row by row), "many" (Python, all rows) or "ptx"."""

    def __init__(self, function: Callable[..., list[Any]], kinds: str, real: str, most: int = 32) -> None:
        self.program, self.real, self._kinds, self._most = recorded(function, kinds, real), real, kinds, most
        self._made: dict[str, Any] = {}

    def __call__(self, how: str, *inputs: Any, rows: tuple[int, int] | None = None) -> list[np.ndarray]:
        """What was stored for `rows` (default: all), each (n,): reals first, then u32, i32, conditions. Rest: zeros."""
        n = len(inputs[0])
        start, stop = rows or (0, n)
        numpy_dtypes = {"real": self.real, "uint32": "uint32", "int32": "int32", "bool": "bool"}
        given: dict[str, list[Any]] = {dtype: [] for dtype in DTYPES}
        for letter, values in zip(self._kinds, inputs, strict=True):
            given[next(d for d in DTYPES if d.startswith(letter))].append(values)
        source = [np.array(given[d], numpy_dtypes[d]).reshape(-1, n) for d in DTYPES]
        result = [np.zeros((self._most, n), numpy_dtypes[d]) for d in DTYPES]
        getattr(self, f"_{how}")(source + result, n, start, stop)
        counts = self._stored()
        return [result[k][row] for k, dtype in enumerate(DTYPES) for row in range(counts[dtype])]

    def _stored(self) -> dict[str, int]:
        found = dict.fromkeys(DTYPES, 0)
        for item in self.program.root.items:
            if item.op == "put":
                found[DTYPES[item.attr[0] - len(DTYPES)]] += 1
        return found

    def _cpu(self, arrays: list[np.ndarray], n: int, start: int, stop: int) -> None:
        if "cpu" not in self._made:
            text = CpuPrinter(self.program, self.real, "kernel", _N_SLOT + 1, _N_SLOT, 0).text()
            loaded = Loaded(compile_object(text), "kernel")
            kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 3)
            self._made["cpu"] = (kind(loaded.address), loaded)
        table = np.array([a.ctypes.data for a in arrays] + [n], np.int64)
        self._made["cpu"][0](start, stop, table.ctypes.data, None, None)

    def _python(self, rows: str) -> Any:
        if rows not in self._made:
            names = {k: f"b{k}" for k in range(_N_SLOT)}
            text = PythonPrinter(self.program, "kernel", names, rows=rows).text()
            self._made[rows] = load(text, "kernel", self.real, rows)
        return self._made[rows]

    def _one(self, arrays: list[np.ndarray], n: int, start: int, stop: int) -> None:
        with np.errstate(all="ignore"):
            for i in range(start, stop):
                self._python("one")(i, {f"b{k}": a for k, a in enumerate(arrays)}, {}, [])

    def _many(self, arrays: list[np.ndarray], n: int, start: int, stop: int) -> None:
        with np.errstate(all="ignore"):
            self._python("many")(np.arange(start, stop), {f"b{k}": a for k, a in enumerate(arrays)}, {}, [])

    def _ptx(self, arrays: list[np.ndarray], n: int, start: int, stop: int) -> None:
        """The CUDA kernel over a list of rows, its PTX interpreted."""
        from tests.ptx.machine import Program as Kernel
        from tests.ptx.memory import Memory

        if "ptx" not in self._made:
            text = CudaPrinter(self.program, self.real, _N_SLOT, _N_SLOT + 1, {}, listed=True).text()
            self._made["ptx"] = Kernel(compile_ptx(text, "compute_90").decode())
        memory, rows = Memory(), np.arange(start, stop)
        used = [int(memory.add(f"buffer {k}", a)) if a.size else 0 for k, a in enumerate(arrays)]
        table, totals = np.array([*used, n], np.int64), np.zeros(1, np.int32)
        named = {"table": table, "rows": rows, "totals": totals}
        places = [int(memory.add(name, a)) if a.size else 0 for name, a in named.items()]
        if len(rows):
            with np.errstate(all="ignore"):
                self._made["ptx"].launch(memory, -(-len(rows) // 32), 32, [len(rows), 0, *places])


def sizes(real: str) -> list[int]:
    """Numbers of rows around the width of a vector."""
    width = lanes(real)
    return [1, width - 1, width, width + 1, 3 * width + 2]


HOW = ("cpu", "one", "many", *(["ptx"] if sys.platform == "linux" else []))  # libNVVM's wheel is for Linux
ALONE = ("one", "ptx")  # each row runs by itself
