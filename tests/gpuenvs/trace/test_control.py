"""Loops, branches, arrays and tables do the same printed for the CPU, as Python, and run at once on numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuenvs import trace as T
from gpuenvs.errors import TraceError
from tests.gpuenvs.trace.running import ALONE, HOW, REALS, Run, recorded, sizes

RNG = np.random.default_rng(5)


def polynomial(x, y):
    """A loop that carries two values and reads its counter and a table."""
    table = T.Table([0.5, -1.25, 2.0, 0.125, -0.75])

    def body(k, power, total):
        return [power * x, total + table.load(k) * power]

    power, total = T.loop(5, body, [1.0, y])
    return [power, total]


def nested(x, y):
    """A loop within a loop; the inner one begins anew in each turn of the outer one."""

    def outer(_k, a, b):
        (inner,) = T.loop(3, lambda _j, c: [c * 0.5 + a], [b])
        return [a + 1.0, inner - y]

    return T.loop(4, outer, [x, y])


def fibonacci(x, y):
    """Elements stored in one turn are loaded in the next ones."""
    array = T.Array(8)
    array.store(0, x)
    array.store(1, y)

    def body(k, last):
        value = array.load(k) + array.load(k + 1)
        array.store(k + 2, value)
        return [value]

    (last,) = T.loop(6, body, [0.0])
    return [last, array.load(7), array.load(3)]


def newton_root(x, _y):
    """Each row stops by itself: one that is done keeps its value while others go on."""
    target = T.absolute(x) + 0.1

    def turn(count, root):
        better = 0.5 * (root + target / root)
        done = T.absolute(better - root) <= 1e-4 * root
        return [count + T.where(done, 0.0, 1.0), T.where(done, root, better)], T.any_lane(
            T.logical_not(done) & (count < 40.0)
        )

    return T.do_while(turn, [0.0, target])[1:]


def branches(x, y):
    """A branch that is taken if any row wants it; the others keep what stands in for its values."""
    wanted = x > 0.25

    def body():
        (inside,) = T.if_(T.any_lane(y > 1.0), lambda: [T.where(y > 1.0, y * y, y)], [y])
        return [T.where(wanted, T.sqrt(T.where(wanted, x, 1.0)) + inside, y), y]

    first, same = T.if_(T.any_lane(wanted), body, [y, y])
    return [first, same]


def appended(x, y):
    """Rows append to a list together, as contacts do: slots are uniform, what is in them is per row."""
    slots, values, length = T.Array(4, "int"), T.Array(4), T.Array(1, "int")
    length.store(0, 0)
    for number, condition in enumerate((x > 0.0, y > 0.5, x * y > 10.0, y < 5.0)):

        def append(number=number, condition=condition):
            count = length.load(0)
            slots.store(count, number)
            values.store(count, T.where(condition, x + float(number), 0.0))
            length.store(0, count + 1)
            return []

        T.if_(T.any_lane(condition), append, [])
    weights = T.Table([1.0, 10.0, 100.0, 1000.0])
    (total,) = T.loop(length.load(0), lambda k, s: [s + weights.load(slots.load(k)) * values.load(k)], [0.0])
    return [total]


def inside_a_loop(x, y):
    """Branches and uneven loops inside of a loop, and a condition that is carried."""

    def body(k, total, seen):
        (more,) = T.if_(T.any_lane(total < y), lambda: [T.where(total < y, total + x * x + 0.5, total)], [total])
        (inner,) = T.loop(k, lambda _j, s: [s + 0.25], [more])
        return [inner, seen | (inner > 2.0)]

    total, seen = T.loop(5, body, [x, x > 100.0])
    return [total, T.where(seen, 1.0, 0.0)]


def swapped(x, y):
    """What is carried changes places at the end of a turn, not one after the other."""
    return T.loop(3, lambda _k, a, b: [b, a], [x, y])


FUNCTIONS = [polynomial, nested, fibonacci, newton_root, branches, appended, inside_a_loop, swapped]


def at_once(function: Any, real: str, *inputs: np.ndarray) -> list[np.ndarray]:
    n = len(inputs[0])
    out = function(*(np.asarray(x, real) for x in inputs))
    return [np.broadcast_to(np.asarray(x), (n,)) for x in out]


@pytest.mark.parametrize("real", REALS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_every_form_agrees_with_numpy(function: Any, real: str):
    run = Run(function, "rr", real)
    for n in sizes(real):
        x, y = RNG.normal(size=n), RNG.normal(1.0, 2.0, size=n)
        expected = at_once(function, real, x, y)
        for how in HOW:
            if how in ALONE:  # what a row does alone, as the functions promise that it does not see its neighbours
                expected = [
                    np.concatenate(parts)
                    for parts in zip(*(at_once(function, real, x[k : k + 1], y[k : k + 1]) for k in range(n)))
                ]
            found = run(how, x, y)
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-5 if real == "float32" else 1e-13, err_msg=f"{how} {n}")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("real", REALS)
@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f is not appended], ids=lambda f: f.__name__)
def test_a_nan_stays_in_its_row_and_ends_its_loop(function: Any, real: str, how: str):
    run, n = Run(function, "rr", real), sizes(real)[-1]
    x, y = RNG.normal(size=n), RNG.normal(1.0, 2.0, size=n)
    clean = run(how, x, y)
    for poison in (np.nan, np.inf, 1e30):
        bad = x.copy()
        bad[3] = poison
        for a, b in zip(run(how, bad, y), clean):
            others = np.arange(n) != 3
            assert np.array_equal(a[others], b[others])


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("real", REALS)
def test_rows_outside_of_the_range_are_not_touched(real: str, how: str):
    run, n = Run(polynomial, "rr", real), sizes(real)[-1]
    x, y = RNG.normal(1.0, size=n), RNG.normal(size=n)
    whole = run(how, x, y)
    for rows in ((0, 1), (1, n - 1), (n - 3, n), (2, 2)):
        part = run(how, x, y, rows=rows)
        for a, b in zip(part, whole):
            expected = np.zeros_like(b)
            expected[slice(*rows)] = b[slice(*rows)]
            assert np.array_equal(a, expected)


def test_a_loop_may_run_zero_times():
    def function(x, y):
        count = T.Array(1, "int")
        count.store(0, 0)
        T.if_(T.any_lane(x > 1e9), lambda: count.store(0, 3) or [], [])
        return [*T.loop(count.load(0), lambda _k, s: [s + 1.0], [y]), *T.loop(0, lambda _k, s: [s + 1.0], [x])]

    run = Run(function, "rr", "float64")
    x, y = RNG.normal(size=5), RNG.normal(size=5)
    for how in HOW:
        assert np.array_equal(run(how, x, y), [y, x])


def test_what_a_loop_does_not_change_is_what_it_was():
    def function(x, y):
        kept, changed = T.loop(3, lambda _k, a, b: [a, b + a], [x, y])
        assert kept is x
        return [changed]

    assert np.allclose(Run(function, "rr", "float64")("cpu", [2.0], [1.0]), [[7.0]])


def test_uniform_conditions_are_demanded():
    with pytest.raises(TraceError, match="any_lane"):
        recorded(lambda x: T.if_(x > 0.0, lambda: [x], [x]), "r", "float64")
    with pytest.raises(TraceError, match="any_lane"):
        recorded(lambda x: T.do_while(lambda a: ([a], a > 0.0), [x]), "r", "float64")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: T.loop(x, lambda _k, s: [s], [x]), "a loop's count is the same for all envs"),
        (lambda x: [T.Array(3).load(x)], "an array's index is the same"),
        (lambda x: T.Array(3).store(x, 1.0) or [], "an array's index is the same"),
        (lambda x: [T.Table([1.0, 2.0]).load(x)], "a table's index is the same"),
        (lambda x: T.Array(3, "int").store(0, x) or [], "an array of index values cannot hold a real value"),
        (lambda x: T.Array(3).store(0, x > 0.0) or [], "an array of real values cannot hold a bool value"),
        (lambda x: [T.where(x > 0.0, T.Table([1, 2]).load(T.Array(1, "int").load(0)), 0)], "not a uniform one"),
    ],
)
def test_what_is_uniform_is_checked(function: Any, message: str):
    with pytest.raises(TraceError, match=message):
        recorded(function, "r", "float64")


def test_a_loop_value_keeps_its_kind():
    with pytest.raises(TraceError, match="bool to real"):
        recorded(lambda x: T.loop(2, lambda _k, _c: [x], [x > 0.0]), "r", "float64")
