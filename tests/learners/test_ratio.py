"""The update-to-data ratio: who waits when, over any window, and after a resume."""

from __future__ import annotations

import random

import pytest

from learners.ratio import Ratio


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def simulate(ratio, clock, seconds, collect_seconds, learn_seconds, log):
    """Sampler and learner as two event streams of given durations; each waits while the ratio says so."""
    jobs = {"collect": None, "learn": None}
    end = clock.now + seconds
    while clock.now < end:
        if jobs["collect"] is None and ratio.may_collect():
            jobs["collect"] = clock.now + collect_seconds()
        if jobs["learn"] is None and ratio.may_learn():
            jobs["learn"] = clock.now + learn_seconds()
        name, when = min(((k, v) for k, v in jobs.items() if v is not None), key=lambda job: job[1])
        clock.now, jobs[name] = when, None
        if name == "collect":
            ratio.collected(ratio.rows)
        else:
            ratio.learned()
        log.append((clock.now, ratio.steps, ratio.frames))


def worst_window(log, seconds, target):
    """The largest relative distance from the target over all windows of so many seconds."""
    worst, first = 0.0, 0
    for now, steps, frames in log:
        while log[first][0] < now - seconds:
            first += 1
        then, old_steps, old_frames = log[first]
        if now - then >= 0.95 * seconds and steps > old_steps:
            worst = max(worst, abs((frames - old_frames) / (steps - old_steps) / target - 1))
    return worst


@pytest.mark.parametrize(
    ("collect", "learn"), [(1e-4, 8e-3), (4e-2, 1e-3), (4e-3, 1e-3)], ids=["learner", "sampler", "even"]
)
def test_the_ratio_holds_over_any_ten_seconds_whoever_is_slow(collect, learn):
    clock, random_ = Clock(), random.Random(1)
    ratio, log = Ratio(256, rows=16, batch=1024, clock=clock), []
    simulate(ratio, clock, 60, lambda: collect * random_.uniform(0.2, 1.8), lambda: learn * random_.expovariate(1), log)
    assert worst_window(log, 10, 256) < 0.02
    assert all(0 <= 256 * steps - frames <= 2 * 256 * 16 + 1024 for _, steps, frames in log)


def test_a_resume_goes_on_without_a_burst():
    clock = Clock()
    ratio, log = Ratio(64, rows=64, batch=256, clock=clock), []
    simulate(ratio, clock, 30, lambda: 1e-3, lambda: 5e-3, log)
    clock.now += 3600
    resumed = Ratio(64, rows=64, batch=256, clock=clock)
    resumed.load_state_dict(ratio.state_dict())
    assert resumed.owed == ratio.owed
    again = []
    simulate(resumed, clock, 12, lambda: 1e-3, lambda: 5e-3, again)
    assert worst_window(again, 10, 64) < 0.02
    # A loop that counted time or steps from zero would owe an hour of updates now.
    assert all(abs(64 * steps - frames) <= 2 * 64 * 64 + 256 for _, steps, frames in again)


def test_nobody_learns_from_nothing_and_nobody_collects_for_ever():
    ratio = Ratio(2, rows=100, batch=50)
    assert not ratio.may_learn() and ratio.may_collect()
    ratio.collected(100)
    assert ratio.owed == 200 and ratio.updates_owed == 4 and ratio.may_collect()
    ratio.collected(100)
    assert not ratio.may_collect()
    for _ in range(8):
        assert ratio.may_learn()
        ratio.learned()
    assert not ratio.may_learn() and ratio.owed == 0


def test_a_batch_larger_than_a_horizon_is_worth_does_not_lock_up():
    ratio = Ratio(1, rows=16, batch=32768)
    for _ in range(32768 // 16):
        assert ratio.may_collect()
        ratio.collected(16)
    assert ratio.may_learn()


def test_zero_lets_both_run_free():
    ratio = Ratio(0, rows=10, batch=10)
    assert not ratio.may_learn()
    ratio.collected(10)
    ratio.learned(100)
    assert ratio.may_learn() and ratio.may_collect()


def test_rates_are_those_of_the_last_seconds():
    clock = Clock()
    ratio = Ratio(4, rows=100, batch=50, clock=clock)
    assert ratio.measured() == {}
    for second in range(1, 31):
        ratio.collected(100 if second <= 15 else 200)
        ratio.learned(8 if second <= 15 else 16)
        clock.now = float(second)
        found = ratio.measured()
    assert found == {"sampling_hz": 200.0, "update_frames_hz": 800.0, "update_to_data": 4.0}
