"""Settings: parsing, ranges, near names, one line per error."""

import dataclasses

import pytest

from gpuenvs.errors import ConfigError
from learners.a2c import A2CConfig
from learners.config import make_config, option, options, parse_overrides, to_dict
from learners.ppo import PPOConfig


def error_of(call, *args):
    with pytest.raises(ConfigError) as caught:
        call(*args)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 400
    return message


def test_values_come_out_typed():
    values = parse_overrides(
        PPOConfig,
        ["num_envs=1e3", "total-steps=1_000", "gamma=1", "norm_obs=yes", "hidden_sizes=32x16", "activation=relu"],
    )
    assert values == {
        "num_envs": 1000,
        "total_steps": 1000,
        "gamma": 1.0,
        "norm_obs": True,
        "hidden_sizes": (32, 16),
        "activation": "relu",
    }
    assert type(values["num_envs"]) is int and type(values["gamma"]) is float


def test_the_last_of_a_repeated_name_wins():
    assert parse_overrides(PPOConfig, ["epochs=2", "epochs=3"]) == {"epochs": 3}


@pytest.mark.parametrize(
    "item, words",
    [
        ("num_envs=0", ["num_envs=0", "an integer >= 1"]),
        ("num_steps=-4", ["num_steps=-4", "an integer >= 1"]),
        ("num_envs=2.5", ["num_envs=2.5", "an integer"]),
        ("gamma=1.5", ["gamma=1.5", ">= 0 and <= 1"]),
        ("gamma=nan", ["gamma=nan"]),
        ("learning_rate=0", ["learning_rate", "> 0"]),
        ("learning_rate=inf", ["learning_rate=inf"]),
        ("norm_obs=maybe", ["norm_obs=maybe", "true or false"]),
        ("hidden_sizes=64,0", ["hidden_sizes=64,0", ">= 1"]),
        ("hidden_sizes=a", ["integers joined by commas"]),
        ("activation=gelu", ["one of tanh, relu"]),
        ("learnin_rate=1", ["no setting 'learnin_rate'", "learning_rate"]),
        ("zzz=1", ["no setting 'zzz'", "num_envs"]),
        ("epochs", ["name=value"]),
    ],
)
def test_bad_settings_are_refused_in_one_line(item, words):
    message = error_of(parse_overrides, PPOConfig, [item])
    assert all(word in message for word in words), message


@pytest.mark.parametrize("config", [PPOConfig, A2CConfig])
def test_every_field_has_help_and_survives_a_round_trip(config):
    assert all(opt.help for opt in options(config).values())
    made = make_config(config, {"hidden_sizes": [8, 8], "num_envs": 3})
    assert made.hidden_sizes == (8, 8)
    assert make_config(config, to_dict(made)) == made


def test_a_config_made_in_code_is_checked_too():
    assert "num_envs=0" in error_of(lambda: PPOConfig(num_envs=0))
    assert "num_envs=True" in error_of(lambda: PPOConfig(num_envs=True))
    assert "minibatches=9" in error_of(lambda: PPOConfig(num_envs=2, num_steps=4, minibatches=9))
    assert type(PPOConfig(gamma=1).gamma) is float


def test_configs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PPOConfig().gamma = 0.5


def test_exclusive_bounds():
    @dataclasses.dataclass(frozen=True)
    class Config:
        x: float = option(0.5, "x", gt=0, lt=1)

    assert parse_overrides(Config, ["x=0.999"]) == {"x": 0.999}
    assert "> 0 and < 1" in error_of(parse_overrides, Config, ["x=1"])
    assert "> 0 and < 1" in error_of(parse_overrides, Config, ["x=0"])
