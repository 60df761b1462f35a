"""Arithmetic on scalars that may be traced values, numpy arrays or plain numbers.

A traced function is ordinary Python that computes with `+ - * /`, comparisons, `& | ~` on conditions and the functions
below. Given `Value`s it records a program (see `graph`); given floats or numpy arrays (one entry per env) it computes at
once, which is how physics is debugged and checked against a reference.

There is no `if` on a value: use `where`. Control flow that depends on values is in `control`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpuenvs.trace.graph import Value, apply

__all__ = [
    "absolute", "all_of", "any_of", "atan2", "clip", "cos", "exp", "finite", "floor", "is_zero", "log", "logical_not",
    "maximum", "minimum", "sign", "sin", "sincos", "sqrt", "square", "tanh", "where",
]  # fmt: skip


def _traced(*values: Any) -> bool:
    return any(isinstance(v, Value) for v in values)


def is_zero(x: Any) -> bool:
    """True when `x` is known to be 0 while tracing (a plain number or a folded constant); never for numpy arrays."""
    if isinstance(x, Value):
        return x.constant == 0
    return isinstance(x, int | float | np.floating) and x == 0


def where(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where `condition` holds, else `no`; both are evaluated."""
    if _traced(condition, yes, no):
        return apply("select", condition, yes, no)
    if isinstance(condition, bool | np.bool_):
        return yes if condition else no
    return np.where(condition, yes, no)


def sqrt(x: Any) -> Any:
    """Square root, correctly rounded; NaN below zero."""
    if isinstance(x, Value):
        return apply("sqrt", x)
    return math.sqrt(x) if isinstance(x, int | float) else np.sqrt(x)


def floor(x: Any) -> Any:
    """Largest whole number not above x, as a real."""
    if isinstance(x, Value):
        return apply("floor", x)
    return np.floor(x)


def absolute(x: Any) -> Any:
    if isinstance(x, Value):
        return apply("abs", x)
    return abs(x)


def minimum(a: Any, b: Any) -> Any:
    """`a` if a < b else `b`."""
    return where(a < b, a, b)


def maximum(a: Any, b: Any) -> Any:
    """`a` if a > b else `b`."""
    return where(a > b, a, b)


def clip(x: Any, low: Any, high: Any) -> Any:
    """`x` limited to [low, high]; NaN stays NaN."""
    bounded = where(x < low, low, x)
    return where(bounded > high, high, bounded)


def square(x: Any) -> Any:
    return x * x


def sign(x: Any) -> Any:
    """-1, 0 or 1."""
    return where(x > 0, 1.0, where(x < 0, -1.0, 0.0))


def finite(x: Any) -> Any:
    """False for NaN and infinity: x * 0 is NaN for both."""
    if isinstance(x, Value):
        return apply("finite", x)
    return np.isfinite(x)


def logical_not(condition: Any) -> Any:
    """`not condition` for traced and numpy conditions."""
    if isinstance(condition, Value):
        return apply("not", condition)
    return not condition if isinstance(condition, bool) else ~condition


def any_of(*conditions: Any) -> Any:
    """True where one of the conditions holds (element-wise)."""
    out: Any = False
    for condition in conditions:
        out = condition if out is False else out | condition
    return out


def all_of(*conditions: Any) -> Any:
    """True where all conditions hold (element-wise)."""
    out: Any = True
    for condition in conditions:
        out = condition if out is True else out & condition
    return out


def sincos(x: Any) -> tuple[Any, Any]:
    """(sin(x), cos(x)), x in radians."""
    if isinstance(x, Value):
        from gpuenvs.trace.elementary import sincos as traced

        return traced(x)
    return np.sin(x), np.cos(x)


def sin(x: Any) -> Any:
    return sincos(x)[0]


def cos(x: Any) -> Any:
    return sincos(x)[1]


def _elementary(name: str, *args: Any) -> Any:
    if _traced(*args):
        from gpuenvs.trace import elementary

        return getattr(elementary, name)(*args)
    return {"log": np.log, "exp": np.exp, "tanh": np.tanh, "atan2": np.arctan2}[name](*args)


def log(x: Any) -> Any:
    """Natural logarithm."""
    return _elementary("log", x)


def exp(x: Any) -> Any:
    """e to the power of x."""
    return _elementary("exp", x)


def tanh(x: Any) -> Any:
    """Hyperbolic tangent."""
    return _elementary("tanh", x)


def atan2(y: Any, x: Any) -> Any:
    """Angle of the point (x, y), radians in [-pi, pi]."""
    return _elementary("atan2", y, x)
