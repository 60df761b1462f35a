"""Environment functions as plain Python: copies in which nothing is compiled.

numba leaves the Python function inside of each compiled one, but what that calls is compiled again. Here the whole tree of
functions is copied, each copy calling copies. The numbers are numpy scalars of the working dtype, so arithmetic is the
kernels', an index out of range raises, and a traceback names the line.
"""

from __future__ import annotations

import dataclasses
import linecache
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpuenvs.contract.messages import is_machinery
from gpuenvs.spec import INT, EnvSpec, field_kinds

_LEFT = ("numpy", "numba", "llvmlite")  # packages whose Python functions are no part of an environment


def plain_spec(spec: EnvSpec) -> EnvSpec:
    """The spec with plain functions, and without what only a user of the original needs."""
    copier = _Copier()
    functions = {name: copier.value(getattr(spec, name), ()) for name in ("reset", "step", "observe")}
    return dataclasses.replace(spec, **functions, reference=None, configure=None, options=(), curriculum=None)


class _Copier:
    def __init__(self) -> None:
        self._made: dict[int, types.FunctionType] = {}
        self._kept: list[Any] = []  # so that no id is used twice

    def value(self, value: Any, names: tuple[str, ...]) -> Any:
        """A value that a function refers to; `names` are all that the function uses."""
        value = getattr(value, "py_func", value)
        if isinstance(value, types.FunctionType) and value.__module__.split(".")[0] not in _LEFT:
            return self._function(value)
        if isinstance(value, types.ModuleType) and self._holds_compiled(value):
            return types.SimpleNamespace(
                **{name: self.value(getattr(value, name), names) for name in names if hasattr(value, name)}
            )
        return value

    @staticmethod
    def _holds_compiled(module: types.ModuleType) -> bool:
        """True of a module of environment functions, or of a package of such."""
        if module.__name__.split(".")[0] in _LEFT:
            return False
        mine = module.__name__.split(".")[0] == "gpuenvs"
        return mine or any(hasattr(value, "py_func") for value in vars(module).values())

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        if id(function) in self._made:
            return self._made[id(function)]
        self._kept.append(function)
        code, scope = function.__code__, {"__name__": function.__module__, "__builtins__": __builtins__}
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        copy = types.FunctionType(code, scope, function.__name__, function.__defaults__, cells)
        copy.__kwdefaults__, copy.__qualname__ = function.__kwdefaults__, function.__qualname__
        self._made[id(function)] = copy
        names = tuple(dict.fromkeys(names_of(code)))
        for cell, original in zip(cells, function.__closure__ or (), strict=True):
            cell.cell_contents = self.value(original.cell_contents, names)
        for name in names:
            if name in function.__globals__:
                scope[name] = self.value(function.__globals__[name], names)
        return copy


def names_of(code: types.CodeType) -> list[str]:
    """Global and attribute names that a code object and those nested in it use."""
    inner = [name for const in code.co_consts if isinstance(const, types.CodeType) for name in names_of(const)]
    return [*code.co_names, *inner]


class PlainRow:
    """One environment in plain Python.

    Args:
        spec: not traced.
        real: working dtype.
    """

    def __init__(self, spec: EnvSpec, real: str) -> None:
        self.spec, self._real = plain_spec(spec), np.dtype(real).type

    def numbers(self, cls: type, values: Any) -> Any:
        """A State or Params of numpy scalars."""
        kinds = field_kinds(cls).values()
        return cls(*(np.int32(v) if kind == INT else self._real(v) for v, kind in zip(values, kinds, strict=True)))

    def action(self, action: Any) -> Any:
        """An action as the functions get it."""
        if self.spec.discrete:
            return np.int32(action)
        return tuple(self._real(value) for value in np.atleast_1d(action))

    def reset(self, rng: Any, params: Any) -> Any:
        """(State, observation) of a fresh episode."""
        with np.errstate(all="ignore"):
            state = self.numbers(self.spec.state, self.spec.reset(rng, params))
            return state, self.spec.observe(state, params)

    def step(self, state: Any, action: Any, params: Any) -> tuple[Any, Any, Any, Any, Any]:
        """(State, reward, terminated, metrics, observation of the new state)."""
        with np.errstate(all="ignore"):
            moved, reward, terminated, *metrics = self.spec.step(state, self.action(action), params)
            moved = self.numbers(self.spec.state, moved)
            extra = metrics[0] if metrics else ()
            return moved, self._real(reward), bool(terminated), extra, self.spec.observe(moved, params)


# --- where a NaN begins --------------------------------------------------------------------------------------------------


class Birth(NamedTuple):
    """The line that made the first NaN or infinity."""

    function: str
    filename: str
    line: int
    source: str


def first_nonfinite(call: Callable[[], Any]) -> Birth | None:
    """The first line of a plain function, or of one that it calls, after which a variable or a result is NaN or infinite.

    Lines that only hand on what a function they call has made come later, so they are not named.
    """
    found: list[Birth] = []
    running: dict[Any, int] = {}

    def look(frame: Any, event: str, result: Any) -> Any:
        line, running[frame] = running.get(frame), frame.f_lineno
        values = (result,) if event == "return" else frame.f_locals.values()
        if not found and event != "exception" and line is not None and any(map(_nonfinite, values)):
            code = frame.f_code
            found.append(Birth(code.co_name, code.co_filename, line, linecache.getline(code.co_filename, line).strip()))
        return look

    def enter(frame: Any, event: str, result: Any) -> Any:
        if event != "call" or is_machinery(frame.f_code.co_filename):
            return None
        given = frame.f_locals.values()  # what came in as NaN was made elsewhere
        return None if any(map(_nonfinite, given)) else look

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
    return found[0] if found else None


def _nonfinite(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_nonfinite, value))
    return isinstance(value, float | np.floating) and not np.isfinite(value)
