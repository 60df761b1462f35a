"""The interpreter's arithmetic against exact rational numbers and plain Python integers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.ptx import arithmetic
from tests.ptx.snippet import apply, run

RNG = np.random.default_rng(5)
MASK = (1 << 32) - 1


def rounded(exact: Fraction, dtype) -> np.floating:
    """The float nearest to a rational number, ties to even; finite ones only."""
    info = np.finfo(dtype)
    if exact == 0:
        return dtype(0)
    exponent = math.frexp(float(exact))[1] if abs(exact) > Fraction(1, 10**300) else -1000
    while abs(exact) >= Fraction(2) ** exponent:
        exponent += 1
    while abs(exact) < Fraction(2) ** (exponent - 1):
        exponent -= 1
    step = Fraction(2) ** max(exponent - info.nmant - 1, info.minexp - info.nmant)
    return dtype(float(round(exact / step) * step))  # round(Fraction) goes to even


def tricky(n: int, dtype) -> np.ndarray:
    """Floats of all magnitudes, few-bit ones whose products tie, neighbours of powers of two, and subnormal ones."""
    few = RNG.integers(-64, 64, n) * 2.0 ** RNG.integers(-30, 10, n)
    near = 2.0 ** RNG.integers(-20, 20, n) * (1 + RNG.integers(-2, 3, n) * float(np.finfo(dtype).eps))
    wide = RNG.normal(size=n) * 2.0 ** RNG.integers(-60, 60, n)
    tiny = RNG.integers(-1000, 1000, n) * float(np.finfo(dtype).smallest_subnormal)
    kinds = np.stack([few, near, wide, tiny])
    return kinds[RNG.choice(4, n, p=[0.3, 0.3, 0.3, 0.1]), np.arange(n)].astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fused_multiply_add_rounds_once(dtype):
    a, b, c = (tricky(1500, dtype) for _ in range(3))
    # Sums that lie next to a tie: rounding the product first would go wrong.
    eps = float(np.finfo(dtype).eps)
    a[:200] = 1 + RNG.integers(0, 50, 200) * eps
    b[:200] = 1 + RNG.integers(0, 50, 200) * eps
    c[:200] = RNG.choice([1.0, -1.0, 2.0, eps / 2, -eps / 2, eps * eps], 200)
    kind = "f32" if dtype == np.float32 else "f64"
    found = apply(f"fma.rn.{kind}", [a, b, c], dtype)
    expected = [
        rounded(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)), dtype) for x, y, z in zip(a, b, c)
    ]
    assert np.array_equal(found, np.array(expected, dtype))
    twice = (a.astype(dtype) * b.astype(dtype)).astype(dtype) + c
    assert not np.array_equal(found, twice)  # the numbers are such that it matters


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div.rn", "rcp.rn", "sqrt.rn"])
def test_float_operations_are_correctly_rounded(name, dtype):
    a, b = tricky(400, dtype), tricky(400, dtype)
    b[b == 0] = 3
    kind = "f32" if dtype == np.float32 else "f64"
    if name == "sqrt.rn":
        a = np.abs(a)
        found = apply(f"sqrt.rn.{kind}", [a], dtype)
        for x, y in zip(a.tolist(), found.tolist()):  # the square of the middle to each neighbour is on its side
            if x and y:
                low, high = (Fraction(float(np.nextafter(dtype(y), dtype(t)))) for t in (-np.inf, np.inf))
                assert ((low + Fraction(y)) / 2) ** 2 <= Fraction(x) <= ((high + Fraction(y)) / 2) ** 2
        return
    exact = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "div.rn": lambda x, y: x / y,
        "rcp.rn": lambda x, y: 1 / y,
    }[name]
    found = apply(f"{name}.{kind}", [b] if name == "rcp.rn" else [a, b], dtype)
    expected = [exact(Fraction(float(x)), Fraction(float(y))) for x, y in zip(a, b)]
    small = np.array([abs(e) < Fraction(float(np.finfo(dtype).max)) for e in expected])
    assert small.sum() > 300
    wanted = np.array([rounded(e, dtype) if s else 0 for e, s in zip(expected, small)], dtype)
    assert np.array_equal(found[small], wanted[small])


def integers(n: int, bits: int) -> list[int]:
    """Unsigned integers, many of them at the ends of the range."""
    ends = [0, 1, 2, 3, (1 << bits) - 1, (1 << bits) - 2, 1 << (bits - 1), (1 << (bits - 1)) - 1]
    return [*(ends * 3), *(int.from_bytes(RNG.bytes(bits // 8), "little") >> int(k) for k in RNG.integers(0, bits, n))]


def signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> (bits - 1) else x


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGER = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
    "div": truncated,
    "rem": lambda a, b: a - truncated(a, b) * b,
}


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("name", [*INTEGER, "mul.hi"])
def test_integer_operations(name, kind):
    bits = int(kind[1:])
    a, b = integers(100, bits), integers(100, bits)
    RNG.shuffle(b)
    b = [y or 7 for y in b]
    number = (lambda x: signed(x, bits)) if kind[0] == "s" else (lambda x: x)
    function = INTEGER.get(name, lambda x, y: (x * y) >> bits)
    columns = [np.array(v, f"u{bits // 8}") for v in (a, b)]
    found = apply(f"{name}.{kind}", columns, f"u{bits // 8}")
    expected = [function(number(x), number(y)) % (1 << bits) for x, y in zip(a, b)]
    assert found.tolist() == expected


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_wide_products(kind):
    a, b = integers(100, 32), integers(100, 32)
    RNG.shuffle(b)
    number = (lambda x: signed(x, 32)) if kind[0] == "s" else (lambda x: x)
    columns = [np.array(v, np.uint32) for v in (a, b)]
    found = apply(f"mul.wide.{kind}", columns, np.uint64)
    assert found.tolist() == [number(x) * number(y) % (1 << 64) for x, y in zip(a, b)]
    c = np.array(integers(100, 64), np.uint64)
    found = apply(f"mad.wide.{kind}", [*columns, c], np.uint64)
    assert found.tolist() == [(number(x) * number(y) + int(z)) % (1 << 64) for x, y, z in zip(a, b, c)]


@pytest.mark.parametrize("kind", ["b32", "u32", "s32", "b64", "u64", "s64"])
def test_shifts(kind):
    bits = int(kind[1:])
    a = integers(200, bits)
    amount = RNG.integers(0, bits + 20, len(a)).astype(np.uint32)
    column = np.array(a, f"u{bits // 8}")
    if kind[0] == "b":
        found = apply(f"shl.{kind}", [column, amount], column.dtype)
        assert found.tolist() == [(x << int(n)) % (1 << bits) if n < bits else 0 for x, n in zip(a, amount)]
    else:
        number = (lambda x: signed(x, bits)) if kind[0] == "s" else (lambda x: x)
        found = apply(f"shr.{kind}", [column, amount], column.dtype)
        assert found.tolist() == [(number(x) >> int(n)) % (1 << bits) for x, n in zip(a, amount)]


def test_bit_fiddling():
    a, b, c = (np.array(integers(200, 32), np.uint32) for _ in range(3))
    RNG.shuffle(b)
    RNG.shuffle(c)
    rows = list(zip(a.tolist(), b.tolist(), c.tolist()))
    found = apply("shf.l.wrap.b32", [a, b, c], np.uint32)
    assert found.tolist() == [((y << 32 | x) << (n & 31) >> 32) & MASK for x, y, n in rows]
    found = apply("shf.r.wrap.b32", [a, b, c], np.uint32)
    assert found.tolist() == [((y << 32 | x) >> (n & 31)) & MASK for x, y, n in rows]
    choose = [
        [x.to_bytes(4, "little")[k] for k in range(4)] + [y.to_bytes(4, "little")[k] for k in range(4)]
        for x, y, _ in rows
    ]

    def byte(row: list[int], nibble: int) -> int:
        value = row[nibble & 7]
        return (0xFF if value & 0x80 else 0) if nibble & 8 else value

    expected = [sum(byte(row, n >> 4 * k & 15) << 8 * k for k in range(4)) for row, (_, _, n) in zip(choose, rows)]
    assert apply("prmt.b32", [a, b, c], np.uint32).tolist() == expected
    start, length = RNG.integers(0, 40, len(a)).astype(np.uint32), RNG.integers(0, 40, len(a)).astype(np.uint32)
    fields = list(zip(a.tolist(), b.tolist(), start.tolist(), length.tolist()))
    assert apply("bfe.u32", [a, start, length], np.uint32).tolist() == [
        x >> s & ((1 << n) - 1) for x, _, s, n in fields
    ]

    def field(x: int, s: int, n: int) -> int:
        if n == 0:
            return 0
        found = (signed(x, 32) >> s) & ((1 << n) - 1)
        last = x >> min(s + n - 1, 31) & 1
        return ((found | -1 << n) if last else found) & MASK

    assert apply("bfe.s32", [a, start, length], np.uint32).tolist() == [field(x, s, n) for x, _, s, n in fields]
    masks = [(((1 << n) - 1) << s) & MASK for _, _, s, n in fields]
    inserted = [(y & ~m | (x << s) & m) & MASK for (x, y, s, _), m in zip(fields, masks)]
    assert apply("bfi.b32", [a, b, start, length], np.uint32).tolist() == inserted
    assert apply("popc.b32", [a], np.uint32).tolist() == [x.bit_count() for x in a.tolist()]
    assert apply("clz.b32", [a], np.uint32).tolist() == [32 - x.bit_length() for x in a.tolist()]
    table = 0b11001010
    expected = [
        sum((table >> ((x >> k & 1) << 2 | (y >> k & 1) << 1 | (z >> k & 1)) & 1) << k for k in range(32))
        for x, y, z in rows
    ]
    assert arithmetic.logic3(a, b, c, table).tolist() == expected


SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.5, -2.5, 3.5, 1e30, -1e30, 2.0**31, -(2.0**31)], np.float32
)


def test_comparisons_with_nan():
    a, b = (np.repeat(SPECIAL, SPECIAL.size), np.tile(SPECIAL, SPECIAL.size))
    ordered = {"eq": a == b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    unknown = np.isnan(a) | np.isnan(b)
    ordered |= {"ne": (a != b) & ~unknown}
    unordered = {f"{name}u": result | unknown for name, result in ordered.items()}
    for name, expected in {**ordered, **unordered, "nan": unknown, "num": ~unknown}.items():
        assert np.array_equal(arithmetic.COMPARISONS[name](a, b), expected), name
        out, inputs = np.zeros(a.size, np.uint64), np.stack([a, b], axis=1)
        setp = f"ld.global.v2.f32 {{%f1, %f2}}, [%d1]; setp.{name}.f32 %p1, %f1, %f2;"
        run(f"{setp} selp.u64 %d3, 1, 0, %p1; st.global.u64 [%d2], %d3;", inputs, out)
        assert np.array_equal(out, expected), name


def test_minimum_and_maximum_prefer_numbers_and_know_the_sign_of_zero():
    a, b = (np.repeat(SPECIAL, SPECIAL.size), np.tile(SPECIAL, SPECIAL.size))
    low, high = apply("min.f32", [a, b], np.float32), apply("max.f32", [a, b], np.float32)
    for x, y, least, most in zip(a, b, low, high):
        known = sorted((v for v in (x, y) if not np.isnan(v)), key=lambda v: (v, not np.signbit(v)))
        if known:
            assert least == known[0] and np.signbit(least) == np.signbit(known[0])
            assert most == known[-1] and np.signbit(most) == np.signbit(known[-1])
        else:
            assert np.isnan(least) and np.isnan(most)


def test_conversions():
    values = np.array([0.5, -0.5, 1.5, 2.5, -1.5, -2.7, 2.7, np.nan, np.inf, -np.inf, 3e9, -3e9, 5e9, -0.0], np.float32)
    cases = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
    for rounding, function in cases.items():
        found = apply(f"cvt.{rounding}.f32.f32", [values], np.float32)
        assert np.array_equal(found, function(values), equal_nan=True)
        for kind, low, high in (("s32", -(2**31), 2**31 - 1), ("u32", 0, 2**32 - 1)):
            found = apply(f"cvt.{rounding}.{kind}.f32", [values], np.uint32)
            expected = [0 if np.isnan(v) else min(max(float(function(v)), low), high) for v in values]
            assert found.tolist() == [int(v) % (1 << 32) for v in expected]
    integer = np.array([0, 1, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1], np.uint32)
    assert apply("cvt.rn.f32.u32", [integer], np.float32).tolist() == [float(np.float32(int(v))) for v in integer]
    expected = [float(np.float32(signed(int(v), 32))) for v in integer]
    assert apply("cvt.rn.f32.s32", [integer], np.float32).tolist() == expected
    assert apply("cvt.s64.s32", [integer], np.int64).tolist() == [signed(int(v), 32) for v in integer]
    assert apply("cvt.u64.u32", [integer], np.uint64).tolist() == integer.tolist()
    wide = np.array([0x1_2345_6789, 2**63 + 5], np.uint64)
    assert apply("cvt.u32.u64", [wide], np.uint32).tolist() == [int(v) % 2**32 for v in wide]
    double = np.array([0.1, 1e-46, 1e30, -2.0, 1 + 2.0**-24 + 2.0**-50], np.float64)
    assert np.array_equal(apply("cvt.rn.f32.f64", [double], np.float32), double.astype(np.float32))


def test_flush_and_saturate():
    tiny = np.array([1e-40, -1e-40, 1e-38, 2.0, -3.0, np.nan], np.float32)
    flushed = apply("add.ftz.f32", [tiny, np.zeros_like(tiny)], np.float32)
    assert flushed.tolist()[:5] == [0.0, 0.0, 0.0, 2.0, -3.0]
    assert apply("add.sat.f32", [tiny, np.zeros_like(tiny)], np.float32).tolist()[3:] == [1.0, 0.0, 0.0]
    assert np.array_equal(apply("neg.f32", [tiny], np.float32)[:5], -tiny[:5])
