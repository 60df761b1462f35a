"""Where the arrays of a batch on the CPU lie."""

import numpy as np
import pytest

import gpuenvs
from gpuenvs.runtime.cpu import aligned_zeros

LINE, PAGE = 64, 4096


def lines(arrays):
    """The line of its page in which each array begins."""
    return [array.ctypes.data // LINE % (PAGE // LINE) for array in arrays]


@pytest.mark.parametrize("num_envs", [PAGE // 4, 65_536])
def test_large_buffers_of_a_batch_begin_at_different_lines_of_a_page(num_envs):
    with gpuenvs.make("Pendulum-v1", num_envs, device="cpu") as env:
        arrays = [array for array in env.arrays.values() if array.nbytes >= PAGE]
        assert len(arrays) > 5
        assert all(array.ctypes.data % LINE == 0 and array.flags.c_contiguous for array in arrays)
        assert len(set(lines(arrays))) == len(arrays)


@pytest.mark.parametrize("size", [1, 1023, 1024, 50_000])
@pytest.mark.parametrize("number", [0, 1, 63, 64])
def test_an_array_is_aligned_whole_and_zero_wherever_it_begins(size, number):
    array = aligned_zeros((2, size), np.dtype(np.float32), number)
    assert array.shape == (2, size) and array.dtype == np.float32 and array.ctypes.data % LINE == 0
    assert not array.any()
    array[:] = 1  # to the last element
    if array.nbytes >= PAGE:
        assert lines([array]) == [5 * number % 64]
