"""A recorded program as LLVM IR: one vector lane per env on the CPU.

The text is one function that walks over rows in steps of `lanes`. Rows past the end are masked off; they compute on whatever
they hold and store nothing.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from gpuenvs.trace.graph import COMPARISONS, Branch, Loop, Program, Region, Value
from gpuenvs.trace.liveness import Liveness, statements

_REAL_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTEGER_OPS = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor", "shl": "shl"}
_REAL_COMPARE = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_FLAGS = "contract nsz"
_STORED = {"float64": "double", "float32": "float", "int32": "i32", "uint32": "i32", "int64": "i64", "bool": "i8"}


def real_bits(number: float, real: str) -> str:
    """LLVM's hexadecimal literal; a float is written as the double of the same value."""
    with np.errstate(over="ignore"):
        value = float(np.float32(number)) if real == "float32" else float(number)
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


class Printer:
    """Lines of LLVM IR for the statements of one program; `cpu` and `cuda` printers put a function around them.

    Args:
        program: a finished recording.
        real: "float32" or "float64".
        lanes: envs of one vector; 1 prints scalars.
    """

    table_space = ""  # address space of constants, with a leading blank
    back_edge = ""  # what is said of the branch that repeats a loop, with a leading comma

    def __init__(self, program: Program, real: str, lanes: int) -> None:
        self.program, self.real, self.lanes = program, real, lanes
        self.live = Liveness(program)
        self.scalar = {"real": _STORED[real], "bool": "i1", "u32": "i32", "i32": "i32", "index": "i64", "flag": "i1"}
        self.lines: list[str] = []
        self.names: dict[Any, str] = {}
        self.block = "entry"
        self.declared: dict[str, str] = {}
        self._serial = 0

    # --- words ----------------------------------------------------------------------------------------------------

    def type(self, kind: str) -> str:
        """LLVM type of a kind."""
        return self.vector(self.scalar[kind]) if kind not in ("index", "flag") else self.scalar[kind]

    def vector(self, element: str) -> str:
        return element if self.lanes == 1 else f"<{self.lanes} x {element}>"

    def suffix(self, element: str) -> str:
        """Name of a type within an intrinsic's name."""
        short = {"double": "f64", "float": "f32"}.get(element, element)
        return short if self.lanes == 1 else f"v{self.lanes}{short}"

    def fresh(self, prefix: str = "t") -> str:
        self._serial += 1
        return f"%{prefix}{self._serial}"

    def emit(self, line: str) -> None:
        self.lines.append("  " + line)

    def set(self, expression: str) -> str:
        """A new name for `expression`."""
        name = self.fresh()
        self.lines.append(f"  {name} = {expression}")
        return name

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def number(self, value: Any, kind: str) -> str:
        """A constant operand."""
        if kind == "real":
            text = real_bits(value, self.real)
        elif kind in ("bool", "flag"):
            text = "true" if value else "false"
        else:
            text = str(int(value))
        return text if kind in ("index", "flag") else self.splat(f"{self.scalar[kind]} {text}")

    def splat(self, typed: str) -> str:
        """A scalar constant, given with its type, in every lane."""
        return typed.split()[1] if self.lanes == 1 else f"<{', '.join([typed] * self.lanes)}>"

    def name(self, value: Value) -> str:
        """The operand that stands for a value."""
        if value.op == "const":
            return self.number(value.constant, value.kind)
        if value.op == "result":
            return self.names[value.args[0].id, value.attr]
        return self.names[value.id]

    def intrinsic(self, name: str, result: str, *typed: tuple[str, str]) -> str:
        """Call an intrinsic; `typed` are (type, operand) pairs."""
        self.declared.setdefault(name, f"declare {result} @{name}({', '.join(kind for kind, _ in typed)})")
        return f"call {result} @{name}({', '.join(f'{kind} {operand}' for kind, operand in typed)})"

    # --- regions --------------------------------------------------------------------------------------------------

    def print_region(self, region: Region) -> None:
        for item in region.items:
            if item in self.live:
                self.print_item(item)

    def print_item(self, item: Value) -> None:
        if item.op in ("loop", "do_while"):
            self._print_loop(item, item.attr)
        elif item.op == "if":
            self._print_branch(item, item.attr)
        else:
            expression = self.expression(item)
            if expression is not None:
                self.names[item.id] = self.set(expression)

    def _slots(self, owner: Value) -> list[int]:
        return sorted(self.live.slots.get(owner.id, ()))

    def _print_loop(self, owner: Value, body: Loop) -> None:
        self._serial += 1
        tag, slots = self._serial, self._slots(owner)
        before, count = self.block, owner.args[0] if owner.op == "loop" else None
        checked = count is not None and count.constant is None  # may run zero times: tested at the top
        self.emit(f"br label %head{tag}")
        self.label(f"head{tag}")
        at = len(self.lines)
        if body.counter is not None:
            self.names[body.counter.id] = f"%k{tag}"
        for k in slots:
            self.names[body.carried[k].id] = f"%c{tag}_{k}"
        if checked:
            assert count is not None
            more = self.set(f"icmp slt i64 %k{tag}, {self.name(count)}")
            self.emit(f"br i1 {more}, label %body{tag}, label %exit{tag}")
            self.label(f"body{tag}")
        self.print_region(body.region)
        phis = [
            f"  %c{tag}_{k} = phi {self.type(body.carried[k].kind)} [ {self.name(body.initial[k])}, %{before} ], "
            f"[ {self.name(body.next[k])}, %{self.block} ]"
            for k in slots
        ]
        if body.counter is not None:
            phis.append(f"  %k{tag} = phi i64 [ 0, %{before} ], [ %n{tag}, %{self.block} ]")
            self.emit(f"%n{tag} = add nuw nsw i64 %k{tag}, 1")
        self.lines[at:at] = phis
        if checked:
            self.emit(f"br label %head{tag}{self.back_edge}")
        else:
            again = self.name(body.again) if body.again is not None else ""
            if count is not None:
                again = self.set(f"icmp slt i64 %n{tag}, {self.name(count)}")
            self.emit(f"br i1 {again}, label %head{tag}, label %exit{tag}{self.back_edge}")
        self.label(f"exit{tag}")
        for k in slots:
            self._results(owner, k, f"%c{tag}_{k}" if checked else self.name(body.next[k]))

    def _results(self, owner: Value, k: int, name: str) -> None:
        self.names[owner.id, k] = name

    def _print_branch(self, owner: Value, branch: Branch) -> None:
        self._serial += 1
        tag, before = self._serial, self.block
        self.emit(f"br i1 {self.name(owner.args[0])}, label %then{tag}, label %join{tag}")
        self.label(f"then{tag}")
        self.print_region(branch.region)
        inner = self.block
        self.emit(f"br label %join{tag}")
        self.label(f"join{tag}")
        for k in self._slots(owner):
            yes, no = branch.yes[k], branch.no[k]
            self.emit(
                f"%j{tag}_{k} = phi {self.type(yes.kind)} [ {self.name(yes)}, %{inner} ], [ {self.name(no)}, %{before} ]"
            )
            self._results(owner, k, f"%j{tag}_{k}")

    # --- single values --------------------------------------------------------------------------------------------

    def expression(self, v: Value) -> str | None:
        """The right-hand side that computes `v`, or None if its lines were emitted already."""
        method = getattr(self, f"_op_{v.op}", None)
        if method is not None:
            return method(v)
        if v.op in COMPARISONS:
            return self._compare(v)
        a, b = (self.name(x) for x in v.args)
        kind = self.type(v.kind)
        if v.kind == "real":
            return f"{_REAL_OPS[v.op]} {_FLAGS} {kind} {a}, {b}"
        return f"{_INTEGER_OPS[v.op]} {kind} {a}, {b}"

    def _compare(self, v: Value) -> str:
        a, b = (self.name(x) for x in v.args)
        kind = v.args[0].kind
        if kind == "real":
            return f"fcmp {_REAL_COMPARE[v.op]} {self.type(kind)} {a}, {b}"
        sign = "" if v.op in ("eq", "ne") else "u" if kind == "u32" else "s"
        return f"icmp {sign}{v.op} {self.type(kind)} {a}, {b}"

    def _op_select(self, v: Value) -> str:
        c, a, b = v.args
        kind = self.type(a.kind)
        return f"select {self.type(c.kind)} {self.name(c)}, {kind} {self.name(a)}, {kind} {self.name(b)}"

    def _op_neg(self, v: Value) -> str:
        return f"fneg {self.type('real')} {self.name(v.args[0])}"

    def _op_not(self, v: Value) -> str:
        return f"xor {self.type(v.kind)} {self.name(v.args[0])}, {self.number(True, v.kind)}"

    def _real_call(self, name: str, v: Value) -> str:
        kind = self.type("real")
        return self.intrinsic(f"llvm.{name}.{self.suffix(self.scalar['real'])}", kind, (kind, self.name(v.args[0])))

    def _op_sqrt(self, v: Value) -> str:
        return self._real_call("sqrt", v)

    def _op_floor(self, v: Value) -> str:
        return self._real_call("floor", v)

    def _op_abs(self, v: Value) -> str:
        return self._real_call("fabs", v)

    def _op_finite(self, v: Value) -> str:
        kind = self.type("real")
        zero = self.set(f"fmul {kind} {self.name(v.args[0])}, {self.number(0.0, 'real')}")
        return f"fcmp oeq {kind} {zero}, {self.number(0.0, 'real')}"

    def _exponent_parts(self) -> tuple[str, int, int]:
        """(integer type as wide as the real, bits of its mantissa, exponent of 0.5)."""
        return ("i64", 52, 1022) if self.real == "float64" else ("i32", 23, 126)

    def _op_mantissa(self, v: Value) -> str:
        element, shift, half = self._exponent_parts()
        real, word = self.type("real"), self.vector(element)
        bits = self.set(f"bitcast {real} {self.name(v.args[0])} to {word}")
        low = self.set(f"and {word} {bits}, {self.splat(f'{element} {(1 << shift) - 1}')}")
        whole = self.set(f"or {word} {low}, {self.splat(f'{element} {half << shift}')}")
        return f"bitcast {word} {whole} to {real}"

    def _op_exponent(self, v: Value) -> str:
        element, shift, half = self._exponent_parts()
        real, word = self.type("real"), self.vector(element)
        bits = self.set(f"bitcast {real} {self.name(v.args[0])} to {word}")
        high = self.set(f"lshr {word} {bits}, {self.splat(f'{element} {shift}')}")
        unbiased = self.set(f"sub {word} {high}, {self.splat(f'{element} {half}')}")
        return f"sitofp {word} {unbiased} to {real}"

    def _op_scale(self, v: Value) -> str:
        """x * 2**k for a whole real k, as x * 2 * 2**(k - 1): k may be one more than the largest exponent."""
        element, shift, half = self._exponent_parts()
        real, word = self.type("real"), self.vector(element)
        x, k = (self.name(a) for a in v.args)
        whole = self.set(f"fptosi {real} {k} to {word}")
        biased = self.set(f"add {word} {whole}, {self.splat(f'{element} {half}')}")
        bits = self.set(f"shl {word} {biased}, {self.splat(f'{element} {shift}')}")
        power = self.set(f"bitcast {word} {bits} to {real}")
        double = self.set(f"fmul {_FLAGS} {real} {x}, {self.number(2.0, 'real')}")
        return f"fmul {_FLAGS} {real} {double}, {power}"

    def _op_any(self, v: Value) -> str:
        (x,) = v.args
        if self.lanes == 1:
            return f"and i1 {self.name(x)}, true"
        bits = self.set(f"bitcast {self.type('bool')} {self.name(x)} to i{self.lanes}")
        return f"icmp ne i{self.lanes} {bits}, 0"

    def _op_shr(self, v: Value) -> str:
        a, b = (self.name(x) for x in v.args)
        return f"{'lshr' if v.kind == 'u32' else 'ashr'} {self.type(v.kind)} {a}, {b}"

    def _op_quotient(self, v: Value) -> str:
        return f"sdiv i64 {self.name(v.args[0])}, {self.name(v.args[1])}"

    def _op_mod(self, v: Value) -> str:
        return f"srem i64 {self.name(v.args[0])}, {self.name(v.args[1])}"

    def _op_mulhi(self, v: Value) -> str:
        wide, narrow = self.vector("i64"), self.type("u32")
        a, b = (self.set(f"zext {narrow} {self.name(x)} to {wide}") for x in v.args)
        product = self.set(f"mul {wide} {a}, {b}")
        high = self.set(f"lshr {wide} {product}, {self.splat('i64 32')}")
        return f"trunc {wide} {high} to {narrow}"

    def _op_convert(self, v: Value) -> str:
        (x,) = v.args
        source, target = self.type(x.kind), self.type(v.kind)
        if x.kind in ("index", "flag"):
            return self._broadcast(x, v.kind)
        word = {
            ("u32", "real"): "uitofp", ("i32", "real"): "sitofp", ("u32", "i32"): "bitcast", ("i32", "u32"): "bitcast",
            ("bool", "i32"): "zext", ("bool", "u32"): "zext", ("bool", "real"): "uitofp", ("real", "i32"): "fptosi",
            ("real", "u32"): "fptoui",
        }[x.kind, v.kind]  # fmt: skip
        return f"{word} {source} {self.name(x)} to {target}"

    def _broadcast(self, x: Value, kind: str) -> str:
        name, scalar = self.name(x), self.scalar[kind]
        if x.kind == "index":
            name = self.set(f"sitofp i64 {name} to {scalar}" if kind == "real" else f"trunc i64 {name} to {scalar}")
        return self.spread(name, scalar)

    def spread(self, scalar_name: str, element: str) -> str:
        """A scalar in every lane."""
        if self.lanes == 1:
            return f"bitcast {element} {scalar_name} to {element}"
        vector = self.vector(element)
        first = self.set(f"insertelement {vector} poison, {element} {scalar_name}, i64 0")
        return f"shufflevector {vector} {first}, {vector} poison, <{self.lanes} x i32> zeroinitializer"

    # --- memory of the program ------------------------------------------------------------------------------------

    def used_arrays(self) -> list[int]:
        """Numbers of the arrays that are loaded and stored."""
        items = [item for item in statements(self.program.root) if item.op == "load" and item in self.live]
        return sorted({item.attr for item in items})

    def _element(self, number: int) -> str:
        return self.type("real") if self.program.arrays[number][1] == "real" else "i64"

    def array_lines(self) -> list[str]:
        """Allocations, for the function's entry."""
        lines = []
        for number in self.used_arrays():
            size = self.program.arrays[number][0]
            lines.append(f"  %array{number} = alloca [{size} x {self._element(number)}], align 64")
        return lines

    def _array_pointer(self, number: int, index: Value) -> str:
        size = self.program.arrays[number][0]
        kind = f"[{size} x {self._element(number)}]"
        return self.set(
            f"getelementptr inbounds {kind}, {self.star(kind)} %array{number}, i64 0, i64 {self.name(index)}"
        )

    def star(self, kind: str) -> str:
        """Type of a pointer to `kind`."""
        return "ptr"

    def _op_load(self, v: Value) -> str:
        element = self._element(v.attr)
        pointer = self._array_pointer(v.attr, v.args[0])
        return f"load {element}, {self.star(element)} {pointer}"

    def _op_store(self, v: Value) -> None:
        element = self._element(v.attr)
        pointer = self._array_pointer(v.attr, v.args[0])
        self.emit(f"store {element} {self.name(v.args[1])}, {self.star(element)} {pointer}")

    def table_lines(self) -> list[str]:
        """Constants, for the module."""
        lines = []
        for number, values in enumerate(self.program.tables):
            if values.dtype.kind == "f":
                kind = self.scalar["real"]
                items = ", ".join(f"{kind} {real_bits(x, self.real)}" for x in values.tolist())
            else:
                kind, items = "i64", ", ".join(f"i64 {int(x)}" for x in values.tolist())
            lines.append(self.global_table(number, kind, len(values), items))
        return lines

    def global_table(self, number: int, kind: str, size: int, items: str) -> str:
        space = self.table_space.strip()
        return f"@table{number} = internal {space} constant [{size} x {kind}] [{items}]"

    def _op_table(self, v: Value) -> str:
        size = len(self.program.tables[v.attr])
        kind = self.scalar["real"] if v.kind == "real" else "i64"
        whole, space = f"[{size} x {kind}]", self.table_space
        table, entry = self.star(whole + space), self.star(kind + space)
        pointer = self.set(f"getelementptr inbounds {whole}, {table} @table{v.attr}, i64 0, i64 {self.name(v.args[0])}")
        loaded = self.set(f"load {kind}, {entry} {pointer}")
        return self.spread(loaded, kind) if v.kind == "real" else f"add i64 {loaded}, 0"
