"""float32 exp and sums: small things the fused kernels are made of."""

from __future__ import annotations

import math

import numpy as np

from gpuenvs.scalar import f32, floor, i32, njit
from learners.native.vector import bits_to_float

_LOG2E, _LN2_HIGH, _LN2_LOW = f32(1 / math.log(2)), f32(0.693359375), f32(math.log(2) - 0.693359375)
# Taylor coefficients 1/k! of exp on |r| <= ln(2)/2, where the seventh term is below half an ulp of 1.
_EXP = tuple(f32(1 / math.factorial(k)) for k in range(8))
_E2, _E3, _E4, _E5, _E6, _E7 = _EXP[2:]


@njit
def exp(x):
    """float32 e**x within 2 ulp, without a branch or a call; arguments are clamped to [-87, 88]."""
    x = min(max(x, f32(-87.0)), f32(88.0))
    n = floor(x * _LOG2E + f32(0.5))
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = f32(1.0) + r * (f32(1.0) + r * (_E2 + r * (_E3 + r * (_E4 + r * (_E5 + r * (_E6 + r * _E7))))))
    return p * bits_to_float(i32(i32(i32(n) + i32(127)) << i32(23)))  # pyright: ignore[reportCallIssue]


@njit(fastmath={"reassoc", "contract", "nsz"}, forceinline=False)
def square_sum(values):
    """Sum of squares of a float32 vector, as float64; the order of additions depends on its length alone."""
    total = f32(0.0)
    for k in range(values.size):
        total += values[k] * values[k]
    return np.float64(total)


@njit
def tanh(x):
    """float32 tanh within 3 ulp of 1, without a branch that keeps a loop from being a vector loop."""
    e = exp(f32(-2.0) * abs(x))
    t = (f32(1.0) - e) / (f32(1.0) + e)
    return t if x >= f32(0.0) else -t
