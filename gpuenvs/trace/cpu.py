"""A recorded row program as a CPU function, compiled by LLVM, and the cache of its machine code.

The function steps rows `start .. stop`, a vector of them at a time::

    void name(i64 start, i64 stop, i64 *table, i64 *unused, i64 *counts)

`table` is the batch's address table (see `gpuenvs.runtime.cpu`), and `counts[k]` is increased by the number of rows that met
condition k.

Operations of a row program beside those of `graph`, all made by `gpuenvs.runtime.traced`:

==========  ==================  =========================================================================
`get`       attr (slot, row,    element `row` of the buffer whose address is table[slot]
            dtype)
`put`       the same            store args[0] there, where args[1] holds
`shared`    attr (slot, k,      element k of a small array, the same for all rows
            dtype)
`setting`   attr slot           the number table[slot] itself
`env`                           number of the row (u32)
`active`                        False in the lanes past the end
`count`     attr k              add 1 to counts[k] where args[0] holds
==========  ==================  =========================================================================
"""

from __future__ import annotations

import functools
from typing import Any

import llvmlite.binding as llvm

from gpuenvs.trace.graph import Program, Value
from gpuenvs.trace.llvm import _STORED, Printer

_BYTES = {"float64": 8, "float32": 4, "int32": 4, "uint32": 4, "int64": 8, "bool": 1}


@functools.cache
def vector_bytes() -> int:
    """Width of the widest vector registers of this machine."""
    features = llvm.get_host_cpu_features()
    return 64 if features.get("avx512f") and features.get("avx512bw") else 32 if features.get("avx2") else 16


