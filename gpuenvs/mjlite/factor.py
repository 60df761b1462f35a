"""Sparse L^T D L factorisation as straight-line code.

A symmetric matrix over scalars is a dict {(i, j): entry} with i >= j; what is absent is zero. Rows are eliminated from the
last to the first, MuJoCo's order: a row of the inertia matrix reaches only the dofs above it in the kinematic tree, so no
new entries arise (MuJoCo documentation, Computation chapter, "Inertia and constraint Jacobian"; Featherstone, "Rigid Body
Dynamics Algorithms", section 6.5). Entries that couple branches, as contacts between two moving bodies do, are allowed:
what they fill in is known before any arithmetic.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from gpuenvs import trace as T


@dataclasses.dataclass(frozen=True)
class Factor:
    """L (unit diagonal, below it `lower[(i, j)]`) and the reciprocals of D, with A = L^T D L."""

    rows: list[list[int]]
    """`rows[i]`: the j < i with an entry, ascending."""
    lower: dict[tuple[int, int], Any]
    inverse: list[Any]


def pattern(n: int, entries: Iterable[tuple[int, int]]) -> list[list[int]]:
    """For each row i of n the columns j < i that hold an entry once all rows are eliminated, ascending.

    Eliminating row k couples all its columns with each other, so the largest of them inherits the others.
    """
    rows: list[set[int]] = [set() for _ in range(n)]
    for i, j in entries:
        if i != j:
            rows[max(i, j)].add(min(i, j))
    for k in reversed(range(n)):
        if rows[k]:
            largest = max(rows[k])
            rows[largest] |= rows[k] - {largest}
    return [sorted(row) for row in rows]


def factorize(matrix: dict[tuple[int, int], Any], n: int) -> Factor:
    """Factor of a symmetric positive definite n x n matrix; one division per row.

    Entries that are the number 0 while tracing are left out of the pattern. An indefinite matrix gives what the
    arithmetic gives (no check): the inertia matrix of a valid model is positive definite.
    """
    left = {key: x for key, x in matrix.items() if not T.is_zero(x)}
    rows = pattern(n, left)
    lower: dict[tuple[int, int], Any] = {}
    inverse: list[Any] = [None] * n
    for k in reversed(range(n)):
        inverse[k] = 1.0 / left[k, k]
        for i in rows[k]:
            lower[k, i] = left[k, i] * inverse[k]
        for at, i in enumerate(rows[k]):
            for j in rows[k][: at + 1]:
                update = lower[k, i] * left[k, j]
                left[i, j] = left[i, j] - update if (i, j) in left else -update
    return Factor(rows, lower, inverse)


def solve(factor: Factor, right: list[Any]) -> list[Any]:
    """x with A x = right, n scalars."""
    x = list(right)
    n = len(x)
    for k in reversed(range(n)):
        for j in factor.rows[k]:
            x[j] = x[j] - factor.lower[k, j] * x[k]
    x = [a if T.is_zero(a) else a * b for a, b in zip(x, factor.inverse)]
    for k in range(n):
        for j in factor.rows[k]:
            x[k] = x[k] - factor.lower[k, j] * x[j]
    return x


def product(matrix: dict[tuple[int, int], Any], x: list[Any]) -> list[Any]:
    """A x for a symmetric matrix."""
    out: list[Any] = [0.0] * len(x)
    for (i, j), entry in matrix.items():
        out[i] = out[i] + entry * x[j]
        if i != j:
            out[j] = out[j] + entry * x[i]
    return out
