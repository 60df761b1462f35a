"""Finds float64 and 64-bit integer arithmetic in the typed code of float32 kernels, on both targets.

A literal such as 0.1 is a float64 and makes everything it touches float64; int32 and uint32 operations come out as int64
and uint64. Neither changes a result much, so no other test sees them: they halve the CPU's lanes and take 1/64 of a
consumer GPU's speed.

Starting at a kernel, every function that it calls is looked at in the form numba has typed it. Allowed are

- a float64 constant that goes straight into `np.float32(...)` or `lit(...)`, which the compiler folds;
- a 64-bit integer result that goes straight into a 32-bit cast, which the compiler narrows;
- in the generated kernels alone, arithmetic on values that are 64-bit by nature: row numbers and addresses;
- whatever the functions in `ALLOWED` do.
"""

from __future__ import annotations

import linecache
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from numba.core import types as numba_types

from gpuenvs import scalar

types: Any = numba_types  # its classes gain their attributes at run time

# The multiplication that Philox is made of, addition mod 2**32, and the function that makes constants.
ALLOWED = {("gpuenvs.rng", "_mulhilo"), ("gpuenvs.rng", "_add"), ("gpuenvs.scalar", "_choose_lit.<locals>.<lambda>")}


_ARITHMETIC = ("binop", "inplace_binop", "unary")


class Leak(NamedTuple):
    """One offending assignment."""

    function: str
    filename: str
    line: int
    source: str
    what: str

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}: {self.what} in {self.function}: {self.source}"


def find_leaks(function: Any, annotation: Any) -> list[Leak]:
    """All leaks of a typed function and of everything it calls.

    Args:
        function: the Python function.
        annotation: its `type_annotation` from a compile result of numba or numba-cuda.
    """
    found: dict[tuple[str, int, str], Leak] = {}
    for called, typed in typed_reachable(function, annotation):
        if (called.__module__, called.__qualname__) not in ALLOWED:
            for leak in _Function(called, typed).leaks():
                found.setdefault((leak.filename, leak.line, leak.what), leak)
    return list(found.values())


def functions(function: Any, annotation: Any) -> set[str]:
    """Names of all functions that `find_leaks` looks at."""
    return {f"{called.__module__}.{called.__qualname__}" for called, _ in typed_reachable(function, annotation)}


# --- which functions a kernel is made of ---------------------------------------------------------------------------


def typed_reachable(function: Any, annotation: Any) -> Iterator[tuple[Any, Any]]:
    """(Python function, type annotation) of a function and of all it calls, each combination of types once."""
    waiting, seen = [(function, annotation)], set()
    while waiting:
        called, typed = waiting.pop()
        if id(typed) in seen:
            continue
        seen.add(id(typed))
        yield called, typed
        for expression, signature in typed.calltypes.items():
            if signature is not None and getattr(expression, "op", None) == "call":
                callee = typed.typemap[expression.func.name]
                for dispatcher in _dispatchers(callee):
                    waiting += [
                        (dispatcher.py_func, result.type_annotation)
                        for arguments, result in dispatcher.overloads.items()
                        if _plain(arguments) == _plain(signature.args)
                    ]


def _plain(arguments: Any) -> tuple[Any, ...]:
    return tuple(types.unliteral(a) for a in arguments)


def _dispatchers(callee: Any) -> list[Any]:
    """What compiles a callee: an `njit` function itself, or the implementations of one made by `scalar.typed`."""
    if isinstance(callee, types.Dispatcher):
        return [callee.dispatcher]
    if isinstance(callee, types.Function) and callee.typing_key in _typed_functions():
        caches = [getattr(template, "_impl_cache", {}) for template in callee.templates]
        return [entry[0] for cache in caches for entry in cache.values() if entry is not None and entry[0] is not None]
    return []


def _typed_functions() -> list[Any]:
    return [function for function, _ in scalar._choosers]


# --- what one function does ------------------------------------------------------------------------------------------


def _is(node: Any, *kinds: str) -> bool:
    """Whether an IR node is of one of these classes, by name: numba-cuda has IR classes of its own."""
    return type(node).__name__ in kinds


def _own(node: Any, name: str) -> Any:
    """An attribute of an IR node, None where it has none: expressions look into their operands and raise something else."""
    return None if _is(node, "Expr") else getattr(node, name, None)


