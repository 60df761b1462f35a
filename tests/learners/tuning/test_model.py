"""Knees and proposals, on hand-made measurements."""

import math

import pytest

from learners.tuning.knee import knee, saturated
from learners.tuning.model import (
    DEFAULT,
    Sampling,
    Training,
    Updating,
    most_rows,
    off_policy,
    on_policy,
)

PRESET = {"num_envs": 16, "num_steps": 1, "batch_size": 256, "update_to_data": 256.0, "total_steps": 10_000}


def test_the_knee_is_the_smallest_size_near_the_best():
    points = [(64, 50.0), (256, 91.0), (1024, 100.0), (4096, 99.0)]
    assert knee(points) == 256
    assert knee(points[::-1]) == 256
    assert knee(points, share=0.95) == 1024
    assert knee([(8, 3.0)]) == 8
    assert knee([(1, 100.0), (2, 10.0)]) == 1
    with pytest.raises(ValueError, match="point"):
        knee([])


def test_growth_that_has_ended():
    assert not saturated([(1, 1.0), (2, 2.0)])
    assert not saturated([(1, 1.0), (2, 2.0), (4, 4.0)])
    assert not saturated([(1, 1.0), (2, 2.0), (4, 2.05), (8, 2.2)])
    assert saturated([(1, 1.0), (2, 2.0), (4, 2.05), (8, 2.01)])


def test_the_ratio_balances_data_and_updates():
    """An update of 1 ms, a step of 10 us: sqrt(1/4 1 ms / 10 us) = 5 steps per update are best, 256 / 5 the ratio."""
    samplings = [Sampling(16, 1, 100_000.0)]
    default, found = off_policy(PRESET, samplings, [Updating(256, 256_000.0)])
    assert default.name == DEFAULT and default.settings == {}
    assert found.settings["update_to_data"] == 51.2
    assert found.settings.keys() == {"update_to_data", "total_steps"}
    # (1 + 1/4) (1 ms + 10 us) against (1 + 1/20) (1 ms + 50 us)
    assert found.speedup == pytest.approx(1.25 * 1.01 / (1.05 * 1.05), abs=1e-3)
    # 1.05 / 1.25 as many updates, each with five times as many steps
    assert found.settings["total_steps"] == 42_000


def test_slow_sampling_keeps_the_preset_s_ratio():
    """No less is ever learned from a step than the preset says can be, nor more."""
    assert off_policy(PRESET, [Sampling(16, 1, 100.0)], [Updating(256, 256_000.0)]) == [off_policy(PRESET, [], [])[0]]


def test_batches_pay_up_to_the_critical_one():
    samplings = [Sampling(16, 1, 1e9)]
    # Overhead alone: an update takes 1 ms whatever its size. 2 / 1 updates of 256 against (1 + 1/4) of 1024.
    found = off_policy(PRESET, samplings, [Updating(256, 256_000.0), Updating(1024, 1_024_000.0)])
    assert found[1].settings["batch_size"] == 1024
    # Work alone: frames per second are the same whatever the size.
    found = off_policy(PRESET, samplings, [Updating(s, 256_000.0) for s in (64, 256, 1024)])
    assert found[1].settings["batch_size"] == 64


def test_horizons_are_not_longer_than_weights_may_be_old():
    samplings = [Sampling(16, 1, 1e6), Sampling(1024, 1, 2e6), Sampling(4096, 4, 1e9)]
    assert most_rows(PRESET) == 16 * 8
    candidates = off_policy(PRESET, samplings, [Updating(256, 256_000.0)])
    for settings in [PRESET | candidate.settings for candidate in candidates]:
        steps = settings["batch_size"] / settings["update_to_data"]
        assert settings["num_envs"] * settings["num_steps"] <= 16 * steps * 1.01
    assert math.isinf(most_rows({**PRESET, "update_to_data": 0.0}))


def test_what_the_user_decided_stays():
    samplings = [Sampling(16, 1, 1e5), Sampling(64, 1, 1e6)]
    updates = [Updating(64, 3e5), Updating(256, 2e5)]
    fixed = {"num_envs", "batch_size", "total_steps"}
    for candidate in off_policy(PRESET, samplings, updates, fixed):
        assert not fixed & candidate.settings.keys()
    assert len(off_policy(PRESET, samplings, updates, {*fixed, "update_to_data"})) == 1
    free = off_policy({**PRESET, "update_to_data": 0.0}, samplings, updates)
    assert all("update_to_data" not in candidate.settings for candidate in free)


def test_on_policy_rows_must_bring_speed():
    preset = {"num_envs": 64, "num_steps": 64, "total_steps": 1000}
    speeds = [Training(64, 64, 100.0), Training(128, 64, 160.0), Training(512, 64, 400.0), Training(32, 64, 90.0)]
    default, *others = on_policy(preset, speeds)
    # Seconds: 2/100, 3/160, 9/400 and 1.5/90. The third is slower than the default: nobody tries it.
    assert [candidate.settings for candidate in others] == [{"num_envs": 32}, {"num_envs": 128}]
    assert [candidate.speedup for candidate in others] == pytest.approx([1.2, 1.067], abs=1e-3)
    assert on_policy(preset, speeds, {"num_envs"}) == [default]
