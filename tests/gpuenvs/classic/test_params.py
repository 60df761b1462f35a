"""Params carry Gymnasium's names and do there what they do here."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

import gpuenvs
from gpuenvs.classic import acrobot
from tests.gpuenvs.reference import batch_steps, float64_throughout, reference_env, reference_steps
from tests.gpuenvs.sampling import random_actions, sample_states

pi = np.pi
CAR = {"min_position": -1.0, "max_position": 0.55, "max_speed": 0.05, "goal_position": 0.3, "goal_velocity": 0.02}
CHANGED: dict[str, dict[str, float]] = {
    "CartPole-v1": {
        "gravity": 9.1, "masscart": 1.3, "masspole": 0.2, "length": 0.7, "force_mag": 8.0, "tau": 0.01,
        "theta_threshold_radians": 0.15, "x_threshold": 2.0,
    },
    "MountainCar-v0": {**CAR, "force": 0.002, "gravity": 0.003},
    "MountainCarContinuous-v0": {**CAR, "min_action": -0.5, "max_action": 0.7, "power": 0.002},
    "Pendulum-v1": {"max_speed": 7.0, "max_torque": 1.5, "dt": 0.03, "g": 9.0, "m": 1.2, "l": 0.8},
    "Acrobot-v1": {
        "dt": 0.1, "LINK_LENGTH_1": 1.1, "LINK_MASS_1": 0.9, "LINK_MASS_2": 1.2, "LINK_COM_POS_1": 0.4,
        "LINK_COM_POS_2": 0.6, "LINK_MOI": 1.1, "MAX_VEL_1": 3 * pi, "MAX_VEL_2": 8 * pi, "torque": 1.5,
    },
}  # fmt: skip
# What Gymnasium writes as a number in the middle of its step.
UNNAMED_THERE = {("MountainCarContinuous-v0", "gravity"), ("Acrobot-v1", "g")}
OPTIONS = [
    ("CartPole-v1", {"sutton_barto_reward": True}),
    ("MountainCar-v0", {"goal_velocity": 0.01}),
    ("MountainCarContinuous-v0", {"goal_velocity": 0.01}),
    ("Pendulum-v1", {"g": 9.81}),
]


def set_in_gymnasium(env: Any, name: str, value: float) -> None:
    if name == "torque":
        env.AVAIL_TORQUE = [-value, 0.0, value]
        return
    assert hasattr(env, name)
    setattr(env, name, value)
    if name in ("masscart", "masspole", "length"):
        env.total_mass = env.masspole + env.masscart
        env.polemass_length = env.masspole * env.length


def compare(env_id: str, env: Any, **params: Any) -> tuple[np.ndarray, np.ndarray]:
    """Check one float64 step with `params` against Gymnasium's `env`; our (state, reward and flag) with and without."""
    spec, rng = gpuenvs.get(env_id), np.random.default_rng(3)
    state, action = sample_states(spec, rng, 400), random_actions(spec, rng, 400)
    with float64_throughout(env):
        expected = reference_steps(spec, env, state, action)
    got = batch_steps(spec, state, action, "float64", **params)
    np.testing.assert_array_equal(got.terminated, expected.terminated)
    for name in ("state", "obs", "reward"):
        true = getattr(expected, name)
        scale = np.abs(true).max() + 1e-300
        np.testing.assert_allclose(getattr(got, name) / scale, true / scale, rtol=0, atol=1e-12)
    plain = batch_steps(spec, state, action, "float64")
    merged = [np.concatenate([s.state, s.reward[:, None], s.terminated[:, None]], axis=1) for s in (got, plain)]
    return merged[0], merged[1]


@pytest.mark.parametrize(("env_id", "name"), [(env_id, name) for env_id, table in CHANGED.items() for name in table])
def test_each_param_acts_as_in_gymnasium(env_id: str, name: str) -> None:
    env = reference_env(gpuenvs.get(env_id))
    set_in_gymnasium(env, name, CHANGED[env_id][name])
    changed, plain = compare(env_id, env, **{name: CHANGED[env_id][name]})
    assert not np.array_equal(changed, plain)


@pytest.mark.parametrize(("env_id", "name"), sorted(UNNAMED_THERE))
def test_params_without_a_name_in_gymnasium_act(env_id: str, name: str) -> None:
    spec, rng = gpuenvs.get(env_id), np.random.default_rng(3)
    state, action = sample_states(spec, rng, 100), random_actions(spec, rng, 100)
    plain = batch_steps(spec, state, action, "float64").state
    heavier = batch_steps(spec, state, action, "float64", **{name: 1.1 * getattr(spec.params, name)}).state
    assert not np.array_equal(plain, heavier)


def test_the_table_names_every_param_of_a_step() -> None:
    for env_id, table in CHANGED.items():
        known = {name for name in gpuenvs.get(env_id).params._fields if not name.startswith("reset_")}
        rest = known - set(table) - {name for env, name in UNNAMED_THERE if env == env_id}
        assert rest <= {"sutton_barto_reward", "book_or_nips"}


@pytest.mark.parametrize(("env_id", "options"), OPTIONS)
def test_constructor_options(env_id: str, options: dict[str, Any]) -> None:
    """What Gymnasium's constructor takes, `gpuenvs.make` takes under the same name."""
    env = gymnasium.make(env_id, disable_env_checker=True, **options).unwrapped
    env.reset(seed=0)
    changed, plain = compare(env_id, env, **options)
    assert not np.array_equal(changed, plain)


def test_acrobot_with_the_equations_of_the_paper() -> None:
    env = reference_env(gpuenvs.get("Acrobot-v1"))
    env.book_or_nips = "nips"
    changed, plain = compare("Acrobot-v1", env, book_or_nips=1)
    assert not np.array_equal(changed, plain)


@pytest.mark.parametrize(
    ("env_id", "params", "field", "low", "high"),
    [
        ("CartPole-v1", {"reset_bound": 0.2}, "theta", -0.2, 0.2),
        ("MountainCar-v0", {"reset_low": -1.0, "reset_high": 0.2}, "position", -1.0, 0.2),
        ("MountainCarContinuous-v0", {"reset_low": -0.9, "reset_high": -0.8}, "position", -0.9, -0.8),
        ("Pendulum-v1", {"reset_theta": 0.5}, "theta", -0.5, 0.5),
        ("Pendulum-v1", {"reset_theta_dot": 3.0}, "theta_dot", -3.0, 3.0),
        ("Acrobot-v1", {"reset_bound": 0.3}, "theta2", -0.3, 0.3),
    ],
)
def test_reset_bounds(env_id: str, params: dict[str, float], field: str, low: float, high: float) -> None:
    with gpuenvs.make(env_id, 2000, device="cpu", dtype="float64", **params) as env:
        env.reset(seed=0)
        values = getattr(env.get_state(), field)
    margin = 0.01 * (high - low)
    assert low <= values.min() < low + margin
    assert high - margin < values.max() <= high


def test_acrobot_wraps_as_gymnasium_does() -> None:
    """Whole turns only, both ends of [-pi, pi] left alone."""
    from gymnasium.envs.classic_control.acrobot import wrap

    rng = np.random.default_rng(0)
    ends = [s * np.nextafter(pi, target) for s in (-1, 1) for target in (0.0, pi, 4.0)]
    for angle in [*ends, 0.0, *rng.uniform(-40.0, 40.0, 500)]:
        assert acrobot._wrap(angle) == pytest.approx(wrap(angle, -pi, pi), abs=2e-14)
    assert acrobot._wrap(pi) == pi
    assert acrobot._wrap(-pi) == -pi
