"""Random numbers in the kernels' PTX: the bits exactly, and the numbers made of them."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tests.ladder import offline
from tests.ladder.test_simulator import numbers_on_cpu
from tests.ptx.backend import ARCHITECTURE, Allocations, array_arguments
from tests.ptx.machine import Program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the CUDA compiler wheels are for Linux")


def random_numbers_ptx() -> str:
    from numba import cuda, types

    from tests.ladder.simulated import random_numbers

    kinds = (types.uint32, 2), (types.uint32, 1), (types.float32, 2), (types.float64, 2)
    signature = types.void(*(types.Array(kind, ndim, "C") for kind, ndim in kinds))
    with offline.device_stub(ARCHITECTURE):
        text, _ = cuda.compile(  # type: ignore[attr-defined]
            random_numbers.py_func,
            signature,
            cc=offline.capability(ARCHITECTURE),
            device=False,
            abi="numba",
            output="ptx",
        )
    return text


def test_random_numbers_agree():
    rng = np.random.default_rng(0)
    coordinates = rng.integers(0, 2**32, (1000, 5)).astype(np.uint32)
    coordinates[::2, 4] %= 9  # the draws that environments make
    coordinates[:40, :4] = rng.choice(np.array([0, 1, 2**31, 2**32 - 1], np.uint32), (40, 4))
    n = len(coordinates)
    found = np.zeros(n, np.uint32), np.zeros((n, 2), np.float32), np.zeros((n, 2))
    expected = tuple(array.copy() for array in found)
    memory = Allocations()
    arguments = [v for a in (coordinates, *found) for v in array_arguments(int(memory.address(a)), a)]
    statistics = Program(random_numbers_ptx()).launch(memory, -(-n // 128), 128, arguments)
    numbers_on_cpu(coordinates, *expected)
    assert np.array_equal(found[0], expected[0])
    for k, tolerance in ((1, 2e-6), (2, 4e-15)):
        assert np.array_equal(found[k][:, 0], expected[k][:, 0])  # uniform: scaling by powers of two is exact
        np.testing.assert_allclose(found[k][:, 1], expected[k][:, 1], rtol=tolerance, atol=tolerance)
    assert not statistics.inexact
