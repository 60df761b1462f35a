"""The recorded rollout of a traced environment as NVVM IR, and as Python for machines without a device.

The CUDA kernel's arguments::

    kernel(i64 count, i64 *table, i32 *totals, i64 for each of WORDS, float for each of REALS)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuenvs.runtime import traced
from gpuenvs.runtime.buffers import Layout
from gpuenvs.runtime.cuda import TOTALS
from gpuenvs.runtime.cuda_policy import Mlp, Staging
from gpuenvs.runtime.traced_cuda import COUNTED
from gpuenvs.runtime.traced_rollout import FENCE, REALS, WORDS, Place, first_slot, record_rollout
from gpuenvs.trace.cuda import _GLOBAL, CudaPrinter
from gpuenvs.trace.graph import Program, Value
from gpuenvs.trace.llvm import _STORED
from gpuenvs.trace.python import PythonPrinter, load

_SHARED = " addrspace(3)"


class RolloutPrinter(CudaPrinter):
    """The whole module. Every thread of a block helps to fill the shared memory before it looks for its row."""

    def __init__(self, program: Program, layout: Layout, mlp: Mlp) -> None:
        totals = {traced.COUNTED.index(counted): TOTALS.index(total) for counted, total in COUNTED.items()}
        super().__init__(program, "float32", traced.slots(layout)["num_envs"], layout.index("action"), totals, False)
        self._staging, self._mlp, self._first = Staging(mlp), mlp, first_slot(layout)

    def text(self) -> str:
        """The module as NVVM IR, without the target lines."""
        self.block = "work"
        self.print_region(self.program.root)
        names = [
            "i64 %count",
            "i64* %table",
            "i32* %totals",
            *(f"i64 %w_{w}" for w in WORDS),
            *(f"float %r_{r}" for r in REALS),
        ]
        special = {"tid": "tid.x", "block": "ctaid.x", "size": "ntid.x"}
        lines = [f"define void @kernel({', '.join(names)}) {{", "entry:", *self.array_lines()]
        for name, register in special.items():
            lines.append(f"  %{name}32 = call i32 @llvm.nvvm.read.ptx.sreg.{register}()")
            lines.append(f"  %{name} = zext i32 %{name}32 to i64")
        s = self._staging
        lines += ["  br label %stage0", *self._stage("0", "weights", 0, s.copied, "stage1")]
        lines += self._stage("1", "shift", s.shift, self._mlp.sizes[0], "stage2")
        lines += self._stage("2", "scale", s.scale, self._mlp.sizes[0], "staged")
        lines += [
            "staged:",
            "  call void @llvm.nvvm.barrier0()",
            "  %before = mul i64 %block, %size",
            "  %i = add i64 %before, %tid",
            "  %inside = icmp ult i64 %i, %count",
            "  br i1 %inside, label %work, label %exit",
            "work:",
            *self._prologue,
            *self.lines,
            "  br label %exit",
            "exit:",
            "  ret void",
            "}",
        ]
        lines += [f"declare i32 @llvm.nvvm.read.ptx.sreg.{register}()" for register in special.values()]
        lines += ["declare void @llvm.nvvm.barrier0()", "declare void @llvm.nvvm.membar.cta()"]
        shared = f"@shared = internal{_SHARED} global [{s.size} x float] undef, align 16"
        kinds = ", ".join(name.split()[0] for name in names)
        metadata = [
            "!nvvm.annotations = !{!1}",
            f'!1 = !{{void ({kinds})* @kernel, !"kernel", i32 1}}',
            "!nvvmir.version = !{!2}",
            "!2 = !{i32 2, i32 0, i32 3, i32 1}",
            "!3 = distinct !{!3, !4}",
            '!4 = !{!"llvm.loop.unroll.disable"}',
        ]
        return "\n".join([shared, *self.table_lines(), *lines, *self.declared.values(), *metadata]) + "\n"

    def _stage(self, tag: str, source: str, start: int, count: int, following: str) -> list[str]:
        """A loop that copies `count` numbers into shared memory from element `start` on, each thread every size-th."""
        before = "entry" if tag == "0" else f"stage{int(tag) - 1}"
        lines = [
            f"stage{tag}:",
            f"  %k{tag}s = phi i64 [ %tid, %{before} ], [ %n{tag}s, %copy{tag} ]",
            f"  %more{tag} = icmp slt i64 %k{tag}s, {count}",
            f"  br i1 %more{tag}, label %copy{tag}, label %{following}",
            f"copy{tag}:",
        ]
        element = f"%k{tag}s"
        if source == "weights":
            lines += [
                f"  %orders = inttoptr i64 %w_order to i32{_GLOBAL}*",
                f"  %orderp = getelementptr inbounds i32, i32{_GLOBAL}* %orders, i64 {element}",
                f"  %order32 = load i32, i32{_GLOBAL}* %orderp",
                "  %order64 = zext i32 %order32 to i64",
            ]
            element = "%order64"
        whole = f"[{self._staging.size} x float]"
        lines += [
            f"  %from{tag} = inttoptr i64 %w_{source} to float{_GLOBAL}*",
            f"  %fromp{tag} = getelementptr inbounds float, float{_GLOBAL}* %from{tag}, i64 {element}",
            f"  %value{tag} = load float, float{_GLOBAL}* %fromp{tag}",
            f"  %to{tag} = add i64 %k{tag}s, {start}",
            f"  %top{tag} = getelementptr inbounds {whole}, {whole}{_SHARED}* @shared, i64 0, i64 %to{tag}",
            f"  store float %value{tag}, float{_SHARED}* %top{tag}",
            f"  %n{tag}s = add i64 %k{tag}s, %size",
            f"  br label %stage{tag}",
        ]
        return lines

    def _slot(self, slot: int) -> str:
        if slot < self._first:
            return super()._slot(slot)
        number = slot - self._first
        return f"%w_{WORDS[number]}" if number < len(WORDS) else f"%r_{REALS[number - len(WORDS)]}"

    def _op_setting(self, v: Value) -> str:
        if v.kind == "real":
            return f"bitcast float {self._slot(v.attr)} to float"
        if v.kind == "index":
            return f"add i64 {self._slot(v.attr)}, 0"
        return super()._op_setting(v)

    def _op_weight(self, v: Value) -> str:
        whole = f"[{self._staging.size} x float]"
        index = f"i64 0, i64 {self.name(v.args[0])}"
        pointer = self.set(f"getelementptr inbounds {whole}, {whole}{_SHARED}* @shared, {index}")
        return f"load float, float{_SHARED}* {pointer}"

    def _op_count(self, v: Value) -> None:
        if v.attr == FENCE:
            self.emit("call void @llvm.nvvm.membar.cta()")
        else:
            super()._op_count(v)

    def _placed(self, place: Place, t: str) -> str:
        """Pointer to an element of a rollout's array."""
        rows = self.set(f"mul i64 {t}, {place.per_step}")
        row = self.set(f"add i64 {rows}, {place.rows}")
        start = self.set(f"mul i64 {row}, {self._slot(self._n_slot)}")
        own = self.set(f"mul i64 %i, {place.per_env}")
        index = self.set(f"add i64 {self.set(f'add i64 {start}, {own}')}, {place.offset}")
        return self._pointer(place.slot, place.dtype, index)

    def _op_get(self, v: Value) -> str:
        if not isinstance(v.attr, Place):
            return super()._op_get(v)
        return f"load float, float{_GLOBAL}* {self._placed(v.attr, self.name(v.args[0]))}"

    def _op_put(self, v: Value) -> None:
        if not isinstance(v.attr, Place):
            super()._op_put(v)
            return
        element, value = _STORED[v.attr.dtype], self.name(v.args[0])
        if v.attr.dtype == "bool":
            value = self.set(f"zext i1 {value} to i8")
        if v.attr.dtype == "int64":
            value = self.set(f"sext i32 {value} to i64")
        self.emit(f"store {element} {value}, {element}{_GLOBAL}* {self._placed(v.attr, self.name(v.args[2]))}")


