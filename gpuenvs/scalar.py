"""Scalar helpers that mean the same on every target an environment is compiled for.

An environment is a handful of scalar functions. They run in four ways: compiled for the CPU (numba,
vectorised over rows), compiled for CUDA (numba-cuda, one row per thread), in numba's CUDA simulator, and as
plain Python on `np.float32` or `np.float64` values. Everything in this module works in all four and is
generic in the real dtype: float32 in gives float32 out, float64 in gives float64 out at float64 accuracy.

Why numba's own versions will not do:

==================  =====================================================================================
`njit`              the preset for environment functions; `forceinline` is what lets the row loop vectorise
`lit`               a constant in the working dtype (a bare literal is float64 and drags float32 code along)
`sincos, sin, cos`  polynomials without a branch; `math.sin` is a library call, which stops vectorisation
`log`               likewise
`floor, sqrt`       stay in the real dtype; `math.floor` returns an int64
`clip, select`      bounds and choice without control flow
`wrap_angle`        an angle in [-pi, pi)
`isfinite`          False for NaN and infinity under every compile option we use
==================  =====================================================================================

Nothing here imports `numba.cuda`; `register_cuda` does, and the CUDA runtime calls it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.extending import overload  # type: ignore[attr-defined]

__all__ = [
    "clip", "cos", "f32", "f64", "floor", "i32", "is_f32", "isfinite", "lit", "log", "njit",
    "register_cuda", "select", "sin", "sincos", "sqrt", "typed", "u32", "wrap_angle",
]  # fmt: skip

f32 = np.float32
f64 = np.float64
i32 = np.int32
u32 = np.uint32

# `contract` allows fused multiply-add and `nsz` ignores the sign of zero. `nnan` or `ninf` would let the
# compiler delete the runtime's NaN checks, and `reassoc` would make results depend on the vector width.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", "nsz"}, "forceinline": True}


class _HostOptions(dict):
    """Compile options of a CPU function that lose `fastmath` when numba-cuda copies them for the device twin.

    numba-cuda knows fast-math as all or nothing: it would read our two harmless flags as "approximate
    division, flush denormals to zero". Fused multiply-add needs no flag there, it is NVVM's default.
    """

    def copy(self) -> dict[str, Any]:
        return {key: value for key, value in self.items() if key != "fastmath"}


def njit(function: Callable | None = None, **options: Any) -> Any:
    """`numba.njit` with the options every environment function needs; use it bare: `@njit`.

    The function is inlined into the kernel that calls it, on both targets. `options` override the preset.
    """
    if function is None:
        return lambda fn: njit(fn, **options)
    compiled = numba.njit(**{**_OPTIONS, **options})(function)
    if hasattr(compiled, "targetoptions"):  # a plain function has none: NUMBA_DISABLE_JIT is set
        compiled.targetoptions = _HostOptions(compiled.targetoptions)
    return compiled


# --- one implementation per dtype -------------------------------------------------------------------------

_Chooser = Callable[..., Callable | None]
_choosers: list[tuple[Callable, _Chooser]] = []
_cuda_ready = False


def typed(chooser: _Chooser, on_cuda: _Chooser | None = None) -> Callable[[Callable], Callable]:
    """Give the decorated function a compiled body that depends on the dtype of its arguments.

    Args:
        chooser: numba types in, implementation (or None: no match) out; parameters named as the function's.
            It compares types by name, `str(x) == "float32"`: numba-cuda has type classes of its own.
        on_cuda: the chooser for CUDA if it is another one.

    The decorated function itself is what plain Python and the simulator run.
    """

    def register(function: Callable) -> Callable:
        _choosers.append((function, on_cuda or chooser))
        overload(function, jit_options=_OPTIONS)(chooser)  # type: ignore[arg-type]
        if _cuda_ready:
            _register_on_cuda(*_choosers[-1])
        return function

    return register


def register_cuda() -> None:
    """Teach numba-cuda the functions made with `typed`. Idempotent; ImportError without numba-cuda."""
    global _cuda_ready
    if _cuda_ready:
        return
    for function, chooser in _choosers:
        _register_on_cuda(function, chooser)
    _cuda_ready = True


def _register_on_cuda(function: Callable, chooser: _Chooser) -> None:
    if numba.config.ENABLE_CUDASIM:  # type: ignore[attr-defined]
        return  # the simulator calls the Python function
    from numba.cuda.extending import overload as cuda_overload  # type: ignore[attr-defined]

    cuda_overload(function, jit_options={"forceinline": True})(chooser)


def is_f32(x: Any) -> bool:
    """True for a float32 scalar; for the plain Python bodies of `typed` functions."""
    return getattr(x, "dtype", None) == np.float32


def _by_dtype(single: Callable, double: Callable) -> _Chooser:
    """Chooser of a function of one real `x`."""

    def choose(x):
        return {"float32": single, "float64": double}.get(str(x))

    return choose


# --- constants, choice, rounding --------------------------------------------------------------------------


def _choose_lit(value, like):
    casts = {
        "float32": lambda value, like: f32(value),
        "float64": lambda value, like: f64(value),
        "int32": lambda value, like: i32(value),
    }
    return casts.get(str(like))


@typed(_choose_lit)
def lit(value: float, like: Any) -> Any:
    """The constant `value` in the dtype of `like` (float32, float64 or int32), correctly rounded.

    >>> tau = lit(0.02, state.x)
    """
    return like.dtype.type(value) if isinstance(like, np.generic) else type(like)(value)


@njit
def select(condition, yes, no):
    """`yes` where `condition` holds, else `no`; both are evaluated and nothing branches."""
    return yes if condition else no


@njit
def clip(x, low, high):
    """`x` limited to [low, high]; NaN stays NaN."""
    bounded = low if x < low else x
    return high if bounded > high else bounded


def _floor_on_cuda(x):
    from numba.cuda import libdevice

    return _by_dtype(lambda x: libdevice.floorf(x), lambda x: libdevice.floor(x))(x)


@typed(_by_dtype(lambda x: np.floor(x), lambda x: np.floor(x)), _floor_on_cuda)
def floor(x):
    """Largest integer not above `x`, as a real of the same dtype."""
    return np.floor(x)


@typed(_by_dtype(lambda x: math.sqrt(x), lambda x: math.sqrt(x)))
def sqrt(x):
    """Square root, correctly rounded; NaN below zero."""
    return np.sqrt(x)


@njit
def isfinite(x):
    """False for NaN and for both infinities."""
    return abs(x) < lit(np.inf, x)


# --- sine and cosine --------------------------------------------------------------------------------------
# x = q * pi/2 + r with |r| <= pi/4. pi/2 is a sum of parts (Cody and Waite): all but the last have so few
# bits that q * part is exact, so the subtraction loses nothing even without fused multiply-add. Then a
# minimax-like polynomial in r^2 (interpolated at Chebyshev nodes in 50 digits) for each of sin and cos,
# exchanged and negated by q mod 4. The quadrant stays a float: converting NaN to an integer is undefined,
# and a diverged state must come out as NaN.


@njit
def _place(q, s, c):
    """(sin, cos) of the whole angle from those of the remainder and the quadrant count, an integral real."""
    quadrant = q - lit(4, q) * floor(q * lit(0.25, q))
    odd = (quadrant == lit(1, q)) | (quadrant == lit(3, q))
    sine = c if odd else s
    cosine = s if odd else c
    sine = -sine if quadrant >= lit(2, q) else sine
    cosine = -cosine if (quadrant == lit(1, q)) | (quadrant == lit(2, q)) else cosine
    return sine, cosine


@njit
def _sincos32(x):
    q = floor(x * f32(0.6366197723675814) + f32(0.5))
    r = x - q * f32(1.5703125)
    r = r - q * f32(4.837512969970703e-4)
    r = r - q * f32(7.549533620476723e-8)
    r = r - q * f32(2.5633440682570896e-12)
    z = r * r
    s = f32(-0.16666664661114839) + z * (f32(0.008332748037517146) + z * f32(-0.00019587840521305324))
    c = f32(0.04166666465830042) + z * (f32(-0.0013888302802309160) + z * f32(2.4547891619813861e-5))
    return _place(q, r + r * z * s, f32(1) - (f32(0.5) * z - z * z * c))


@njit
def _sincos64(x):
    q = floor(x * 0.6366197723675814 + 0.5)
    r = x - q * 1.5707963267341256
    r = r - q * 6.077100506303966e-11
    r = r - q * 2.0222662487959506e-21
    z = r * r
    s = 1.6058531414589011e-10 + z * -7.5866850700912671e-13
    s = 2.7557319219335453e-06 + z * (-2.5052106231157905e-08 + z * s)
    s = -0.16666666666666667 + z * (0.0083333333333333315 + z * (-0.0001984126984126506 + z * s))
    c = -1.1470460773969325e-11 + z * 4.7458652037874551e-14
    c = -2.7557319221400760e-07 + z * (2.0876755790363396e-09 + z * c)
    c = 0.041666666666666667 + z * (-0.0013888888888888888 + z * (2.4801587301584644e-05 + z * c))
    half = 0.5 * z
    rest = 1.0 - half
    return _place(q, r + r * z * s, rest + (((1.0 - rest) - half) + z * z * c))


@typed(_by_dtype(lambda x: _sincos32(x), lambda x: _sincos64(x)))
def sincos(x):
    """(sin(x), cos(x)), `x` in radians.

    Error for |x| <= 1e4, measured against 40-digit arithmetic: below 1e-7 in float32 and 2e-16 in float64.
    Beyond that it grows no faster than the spacing of the numbers around `x`. NaN and infinity give NaN.
    """
    return _sincos32(x) if is_f32(x) else _sincos64(f64(x))


@njit
def sin(x):
    """Sine of `x` radians; see `sincos`."""
    return sincos(x)[0]


@njit
def cos(x):
    """Cosine of `x` radians; see `sincos`."""
    return sincos(x)[1]


# --- angles -----------------------------------------------------------------------------------------------


@njit
def _wrap32(x):
    # In float32 the turn is the true 2 pi, in three parts: float32's own 2 pi would drift by 2e-7 per turn.
    shifted = x + f32(3.1415927410125732)
    turns = floor(shifted * f32(0.15915494309189535))
    r = ((x - turns * f32(6.28125)) - turns * f32(0.0019350051879882812)) - turns * f32(3.019916050561733e-7)
    r = r + f32(6.2831854820251465) if r < f32(-3.1415927410125732) else r
    return r - f32(6.2831854820251465) if r >= f32(3.1415927410125732) else r


@njit
def _wrap64(x):
    # In float64 the turn is float64's 2 pi, in two parts, as in Gymnasium's ((x + pi) % (2 * pi)) - pi.
    shifted = x + 3.141592653589793
    turns = floor(shifted * 0.15915494309189535)
    r = (shifted - turns * 6.2831853069365025) - turns * 2.430837753308879e-10
    r = r + 6.283185307179586 if r < 0.0 else r
    r = r - 6.283185307179586 if r >= 6.283185307179586 else r
    return r - 3.141592653589793


@typed(_by_dtype(lambda x: _wrap32(x), lambda x: _wrap64(x)))
def wrap_angle(x):
    """The angle `x` (radians) plus whole turns, in [-pi, pi)."""
    return _wrap32(x) if is_f32(x) else _wrap64(f64(x))


# --- logarithm --------------------------------------------------------------------------------------------
# x = 2^k * m with m in [sqrt(1/2), sqrt(2)), s = f / (2 + f) for f = m - 1, and log(1 + f) = 2 atanh(s),
# where 2 s = f - f^2/2 + s f^2/2 keeps the leading terms exact.


@njit
def _special_log(x, value):
    """`value` with log(0) = -inf, log(negative) = NaN, log(inf) = inf and log(NaN) = NaN put in."""
    value = x if x == lit(np.inf, x) else value
    value = lit(-np.inf, x) if x == lit(0, x) else value
    return value if x >= lit(0, x) else lit(np.nan, x)


@njit
def _log32(x):
    tiny = x < f32(1.1754943508222875e-38)
    scaled = x * f32(8388608) if tiny else x
    # With the distance from sqrt(1/2) to 1 added, the exponent field counts from sqrt(1/2); m is restored.
    bits = i32(f32(scaled).view(i32) + i32(1065353216 - 1060439283))
    k = f32(i32(bits >> i32(23))) - (f32(150) if tiny else f32(127))
    f = f32(i32(i32(bits & i32(0x007FFFFF)) + i32(1060439283)).view(f32)) - f32(1)
    s = f / (f32(2) + f)
    z = s * s
    tail = f32(0.28550816599711549) + z * f32(0.23330581938241894)
    tail = z * (f32(0.66666666554451646) + z * (f32(0.40000121876971992) + z * tail))
    half = f32(0.5) * f * f
    value = k * f32(0.693115234375) - ((half - (s * (half + tail) + k * f32(3.194618329871446e-05))) - f)
    return _special_log(x, value)


@njit
def _log64(x):
    tiny = x < 2.2250738585072014e-308
    scaled = x * 4503599627370496.0 if tiny else x
    bits = f64(scaled).view(np.int64) + (4607182418800017408 - 4604544271217802189)
    k = f64(bits >> 52) - (1075.0 if tiny else 1023.0)
    f = np.int64((bits & 0x000FFFFFFFFFFFFF) + 4604544271217802189).view(f64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    tail = 0.15386240205815477 + z * (0.13268759668560613 + z * 0.13086767009948174)
    tail = 0.28571428570803230 + z * (0.22222222391800469 + z * (0.18181795630884753 + z * tail))
    tail = z * (0.66666666666666666 + z * (0.40000000000000878 + z * tail))
    half = 0.5 * f * f
    value = k * 0.6931471806019545 - ((half - (s * (half + tail) + k * -4.2009150726810846e-11)) - f)
    return _special_log(x, value)


@typed(_by_dtype(lambda x: _log32(x), lambda x: _log64(x)))
def log(x):
    """Natural logarithm, within 1 unit in the last place; -inf at 0 and NaN below."""
    return _log32(x) if is_f32(x) else _log64(f64(x))
