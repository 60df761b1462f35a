"""What PTX instructions compute, over arrays with one element per thread.

float32 and float64 operations round once, to nearest, ties to even: numpy's own do, and a fused multiply-add is the
processor's (or, where it has none, the C library's, which is exact as well). Subnormal numbers are kept. The bits of a NaN
are the processor's, not those a GPU makes. Where PTX leaves the rounding of a multiplication and of an addition open (no
`.rn`), machine code may fuse the two; here each rounds by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.extending import intrinsic

Array = np.ndarray


@intrinsic
def _fused(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return a(a, a, a), codegen


@numba.vectorize(["float32(float32,float32,float32)", "float64(float64,float64,float64)"])
def _fma(a, b, c):
    return _fused(a, b, c)  # type: ignore[call-arg]


fma: Callable[..., Array] = getattr(_fma, "ufunc", _fma)  # numba's wrapper costs four times the arithmetic


def flush(x: Array) -> Array:
    """`.ftz`: subnormal float32 numbers become zeros of their sign."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(x.dtype.type(0), x), x)


def saturate(x: Array) -> Array:
    """`.sat`: into [0, 1]; NaN becomes 0."""
    return np.where(x > 0, np.minimum(x, x.dtype.type(1)), x.dtype.type(0))


def minimum(a: Array, b: Array) -> Array:
    """The smaller float; a number rather than a NaN, and -0 rather than +0."""
    return np.where(a == b, np.where(np.signbit(a), a, b), np.fmin(a, b))


def maximum(a: Array, b: Array) -> Array:
    """The larger float; a number rather than a NaN, and +0 rather than -0."""
    return np.where(a == b, np.where(np.signbit(a), b, a), np.fmax(a, b))


# --- comparisons: ordered ones are false of a NaN, unordered ones true ------------------------------------------------


