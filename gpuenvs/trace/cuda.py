"""A recorded row program as a CUDA kernel: NVVM IR, one thread per env::

    kernel(i64 count, i64 action, i64 *table, i64 *rows, i32 *totals)

Thread k works on row `rows[k]`, or on row k if the kernel is not listed; `table` is a device array as in `gpuenvs.trace.cpu`,
except that the address of the actions is an argument. `totals[k]` counts as there, atomically.

The text is in the dialect of LLVM 7 (typed pointers, no `fneg`), which libNVVM takes for every architecture.
"""

from __future__ import annotations

import importlib
from typing import Any

from gpuenvs.trace.graph import Program, Value
from gpuenvs.trace.llvm import _FLAGS, _STORED, Printer

_GLOBAL = " addrspace(1)"


class CudaPrinter(Printer):
    """The whole module of one row program; the arguments are those of `gpuenvs.trace.cpu.CpuPrinter`."""

    table_space = _GLOBAL
    # An unrolled loop body of physics is longer and needs more registers, but no fewer instructions per turn.
    back_edge = ", !llvm.loop !3"

    def __init__(
        self, program: Program, real: str, num_envs_slot: int, action_slot: int, totals: dict[int, int], listed: bool
    ) -> None:
        super().__init__(program, real, 1)
        self._n_slot, self._action_slot, self._totals, self._listed = num_envs_slot, action_slot, totals, listed
        self._loaded: dict[int, str] = {}
        self._prologue: list[str] = []

    def star(self, kind: str) -> str:
        return f"{kind}*"

    def text(self) -> str:
        """The module as NVVM IR, without the target lines."""
        self.block = "work"
        self.print_region(self.program.root)
        arguments = "i64 %count, i64 %action, i64* %table, i64* %rows, i32* %totals"
        special = {"tid": "tid.x", "block": "ctaid.x", "size": "ntid.x"}
        lines = [f"define void @kernel({arguments}) {{", "entry:", *self.array_lines()]
        for name, register in special.items():
            lines += [
                f"  %{name}32 = call i32 @llvm.nvvm.read.ptx.sreg.{register}()",
                f"  %{name} = zext i32 %{name}32 to i64",
            ]
        lines += [
            "  %before = mul i64 %block, %size",
            "  %thread = add i64 %before, %tid",
            "  %inside = icmp ult i64 %thread, %count",
            "  br i1 %inside, label %work, label %exit",
            "work:",
        ]
        if self._listed:
            lines += ["  %rowp = getelementptr inbounds i64, i64* %rows, i64 %thread", "  %i = load i64, i64* %rowp"]
        else:
            lines.append("  %i = add i64 %thread, 0")
        lines += [*self._prologue, *self.lines, "  br label %exit", "exit:", "  ret void", "}"]
        declared = [f"declare i32 @llvm.nvvm.read.ptx.sreg.{register}()" for register in special.values()]
        kind = arguments.replace("%count", "").replace("%action", "").replace("%table", "").replace("%rows", "")
        kind = ", ".join(part.strip() for part in kind.replace("%totals", "").split(","))
        metadata = [
            "!nvvm.annotations = !{!1}",
            f'!1 = !{{void ({kind})* @kernel, !"kernel", i32 1}}',
            "!nvvmir.version = !{!2}",
            "!2 = !{i32 2, i32 0, i32 3, i32 1}",
            "!3 = distinct !{!3, !4}",
            '!4 = !{!"llvm.loop.unroll.disable"}',
        ]
        return "\n".join([*self.table_lines(), *lines, *declared, *self.declared.values(), *metadata]) + "\n"

    def _slot(self, slot: int) -> str:
        if slot == self._action_slot:
            return "%action"
        if slot not in self._loaded:
            name = self._loaded[slot] = f"%slot{slot}"
            self._prologue += [
                f"  %slotp{slot} = getelementptr inbounds i64, i64* %table, i64 {slot}",
                f"  {name} = load i64, i64* %slotp{slot}",
            ]
        return self._loaded[slot]

    def _pointer(self, slot: int, dtype: str, index: str) -> str:
        """Pointer into global memory: a generic one might mean the thread's own memory and would keep its stores in order."""
        element = _STORED[dtype]
        base = self.set(f"inttoptr i64 {self._slot(slot)} to {element}{_GLOBAL}*")
        return self.set(f"getelementptr inbounds {element}, {element}{_GLOBAL}* {base}, i64 {index}")

    def _address(self, slot: int, row: int, dtype: str) -> str:
        offset = self.set(f"mul i64 {self._slot(self._n_slot)}, {row}")
        return self._pointer(slot, dtype, self.set(f"add i64 {offset}, %i"))

    def _op_neg(self, v: Value) -> str:
        kind = self.type("real")
        return f"fsub {_FLAGS} {kind} -0.0, {self.name(v.args[0])}"

    def _op_abs(self, v: Value) -> str:
        """The sign bit cleared; libNVVM has no `llvm.fabs`."""
        real, word, mask = (
            ("double", "i64", (1 << 63) - 1) if self.real == "float64" else ("float", "i32", (1 << 31) - 1)
        )
        bits = self.set(f"bitcast {real} {self.name(v.args[0])} to {word}")
        return f"bitcast {word} {self.set(f'and {word} {bits}, {mask}')} to {real}"

    def _op_get(self, v: Value) -> str:
        slot, row, dtype = v.attr
        element = _STORED[dtype]
        loaded = self.set(f"load {element}, {element}{_GLOBAL}* {self._address(slot, row, dtype)}")
        if dtype == "bool":
            return f"icmp ne i8 {loaded}, 0"
        if dtype == "int64":
            return f"trunc i64 {loaded} to i32"
        return f"bitcast {element} {loaded} to {element}"

    def _op_put(self, v: Value) -> None:
        """Stores are conditional only inside a branch that holds the condition already: a thread is one env."""
        slot, row, dtype = v.attr
        element, value = _STORED[dtype], self.name(v.args[0])
        if dtype == "bool":
            value = self.set(f"zext i1 {value} to i8")
        self.emit(f"store {element} {value}, {element}{_GLOBAL}* {self._address(slot, row, dtype)}")

    def _op_shared(self, v: Value) -> str:
        slot, k, dtype = v.attr
        element = _STORED[dtype]
        return f"load {element}, {element}{_GLOBAL}* {self._pointer(slot, dtype, str(k))}"

    def _op_setting(self, v: Value) -> str:
        return f"trunc i64 {self._slot(v.attr)} to i32"

    def _op_env(self, v: Value) -> str:
        return "trunc i64 %i to i32"

    def _op_active(self, v: Value) -> str:
        return "and i1 true, true"

    def _op_count(self, v: Value) -> None:
        place = self._totals.get(v.attr)
        if place is None:
            return
        self._serial += 1
        tag = self._serial
        self.emit(f"br i1 {self.name(v.args[0])}, label %count{tag}, label %counted{tag}")
        self.label(f"count{tag}")
        pointer = self.set(f"getelementptr inbounds i32, i32* %totals, i64 {place}")
        self.emit(f"%old{tag} = atomicrmw add i32* {pointer}, i32 1 seq_cst")
        self.emit(f"br label %counted{tag}")
        self.label(f"counted{tag}")


def compile_ptx(text: str, architecture: str) -> bytes:
    """PTX of a module, by libNVVM.

    Args:
        text: what `CudaPrinter.text` returned.
        architecture: such as "compute_90".
    """
    nvvm: Any = importlib.import_module("numba.cuda.cudadrv.nvvm")
    library = nvvm.NVVM()
    head = f'target triple = "nvptx64-nvidia-cuda"\ntarget datalayout = "{library.data_layout}"\n'
    unit = nvvm.CompilationUnit({"arch": architecture, "opt": 3})
    unit.add_module((head + text).encode())
    unit.verify()
    return unit.compile().rstrip(b"\0\n") + b"\n"
