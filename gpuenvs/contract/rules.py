"""What the code of environment functions may hold: numbers, tuples, branches, loops, and calls of functions like themselves.

Read from numba's untyped intermediate code, which is the same for every version of Python and knows the line of each
operation. Nothing is compiled and nothing is called.
"""

from __future__ import annotations

import builtins
import random
import re
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
from numba.core import compiler, errors, ir
from numba.core.registry import cpu_target

from gpuenvs.contract.faults import Fault, head, plain, short
from gpuenvs.spec import EnvSpec

# Their functions hold what they may, and some things that others may not.
_TRUSTED = ("gpuenvs.scalar", "gpuenvs.rng", "gpuenvs.runtime.")
_RANDOM = (
    "random numbers come from gpuenvs.rng alone (`uniform(rng, draw, low, high)` in reset), so that a seed repeats them"
)
_MODULES = {
    "random": _RANDOM,
    "numpy.random": _RANDOM,
    "secrets": _RANDOM,
    "uuid": _RANDOM,
    "time": "a step may depend on state, action and params alone; count time in a State field",
    "datetime": "a step may depend on state, action and params alone; count time in a State field",
    "os": "functions cannot reach outside; put numbers into Params",
    "sys": "functions cannot reach outside; put numbers into Params",
}
_TUPLES = "keep numbers in State fields, local variables or a tuple"
_BUILTINS = {
    "print": "print cannot be compiled into kernels; return the value as one of EnvSpec's `metrics`",
    "input": "functions cannot read or write anything",
    "open": "functions cannot read or write anything",
    **dict.fromkeys(("dict", "list", "set", "frozenset", "sorted"), f"{{}} is Python-only; {_TUPLES}"),
    **dict.fromkeys(
        ("str", "repr", "format", "bytes", "bytearray"), "text is Python-only; functions compute with numbers"
    ),
    **dict.fromkeys(("eval", "exec", "globals", "locals", "vars", "setattr", "delattr", "super"), "{} is Python-only"),
}
_BUILT = {"build_map": "a dict", "build_list": "a list", "build_set": "a set"}
_COMPREHENSIONS = {
    "<listcomp>": "a list", "<dictcomp>": "a dict", "<setcomp>": "a set", "<genexpr>": "a generator expression",
}  # fmt: skip
_CONSTANTS = (bool, int, float, np.generic, np.ndarray, np.dtype, np.ufunc, str, type(None))
_GLOBAL_WRITE = "writes a global variable, which kernels cannot; keep what changes in a State field"
_SET = re.compile(r"STORE_GLOBAL|DELETE_GLOBAL")


def faults(spec: EnvSpec, name: str) -> list[Fault]:
    """Faults in the code of `reset`, `step` or `observe` and of every function that it calls."""
    function = getattr(spec, name)
    if not hasattr(function, "py_func"):
        return [Fault(*head(function), f"{name} is not compiled; decorate it with gpuenvs.scalar.njit (`@njit`)")]
    return [fault for called in reachable(function) for fault in _Code(called).faults()]


def reachable(function: Any) -> Iterator[Any]:
    """The Python functions that `function` is made of, itself the first; those of gpuenvs.scalar and gpuenvs.rng left out."""
    waiting, seen = [plain(function)], set()
    while waiting:
        called = waiting.pop()
        if id(called) in seen or called.__module__.startswith(_TRUSTED):
            continue
        seen.add(id(called))
        yield called
        waiting += [plain(value) for _, _, value in _Code(called).objects() if hasattr(value, "py_func")]


def outside(function: Any) -> Iterator[tuple[str, int, Any]]:
    """(name, line, value) of everything that a Python function takes from outside of itself."""
    return _Code(function).objects()


def variable_indexes(spec: EnvSpec, name: str) -> list[Fault]:
    """Each line, as a fault without words, that takes an element of something by an index that is not a constant."""
    function = getattr(spec, name)
    found = [
        code.variable_index(statement) for code in map(_Code, reachable(function)) for statement in code.statements
    ]
    return [fault.within(name, head(function)[0]) for fault in found if fault is not None]