def lanes(real: str) -> int:
    """Envs of one vector."""
    return max(4, vector_bytes() // _BYTES[real])


class CpuPrinter(Printer):
    """The whole module of one row program.

    Args:
        program: a finished recording.
        real: "float32" or "float64".
        name: of the function.
        slots: length of the address table.
        num_envs_slot: where the table holds the number of rows of each buffer.
        counts: length of the counts array.
    """

    def __init__(self, program: Program, real: str, name: str, slots: int, num_envs_slot: int, counts: int) -> None:
        super().__init__(program, real, lanes(real))
        self._name, self._slots_total, self._n_slot, self._counts = name, slots, num_envs_slot, counts
        self._loaded: dict[int, str] = {}
        self._prologue: list[str] = []

    def text(self) -> str:
        """The module as LLVM IR."""
        self.block = "head"
        self._head()
        self.print_region(self.program.root)
        body = self.lines
        lines = [
            f"define void @{self._name}(i64 %start, i64 %stop, ptr %table, ptr %unused, ptr %counts) #0 {{",
            "entry:",
            *self.array_lines(),
            *self._prologue,
            "  %some = icmp slt i64 %start, %stop",
            "  br i1 %some, label %head, label %exit",
            "head:",
            f"  %base = phi i64 [ %start, %entry ], [ %following, %{self.block} ]",
            *body,
            f"  %following = add nsw i64 %base, {self.lanes}",
            "  %more = icmp slt i64 %following, %stop",
            "  br i1 %more, label %head, label %exit",
            "exit:",
            "  ret void",
            "}",
        ]
        width = vector_bytes() * 8
        attributes = (
            f'attributes #0 = {{ nounwind "prefer-vector-width"="{width}" "min-legal-vector-width"="{width}" '
            '"no-trapping-math"="true" }'
        )
        return "\n".join([*self.table_lines(), *lines, *self.declared.values(), attributes]) + "\n"

    def _slot(self, slot: int) -> str:
        """table[slot], loaded once per call."""
        if slot not in self._loaded:
            name = self._loaded[slot] = f"%slot{slot}"
            self._prologue += [
                f"  %slotp{slot} = getelementptr inbounds i64, ptr %table, i64 {slot}",
                f"  {name} = load i64, ptr %slotp{slot}",
            ]
        return self._loaded[slot]

    def _head(self) -> None:
        n = self.lanes
        lane = ", ".join(f"i64 {k}" for k in range(n))
        wide = self.vector("i64")
        limit, base = self.set(self.spread("%stop", "i64")), self.set(self.spread("%base", "i64"))
        at = self.set(f"add {wide} {base}, <{lane}>")
        self._active = self.set(f"icmp slt {wide} {at}, {limit}")
        self._rows = at

    def _masked_load(self, element: str, pointer: str, align: int) -> str:
        kind, mask = self.vector(element), self.type("bool")
        name = f"llvm.masked.load.{self.suffix(element)}.p0"
        arguments = (("ptr", pointer), ("i32", str(align)), (mask, self._active), (kind, "zeroinitializer"))
        return self.intrinsic(name, kind, *arguments)

    def _address(self, slot: int, row: int, dtype: str) -> str:
        """Pointer to lane 0's element."""
        element, n = _STORED[dtype], self._slot(self._n_slot)
        base = self.set(f"inttoptr i64 {self._slot(slot)} to ptr")
        offset = self.set(f"mul nsw i64 {n}, {row}")
        start = self.set(f"getelementptr inbounds {element}, ptr {base}, i64 {offset}")
        return self.set(f"getelementptr inbounds {element}, ptr {start}, i64 %base")

    def _op_get(self, v: Value) -> str:
        slot, row, dtype = v.attr
        pointer, kind = self._address(slot, row, dtype), self.vector(_STORED[dtype])
        loaded = self.set(self._masked_load(_STORED[dtype], pointer, _BYTES[dtype]))
        if dtype == "bool":
            return f"icmp ne {kind} {loaded}, zeroinitializer"
        if dtype == "int64":
            return f"trunc {kind} {loaded} to {self.type('i32')}"
        return f"bitcast {kind} {loaded} to {kind}"

    def _op_put(self, v: Value) -> None:
        slot, row, dtype = v.attr
        element, mask_type = _STORED[dtype], self.type("bool")
        value, condition = self.name(v.args[0]), self.name(v.args[1])
        if dtype == "bool":
            value = self.set(f"zext {mask_type} {value} to {self.vector('i8')}")
        pointer, kind = self._address(slot, row, dtype), self.vector(element)
        name = f"llvm.masked.store.{self.suffix(element)}.p0"
        arguments = ((kind, value), ("ptr", pointer), ("i32", str(_BYTES[dtype])), (mask_type, condition))
        self.emit(self.intrinsic(name, "void", *arguments))

    def _op_shared(self, v: Value) -> str:
        slot, k, dtype = v.attr
        element = _STORED[dtype]
        base = self.set(f"inttoptr i64 {self._slot(slot)} to ptr")
        pointer = self.set(f"getelementptr inbounds {element}, ptr {base}, i64 {k}")
        return self.spread(self.set(f"load {element}, ptr {pointer}"), element)

    def _op_setting(self, v: Value) -> str:
        return self.spread(self.set(f"trunc i64 {self._slot(v.attr)} to i32"), "i32")

    def _op_env(self, v: Value) -> str:
        return f"trunc {self.vector('i64')} {self._rows} to {self.type('u32')}"

    def _op_active(self, v: Value) -> str:
        kind = self.type("bool")
        return f"and {kind} {self._active}, {self._active}"

    def _op_count(self, v: Value) -> None:
        condition = self.name(v.args[0])
        bits = self.set(f"bitcast {self.type('bool')} {condition} to i{self.lanes}")
        self.declared.setdefault("ctpop", f"declare i{self.lanes} @llvm.ctpop.i{self.lanes}(i{self.lanes})")
        some = self.set(f"call i{self.lanes} @llvm.ctpop.i{self.lanes}(i{self.lanes} {bits})")
        wide = self.set(f"zext i{self.lanes} {some} to i64")
        pointer = self.set(f"getelementptr inbounds i64, ptr %counts, i64 {v.attr}")
        before = self.set(f"load i64, ptr {pointer}")
        self.emit(f"store i64 {self.set(f'add i64 {before}, {wide}')}, ptr {pointer}")


# --- machine code ----------------------------------------------------------------------------------------------------


def _new_machine() -> Any:
    """A target machine of this processor; MCJIT takes its own and keeps it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=2, reloc="default", codemodel="jitdefault", jit=True
    )


def machine_identity() -> str:
    """What machine code depends on beside its source: LLVM, processor and its features."""
    features = llvm.get_host_cpu_features().flatten()
    return repr((llvm.llvm_version_info, llvm.get_host_cpu_name(), features, vector_bytes()))


def compile_object(text: str) -> bytes:
    """Object code of a module."""
    machine = _new_machine()
    module = llvm.parse_assembly(text)
    module.triple = llvm.get_process_triple()
    module.data_layout = str(machine.target_data)
    module.verify()
    return machine.emit_object(module)


class Loaded:
    """Object code in memory, callable; keeps itself alive."""

    def __init__(self, code: bytes, name: str) -> None:
        module = llvm.parse_assembly("")
        module.triple = llvm.get_process_triple()
        self._engine = llvm.create_mcjit_compiler(module, _new_machine())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self.address: int = self._engine.get_function_address(name)
