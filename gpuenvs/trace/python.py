"""A recorded program as plain Python: for reading, for debugging, and to run a CUDA kernel's program without a device.

The text is one function over the rows of a batch::

    def name(i, arrays, settings, counts): ...

`i` is the number of one row, as a CUDA thread works on it, or (`rows="many"`) an array of row numbers that run together,
as the lanes of a CPU vector or the threads of a warp do. `arrays` holds the arrays by name, each (rows, num_envs), and
the shared params; `settings` the whole numbers; `counts[k]` is increased by the number of rows that met condition k.

A value that is used once stands where it is used, as long as the line stays short.

The working dtype is that of numpy's scalars; a literal takes the dtype of the value beside it. Products and sums are rounded
one by one, where machine code may fuse them.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable
from typing import Any

import numpy as np

from gpuenvs.trace.graph import COMPARISONS, Branch, Loop, Program, Region, Value
from gpuenvs.trace.liveness import Liveness

_WORDS = {
    **COMPARISONS, "add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%", "quotient": "//",
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip
_CALLS = {"sqrt": "sqrt", "floor": "floor", "abs": "abs", "finite": "finite", "mantissa": "mantissa", "exponent": "exponent",
          "scale": "scale", "mulhi": "mulhi", "any": "any_row"}  # fmt: skip
_PURE = {*_WORDS, *_CALLS, "neg", "not", "select", "convert"}
_LONGEST = 100  # characters of an expression that is put into another
_CASTS = {"real": "real", "u32": "u32", "i32": "i32", "bool": "boolean", "index": "int", "flag": "bool"}


class PythonPrinter:
    """The source text of one program.

    Args:
        program: a finished recording.
        name: of the function.
        buffers: slot of the address table -> name in `arrays`, or in `settings` for numbers.
        labels: (buffer name, row) -> a name that says what is read there.
        rows: "one" or "many".
        visits: let the function count how often each region runs, in a global list `visits` in the order of `regions`.

    Attributes:
        regions: those printed.
    """

    def __init__(
        self,
        program: Program,
        name: str,
        buffers: dict[int, str],
        labels: dict[tuple[str, int], str] | None = None,
        rows: str = "one",
        visits: bool = False,
    ) -> None:
        self.program, self.live = program, Liveness(program)
        self.regions: list[Region] = []
        self._name, self._buffers, self._labels = name, buffers, labels or {}
        self._many, self._visits = rows == "many", visits
        self._names: dict[Any, str] = {}
        self._single = self._used_once()
        self._inside: dict[int, str] = {}  # expressions that stand where they are used
        self._taken: set[str] = {
            *_CASTS.values(),
            *_CALLS.values(),
            "where",
            "counts",
            "arrays",
            "settings",
            "visits",
            "i",
        }
        self._used: dict[str, None] = {}  # buffers, in the order of their first use
        self._lines: list[str] = []
        self._depth = 1
        self._serial = 0

    def text(self) -> str:
        """The module: tables, then the function."""
        self._region(self.program.root)
        head = [f"table{k} = {self._table(values)}" for k, values in enumerate(self.program.tables)]
        head += ["", "", f"def {self._name}(i, arrays, settings, counts):"]
        head += [f"    {name} = arrays[{name!r}]" for name in self._used]
        for number in self._used_arrays():
            head.append(f"    array{number} = [None] * {self.program.arrays[number][0]}")
        return "\n".join([*head, *self._lines]).strip("\n") + "\n"

    @staticmethod
    def _table(values: np.ndarray) -> str:
        cast = "real" if values.dtype.kind == "f" else "int"
        return f"[{cast}(x) for x in {values.tolist()!r}]"

    def _used_arrays(self) -> list[int]:
        return sorted({item.attr for item in statements(self.program.root) if item.op == "load" and item in self.live})

    def _used_once(self) -> set[int]:
        """Values with a single use, by a value or a put of the same region."""
        uses: dict[int, list[Region | None]] = {}
        for item in statements(self.program.root):
            if item not in self.live:
                continue
            plain = item.op in _PURE or item.op == "put"
            for argument in item.args:
                uses.setdefault(argument.id, []).append(item.region if plain else None)
            if item.op in ("loop", "do_while", "if"):
                for value in _handed_over(item.attr):
                    uses.setdefault(value.id, []).append(None)
        items = [item for item in statements(self.program.root) if item.op in _PURE]
        return {item.id for item in items if uses.get(item.id) == [item.region]}

    # --- words ----------------------------------------------------------------------------------------------------

    def _emit(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    def _fresh(self, wish: str = "") -> str:
        if wish and wish.isidentifier() and not keyword.iskeyword(wish) and wish not in self._taken:
            self._taken.add(wish)
            return wish
        self._serial += 1
        return f"t{self._serial}"

    def _text(self, value: Value) -> str:
        """An operand whose neighbour decides the dtype."""
        expression = self._inside.get(value.id)
        if expression is not None:
            return expression if value.op in _CALLS or value.op in ("select", "convert") else f"({expression})"
        return self._bare(value)

    def _bare(self, value: Value) -> str:
        """The same between commas or brackets."""
        if value.id in self._inside:
            return self._inside[value.id]
        if value.op == "const":
            return repr(value.constant)
        if value.op == "result":
            return self._names[value.args[0].id, value.attr]
        return self._names[value.id]

    def _typed(self, value: Value) -> str:
        """An operand that has its own dtype."""
        text = self._bare(value)
        return f"{_CASTS[value.kind]}({text})" if value.op == "const" and value.kind not in ("index", "flag") else text

    def _buffer(self, slot: int) -> str:
        name = self._buffers[slot]
        self._used.setdefault(name)
        self._taken.add(name)
        return name

    # --- regions --------------------------------------------------------------------------------------------------

    def _region(self, region: Region) -> None:
        if self._visits:
            self._emit(f"visits[{len(self.regions)}] += 1")
        self.regions.append(region)
        before = len(self._lines)
        for item in region.items:
            if item in self.live:
                self._item(item)
        if len(self._lines) == before and not self._visits:
            self._emit("pass")

    def _item(self, item: Value) -> None:
        if item.op in ("loop", "do_while"):
            self._loop(item, item.attr)
        elif item.op == "if":
            self._branch(item, item.attr)
        elif item.op == "put":
            self._put(item)
        elif item.op == "store":
            self._emit(f"array{item.attr}[{self._bare(item.args[0])}] = {self._typed(item.args[1])}")
        elif item.op == "count":
            self._emit(f"counts[{item.attr}] += number({self._typed(item.args[0])})")
        else:
            wish = self._labels.get((self._buffers[item.attr[0]], item.attr[1]), "") if item.op == "get" else ""
            expression = self._expression(item)
            if item.id in self._single and len(expression) < _LONGEST:
                self._inside[item.id] = expression
                return
            self._names[item.id] = self._fresh(wish)
            self._emit(f"{self._names[item.id]} = {expression}")

    def _assign(self, names: list[str], values: list[Value]) -> None:
        if names:
            self._emit(f"{', '.join(names)} = {', '.join(self._typed(v) for v in values)}")

    def _carried(self, owner: Value, prefix: str) -> tuple[list[int], list[str]]:
        slots = sorted(self.live.slots.get(owner.id, ()))
        self._serial += 1
        names = [f"{prefix}{self._serial}_{k}" for k in slots]
        for k, name in zip(slots, names):
            self._names[owner.id, k] = name
        return slots, names

    def _loop(self, owner: Value, body: Loop) -> None:
        slots, names = self._carried(owner, "c")
        for k, name in zip(slots, names):
            self._names[body.carried[k].id] = name
        self._assign(names, [body.initial[k] for k in slots])
        if owner.op == "loop":
            assert body.counter is not None
            self._names[body.counter.id] = f"k{self._serial}"
            self._emit(f"for k{self._serial} in range({self._text(owner.args[0])}):")
        else:
            self._emit("while True:")
        self._depth += 1
        self._region(body.region)
        again = self._text(body.again) if body.again is not None else ""
        if body.again is not None and body.again.op == "carried":
            self._emit(f"again = {again}")  # what it was before the assignment below
            again = "again"
        self._assign(names, [body.next[k] for k in slots])
        if again:
            self._emit(f"if not {again}:")
            self._emit("    break")
        self._depth -= 1

    def _branch(self, owner: Value, branch: Branch) -> None:
        slots, names = self._carried(owner, "j")
        self._emit(f"if {self._text(owner.args[0])}:")
        self._depth += 1
        self._region(branch.region)
        self._assign(names, [branch.yes[k] for k in slots])
        self._depth -= 1
        if names:
            self._emit("else:")
            self._depth += 1
            self._assign(names, [branch.no[k] for k in slots])
            self._depth -= 1

    def _put(self, item: Value) -> None:
        """One row is where its mask says already; of many those in the mask are stored."""
        slot, row, _ = item.attr
        place, value = self._buffer(slot), self._typed(item.args[0])
        if self._many:
            self._emit(f"put({place}, {row}, i, {value}, {self._typed(item.args[1])})")
        else:
            self._emit(f"{place}[{row}, i] = {value}")

    # --- single values --------------------------------------------------------------------------------------------

    def _expression(self, v: Value) -> str:
        if v.op in _WORDS:
            a, b = v.args
            return f"{self._text(a)} {_WORDS[v.op]} {self._text(b)}"
        if v.op in _CALLS:
            return f"{_CALLS[v.op]}({', '.join(map(self._bare, v.args))})"
        if v.op == "neg":
            return f"-{self._text(v.args[0])}"
        if v.op == "not":
            return f"not {self._text(v.args[0])}" if v.kind == "flag" else f"~{self._text(v.args[0])}"
        if v.op == "select":
            c, a, b = v.args
            return f"where({self._bare(c)}, {self._typed(a)}, {self._typed(b)})"
        if v.op == "convert":
            return f"{_CASTS[v.kind]}({self._bare(v.args[0])})"
        return self._access(v)

    def _access(self, v: Value) -> str:
        if v.op == "get":
            slot, row, _ = v.attr
            read = f"{self._buffer(slot)}[{row}, i]"
            return read if v.kind != "i32" else f"i32({read})"
        if v.op == "shared":
            slot, k, _ = v.attr
            return f"{self._buffer(slot)}[{k}]"
        if v.op == "setting":
            return f"{_CASTS[v.kind]}(settings[{self._buffers[v.attr]!r}])"
        if v.op == "env":
            return "u32(i)"
        if v.op == "active":
            return "boolean(True)"
        if v.op == "load":
            return f"array{v.attr}[{self._bare(v.args[0])}]"
        if v.op == "table":
            return f"table{v.attr}[{self._bare(v.args[0])}]"
        raise NotImplementedError(f"no Python for {v.op}")


def _handed_over(body: Loop | Branch) -> list[Value]:
    """Values that leave a body or enter it from turn to turn."""
    if isinstance(body, Branch):
        return [*body.yes, *body.no]
    return [*body.initial, *body.next, *([] if body.again is None else [body.again])]


def statements(region: Region) -> list[Value]:
    """Every item of a region and of the bodies inside it."""
    found = []
    for item in region.items:
        found.append(item)
        if item.op in ("loop", "do_while", "if"):
            found += statements(item.attr.region)
    return found


# --- running it ------------------------------------------------------------------------------------------------------


def namespace(real: str, rows: str = "one") -> dict[str, Any]:
    """What the printed text calls, for the working dtype."""
    kind = np.dtype(real).type
    many = rows == "many"

    def choose(condition: Any, yes: Any, no: Any) -> Any:
        return yes if condition else no

    def choose_each(condition: Any, yes: Any, no: Any) -> Any:
        if isinstance(condition, bool):
            return yes if condition else no
        return np.where(condition, yes, no)

    def put(array: Any, row: int, i: Any, value: Any, mask: Any) -> None:
        places = np.broadcast_to(mask, i.shape)
        array[row, i[places]] = np.broadcast_to(value, i.shape)[places]

    def scale(x: Any, k: Any) -> Any:
        return np.ldexp(x, np.clip(np.nan_to_num(k), -5000, 5000).astype(np.int32))

    def mulhi(a: Any, b: Any) -> Any:
        return np.uint32((np.uint64(a) * np.uint64(b)) >> np.uint64(32))

    pick: Callable[..., Any] = choose_each if many else choose
    return {
        "real": kind, "u32": np.uint32, "i32": np.int32, "boolean": np.bool_, "inf": np.inf, "nan": np.nan, "where": pick,
        "sqrt": np.sqrt, "floor": np.floor, "finite": lambda x: x - x == 0, "put": put, "scale": scale, "mulhi": mulhi,
        "mantissa": lambda x: np.frexp(x)[0], "exponent": lambda x: kind(np.frexp(x)[1]),
        "any_row": (lambda x: bool(np.any(x))) if many else bool, "number": np.count_nonzero if many else int,
    }  # fmt: skip


def load(text: str, name: str, real: str, rows: str = "one", visits: list[int] | None = None) -> Callable[..., None]:
    """The function that `PythonPrinter.text` printed; floating-point warnings are its caller's to silence."""
    names = {**namespace(real, rows), "visits": visits}
    exec(compile(text, f"<traced {name}>", "exec"), names)
    return names[name]
