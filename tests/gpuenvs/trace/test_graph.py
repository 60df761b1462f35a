"""What is recorded: folding, sharing, hoisting, dead code, kinds and the messages for what cannot be traced."""

from __future__ import annotations

import math
import operator
from collections import Counter
from typing import Any

import numpy as np
import pytest

from gpuenvs import trace as T
from gpuenvs.errors import TraceError
from gpuenvs.trace.graph import Value, apply, convert, program, record
from gpuenvs.trace.liveness import Liveness
from gpuenvs.trace.python import statements
from tests.gpuenvs.trace.running import HOW, Run, recorded


def operations(function: Any, kinds: str = "rr") -> Counter[str]:
    """How many operations of each name are left of a function, inputs and outputs aside."""
    program = recorded(function, kinds, "float64")
    live = Liveness(program)
    names = Counter(item.op for item in statements(program.root) if item in live)
    for name in ("get", "put", "active"):
        del names[name]
    return names


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: [x * 0.0 + y * 1.0 + 0.0],
        lambda x, y: [0.0 - (-y)],
        lambda x, y: [T.where(True, y, x)],
        lambda x, y: [T.where(x > 0.0, y, y)],
        lambda x, y: [y / 1.0],
        lambda x, y: [operator.neg(-y)],
        lambda x, y: [T.where(T.clip(2.0, 0.0, 1.0) > 0.5, y, x * y)],
        lambda x, y: T.if_(T.any_lane(x > 0.0), lambda: [y], [y]),
        lambda x, y: [T.loop(3, lambda k, a, b: [a + b, b * 2.0], [x, x]) and y],
    ],
)
def test_nothing_is_left_of(function: Any):
    assert not operations(function)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, y: [x * y + y * x], {"mul": 1, "add": 1}),  # shared, whatever the order
        (lambda x, y: [x / 4.0], {"mul": 1}),
        (lambda x, y: [x - (-y)], {"add": 1}),
        (lambda x, y: [(-x) * y], {"mul": 1, "neg": 1}),
        (lambda x, y: [x * 2.0 * 0.0 + T.sqrt(y)], {"sqrt": 1}),
        (lambda x, y: [T.where(T.logical_not(x > y), x, y)], {"gt": 1, "select": 1}),
        (lambda x, y: [x**3], {"mul": 2}),
        (lambda x, y: [math.sqrt(4.0) * x], {"mul": 1}),
        (lambda x, y: [T.sincos(0.0)[1] * x + T.exp(0.0) * y], {"add": 1}),
    ],
)
def test_what_is_left(function: Any, expected: dict[str, int]):
    assert operations(function) == expected


def test_constants_of_a_loop_are_computed_before_it():
    program = recorded(lambda x, y: T.loop(4, lambda k, s: [s + T.sqrt(x * y)], [x]), "rr", "float64")
    (loop,) = [item for item in program.root.items if item.op == "loop"]
    assert [item.op for item in program.root.items if item.op in ("mul", "sqrt")] == ["mul", "sqrt"]
    assert [item.op for item in loop.attr.region.items] == ["add"]


def test_nothing_moves_out_of_a_branch():
    def function(x, y):
        return T.if_(T.any_lane(x > 0.0), lambda: [T.sqrt(y)], [y])

    program = recorded(function, "rr", "float64")
    assert "sqrt" not in [item.op for item in program.root.items]


def test_stores_that_nobody_loads_are_dropped():
    def function(x, y):
        read, never = T.Array(2), T.Array(2)
        read.store(0, x)
        never.store(0, T.sqrt(y))
        return [read.load(0)]

    assert operations(function) == {"store": 1, "load": 1}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: [x if x > 0.0 else -x], "no truth while tracing"),
        (lambda x: [math.sqrt(x)], "not a Python number"),
        (lambda x: [[1.0, 2.0][x]], "cannot index a Python list"),
        (lambda x: [x**-1], "positive whole power"),
        (lambda x: [x * np.ones(3)], "work on scalars"),
        (lambda x: [x * (x > 0.0)], "convert first"),
        (lambda x: [T.where(x > 0.0, x, x > 1.0)], "between real and bool"),
    ],
)
def test_what_cannot_be_traced_is_said(function: Any, message: str):
    with pytest.raises(TraceError, match=message):
        recorded(function, "r", "float64")


@pytest.mark.parametrize("how", HOW)
def test_integers_and_conditions(how: str):
    def function(a, b, n, c):
        bits = [a + b, a - b, a * b, a ^ b, a & b, a | b, a << 5, a >> 7, apply("mulhi", a, b)]
        whole = [n + 3, n * n, T.where(c, n, n - 1), convert(c, "i32"), convert(a, "i32")]
        conditions = [c & (n > 0), c | (n > 0), T.logical_not(c), (a < b) ^ c, T.any_of(c, n == 2), T.all_of(c, n != 2)]
        reals = [convert(a, "real"), convert(n, "real"), T.where(c & (n > 0), 1.0, -1.0)]
        return [*reals, *bits, *whole, *conditions]

    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 2**32, (2, 21), dtype=np.uint32)
    n, c = rng.integers(-5, 5, 21, dtype=np.int32), rng.random(21) < 0.5
    found = Run(function, "uuib", "float64")(how, a, b, n, c)
    wide = (a.astype(np.uint64) * b) >> np.uint64(32)
    expected = [
        a.astype(float), n.astype(float), np.where(c & (n > 0), 1.0, -1.0),
        a + b, a - b, a * b, a ^ b, a & b, a | b, a << 5, a >> 7, wide,
        n + 3, n * n, np.where(c, n, n - 1), c.astype(int), a.astype(np.int32),
        c & (n > 0), c | (n > 0), ~c, (a < b) ^ c, c | (n == 2), c & (n != 2),
    ]  # fmt: skip
    for k, (f, e) in enumerate(zip(found, expected, strict=True)):
        assert np.array_equal(f, e), k


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("real", ["float32", "float64"])
def test_comparisons_with_nan_are_ieee(real: str, how: str):
    words = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
    run = Run(lambda x, y: [*(w(x, y) for w in words), *(w(x, 1.0) for w in words), T.finite(x)], "rr", real)
    x = np.array([1.0, 2.0, 0.5, np.nan, 1.0, np.nan, np.inf, -np.inf], real)
    y = np.array([1.0, 1.0, 1.0, 1.0, np.nan, np.nan, np.inf, 0.0], real)
    expected = [*(w(x, y) for w in words), *(w(x, 1.0) for w in words), np.isfinite(x)]
    for f, e in zip(run(how, x, y), expected, strict=True):
        assert np.array_equal(f, e)


def test_values_belong_to_their_recording():
    with record():
        a = Value("get", (), "real", program().root)
        assert not T.is_zero(a)
        assert T.is_zero(a * 0.0)
    with pytest.raises(IndexError):
        apply("add", a, a)
