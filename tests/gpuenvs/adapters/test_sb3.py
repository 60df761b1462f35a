"""Stable-Baselines3 over a batch, beside its own DummyVecEnv."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gpuenvs
from gpuenvs.adapters.single import SingleEnv
from gpuenvs.errors import ConfigError
from tests.gpuenvs.sampling import mixed_actions
from tests.gpuenvs.test_custom_spec import SPEC

pytest.importorskip("stable_baselines3")

from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from gpuenvs.adapters.sb3 import SB3VecEnv

ROWS = 4


@pytest.mark.filterwarnings("ignore::UserWarning")  # advice about spaces that are not normalised
@pytest.mark.parametrize("env_id", gpuenvs.ids())
def test_its_checker_passes_one_environment(env_id: str) -> None:
    check_env(SingleEnv(env_id))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Hopper-v5"])
def test_same_as_a_dummy_vec_env(env_id: str) -> None:
    """Row k is the environment k of a DummyVecEnv of ours with Monitor: values, shapes, dtypes, infos of ended rows."""
    limit, rng = 9, np.random.default_rng(0)

    def one(row: int) -> Any:
        return lambda: Monitor(SingleEnv(env_id, env_offset=row, max_episode_steps=limit))

    theirs = DummyVecEnv([one(row) for row in range(ROWS)])
    ours = SB3VecEnv(env_id, ROWS, max_episode_steps=limit)
    theirs._seeds = [5] * ROWS
    ours.seed(5)
    expected, obs = theirs.reset(), ours.reset()
    np.testing.assert_array_equal(obs, expected)
    ends = 0
    for _ in range(40):
        action = mixed_actions(ours.batch.spec, rng, expected)
        expected, *true = theirs.step(action)
        obs, *mine = ours.step(action)
        for got, want in zip((obs, *mine[:2]), (expected, *true[:2])):
            np.testing.assert_array_equal(got, want)
            assert (got.dtype, got.shape, got.flags.c_contiguous) == (want.dtype, want.shape, True)
        for row, (info, true_info) in enumerate(zip(mine[2], true[2])):
            if not mine[1][row]:
                assert info == {}
                continue
            ends += 1
            np.testing.assert_array_equal(info["terminal_observation"], true_info["terminal_observation"])
            assert info["TimeLimit.truncated"] is true_info["TimeLimit.truncated"]
            assert info["episode"]["l"] == true_info["episode"]["l"]
            assert info["episode"]["r"] == pytest.approx(true_info["episode"]["r"], rel=1e-4, abs=1e-5)
    assert ends >= ROWS
    ours.close()
    theirs.close()


def test_arrays_are_safe_to_keep() -> None:
    env, rng = SB3VecEnv("CartPole-v1", ROWS, max_episode_steps=3), np.random.default_rng(1)
    kept, copies = [env.reset()], []
    copies.append(kept[0].copy())
    for _ in range(8):
        obs, reward, done, infos = env.step(rng.integers(0, 2, ROWS))
        new = [obs, reward, done, *(info["terminal_observation"] for info in infos if info)]
        kept += new
        copies += [array.copy() for array in new]
    assert len(kept) > 8 * 3 + ROWS
    for array, copy in zip(kept, copies):
        np.testing.assert_array_equal(array, copy)


def test_metrics_come_when_asked_for() -> None:
    env = SB3VecEnv(SPEC, 2, metrics=True, goal=np.array([1, 3]))
    env.reset()
    *_, infos = env.step(np.zeros(2, np.int64))
    assert infos[0]["steps"] == infos[1]["steps"] == 1.0
    assert infos[0]["distance"] == pytest.approx(0.1)
    assert infos[0]["TimeLimit.truncated"] is False
    assert "episode" not in infos[1]


def test_seeds() -> None:
    """seed() repeats, and only once; without one two batches differ."""
    a, b = SB3VecEnv("CartPole-v1", ROWS), SB3VecEnv("CartPole-v1", ROWS)
    assert (a.reset() != b.reset()).any()
    a.seed(3)
    b.seed(3)
    first = a.reset()
    np.testing.assert_array_equal(first, b.reset())
    assert (a.reset() != first).any()
    np.testing.assert_array_equal(
        SB3VecEnv("CartPole-v1", 2, seed=9).reset(), SB3VecEnv("CartPole-v1", 2, seed=9).reset()
    )


def test_what_a_vec_env_is_asked_about_itself() -> None:
    env = SB3VecEnv("CartPole-v1", ROWS)
    assert env.render_mode is None
    assert env.get_attr("num_envs", indices=[0, 2]) == [ROWS] * 2
    assert [p.masscart for p in env.get_attr("params")] == [1.0] * ROWS
    assert not env.has_attr("no_such_thing")
    assert env.env_is_wrapped(Monitor) == [True] * ROWS
    assert env.env_is_wrapped(VecMonitor, 1) == [False]
    with pytest.raises(ConfigError, match=r"venv\.batch"):
        env.set_attr("gravity", 1.0)
    with pytest.raises(ConfigError, match=r"venv\.batch"):
        env.env_method("reset")
    env.set_options({"low": 1})
    with pytest.raises(ConfigError, match="no options"):
        env.reset()
    with pytest.raises(ConfigError, match="autoreset"):
        SB3VecEnv("CartPole-v1", 2, autoreset="disabled")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small networks are slower on several threads, and much slower on a machine with other work to do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_ppo_learns(one_thread: None) -> None:
    """Its own statistics, which come from our infos, say so."""
    env = SB3VecEnv("CartPole-v1", 32)
    settings: dict[str, Any] = {"n_steps": 64, "batch_size": 512, "learning_rate": 1e-3, "gamma": 0.98}
    model = PPO("MlpPolicy", env, **settings, seed=0, device="cpu", verbose=0)
    model.learn(2048)
    first = np.mean([episode["r"] for episode in model.ep_info_buffer])
    model.learn(40_000)
    last = np.mean([episode["r"] for episode in model.ep_info_buffer])
    assert first < 60
    assert last > 150
    assert evaluate_policy(model, SB3VecEnv("CartPole-v1", 10, seed=1), 20)[0] > 200
    env.close()
