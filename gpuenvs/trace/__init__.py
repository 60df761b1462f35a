"""Traced programs: ordinary Python over scalars, recorded once and printed as LLVM vectors, CUDA scalars or plain Python."""

from gpuenvs.trace.control import Array, Table, any_lane, do_while, if_, loop
from gpuenvs.trace.ops import (
    absolute,
    all_of,
    any_of,
    atan2,
    clip,
    cos,
    exp,
    finite,
    floor,
    is_zero,
    log,
    logical_not,
    maximum,
    minimum,
    sign,
    sin,
    sincos,
    sqrt,
    square,
    tanh,
    where,
)

__all__ = [
    "Array", "Table", "absolute", "all_of", "any_lane", "any_of", "atan2", "clip", "cos", "do_while", "exp", "finite",
    "floor", "if_", "is_zero", "log", "logical_not", "loop", "maximum", "minimum", "sign", "sin", "sincos", "sqrt",
    "square", "tanh", "where",
]  # fmt: skip
