"""Random programs: recorded and printed they compute what numpy computes at once, row by row as in vectors."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from gpuenvs import trace as T
from tests.gpuenvs.trace.running import HOW, Run, sizes

PROGRAMS = 40


def bounded(v: Any) -> Any:
    return v / (1.0 + T.absolute(v))


class Builder:
    """Random statements over a growing list of values; a seed stands for the same ones, traced or not.

    What a row computes does not depend on the others: uniform branches and loops skip only what changes no row.
    """

    def __init__(self, seed: int, depth: int) -> None:
        self.random, self.depth = random.Random(seed), depth

    def steps(self, values: list[Any], count: int) -> list[Any]:
        """`values` and what `count` statements add."""
        kinds = [self.plain] * 5 + ([self.loop, self.branch, self.repeat, self.array] if self.depth else [])
        values = list(values)
        for _ in range(count):
            values += self.random.choice(kinds)(values)
        return values

    def inner(self) -> tuple[int, int]:
        """Arguments of the builder of a body, which may be called any number of times."""
        return self.random.randrange(2**32), self.depth - 1

    def pick(self, values: list[Any]) -> Any:
        return self.random.choice(values[-10:] if self.random.random() < 0.7 else values)

    def condition(self, values: list[Any]) -> Any:
        a, b, kind = self.pick(values), self.pick(values), self.random.randrange(5)
        if kind < 2:
            return a < b if kind else a >= b + 0.1
        if kind == 2:
            return T.all_of(a < 0.3, b > -0.2)
        return T.any_of(a > b, b > 0.7) if kind == 3 else T.logical_not(a < 0.1)

    def plain(self, values: list[Any]) -> list[Any]:
        a, b, kind = self.pick(values), self.pick(values), self.random.randrange(9)
        if kind == 0:
            return [T.where(self.condition(values), a, b)]
        if kind == 1:
            return [T.sqrt(T.absolute(a) + 0.01)]
        if kind == 2:
            return [bounded(a) / (1.5 + T.absolute(bounded(b)))]
        if kind == 3:
            return [T.clip(a, -1.0, 1.0), T.maximum(a, -b)]
        return [bounded([a + b, a - b, a * b, -a * b + 1.0, a * a - b][kind - 4])]

    def loop(self, values: list[Any]) -> list[Any]:
        count, start, inner = self.random.randrange(1, 4), [self.pick(values) for _ in range(3)], self.inner()
        table = T.Table([0.25, -0.5, 0.75])

        def body(k: Any, *carried: Any) -> list[Any]:
            found = Builder(*inner).steps([*values[:4], *carried, table.load(k)], 3)
            return [found[-1], carried[2], bounded(carried[1] + found[-2])]

        return T.loop(count, body, start)

    def branch(self, values: list[Any]) -> list[Any]:
        wanted, old, inner = self.condition(values), self.pick(values), self.inner()

        def body() -> list[Any]:
            return [T.where(wanted, Builder(*inner).steps(values, 3)[-1], old)]

        return T.if_(T.any_lane(wanted), body, [old])

    def repeat(self, values: list[Any]) -> list[Any]:
        limit, start, inner = 3.0 + 3.0 * bounded(self.pick(values)), self.pick(values), self.inner()

        def turn(count: Any, carried: Any) -> tuple[list[Any], Any]:
            going = count < limit
            after = Builder(*inner).steps([*values[:3], carried], 2)[-1]
            count = T.where(going, count + 1.0, count)
            return [count, T.where(going, bounded(after + 0.3), carried)], T.any_lane(count < limit)

        return T.do_while(turn, [0.0, start])

    def array(self, values: list[Any]) -> list[Any]:
        array = T.Array(6)
        for k in range(3):
            array.store(k, self.pick(values))

        def body(k: Any, total: Any) -> list[Any]:
            array.store(k + 3, bounded(array.load(k) + array.load(k + 1) * total))
            return [array.load(k + 3) + 0.5]

        return [*T.loop(3, body, [self.pick(values)]), array.load(4)]


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_a_random_program(seed: int):
    def function(x: Any, y: Any) -> list[Any]:
        return [bounded(v) for v in Builder(seed, 2).steps([x, y, 0.0, 1.0, -1.0, 0.5], 14)[-12:]]

    rng, run = np.random.default_rng(seed), Run(function, "rr", "float64")
    n = sizes("float64")[-1]
    x, y = rng.normal(size=(2, n))
    expected = [np.broadcast_to(np.asarray(v, np.float64), (n,)) for v in function(x, y)]
    for how in HOW:
        for found, value in zip(run(how, x, y), expected, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-9, atol=1e-12, err_msg=how)
