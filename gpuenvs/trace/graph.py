"""The recorded program: values, regions and control statements, built while a traced function runs.

Every value is computed once: an operation on the same operands is shared (common subexpressions), constants are folded, and
sums and products with 0 and 1 disappear. What no store depends on is left out when the program is printed (`liveness`).

Kinds of value, one per env unless it says uniform:

=========  ==========================================================================
`real`     the working dtype, float32 or float64, chosen when the program is printed
`bool`     a condition
`u32`      unsigned 32-bit integer, wraps around
`i32`      signed 32-bit integer
`index`    uniform integer: loop counters, array indices
`flag`     uniform condition
=========  ==========================================================================

Statements with an effect or a body (loops, branches, loads and stores) keep their order within their region; pure values move
out of a loop when nothing they need is computed in it, but never out of a branch.

x * 0 is folded to 0, so a program may lack the NaN that IEEE arithmetic would give for an infinite x. The runtime checks
states before and after each step, not what lies between.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpuenvs.errors import TraceError

COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_COMMUTES = ("add", "mul", "and", "or", "xor", "mulhi")
_LANE_INTEGERS = ("u32", "i32")


class Region:
    """A sequence of values and statements: the whole program, the body of a loop or one side of a branch.

    Args:
        parent: the region around it; None for the program.
        owner: the statement whose body this is.
        hoists: pure values may move out of it (a loop body).
    """

    def __init__(self, parent: Region | None, owner: Value | None, hoists: bool) -> None:
        self.parent, self.owner, self.hoists = parent, owner, hoists
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.items: list[Value] = []
        self.shared: dict[Any, Value] = {}


class Value:
    """One recorded value or statement.

    Attributes:
        op: name of the operation.
        args: operands.
        attr: whatever else defines it (a constant, a table, a body).
        kind: see the module's table; "none" for statements without a value.
        region: where it is computed.
        constant: its number if it is known while tracing, else None.
    """

    __slots__ = ("args", "attr", "constant", "id", "kind", "op", "region")

    def __init__(self, op: str, args: tuple[Any, ...], kind: str, region: Region, attr: Any = None) -> None:
        self.op, self.args, self.kind, self.region, self.attr = op, args, kind, region, attr
        self.constant: Any = attr if op == "const" else None
        self.id: int = program().next_id()

    # Arithmetic. A Value on the right of a numpy number must win over numpy's broadcasting.
    __array_ufunc__ = None

    def __add__(self, other: Any) -> Value:
        return apply("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return apply("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return apply("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return apply("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return apply("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return apply("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return apply("div", other, self)

    def __neg__(self) -> Value:
        return apply("neg", self)

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return apply("abs", self)

    def __pow__(self, power: Any) -> Value:
        if power == 0.5:
            return apply("sqrt", self)
        if not isinstance(power, int) or power < 1:
            raise TraceError(f"a traced value can be raised to a positive whole power or to 0.5, not to {power!r}")
        out: Value = self
        for _ in range(power - 1):
            out = out * self
        return out

    def __lt__(self, other: Any) -> Value:
        return apply("lt", self, other)

    def __le__(self, other: Any) -> Value:
        return apply("le", self, other)

    def __gt__(self, other: Any) -> Value:
        return apply("gt", self, other)

    def __ge__(self, other: Any) -> Value:
        return apply("ge", self, other)

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return apply("eq", self, other)

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return apply("ne", self, other)

    def __and__(self, other: Any) -> Value:
        return apply("and", self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Value:
        return apply("or", self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Value:
        return apply("xor", self, other)

    __rxor__ = __xor__

    def __mod__(self, other: Any) -> Value:
        return apply("mod", self, other)

    def __floordiv__(self, other: Any) -> Value:
        return apply("quotient", self, other)

    def __invert__(self) -> Value:
        return apply("not", self)

    def __lshift__(self, other: Any) -> Value:
        return apply("shl", self, other)

    def __rshift__(self, other: Any) -> Value:
        return apply("shr", self, other)

    def __hash__(self) -> int:
        return self.id

    def __bool__(self) -> bool:
        if self.constant is not None:
            return bool(self.constant)
        raise TraceError(
            "a traced value has no truth while tracing: use T.where(condition, a, b) instead of if, `&` and `|` instead of "
            "`and` and `or`, T.minimum/T.maximum instead of min/max"
        )

    def __float__(self) -> float:
        if self.constant is not None:
            return float(self.constant)
        raise TraceError("a traced value is not a Python number: use gpuenvs.trace functions instead of math or numpy")

    def __index__(self) -> int:
        if self.constant is not None and isinstance(self.constant, int):
            return self.constant
        raise TraceError("a traced value cannot index a Python list; use a Table or an Array")

    def __repr__(self) -> str:
        return f"<{self.kind} {self.op} #{self.id}>" if self.constant is None else f"<{self.kind} {self.constant!r}>"


class Program:
    """Everything recorded for one function."""

    def __init__(self) -> None:
        self.root = Region(None, None, hoists=False)
        self.region = self.root
        self.arrays: list[tuple[int, str]] = []  # (size, "real" or "int")
        self.tables: list[np.ndarray] = []
        self._table_numbers: dict[Any, int] = {}
        self._ids = 0

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def table(self, values: np.ndarray) -> int:
        """The number of a table; equal ones are kept once."""
        key = (values.dtype.kind, values.shape, values.tobytes())
        if key not in self._table_numbers:
            self._table_numbers[key] = len(self.tables)
            self.tables.append(values)
        return self._table_numbers[key]

    @contextlib.contextmanager
    def inside(self, region: Region) -> Iterator[None]:
        previous, self.region = self.region, region
        try:
            yield
        finally:
            self.region = previous


_programs: list[Program] = []


def program() -> Program:
    """The program being recorded."""
    return _programs[-1]


def recording() -> bool:
    """Is a program being recorded?"""
    return bool(_programs)


@contextlib.contextmanager
def record() -> Iterator[Program]:
    """Record what traced functions compute inside the `with` block. One thread at a time: callers hold a lock."""
    _programs.append(Program())
    try:
        yield _programs[-1]
    finally:
        _programs.pop()


# --- values ----------------------------------------------------------------------------------------------------------


def constant(number: Any, kind: str = "real") -> Value:
    """A number as a value."""
    number = {"real": float, "bool": bool, "flag": bool}.get(kind, int)(number)
    if kind == "u32":
        number &= 0xFFFFFFFF
    root = program().root
    key = ("const", kind, repr(number))
    found = root.shared.get(key)
    if found is None:
        found = root.shared[key] = Value("const", (), kind, root, number)
    return found


def as_value(x: Any, kind: str) -> Value:
    """`x` itself if it is a Value, else a constant of that kind."""
    if isinstance(x, Value):
        return x
    if isinstance(x, np.ndarray) and x.ndim:
        raise TraceError("a numpy array met a traced value: traced functions work on scalars; index the array first")
    return constant(x, kind)


def _uniform(x: Any, what: str) -> Value:
    """A loop count or an array index as a value."""
    value = as_value(x, "index")
    if value.kind != "index":
        raise TraceError(f"{what} is the same for all envs: an int or a uniform integer, not a {value.kind} value")
    return value


def _pure(op: str, kind: str, args: tuple[Value, ...], attr: Any = None) -> Value:
    """A value without effect: shared with an equal one, placed outside of the loops it does not depend on."""
    if op in _COMMUTES and args[0].id > args[1].id:
        args = args[::-1]
    key = (op, kind, attr, *(a.id for a in args))
    region: Region | None = program().region
    needed = max((a.region.depth for a in args), default=0)
    while region is not None:
        found = region.shared.get(key)
        if found is not None:
            return found
        region = region.parent
    home = program().region
    while home.hoists and home.parent is not None and home.depth > needed:
        home = home.parent
    value = Value(op, args, kind, home, attr)
    home.items.append(value)
    home.shared[key] = value
    return value


_RESULT = dict.fromkeys((*COMPARISONS, "finite"), "bool")


def apply(op: str, *operands: Any) -> Value:
    """Record one operation; see `_fold` for what is simplified on the way."""
    kinds = [v.kind for v in operands if isinstance(v, Value)]
    if op == "select":
        return _select(*operands)
    if op == "any":
        (x,) = operands
        return (
            x
            if x.kind == "flag"
            else _pure("any", "flag", (x,))
            if x.constant is None
            else constant(x.constant, "flag")
        )
    kind = next((k for k in kinds if k not in ("bool", "flag")), kinds[0])
    args = tuple(as_value(x, kind) for x in operands)
    if {a.kind for a in args} == {"bool", "flag"}:
        kind, args = "bool", tuple(convert(a, "bool") for a in args)
    if any(a.kind != kind for a in args):
        raise TraceError(f"{op} of {' and '.join(a.kind for a in args)}: convert first")
    folded = _fold(op, kind, args)
    if folded is not None:
        return folded
    if kind == "index":
        result = "flag" if op in COMPARISONS else "index"
    else:
        result = _RESULT.get(op, kind)
    return _pure(op, result, args)


def _select(condition: Any, yes: Any, no: Any) -> Value:
    if not isinstance(condition, Value):
        condition = constant(bool(condition), "bool")
    kind = next((v.kind for v in (yes, no) if isinstance(v, Value)), "bool" if isinstance(yes, bool) else "real")
    yes, no = as_value(yes, kind), as_value(no, kind)
    if yes.kind != no.kind:
        raise TraceError(f"where() between {yes.kind} and {no.kind}")
    if condition.constant is not None:
        return yes if condition.constant else no
    if yes is no:
        return yes
    if kind in ("index", "flag") and condition.kind == "bool":
        raise TraceError("where() on a condition of each env gives a value of each env, not a uniform one")
    if condition.op == "not":
        condition, yes, no = condition.args[0], no, yes
    if kind == "bool" and yes.constant is not None and no.constant is not None:
        return condition if yes.constant else apply("not", condition)
    return _pure("select", kind, (condition, yes, no))


def _compute(op: str, kind: str, x: list[Any]) -> Any:
    """The operation on numbers."""
    mask = 0xFFFFFFFF if kind == "u32" else -1
    if op == "add":
        return (x[0] + x[1]) & mask if kind == "u32" else x[0] + x[1]
    if op == "sub":
        return (x[0] - x[1]) & mask if kind == "u32" else x[0] - x[1]
    if op == "mul":
        return (x[0] * x[1]) & mask if kind == "u32" else x[0] * x[1]
    if op == "div":
        return float(np.float64(x[0]) / np.float64(x[1]))
    unary: dict[str, Callable[[Any], Any]] = {
        "neg": lambda a: -a, "abs": abs, "floor": lambda a: math.floor(a) if math.isfinite(a) else a, "finite": math.isfinite,
        "sqrt": lambda a: math.sqrt(a) if a >= 0 else math.nan, "not": lambda a: not a,
        "mantissa": lambda a: math.frexp(a)[0], "exponent": lambda a: float(math.frexp(a)[1]),
    }  # fmt: skip
    if op in unary:
        return unary[op](x[0])
    binary: dict[str, Callable[[Any, Any], Any]] = {
        "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
        "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b, "shl": lambda a, b: (a << b) & mask, "shr": lambda a, b: a >> b,
        "mulhi": lambda a, b: (a * b) >> 32, "mod": lambda a, b: a % b, "quotient": lambda a, b: a // b,
        "scale": lambda a, b: math.ldexp(a, int(b)),
    }  # fmt: skip
    return binary[op](*x)


def _fold(op: str, kind: str, args: tuple[Value, ...]) -> Value | None:
    """A simpler value that means the same, or None."""
    if all(a.constant is not None for a in args):
        with np.errstate(all="ignore"):
            number = _compute(op, kind, [a.constant for a in args])
        if op in COMPARISONS:
            return constant(number, "flag" if kind == "index" else "bool")
        return constant(number, _RESULT.get(op, kind))
    if kind == "real":
        return _fold_real(op, *args)
    if kind in ("bool", "flag"):
        return _fold_condition(op, kind, *args)
    if op in ("add", "sub", "xor", "or", "shl", "shr") and args[1].constant == 0:
        return args[0]
    if op in ("add", "xor", "or") and args[0].constant == 0:
        return args[1]
    if op == "mul":
        for one, other in (args, args[::-1]):
            if one.constant == 1:
                return other
            if one.constant == 0:
                return one
    return None


def _fold_condition(op: str, kind: str, a: Value, b: Value | None = None) -> Value | None:
    if op == "not":
        return a.args[0] if a.op == "not" else None
    if b is None:
        return None
    if a is b and op in ("and", "or"):
        return a
    for one, other in ((a, b), (b, a)):
        if one.constant is not None:
            if op == "and":
                return other if one.constant else one
            if op == "or":
                return one if one.constant else other
    return None


def _fold_real(op: str, a: Value, b: Value | None = None) -> Value | None:  # one rule a line
    if b is None:
        if op == "neg":
            if a.op == "neg":
                return a.args[0]
            if a.op == "sub":
                return apply("sub", a.args[1], a.args[0])
        return None
    if op == "add":
        if a.constant == 0:
            return b
        if b.constant == 0:
            return a
        if b.op == "neg":
            return apply("sub", a, b.args[0])
        if a.op == "neg":
            return apply("sub", b, a.args[0])
    if op == "sub":
        if b.constant == 0:
            return a
        if a.constant == 0:
            return apply("neg", b)
        if b.op == "neg":
            return apply("add", a, b.args[0])
        if a.op == "neg":
            return apply("neg", apply("add", a.args[0], b))
    if op == "mul":
        return _fold_product(a, b)
    if op == "div":
        if a.constant == 0:
            return a
        if b.constant is not None and b.constant != 0 and math.isfinite(1.0 / b.constant):
            return apply("mul", a, 1.0 / b.constant)
        if a.op == "neg":
            return apply("neg", apply("div", a.args[0], b))
    if op in COMPARISONS and a.constant is not None:
        return apply(_MIRRORED[op], b, a)
    return None


def _fold_product(a: Value, b: Value) -> Value | None:
    for one, other in ((a, b), (b, a)):
        if one.constant == 0:
            return one
        if one.constant == 1:
            return other
        if one.constant == -1:
            return apply("neg", other)
        if one.op == "neg":
            return apply("neg", apply("mul", one.args[0], other))
    for one, other in ((a, b), (b, a)):
        if one.constant is not None and one.constant < 0:
            return apply("neg", apply("mul", -one.constant, other))
    return None


def convert(x: Any, kind: str) -> Any:
    """`x` as another kind.

    From u32 or i32 to real, between the two, from a condition to i32, from an index to real or i32, from a flag to bool.
    """
    if not isinstance(x, Value):
        return x
    if x.kind == kind:
        return x
    if x.constant is not None:
        return constant(x.constant, kind)
    return _pure("convert", kind, (x,))


# --- statements ------------------------------------------------------------------------------------------------------


def statement(op: str, kind: str, args: tuple[Value, ...], attr: Any = None) -> Value:
    """Something that keeps its place in the order of the current region."""
    value = Value(op, args, kind, program().region, attr)
    program().region.items.append(value)
    return value


class Loop:
    """Body of a `loop` or `do_while` statement: carried values, and what each becomes at the end of a turn."""

    def __init__(self) -> None:
        self.region: Region
        self.counter: Value | None = None
        self.initial: list[Value] = []
        self.carried: list[Value] = []
        self.next: list[Value] = []
        self.again: Value | None = None


class Branch:
    """Body of an `if` statement: the values it gives, and those that stand in when the condition is false."""

    def __init__(self) -> None:
        self.region: Region
        self.yes: list[Value] = []
        self.no: list[Value] = []


def _results(owner: Value, kinds: list[str]) -> list[Value]:
    region = program().region
    return [Value("result", (owner,), kind, region, k) for k, kind in enumerate(kinds)]


def _begin_loop(op: str, args: tuple[Value, ...], init: list[Any]) -> tuple[Value, Loop]:
    body = Loop()
    owner = Value(op, args, "none", program().region, body)
    body.region = Region(program().region, owner, hoists=True)
    body.initial = [as_value(x, "real") for x in init]
    body.carried = [Value("carried", (), x.kind, body.region, (body, k)) for k, x in enumerate(body.initial)]
    return owner, body


def _end_loop(owner: Value, body: Loop, values: Any) -> list[Value]:
    body.next = [as_value(x, c.kind) for x, c in zip(values, body.carried, strict=True)]
    for value, carried in zip(body.next, body.carried):
        if value.kind != carried.kind:
            raise TraceError(f"a loop's value changes from {carried.kind} to {value.kind}")
    program().region.items.append(owner)
    results = _results(owner, [c.kind for c in body.carried])
    # What no turn changes is what it was before the loop.
    return [
        start if after is carried or after is start else result
        for start, carried, after, result in zip(body.initial, body.carried, body.next, results)
    ]


def record_loop(count: Any, body: Callable[..., Any], init: list[Any]) -> list[Value]:
    number = _uniform(count, "a loop's count")
    if number.constant is not None and number.constant <= 0:
        return [as_value(x, "real") for x in init]
    owner, inner = _begin_loop("loop", (number,), init)
    inner.counter = Value("counter", (), "index", inner.region, inner)
    with program().inside(inner.region):
        values = body(inner.counter, *inner.carried)
    return _end_loop(owner, inner, values)


def record_do_while(body: Callable[..., Any], init: list[Any]) -> list[Value]:
    owner, inner = _begin_loop("do_while", (), init)
    with program().inside(inner.region):
        values, again = body(*inner.carried)
        inner.again = as_value(again, "flag")
    if inner.again.kind != "flag":
        raise TraceError("do_while goes on by a uniform condition: wrap it in any_lane()")
    return _end_loop(owner, inner, values)


def _plain_kind(x: Any) -> str:
    """The kind of a value that is no Value."""
    return "bool" if isinstance(x, bool | np.bool_) else "real"


def record_if(condition: Value, body: Callable[[], list[Any]], otherwise: list[Any]) -> list[Value]:
    if condition.kind != "flag":
        raise TraceError("if_ needs a uniform condition: wrap it in any_lane()")
    if condition.constant is not None:
        return [as_value(x, _plain_kind(x)) for x in (body() if condition.constant else otherwise)]
    branch = Branch()
    owner = Value("if", (condition,), "none", program().region, branch)
    branch.region = Region(program().region, owner, hoists=False)
    with program().inside(branch.region):
        values = body()
    kinds = [
        next((v.kind for v in pair if isinstance(v, Value)), _plain_kind(pair[0]))
        for pair in zip(values, otherwise, strict=True)
    ]
    branch.yes = [as_value(x, kind) for x, kind in zip(values, kinds)]
    branch.no = [as_value(x, kind) for x, kind in zip(otherwise, kinds)]
    program().region.items.append(owner)
    # What is the same on both sides needs no branch; constants stay known.
    return [no if yes is no else result for yes, no, result in zip(branch.yes, branch.no, _results(owner, kinds))]


def record_array(size: int, kind: str) -> int:
    program().arrays.append((size, kind))
    return len(program().arrays) - 1


def resize_array(number: int, size: int) -> None:
    program().arrays[number] = (size, program().arrays[number][1])


def _element_kind(number: int) -> str:
    return "real" if program().arrays[number][1] == "real" else "index"


def record_load(number: int, index: Any) -> Value:
    return statement("load", _element_kind(number), (_uniform(index, "an array's index"),), number)


def record_store(number: int, index: Any, value: Any) -> None:
    kind = _element_kind(number)
    stored = as_value(value, kind)
    if stored.kind != kind:
        raise TraceError(f"an array of {kind} values cannot hold a {stored.kind} value")
    statement("store", "none", (_uniform(index, "an array's index"), stored), number)


def record_table(values: np.ndarray, index: Value) -> Value:
    index = _uniform(index, "a table's index")
    if index.constant is not None:
        number = values[index.constant].item()
        return constant(number, "real" if values.dtype.kind == "f" else "index")
    kind = "real" if values.dtype.kind == "f" else "index"
    return _pure("table", kind, (index,), program().table(values))
