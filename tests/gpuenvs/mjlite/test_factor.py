"""The sparse factorisation against numpy, on trees and with entries between branches."""

import numpy as np
import pytest

from gpuenvs.mjlite.factor import factorize, pattern, product, solve

CHAIN = [-1, 0, 1, 2, 3]
BRANCHES = [-1, 0, 1, 2, 1, 4, 1, 6, -1, 8]


def ancestors(parents, i):
    while i >= 0:
        yield i
        i = parents[i]


def random_matrix(parents, extra, rng, count):
    """Positive definite matrices (count, n, n) with the entries of a tree and of `extra` groups of rows."""
    n = len(parents)
    dense = np.zeros((count, n, n))
    for group in [list(ancestors(parents, i)) for i in range(n)] + extra:
        rows = rng.normal(size=(count, 2, n)) * np.isin(np.arange(n), group)
        dense += np.einsum("cri,crj->cij", rows, rows)
    dense += 0.1 * np.eye(n)
    return dense, {(i, j): dense[:, i, j] for i in range(n) for j in range(i + 1) if np.any(dense[:, i, j])}


def test_a_tree_fills_nothing_in():
    entries = [(i, j) for i in range(len(BRANCHES)) for j in ancestors(BRANCHES, i)]
    rows = pattern(len(BRANCHES), entries)
    assert sum(map(len, rows)) == len(entries) - len(BRANCHES)


def test_entries_between_branches_fill_in_what_elimination_needs():
    rows = pattern(4, [(3, 0), (3, 1), (2, 0)])
    assert rows == [[], [0], [0], [0, 1]]


@pytest.mark.parametrize(
    ("parents", "extra"), [(CHAIN, []), (BRANCHES, []), (BRANCHES, [[3, 2, 5, 4]]), (BRANCHES, [[9, 8, 7, 6, 1, 0]])]
)
def test_solves_like_numpy(parents, extra):
    rng = np.random.default_rng(1)
    dense, sparse = random_matrix(parents, extra, rng, 20)
    right = rng.normal(size=(20, len(parents)))
    x = np.stack(solve(factorize(sparse, len(parents)), list(right.T)), axis=1)
    assert np.abs(x - np.linalg.solve(dense, right[..., None])[..., 0]).max() < 1e-9
    assert np.abs(np.stack(product(sparse, list(x.T)), axis=1) - right).max() < 1e-9


def test_the_pattern_leaves_out_zeros_of_the_trace():
    matrix = {(0, 0): 2.0, (1, 0): 0.0, (1, 1): 4.0}
    factor = factorize(matrix, 2)
    assert factor.rows == [[], []]
    assert solve(factor, [2.0, 8.0]) == [1.0, 2.0]
