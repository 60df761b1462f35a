"""The synchronous schedule on real environments: determinism, resume, and that it learns."""

import numpy as np
import pytest
import torch

import gpuenvs
from gpuenvs.errors import ConfigError
from learners.compat import algorithm
from learners.schedules.sync import SyncSchedule

SETTINGS = {
    ("CartPole-v1", "ppo"): {"norm_obs": True, "norm_reward": True, "ent_coef": 0.01, "target_kl": 0.02},
    ("CartPole-v1", "a2c"): {"norm_obs": True},
    ("Pendulum-v1", "ppo"): {"norm_obs": True, "noise_correlation": 0.5},
    ("Pendulum-v1", "a2c"): {"norm_reward": True},
}


def schedule(env_id="CartPole-v1", algo="ppo", seed=0, threads=1, num_envs=128, **settings):
    cls = algorithm(algo)
    extra = {"engine": "torch"} | ({"epochs": 2} if algo == "ppo" else {})
    config = cls.config_class(
        **{"num_envs": num_envs, "num_steps": 16, "total_steps": 50_000, **extra, **SETTINGS[env_id, algo], **settings}
    )
    env = gpuenvs.make(env_id, num_envs, device="cpu", seed=seed, threads=threads)
    learner = cls(config, env.single_observation_space, env.single_action_space, "cpu", seed)
    return SyncSchedule(env, learner, config)


def weights(loop, iterations):
    for _ in range(iterations):
        loop.iterate()
    return loop.algo.policy.flat.clone()


ENGINES = ("torch", "fused")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("env_id, algo", SETTINGS)
def test_runs_and_thread_counts_agree_bit_for_bit(env_id, algo, engine):
    first = weights(schedule(env_id, algo, engine=engine), 8)
    assert torch.isfinite(first).all()
    assert torch.equal(first, weights(schedule(env_id, algo, engine=engine), 8))
    assert torch.equal(first, weights(schedule(env_id, algo, engine=engine, threads=2), 8))
    assert not torch.equal(first, weights(schedule(env_id, algo, engine=engine, seed=1), 8))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("env_id, algo", SETTINGS)
def test_n_plus_m_equals_n_save_load_m(env_id, algo, engine):
    whole = weights(schedule(env_id, algo, engine=engine), 7)
    loop = schedule(env_id, algo, engine=engine)
    weights(loop, 3)
    state = loop.state_dict()
    other = schedule(env_id, algo, engine=engine)
    other.load_state_dict(state)
    assert other.env_steps == 3 * 16 * 128
    assert torch.equal(whole, weights(other, 4))


def test_a_state_dict_is_not_changed_by_what_comes_after():
    loop = schedule()
    weights(loop, 2)
    state = loop.state_dict()
    weights(loop, 1)
    other = schedule()
    other.load_state_dict(state)
    assert torch.equal(weights(other, 1), loop.algo.policy.flat)


def test_the_first_rows_of_a_wider_batch_are_the_narrow_batch():
    narrow, wide = schedule(num_envs=64), schedule(num_envs=128)
    for loop in (narrow, wide):
        loop.collector.collect(loop.algo.policy, loop.rollout)
    for name in ("obs", "action", "reward", "terminated"):
        a, b = getattr(narrow.rollout, name), getattr(wide.rollout, name)
        assert torch.equal(a, b[:, :64]), name
    torch.testing.assert_close(narrow.rollout.log_prob, wide.rollout.log_prob[:, :64], rtol=1e-6, atol=1e-6)


def test_an_iteration_reports_steps_lag_and_finished_episodes():
    loop = schedule()
    results = [loop.iterate() for _ in range(4)]
    assert all(r.env_steps == 16 * 128 for r in results) and loop.env_steps == 4 * 16 * 128
    assert all(r.metrics["lag"].item() == 0 for r in results)
    lengths = np.concatenate([r.episode_lengths for r in results])
    returns = np.concatenate([r.episode_returns for r in results])
    assert len(lengths) > 100 and (returns == lengths).all() and lengths.min() >= 5


def test_the_number_of_environments_must_agree():
    loop = schedule()
    env = gpuenvs.make("CartPole-v1", 4, device="cpu")
    with pytest.raises(ConfigError, match="num_envs=128"):
        SyncSchedule(env, loop.algo, loop.config)


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_it_learns_cartpole(algo):
    """Far below the presets' goal: this only tells learning from not learning."""
    loop = schedule(algo=algo, num_envs=32, num_steps=32 if algo == "ppo" else 8, learning_rate=3e-3, norm_reward=True)
    returns: list[float] = []
    while loop.env_steps < 50_000:
        returns += loop.iterate().episode_returns.tolist()
    assert np.mean(returns[:50]) < 40
    assert np.mean(returns[-20:]) > 100
