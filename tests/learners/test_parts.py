"""Threads that work when their turn has come: order, pause, errors, and that waiting costs nothing."""

from __future__ import annotations

import threading
import time
import traceback

import pytest

from learners.parts import Part, Parts


class Pair:
    """A maker and a taker with one counter between them; the maker may be `ahead` items ahead."""

    def __init__(self, ahead=3, limit=50, work=lambda name, number: None):
        self.ahead, self.limit, self._work = ahead, limit, work
        self.made = self.taken = self.most = 0
        self.parts = Parts(
            [
                Part("maker", self._may_make, lambda: self.made, lambda n: work("maker", n), self._made),
                Part(
                    "taker", lambda: self.taken < self.made, lambda: self.taken, lambda n: work("taker", n), self._taken
                ),
            ]
        )

    def _may_make(self):
        return self.made < self.limit and self.made - self.taken < self.ahead

    def _made(self, _):
        self.made += 1
        self.most = max(self.most, self.made - self.taken)

    def _taken(self, _):
        self.taken += 1


@pytest.fixture
def pairs():
    made = []

    def make(**options):
        made.append(Pair(**options))
        return made[-1]

    yield make
    for pair in made:
        pair.parts.close()
    assert not [thread for thread in threading.enumerate() if thread.name in ("gpurl-maker", "gpurl-taker")]


def test_all_is_done_and_nobody_gets_further_ahead_than_allowed(pairs):
    pair = pairs()
    pair.parts.wait(lambda: pair.taken == 50, 10)
    assert (pair.made, pair.taken) == (50, 50)
    assert pair.most == 3


def test_an_error_of_either_ends_both_and_keeps_its_traceback(pairs):
    def work(name, number):
        if name == "taker" and number == 7:
            raise ValueError("seven")

    pair = pairs(work=work)
    with pytest.raises(ValueError, match="seven") as caught:
        pair.parts.wait(lambda: pair.taken == 50, 10)
    assert (
        "work(name, number)" in "".join(traceback.format_tb(caught.value.__traceback__))
        or caught.traceback[-1].name == "work"
    )
    assert pair.taken == 7
    with pytest.raises(ValueError, match="seven"), pair.parts.paused():
        pass


def test_nothing_is_under_way_in_a_pause_and_all_goes_on_after_it(pairs):
    at_work = []

    def work(name, number):
        at_work.append(name)
        time.sleep(0.002)
        at_work.remove(name)

    pair = pairs(limit=10**9, work=work)
    pair.parts.wait(lambda: pair.taken >= 5, 10)
    with pair.parts.paused():
        before = pair.made, pair.taken
        assert not at_work
        time.sleep(0.03)
        assert (pair.made, pair.taken) == before
    pair.parts.wait(lambda: pair.taken >= before[1] + 5, 10)
    assert pair.taken >= before[1] + 5


def test_a_waiting_part_uses_no_processor(pairs):
    pair = pairs(limit=5)
    pair.parts.wait(lambda: pair.taken == 5, 10)
    began = time.process_time()
    pair.parts.wait(lambda: False, 0.5)
    assert time.process_time() - began < 0.05  # a loop that polls would take all of the half second


def test_busy_is_the_share_of_time_at_work(pairs):
    def work(name, number):
        if name == "taker":
            time.sleep(0.02)

    pair = pairs(limit=10**9, work=work)
    pair.parts.wait(lambda: pair.taken >= 2, 10)
    pair.parts.busy()
    pair.parts.wait(lambda: pair.taken >= 22, 10)
    busy = pair.parts.busy()
    assert busy["taker_busy"] > 0.7
    assert busy["maker_busy"] < 0.3
