"""What updates draw: uniform, repeatable, and the same whoever asks first."""

import numpy as np
import pytest
import torch

from learners import draws


def draw(committed=20, visible=16, num_envs=3, steps=20, seed=1, update=2, count=1000):
    return draws.indices(committed, visible, num_envs, steps, seed, update, count)


def test_every_row_that_can_be_seen_is_drawn_equally_often_and_no_other():
    rows = draw(committed=46, count=480_000)
    assert rows.dtype is torch.int64
    counts = torch.bincount(rows, minlength=60).view(20, 3)
    slots = {(46 - 16 + k) % 20 for k in range(16)}
    assert {slot for slot in range(20) if counts[slot].sum()} == slots
    seen = counts[sorted(slots)].flatten().double()
    chi2 = float(((seen - 10_000) ** 2 / 10_000).sum())
    assert chi2 < 47 + 5 * np.sqrt(2 * 47)  # 47 degrees of freedom
    pairs = torch.bincount((rows[:-1] % 3) * 3 + rows[1:] % 3).double()  # neighbours do not know of each other
    assert (pairs / pairs.mean() - 1).abs().max() < 0.03


def test_a_function_of_its_arguments_alone():
    assert torch.equal(draw(), draw())
    assert torch.equal(draw(count=999), draw()[:999])
    for other in (draw(seed=2), draw(update=3), draw(update=2 + 2**32), draw(seed=1 + 2**40)):
        assert not torch.equal(other, draw()) and (other == draw()).float().mean() < 0.1


def test_the_oldest_row_moves_with_what_is_committed():
    """The same numbers fall on rows that are as far from the newest."""
    first, later = draw(committed=20), draw(committed=27)
    assert torch.equal((first + 7 * 3) % 60, later)
    assert draw(committed=4).max() < 12  # fewer are there than could be seen


def test_a_single_row_and_a_range_of_nearly_two_to_the_32():
    assert (draw(committed=1, num_envs=1) == 0).all()
    wide = draws.indices(2**20, 2**20, 4095, 2**20, 0, 0, 10_000)
    assert wide.min() >= 0 and wide.max() < 2**20 * 4095
    assert (wide.double() / (2**20 * 4095)).mean() == pytest.approx(0.5, abs=0.02)
    for nothing in ({"committed": 0}, {"num_envs": 2**29}):
        with pytest.raises(ValueError, match="cannot draw from"):
            draw(**nothing)


def test_normal_numbers_are_normal_and_belong_to_update_stream_and_row():
    first = draws.normals(3, 7, 0, 4000, 5)
    assert first.shape == (4000, 5) and first.mean().item() == pytest.approx(0, abs=0.03)
    assert first.std().item() == pytest.approx(1, abs=0.03)
    assert torch.equal(draws.normals(3, 7, 0, 100, 5), first[:100])
    for other in ((3, 7, 1), (3, 8, 0), (4, 7, 0)):
        numbers = draws.normals(*other, 4000, 5)
        assert abs(float((numbers * first).mean())) < 0.05
