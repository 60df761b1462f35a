"""`gymnasium.make("gpuenvs/<id>")` and SingleEnv."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import gpuenvs
from gpuenvs.adapters.single import SingleEnv
from gpuenvs.errors import ActionError, ConfigError
from tests.gpuenvs.test_custom_spec import BAD_REWARD, EXPLODE, SPEC, WALK

every_env = pytest.mark.parametrize("env_id", gpuenvs.ids())
# About spaces that are wide or not normalised, which Gymnasium's own environments have too.
ADVICE = ("we recommend using a symmetric", "is probably too", "render modes")


def check(env: gymnasium.Env) -> None:
    """Gymnasium's checker; a warning that is no mere advice counts as a failure too."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env)
    left = [str(w.message) for w in caught if not any(words in str(w.message) for words in ADVICE)]
    assert not left


@every_env
def test_gymnasiums_checker_passes(env_id: str) -> None:
    env = gymnasium.make(f"gpuenvs/{env_id}")
    check(env.unwrapped)
    env.close()
    env.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Hopper-v5"])
def test_the_checker_passes_in_plain_python(env_id: str) -> None:
    check(SingleEnv(env_id, python=True))


def test_the_checker_fails_a_wrong_environment() -> None:
    """The check above can fail: an environment that hands out live memory."""

    class Live(SingleEnv):
        def step(self, action: Any) -> Any:
            _, *rest = super().step(action)
            return self.batch.obs[0], *rest

    with pytest.raises(AssertionError, match="share"):
        check(Live("CartPole-v1"))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Reacher-v5"])
def test_it_does_what_row_0_of_a_batch_does(env_id: str) -> None:
    one = SingleEnv(env_id, max_episode_steps=20)
    with gpuenvs.make(env_id, 5, device="cpu", max_episode_steps=20) as batch:
        obs, _ = one.reset(seed=11)
        rows, _ = batch.reset(seed=11)
        np.testing.assert_array_equal(obs, rows[0])
        ends = 0
        for _ in range(50):
            action = one.action_space.sample()
            obs, reward, terminated, truncated, info = one.step(action)
            rows, *_ = batch.step(np.array([action] * 5))
            assert (reward, terminated, truncated) == (batch.reward[0], batch.terminated[0], batch.truncated[0])
            assert isinstance(reward, float) and isinstance(terminated, bool) and isinstance(truncated, bool)
            np.testing.assert_array_equal(obs, batch.info["final_obs"][0] if terminated or truncated else rows[0])
            assert info == {name: batch.info[name][0] for name in batch.spec.metrics}
            if terminated or truncated:
                obs, _ = one.reset()
                np.testing.assert_array_equal(obs, rows[0])
                ends += 1
        assert ends >= 2


def test_make_leaves_the_time_limit_to_its_wrapper() -> None:
    for limit, options in ((200, {}), (7, {"max_episode_steps": 7}), (300, {"max_episode_steps": 300})):
        env = gymnasium.make("gpuenvs/Pendulum-v1", **options)
        env.reset(seed=0)
        cuts = [env.step(np.zeros(1, np.float32))[3] for _ in range(limit)]
        assert cuts == [False] * (limit - 1) + [True]
    alone = SingleEnv("Pendulum-v1")
    alone.reset(seed=0)
    assert [alone.step(np.zeros(1, np.float32))[3] for _ in range(200)] == [False] * 199 + [True]


def test_metrics_and_bad_numbers_are_told() -> None:
    env = SingleEnv(SPEC)
    env.reset(seed=0)
    *_, info = env.step(WALK)
    assert info == {"distance": pytest.approx(0.1), "steps": 1.0}
    _, reward, terminated, _, info = env.step(BAD_REWARD)
    assert not np.isfinite(reward)
    assert not terminated
    _, reward, terminated, _, info = env.step(EXPLODE)
    assert (reward, terminated, info["nonfinite"]) == (0.0, True, True)


@pytest.mark.parametrize("python", [False, True])
def test_states_can_be_seen_and_set(python: bool) -> None:
    env = SingleEnv("Pendulum-v1", python=python, dtype="float64", g=0.0)
    obs, _ = env.reset(options={"state": (1.25, 0.0)})
    assert env.state == (1.25, 0.0)
    np.testing.assert_allclose(obs, [np.cos(1.25), np.sin(1.25), 0.0], atol=1e-12)
    env.step(np.zeros(1))
    assert env.state == (1.25, 0.0)  # without gravity it stays


def test_seeds() -> None:
    """A seed repeats; without one two environments differ, unless they were given one."""
    a, b = SingleEnv("Pendulum-v1"), SingleEnv("Pendulum-v1")
    assert (a.reset()[0] != b.reset()[0]).any()
    assert (a.reset(seed=3)[0] == b.reset(seed=3)[0]).all()
    assert (a.reset()[0] == b.reset()[0]).all()
    c, d = SingleEnv("Pendulum-v1", seed=4), SingleEnv("Pendulum-v1", seed=4)
    assert (c.reset()[0] == d.reset()[0]).all()


def test_what_cannot_be_is_one_clear_line() -> None:
    env = SingleEnv("CartPole-v1")
    with pytest.raises(ConfigError, match="before reset"):
        env.step(0)
    env.reset(seed=0)
    for wrong, words in ((2, "0..1"), (0.5, "int32"), (np.zeros(3, int), "shape")):
        with pytest.raises(ActionError, match=words):
            env.step(wrong)
    with pytest.raises(ConfigError, match="option state only"):
        env.reset(options={"low": 1})
    with pytest.raises(ConfigError, match="does not render"):
        gymnasium.make("gpuenvs/CartPole-v1", render_mode="human")
    with pytest.raises(ConfigError, match="runs on the CPU"):
        SingleEnv("CartPole-v1", python=True, device="cuda")


def test_both_of_gymnasiums_ways_from_one_id() -> None:
    single = gymnasium.make("gpuenvs/CartPole-v1")
    batch = gymnasium.make_vec("gpuenvs/CartPole-v1", num_envs=2)
    several = gymnasium.make_vec("gpuenvs/CartPole-v1", num_envs=2, vectorization_mode="sync")
    assert isinstance(single.unwrapped, SingleEnv)
    assert batch.reset(seed=0)[0].shape == several.reset(seed=0)[0].shape == (2, 4)
    for env in (single, batch, several):
        env.close()
