"""Kernels written by hand for tests of the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ptx.machine import Program, Statistics
from tests.ptx.memory import Memory

_REGISTERS = {"p": "pred", "h": "b16", "r": "b32", "d": "b64", "f": "f32", "g": "f64"}

# %d1 = in + 8 * thread, %d2 = out + 8 * thread, %r0 = thread (over all blocks)
_PROLOGUE = """
    ld.param.u64 %d10, [in];
    ld.param.u64 %d20, [out];
    mov.u32 %r90, %ctaid.x;
    mov.u32 %r91, %ntid.x;
    mov.u32 %r92, %tid.x;
    mad.lo.s32 %r0, %r90, %r91, %r92;
    mul.wide.u32 %d30, %r0, 8;
    add.s64 %d1, %d10, %d30;
    add.s64 %d2, %d20, %d30;
"""


def text(body: str, variables: str = "", prologue: str = _PROLOGUE) -> str:
    """A kernel `test(in, out)` with registers %p %h(16) %r(32) %d(64) %f %g(f64), 100 of each."""
    registers = "\n".join(f".reg .{kind} %{letter}<100>;" for letter, kind in _REGISTERS.items())
    head = ".version 8.0\n.target sm_90\n.address_size 64\n"
    parts = [
        ".visible .entry test(.param .u64 in, .param .u64 out)",
        "{",
        registers,
        variables,
        prologue,
        body,
        "ret;",
        "}",
    ]
    return head + "\n".join(parts) + "\n"


def run(
    body: str,
    inputs: np.ndarray,
    out: np.ndarray,
    *,
    grid: int = 1,
    variables: str = "",
    out_written: bool = True,
    prologue: str = _PROLOGUE,
) -> Statistics:
    """Run such a kernel, one thread per row of `inputs` (8 bytes each), `grid` blocks; results are in `out`."""
    memory = Memory()
    addresses = [memory.add("in", inputs, writable=False), memory.add("out", out, initialised=out_written)]
    threads = inputs.nbytes // 8
    assert threads % grid == 0
    return Program(text(body, variables, prologue)).launch(memory, grid, threads // grid, addresses)


def _letter(dtype: np.dtype) -> tuple[str, str]:
    """Register letter and memory type of a dtype of 4 or 8 bytes."""
    if dtype.kind == "f":
        return {4: ("f", "f32"), 8: ("g", "f64")}[dtype.itemsize]
    return {4: ("r", "u32"), 8: ("d", "u64")}[dtype.itemsize]


def apply(opcode: str, columns: list[np.ndarray], result: Any) -> np.ndarray:
    """`opcode d, a, b, ...` of each row; operands of 4 or 8 bytes, the result of dtype `result`."""
    n = len(columns[0])
    inputs = np.zeros((len(columns), n), np.uint64)
    loads, names = [], []
    for k, column in enumerate(columns):
        inputs[k] = column.view(f"u{column.dtype.itemsize}")
        letter, kind = _letter(column.dtype)
        names.append(f"%{letter}{40 + k}")
        loads.append(f"ld.global.{kind} {names[-1]}, [%d1+{8 * n * k}];")
    out = np.zeros(n, np.uint64)
    dtype = np.dtype(result)
    letter, kind = _letter(dtype)
    body = [*loads, f"{opcode} %{letter}50, {', '.join(names)};", f"st.global.{kind} [%d2], %{letter}50;"]
    memory = Memory()
    addresses = [memory.add("in", inputs, writable=False), memory.add("out", out)]
    Program(text("\n".join(body))).launch(memory, 1, n, addresses)
    return out.astype(f"u{dtype.itemsize}").view(dtype)
