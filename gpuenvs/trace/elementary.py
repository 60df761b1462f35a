"""Sine, cosine, logarithm, exponential and the like on traced values: polynomials without a branch, at the working dtype.

The range reductions and coefficients of `sincos` and `log` are those of `gpuenvs.scalar`; which set is used is decided when
the program is printed, so both are recorded under one operation here and expanded by `precision`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gpuenvs.trace.graph import apply

_real: list[str] = ["float64"]


@contextlib.contextmanager
def precision(real: str) -> Iterator[None]:
    """The dtype that programs recorded inside the `with` block are printed in: "float32" or "float64"."""
    _real.append(real)
    try:
        yield
    finally:
        _real.pop()


def working_dtype() -> str:
    """ "float32" or "float64"."""
    return _real[-1]


def _single() -> bool:
    return _real[-1] == "float32"


def _polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    """Horner; the first coefficient is that of the highest power."""
    value: Any = coefficients[0]
    for c in coefficients[1:]:
        value = value * x + c
    return value


def _select(condition: Any, yes: Any, no: Any) -> Any:
    return apply("select", condition, yes, no)


def sincos(x: Any) -> tuple[Any, Any]:
    """(sin(x), cos(x)); accuracy as `gpuenvs.scalar.sincos`."""
    q = apply("floor", x * 0.6366197723675814 + 0.5)
    if _single():
        r = x - q * 1.5703125
        r = r - q * 4.837512969970703e-4
        r = r - q * 7.549533620476723e-8
        r = r - q * 2.5633440682570896e-12
        z = r * r
        s = _polynomial(z, (-0.00019587840521305324, 0.008332748037517146, -0.16666664661114839))
        c = _polynomial(z, (2.4547891619813861e-5, -0.0013888302802309160, 0.04166666465830042))
        sine, cosine = r + r * z * s, 1.0 - (0.5 * z - z * z * c)
    else:
        r = x - q * 1.5707963267341256
        r = r - q * 6.077100506303966e-11
        r = r - q * 2.0222662487959506e-21
        z = r * r
        s = _polynomial(
            z,
            (
                -7.5866850700912671e-13, 1.6058531414589011e-10, -2.5052106231157905e-08, 2.7557319219335453e-06,
                -0.0001984126984126506, 0.0083333333333333315, -0.16666666666666667,
            ),
        )  # fmt: skip
        c = _polynomial(
            z,
            (
                4.7458652037874551e-14, -1.1470460773969325e-11, 2.0876755790363396e-09, -2.7557319221400760e-07,
                2.4801587301584644e-05, -0.0013888888888888888, 0.041666666666666667,
            ),
        )  # fmt: skip
        half = 0.5 * z
        rest = 1.0 - half
        sine, cosine = r + r * z * s, rest + (((1.0 - rest) - half) + z * z * c)
    quadrant = q - 4.0 * apply("floor", q * 0.25)
    odd = (quadrant == 1.0) | (quadrant == 3.0)
    sine, cosine = _select(odd, cosine, sine), _select(odd, sine, cosine)
    sine = _select(quadrant >= 2.0, -sine, sine)
    return sine, _select((quadrant == 1.0) | (quadrant == 2.0), -cosine, cosine)


def log(x: Any) -> Any:
    """Natural logarithm of a positive normal number; -inf at 0, NaN below."""
    single = _single()
    mantissa, exponent = split(x)
    low = mantissa < 0.7071067811865476
    m = _select(low, mantissa * 2.0, mantissa)
    k = _select(low, exponent - 1.0, exponent)
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    if single:
        tail = z * _polynomial(z, (0.23330581938241894, 0.28550816599711549, 0.40000121876971992, 0.66666666554451646))
        high_log2, low_log2 = 0.693115234375, 3.194618329871446e-05
    else:
        tail = z * _polynomial(
            z,
            (
                0.13086767009948174, 0.13268759668560613, 0.15386240205815477, 0.18181795630884753, 0.22222222391800469,
                0.28571428570803230, 0.40000000000000878, 0.66666666666666666,
            ),
        )  # fmt: skip
        high_log2, low_log2 = 0.6931471806019545, -4.2009150726810846e-11
    half = 0.5 * f * f
    value = k * high_log2 - ((half - (s * (half + tail) + k * low_log2)) - f)
    infinite = float("inf")
    value = _select(x == infinite, x, value)
    value = _select(x == 0.0, -infinite, value)
    return _select(x >= 0.0, value, float("nan"))


def split(x: Any) -> tuple[Any, Any]:
    """(m, k), both real, with x = m * 2**k and m in [0.5, 1) for positive normal x."""
    return apply("mantissa", x), apply("exponent", x)


def exp(x: Any) -> Any:
    """e**x, within about 2 ulp; 0 and infinity where it leaves the range of normal numbers."""
    largest = 88.72 if _single() else 709.78
    smallest = -87.33 if _single() else -708.39
    k = apply("floor", x * 1.4426950408889634 + 0.5)
    if _single():
        r = (x - k * 0.693359375) + k * 2.12194440e-4
        terms = 7
    else:
        r = (x - k * 0.6931471803691238) - k * 1.9082149292705877e-10
        terms = 14
    coefficients, factorial = [1.0], 1.0
    for n in range(1, terms):
        factorial *= n
        coefficients.append(1.0 / factorial)
    value = apply("scale", _polynomial(r, tuple(reversed(coefficients))), k)
    value = _select(x > largest, float("inf"), value)
    value = _select(x < smallest, 0.0, value)
    return _select(x == x, value, x)


def tanh(x: Any) -> Any:
    """Hyperbolic tangent; absolute error below 1e-15 (float64) or 2e-7 (float32)."""
    e = exp(apply("abs", x) * -2.0)
    value = (1.0 - e) / (1.0 + e)
    return _select(x < 0.0, -value, value)


# Coefficients of atan(t)/t in t^2 on |t| <= tan(pi/8), odd Taylor terms summed to rounding: 1, -1/3, 1/5 ...
_ATAN_TERMS = tuple((-1.0) ** n / (2 * n + 1) for n in range(21))


def atan2(y: Any, x: Any) -> Any:
    """Angle of the point (x, y) in [-pi, pi]; absolute error below 1e-15 (float64) or 5e-7 (float32); 0 for (0, 0)."""
    ax, ay = apply("abs", x), apply("abs", y)
    swap = ay > ax
    small, large = _select(swap, ax, ay), _select(swap, ay, ax)
    t = small / _select(large == 0.0, 1.0, large)
    # Twice the half angle: tan(a / 2) = t / (1 + sqrt(1 + t^2)) brings |t| <= 1 down to |h| <= tan(pi / 8).
    h = t / (1.0 + apply("sqrt", 1.0 + t * t))
    terms = _ATAN_TERMS[:9] if _single() else _ATAN_TERMS
    angle = 2.0 * h * _polynomial(h * h, tuple(reversed(terms)))
    angle = _select(swap, 1.5707963267948966 - angle, angle)
    angle = _select(x < 0.0, 3.141592653589793 - angle, angle)
    return _select(y < 0.0, -angle, angle)
