"""Threads that meet in compiled code."""

import threading

import numba
import numpy as np
import pytest

from learners.native.barrier import make_counter, meet


@numba.njit(nogil=True)
def _rounds(counter, threads, thread, rounds, written, wrong):
    """Each round every thread writes its place and then looks whether all others have written theirs."""
    meetings = 0
    for k in range(1, rounds + 1):
        written[thread * 16] = k
        meetings = meet(counter, threads, meetings)
        for other in range(threads):
            if written[other * 16] != k:
                wrong[thread] += 1
        meetings = meet(counter, threads, meetings)
    return meetings


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_nobody_goes_on_before_all_have_come(threads):
    rounds, counter = 2000, make_counter()
    written, wrong = np.zeros(16 * threads, np.int64), np.zeros(threads, np.int64)
    _rounds(make_counter(), 1, 0, 0, written, wrong)
    jobs = [
        threading.Thread(target=_rounds, args=(counter, threads, k, rounds, written, wrong)) for k in range(threads)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(60)
        assert not job.is_alive()
    assert not wrong.any()
    assert counter[0] == (0 if threads == 1 else 2 * rounds * threads)