def kernel_text(layout: Layout, mlp: Mlp, correlated: bool) -> str:
    """NVVM IR of the rollout kernel, without the target lines."""
    return RolloutPrinter(record_rollout(layout, mlp, correlated), layout, mlp).text()


class _RolloutPython(PythonPrinter):
    """The same program over one row; `arrays` holds flat arrays of the rollout and `shared`, `settings` what is given."""

    def _item(self, item: Value) -> None:
        if item.op == "count" and item.attr == FENCE:
            return
        super()._item(item)

    def _index(self, place: Place, t: str) -> str:
        return f"({t} * {place.per_step} + {place.rows}) * settings['num_envs'] + i * {place.per_env} + {place.offset}"

    def _put(self, item: Value) -> None:
        if not isinstance(item.attr, Place):
            super()._put(item)
            return
        index = self._index(item.attr, self._bare(item.args[2]))
        self._emit(f"{self._buffer(item.attr.slot)}[{index}] = {self._typed(item.args[0])}")

    def _access(self, v: Value) -> str:
        if v.op == "weight":
            self._used.setdefault("shared")
            self._taken.add("shared")
            return f"shared[{self._bare(v.args[0])}]"
        if v.op == "get" and isinstance(v.attr, Place):
            return f"{self._buffer(v.attr.slot)}[{self._index(v.attr, self._bare(v.args[0]))}]"
        return super()._access(v)


def python_rollout(layout: Layout, mlp: Mlp, correlated: bool) -> Callable[..., None]:
    """The rollout of one row as a Python function; see `gpuenvs.trace.python` for its arguments."""
    names = {k: b.name for k, b in enumerate(layout.buffers)} | {k: name for name, k in traced.slots(layout).items()}
    # The environment's own obs and the rollout's are two arrays.
    names |= {first_slot(layout) + k: f"rollout_{name}" for k, name in enumerate((*WORDS, *REALS))}
    text = _RolloutPython(record_rollout(layout, mlp, correlated), "rollout", names).text()
    return load(text, "rollout", "float32")


def shared_memory(mlp: Mlp, weights: Any, shift: Any, scale: Any) -> np.ndarray:
    """What a block stages, for the Python function."""
    s = Staging(mlp)
    shared = np.zeros(s.size, np.float32)
    shared[: s.copied] = np.asarray(weights)[s.order]
    shared[s.shift : s.shift + mlp.sizes[0]] = shift
    shared[s.scale : s.scale + mlp.sizes[0]] = scale
    return shared
