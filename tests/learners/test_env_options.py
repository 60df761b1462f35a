"""What `--set env.NAME=VALUE` means for a training, and what of it an evaluation uses."""

from __future__ import annotations

import pytest

import gpuenvs
from gpuenvs.errors import ConfigError
from learners.env_options import for_evaluation, option_value, parse
from tests.gpuenvs.ranged import SPECS

SPEC = SPECS["compiled"]
CARTPOLE = gpuenvs.get("CartPole-v1")


def test_numbers_and_ranges_are_told_apart():
    given = ["env.gain=2", "env.rate=1e-1", "env.offset=0.5..1.5:episode", "env.life=2 .. 4", "env.max_episode_steps=7"]
    assert parse(SPEC, given) == {
        "gain": 2.0, "rate": 0.1, "offset": "0.5..1.5:episode", "life": "2..4", "max_episode_steps": 7,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("env.gain", "write it as env.name=value"),
        ("env.gain=fast", "neither a number nor a range"),
        ("env.gain=2..1", "low <= high"),
        ("env.gain=1..2:day", "resample must be one of"),
        ("env.life=0.5..2", "whole numbers"),
        ("env.gian=1..2", "did you mean gain"),
    ],
)
def test_what_does_not_fit_is_refused(item, words):
    with pytest.raises(ConfigError, match=words):
        parse(SPEC, [item])


def test_an_evaluation_draws_nothing_unless_told():
    """Neither what the spec draws nor what the training was told to draw; numbers stay."""
    assert for_evaluation(SPEC, {}) == {"gain": 1.0, "offset": 0.0, "life": 4}
    assert for_evaluation(SPEC, {"gain": 3.0, "rate": "0.1..0.2"}) == {"gain": 3.0, "offset": 0.0, "life": 4}
    told = for_evaluation(SPEC, {"gain": "2..3"}, {"gain": "0..1", "rate": 0.3})
    assert told == {"gain": "0..1", "rate": 0.3, "offset": 0.0, "life": 4}
    assert for_evaluation(CARTPOLE, {"gravity": "9..10", "length": 0.7}) == {"length": 0.7}
    with gpuenvs.make(SPEC, 3, device="cpu", **for_evaluation(SPEC, {"rate": "1..2"})) as env:
        assert env.params == SPEC.params
        assert isinstance(env.get_params().gain, float)


def test_options_stay_options():
    assert [option_value(text) for text in ("true", "none", "3", "0.3,1", "a.xml")] == [
        True,
        None,
        3,
        [0.3, 1],
        "a.xml",
    ]