class _Function:
    def __init__(self, function: Any, annotation: Any) -> None:
        self.function, self.typemap, self.calltypes = function, annotation.typemap, annotation.calltypes
        self.generated = function.__code__.co_filename.startswith("<gpuenvs")
        self.assignments: list[Any] = []
        self.uses: dict[str, list[Any]] = defaultdict(list)
        self.definitions: dict[str, list[Any]] = defaultdict(list)
        for block in annotation.blocks.values():
            for statement in block.body:
                if _is(statement, "Assign"):
                    self.assignments.append(statement)
                    self.definitions[statement.target.name].append(statement.value)
                if not _is(statement, "Del"):
                    for variable in _variables_read(statement):
                        self.uses[variable].append(statement)

    def leaks(self) -> Iterator[Leak]:
        for statement in self.assignments:
            what = self._judge(statement)
            if what:
                location = statement.loc
                source = linecache.getline(location.filename, location.line).strip()
                yield Leak(self.function.__qualname__, location.filename, location.line, source, what)

    def _judge(self, statement: Any) -> str | None:
        value, kind = statement.value, self.typemap.get(statement.target.name)
        if _is(value, "Arg"):
            return None  # the caller's doing
        if _is(value, "Var"):
            widened = _holds_float64(kind) and not _holds_float64(self.typemap[value.name])
            return "float64, where branches meet" if widened else None
        if _holds_float64(kind):
            constant = self._is_constant(value)
            if constant and self._only_used_by(statement.target.name, self._folds_float):
                return None
            return "a float64 constant outside of np.float32(...) and lit(...)" if constant else "float64"
        if self._computes_wide_integer(value, kind):
            if self._only_used_by(statement.target.name, self._casts_to_32_bits):
                return None
            return f"{kind} arithmetic that is not cast back at once"
        return None

    def _is_constant(self, value: Any) -> bool:
        """A literal, a global number, `math.pi`, or arithmetic on such: known when compiling."""
        if _is(value, "Const", "Global", "FreeVar"):
            return True
        if _is(value, "Var"):
            made = self.definitions[value.name]
            return len(made) == 1 and self._is_constant(made[0])
        if not _is(value, "Expr"):
            return False
        if value.op == "getattr":
            return isinstance(self.typemap[value.value.name], types.Module)
        return value.op in _ARITHMETIC and all(self._is_constant(v) for v in value.list_vars())

    def _computes_wide_integer(self, value: Any, kind: Any) -> bool:
        if not (isinstance(kind, types.Integer) and kind.bitwidth == 64 and _is(value, "Expr")):
            return False
        if value.op not in (*_ARITHMETIC, "call"):
            return False
        if not self.generated:
            return True
        if value.op == "call":
            return False
        operands = [self.typemap[v.name] for v in value.list_vars()]
        return any(isinstance(t, types.Integer) and t.bitwidth == 32 for t in operands)

    def _only_used_by(self, name: str, allowed: Any) -> bool:
        for use in self.uses[name]:
            value: Any = use.value if _is(use, "Assign") else None
            if _is(value, "Var"):
                # A value that waits on the stack while branches part and meet is copied once in each of them.
                same = {_own(made, "name") for made in self.definitions[use.target.name]} == {name}
                if not (same and self._only_used_by(use.target.name, allowed)):
                    return False
            elif _is(value, "Expr") and value.op in _ARITHMETIC and self._is_constant(value):
                if not self._only_used_by(use.target.name, allowed):
                    return False
            elif not (_is(value, "Expr") and value.op == "call" and allowed(value, name)):
                return False
        return True

    def _origin(self, name: str) -> Any:
        """What a variable was first assigned, copies followed."""
        followed = set()
        while name not in followed and self.definitions[name] and _is(self.definitions[name][0], "Var"):
            followed.add(name)
            name = self.definitions[name][0].name
        return self.definitions[name][0] if self.definitions[name] else None

    def _folds_float(self, call: Any, name: str) -> bool:
        if _own(self._origin(call.func.name), "value") is scalar.lit:
            return call.args[0].name == name
        return self._casts_to_32_bits(call, name) or self._casts_to(call, types.float32)

    def _casts_to_32_bits(self, call: Any, name: str) -> bool:
        callee = str(_own(self._origin(call.func.name), "name"))
        if self.generated and callee.startswith(("_load_", "_store_")):
            return True  # an index
        return self._casts_to(call, types.int32) or self._casts_to(call, types.uint32)

    def _casts_to(self, call: Any, kind: Any) -> bool:
        callee = self.typemap[call.func.name]
        return isinstance(callee, types.NumberClass) and callee.instance_type == kind


def _variables_read(statement: Any) -> set[str]:
    if _is(statement, "Assign"):
        value = statement.value
        if _is(value, "Var"):
            return {value.name}
        return {v.name for v in value.list_vars()} if _is(value, "Expr", "Yield") else set()
    return {v.name for v in statement.list_vars()}


def _holds_float64(kind: Any) -> bool:
    if isinstance(kind, types.BaseTuple):
        return any(_holds_float64(member) for member in kind)
    return isinstance(kind, (types.Float, types.Complex)) and kind.bitwidth >= 64