def _not(compare: Callable[..., Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: ~compare(a, b)


COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "ne": lambda a, b: (a < b) | (a > b),
    "neu": np.not_equal,
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "ltu": _not(np.greater_equal),
    "leu": _not(np.greater),
    "gtu": _not(np.less_equal),
    "geu": _not(np.less),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


# --- integers -----------------------------------------------------------------------------------------------------------


def mul_wide(a: Array, b: Array) -> Array:
    """The whole product, in twice the bits."""
    wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    return a.astype(wide) * b.astype(wide)


def mul_hi(a: Array, b: Array) -> Array:
    """The upper half of the product."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        return (mul_wide(a, b) >> mul_wide(a, b).dtype.type(bits)).astype(a.dtype)
    if a.dtype.kind == "i":  # a = a' - 2**64 where a is negative
        u, v = a.view(np.uint64), b.view(np.uint64)
        return (mul_hi(u, v) - np.where(a < 0, v, 0) - np.where(b < 0, u, 0)).view(np.int64)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    al, ah, bl, bh = a & low, a >> half, b & low, b >> half
    middle = (al * bl >> half) + (ah * bl & low) + (al * bh & low)
    return ah * bh + (ah * bl >> half) + (al * bh >> half) + (middle >> half)


def shl(a: Array, amount: Array) -> Array:
    """Shift left; amounts beyond the width give 0."""
    bits = 8 * a.dtype.itemsize
    return np.where(amount < bits, a << np.minimum(amount, bits - 1).astype(a.dtype), a.dtype.type(0))


def shr(a: Array, amount: Array) -> Array:
    """Shift right, with the sign of a signed `a`; amounts beyond the width shift everything out."""
    bits = 8 * a.dtype.itemsize
    shifted = a >> np.minimum(amount, bits - 1).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(amount < bits, shifted, a.dtype.type(0))


def divide(a: Array, b: Array) -> Array:
    """Integer quotient, truncated."""
    if a.dtype.kind == "u":
        return a // b
    quotient = a // b
    return quotient + ((quotient < 0) & (quotient * b != a)).astype(a.dtype)


def remainder(a: Array, b: Array) -> Array:
    """What truncated division leaves."""
    return a - divide(a, b) * b


def population(a: Array) -> Array:
    """Number of bits set, as uint32."""
    return np.bitwise_count(a).astype(np.uint32)


def leading_zeros(a: Array) -> Array:
    """Number of zeros before the first bit set, as uint32."""
    count = np.full(a.shape, 8 * a.dtype.itemsize, np.uint32)
    rest = a.copy()
    while rest.any():
        count -= (rest != 0).astype(np.uint32)
        rest >>= a.dtype.type(1)
    return count


def funnel_left(a: Array, b: Array, amount: Array) -> Array:
    """`shf.l.wrap`: the upper word of (b, a) shifted left; `amount` below 32."""
    pair = (b.astype(np.uint64) << np.uint64(32)) | a
    return (pair << amount.astype(np.uint64) >> np.uint64(32)).astype(np.uint32)


def funnel_right(a: Array, b: Array, amount: Array) -> Array:
    """`shf.r.wrap`: the lower word of (b, a) shifted right; `amount` below 32."""
    pair = (b.astype(np.uint64) << np.uint64(32)) | a
    return (pair >> amount.astype(np.uint64)).astype(np.uint32)


def extract_bits(a: Array, start: Array, length: Array) -> Array:
    """`bfe.u32`, and with an int32 `a` `bfe.s32`: `length` bits from `start`, those beyond the word zeros or sign."""
    start, length = start & 0xFF, length & 0xFF
    wide = shr(a, start).astype(np.int64)
    mask = (np.int64(1) << np.minimum(length, 32).astype(np.int64)) - 1
    found = wide & mask
    if a.dtype.kind == "i":
        last = np.minimum(start.astype(np.int64) + length - 1, 31)
        sign = (length > 0) & (shr(a.view(np.uint32), np.maximum(last, 0).astype(np.uint32)) & 1 != 0)
        found = np.where(sign, found | ~mask, found)
    return found.astype(a.dtype)


def insert_bits(a: Array, b: Array, start: Array, length: Array) -> Array:
    """`bfi.b32`: the lowest `length` bits of `a` put into `b` at `start`."""
    start, length = (start & 0xFF).astype(np.uint64), (length & 0xFF).astype(np.uint64)
    mask = ((np.uint64(1) << np.minimum(length, 32)) - np.uint64(1)) << np.minimum(start, 32)
    placed = a.astype(np.uint64) << np.minimum(start, 32)
    return ((b & ~mask) | (placed & mask)).astype(np.uint32)


def permute_bytes(a: Array, b: Array, selector: Array) -> Array:
    """`prmt.b32`: four bytes of (b, a), chosen by the selector's nibbles; a nibble's top bit repeats the byte's sign."""
    pair = (b.astype(np.uint64) << np.uint64(32)) | a
    result = np.zeros(a.shape, np.uint32)
    for k in range(4):
        nibble = (selector >> np.uint32(4 * k)) & np.uint32(15)
        byte = (pair >> (nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8)).astype(np.uint32) & np.uint32(0xFF)
        sign = np.where(byte & np.uint32(0x80) != 0, np.uint32(0xFF), np.uint32(0))
        result |= np.where(nibble & np.uint32(8) != 0, sign, byte) << np.uint32(8 * k)
    return result


def logic3(a: Array, b: Array, c: Array, table: int) -> Array:
    """`lop3.b32`: any function of three bits, given by its truth table."""
    result = np.zeros(a.shape, np.uint32)
    for k in range(8):
        if table >> k & 1:
            result |= (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)
    return result


# --- conversions ----------------------------------------------------------------------------------------------------------

ROUNDINGS: dict[str, Callable[[Array], Array]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def to_integer(x: Array, rounding: str, target: np.dtype) -> Array:
    """A float as an integer; NaN becomes 0 and what is too large the nearest integer there is."""
    rounded = np.nan_to_num(ROUNDINGS[rounding](x.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
    limits = np.iinfo(target)
    inside = (rounded >= float(limits.min)) & (rounded < float(limits.max) + (target.itemsize < 8))
    result = np.where(inside, rounded, 0).astype(target)
    return np.where(inside, result, np.where(rounded > 0, limits.max, limits.min).astype(target))


# --- approximations: computed as exactly as they can be, which a device does not ------------------------------------------

APPROXIMATIONS: dict[str, Callable[..., Array]] = {
    "sin": np.sin,
    "cos": np.cos,
    "lg2": np.log2,
    "ex2": np.exp2,
    "tanh": np.tanh,
    "rcp": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "div": np.divide,
}


def approximate(name: str, *operands: Array) -> Array:
    """One of `APPROXIMATIONS`, rounded from float64."""
    return APPROXIMATIONS[name](*(x.astype(np.float64) for x in operands)).astype(operands[0].dtype)
