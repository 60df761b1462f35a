"""The checker finds what is planted: every wait is left out once, buffers are overwritten early, devices mixed up."""

from __future__ import annotations

import sys

import pytest

from learners import transfer as transfers
from learners.devices import CudaRuntime
from tests.protocol.runs import CASES, COPYING, loop, recorder

# Harder on the events than any real schedule: one horizon is under way while the next is collected, weights are refreshed
# only now and then, and once loaded anew.
STRESS = {"algo": "a2c", "iterations": 8, "lag": 1, "publish": lambda k: int(k in (3, 7)), "reload": 6}
# Weights refreshed all the time, and twice in a row: here other waits matter.
STEADY = {"algo": "a2c", "iterations": 4, "lag": 1, "publish": lambda k: 2}


class Forgetful(CudaRuntime):
    """Leaves out the waits of one place in the code. A place is a function, a line and which of several events."""

    def __init__(self, place=None):
        self.forgotten, self.places = place, []

    def _forgets(self, event):
        frame = sys._getframe(2)
        events = frame.f_locals.get("after")
        which = next((k for k, e in enumerate(events) if e is event), 0) if isinstance(events, list) else 0
        place = frame.f_code.co_qualname, frame.f_lineno, which
        if place not in self.places:
            self.places.append(place)
        return place == self.forgotten

    def wait(self, stream, event):
        if not self._forgets(event):
            super().wait(stream, event)

    def finish(self, event):
        if not self._forgets(event):
            super().finish(event)


def violations(case, runtime=None, **options):
    with recorder(case) as machine:
        loop(machine, case, runtime=runtime, **options)
    return machine.checker.violations


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("drive", [STRESS, {"lag": 0, "iterations": 3}], ids=["stress", "lag 0"])
def test_as_written_nothing_races(case, drive):
    assert violations(case, **drive) == []


def test_no_wait_can_be_left_out():
    found: dict[tuple[str, int, int], bool] = {}
    for case in COPYING:
        for drive in (STRESS, STEADY):
            runtime = Forgetful()
            assert violations(case, runtime, **drive) == []
            for place in runtime.places:
                if not found.get(place) and place[0] != "finish":
                    found[place] = any("race" in v for v in violations(case, Forgetful(place), **drive))
    assert len(found) >= 10
    assert [place for place, caught in found.items() if not caught] == []


@pytest.mark.parametrize("case", COPYING)
def test_a_missing_wait_is_a_race(case, monkeypatch):
    """The learner reads its chunk without waiting for what was sent."""
    monkeypatch.setattr(transfers.Slots, "receive", lambda self: self._learner_side[self._received % transfers.SLOTS])
    found = violations(case, lag=0, iterations=1)
    assert any("race" in line for line in found), found


@pytest.mark.parametrize("case", COPYING)
def test_an_early_overwrite_is_a_race(case, monkeypatch):
    """The learner calls its chunk free before it has read it."""
    receive = transfers.Slots.receive

    def hasty(self):
        rollout = receive(self)
        self._runtime.record(self._consumed[self._received % transfers.SLOTS], self._learner_stream)
        return rollout

    monkeypatch.setattr(transfers.Slots, "receive", hasty)
    monkeypatch.setattr(transfers.Slots, "release", lambda self: setattr(self, "_received", self._received + 1))
    found = violations(case, **STRESS)
    assert any("race" in line and "writes" in line for line in found), found


@pytest.mark.parametrize("case", ["peer", "staged", "remote", "pinned"])
def test_a_read_on_the_wrong_device_is_found(case):
    """The collector acts with the learner's own weights."""

    def spoil(algo, transfer):
        transfer.policy = algo.policy

    with recorder(case) as machine:
        loop(machine, case, spoil=spoil)
    assert any("wrong device" in line for line in machine.checker.violations)


def test_writing_over_a_link_that_nobody_opened_is_found(monkeypatch):
    monkeypatch.setattr(CudaRuntime, "open_link", lambda self, device, owner: None)
    found = violations("remote", iterations=1)
    assert any("wrong device" in line and "memory of cuda:1" in line for line in found)


def test_environments_on_another_stream_than_torch_are_found(monkeypatch):
    """An environment launches on cupy's current stream; forgetting to set it is a race with the policy."""
    import contextlib

    from learners import collector
    from learners.devices import cuda
    from learners.transfer import Alias

    monkeypatch.setattr(collector, "on_torch_stream", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(Alias, "collecting", lambda self: CudaRuntime().use(CudaRuntime().stream(cuda(0))))
    found = violations("alias", iterations=1)
    assert any("race" in line and "env step" in line for line in found), found
