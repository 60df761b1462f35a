"""`--schedule auto`: which schedule a short trial leads to."""

import pytest

from gpuenvs.errors import ConfigError, DeviceError
from learners.build import resolve
from learners.schedule_choice import candidates, choose
from tests.learners.tiny import tiny_config


def config():
    return tiny_config(schedule="hts")


def speeds(**found):
    def trial(candidate):
        name = "cores" if candidate.schedule_settings.get("sampler_cores") else candidate.schedule
        speed = found[name]
        if isinstance(speed, Exception):
            raise speed
        return speed

    return trial


def test_the_faster_one_is_taken_and_all_are_named():
    chosen, lines = choose(config(), speeds(sync=100.0, hts=150.0, cores=120.0))
    assert chosen.schedule == "hts" and chosen.schedule_settings["sampler_cores"] == 0
    assert lines[0] == "schedule hts: 1.50 times as fast as sync in a short trial"
    assert [line.split()[0] for line in lines[1:]] == ["sync", "hts", "hts,"][: len(lines) - 1]


def test_a_small_gain_is_not_worth_older_rows():
    chosen, lines = choose(config(), speeds(sync=100.0, hts=103.0, cores=90.0))
    assert chosen.schedule == "sync" and chosen.schedule_settings == {}
    assert "nothing is faster enough" in lines[0]


def test_what_fails_is_left_out():
    chosen, lines = choose(config(), speeds(sync=100.0, hts=ConfigError("no"), cores=ConfigError("no")))
    assert chosen.schedule == "sync" and "failed: no" in lines[2]
    with pytest.raises(DeviceError, match="gone"):
        choose(config(), speeds(sync=DeviceError("gone"), hts=1.0, cores=1.0))


def test_what_was_asked_for_is_kept():
    asked = tiny_config(schedule="hts", overrides=["correction=delayed", "overlap=false"])
    assert all(c.schedule_settings.get("correction", "delayed") == "delayed" for _, c in candidates(asked))


def test_resolve_measures():
    lines = []
    found = resolve(
        "CartPole-v1", schedule="auto", device="cpu", num_envs=8, total_steps=1000, say=lines.append,
        overrides=["engine=torch", "collector=eager", "num_steps=8", "minibatches=1", "epochs=1", "correction=vtrace"],
    )  # fmt: skip
    assert found.schedule in ("sync", "hts") and any(line.startswith("schedule ") for line in lines)
    assert found.schedule == "sync" or found.schedule_settings["correction"] == "vtrace"