class _Code:
    """The untyped intermediate code of one function."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.name, self.filename, self.first = head(function)
        self.refused: Fault | None = None
        self.statements: list[Any] = []
        try:
            for _, block in sorted(compiler.run_frontend(function).blocks.items()):
                self.statements += block.body
        except Exception as error:  # numba's own kinds, and what its parts raise on code that they did not foresee
            self.refused = self._unsupported(error)
        self._values: dict[str, Any] = {}
        self._names: dict[str, str] = {}

    def _fault(self, line: int, what: str) -> Fault:
        return Fault(self.name, self.filename, line, what)

    def _unsupported(self, error: Exception) -> Fault:
        text = " ".join(str(error).split())
        found = re.search(r"(.*?)\.*\s*Raised from .*? ?\((\d+)\)", text)
        what, line = (found.group(1), int(found.group(2))) if found else (text, self.first)
        if _SET.search(what):
            return self._fault(line, _GLOBAL_WRITE)
        return Fault(self.name, self.filename, line, f"Python-only code ({what[:160]})", error)

    def objects(self) -> Iterator[tuple[str, int, Any]]:
        """(name, line, value) of what comes from outside: globals, closure variables, attributes of modules."""
        for statement in self.statements:
            value = getattr(statement, "value", None)
            if not isinstance(statement, ir.Assign):
                continue
            if isinstance(value, ir.Global | ir.FreeVar):
                found, name = value.value, value.name
            elif isinstance(value, ir.Expr) and value.op == "getattr":
                owner = self._values.get(value.value.name)
                if not isinstance(owner, types.ModuleType):
                    continue
                name = f"{self._names[value.value.name]}.{value.attr}"
                found = getattr(owner, value.attr, ir.UNDEFINED)
            else:
                continue
            self._values[statement.target.name], self._names[statement.target.name] = found, name
            yield name, statement.loc.line, found

    def faults(self) -> Iterator[Fault]:
        if self.refused is not None:
            yield self.refused
            return
        last: tuple[str, int] | None = None
        for name, line, value in self.objects():
            what = None if last and line == last[1] and name.startswith(f"{last[0]}.") else _judge(name, value)
            if what:
                last = name, line  # not once more for what it leads to
                yield self._fault(line, what)
        for statement in self.statements:
            what = self._judge_statement(statement)
            if what:
                yield self._fault(statement.loc.line, what)

    def variable_index(self, statement: Any) -> Fault | None:
        value = getattr(statement, "value", None)
        if not (isinstance(value, ir.Expr) and value.op == "getitem"):
            return None
        index = [s.value for s in self.statements if isinstance(s, ir.Assign) and s.target.name == value.index.name]
        return None if len(index) == 1 and isinstance(index[0], ir.Const) else self._fault(statement.loc.line, "")

    def _judge_statement(self, statement: Any) -> str | None:
        if isinstance(statement, ir.SetAttr):
            return (
                f"`.{statement.attr} = ...` changes a tuple, which cannot be changed; make a new one with the new value"
            )
        if isinstance(statement, ir.SetItem | ir.StaticSetItem | ir.DelItem | ir.StoreMap | ir.DelAttr):
            return f"writes to an element; functions cannot change what they are given: {_TUPLES}"
        if isinstance(statement, ir.Raise | ir.StaticRaise):
            return (
                "raise and assert stop the whole batch on the CPU and are lost on CUDA; return terminated=True instead"
            )
        value = statement.value if isinstance(statement, ir.Assign) else None
        if isinstance(value, ir.Yield):
            return "yield is Python-only; a function computes once and returns"
        if not isinstance(value, ir.Expr):
            return None
        if value.op in _BUILT:
            return f"{_BUILT[value.op]} is Python-only; {_TUPLES}"
        if value.op == "make_function" and value.code.co_name in _COMPREHENSIONS:
            return f"{_COMPREHENSIONS[value.code.co_name]} is Python-only; {_TUPLES}"
        return self._judge_call(value) if value.op == "call" else None

    def _judge_call(self, call: Any) -> str | None:
        """A State or another NamedTuple made with too few or too many values."""
        made = self._values.get(call.func.name)
        fields = getattr(made, "_fields", None)
        if not isinstance(made, type) or fields is None or call.vararg is not None or call.varkwarg is not None:
            return None
        given = [*fields[: len(call.args)], *(name for name, _ in call.kws)]
        unknown = [name for name in given if name not in fields]
        missing = [name for name in fields if name not in (*given, *made._field_defaults)]  # type: ignore[attr-defined]
        if len(call.args) <= len(fields) and not unknown and not missing:
            return None
        found = len(call.args) + len(call.kws)
        return f"{made.__name__} has {len(fields)} fields ({', '.join(fields)}), here it is given {found}"


def _judge(name: str, value: Any) -> str | None:
    """What is wrong with a value from outside, if anything."""
    if value is ir.UNDEFINED:
        return f"{name} is not defined"
    if name == "mark_try_block":  # numba's own, where a try block begins
        return "try is Python-only; kernels have no exceptions"
    module = _home(value)
    if module in _MODULES:
        return f"{name} cannot be used: {_MODULES[module]}"
    if isinstance(value, types.BuiltinFunctionType | type) and getattr(builtins, value.__name__, None) is value:
        advice = _BUILTINS.get(value.__name__)
        return advice.format(value.__name__) if advice else None
    if isinstance(value, types.FunctionType):
        return _judge_function(name, value)
    if isinstance(value, dict | list | set | bytearray):
        kind = type(value).__name__
        return f"{name} is a {kind} outside of the function: kernels cannot see it change; use a tuple, Params or State"
    if callable(value) or isinstance(value, types.ModuleType) or _constant(value):
        return None
    return f"{name} is a Python object ({type(value).__name__}); functions compute with numbers and tuples of numbers alone"


def _home(value: Any) -> str:
    """The module that a value is or comes from; of a method of a generator, where the generator comes from."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    owner = getattr(value, "__self__", None)
    if isinstance(owner, np.random.RandomState | np.random.Generator):
        return "numpy.random"
    if isinstance(owner, random.Random):
        return "random"
    return str(getattr(value, "__module__", "") or "")


def _constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_constant(item) for item in value)
    return isinstance(value, _CONSTANTS)


def _judge_function(name: str, function: types.FunctionType) -> str | None:
    """A plain Python function: fine if numba has an implementation of it; of numpy's numba itself says what it lacks."""
    if function.__module__.startswith(("numpy", "numba")):
        return None
    context: Any = cpu_target.typing_context
    context.refresh()
    try:
        context.resolve_value_type(function)
    except (errors.NumbaError, ValueError):  # versions differ
        _, filename, line = head(function)
        return (
            f"{name} ({short(filename)}, line {line}) is not compiled; decorate it with gpuenvs.scalar.njit (`@njit`)"
        )
    return None
