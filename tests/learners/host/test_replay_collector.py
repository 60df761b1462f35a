"""Transitions of environments elsewhere: aligned, with their true next observations, the same bits whoever was faster."""

import contextlib

import numpy as np
import pytest
import torch
from gymnasium import spaces

from gpuenvs.errors import ConfigError
from gpuenvs.host import HostPool, host_spec
from learners.replay import Replay
from learners.replay_collector import make_replay_collector
from tests.gpuenvs.host.envs import ME
from tests.learners.host.fake_pool import FakePool
from tests.learners.test_replay_collector import Policy, config

STEPS, ENVS = 7, 10
BOX = spaces.Box(np.float32([-2, 0]), np.float32([2, 6]))


class Shifted(Policy):
    """For a box that is not symmetric."""

    def to_env(self, action):
        low, high = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 6.0])
        return (low + high) / 2 + (high - low) / 2 * action


@contextlib.contextmanager
def collecting(pool, actors=1):
    collector = make_replay_collector(pool, "cpu", 3, config(), actors=actors)
    try:
        yield collector
    finally:
        collector.close()
        pool.close()


def filled(pool, policy, horizons=2, actors=1, random=False):
    replay = Replay(300, pool.num_envs, pool.single_observation_space, pool.single_action_space, STEPS)
    with collecting(pool, actors) as collector:
        for version in range(horizons):
            block = collector.collect(policy, replay.begin(), version, random)
            replay.commit(block)
    return replay, block


@pytest.mark.parametrize("space", [spaces.Discrete(3), BOX])
def test_rows_are_aligned_and_next_observations_are_the_true_ones(space):
    pool = FakePool(ENVS, action_space=space)
    policy = Shifted(pool) if space is BOX else Policy(pool)
    replay, block = filled(pool, policy)
    time, i = np.meshgrid(np.arange(2 * STEPS), np.arange(ENVS), indexing="ij")
    obs, following = replay.obs[: 2 * STEPS].numpy(), replay.next_obs[: 2 * STEPS].numpy()
    assert (obs[..., 0] == i).all() and (obs[..., 1] == time).all()
    done = obs[..., 2] + 1 == 3 + i % 5
    assert (following[..., 1] == time + 1).all() and (following[..., 2] == obs[..., 2] + 1).all()
    assert (following[..., 0] == i + 0.5 * done).all()
    assert (replay.terminated[: 2 * STEPS].numpy() == (done & (i % 2 == 0))).all()
    assert (replay.truncated[: 2 * STEPS].numpy() == (done & (i % 2 == 1))).all()
    action = replay.action[: 2 * STEPS]
    total = (policy.to_env(action) if space is BOX else action).sum(-1).numpy()
    np.testing.assert_allclose(replay.reward[: 2 * STEPS], 1000 * i + time + total / 10, rtol=1e-6)
    assert space is not BOX or (action.min() >= -1 and action.max() <= 1 and action.std() > 0.1)
    assert replay.version[: 2 * STEPS].tolist() == [0] * STEPS + [1] * STEPS
    returns, lengths = block.finished_episodes()
    assert lengths.tolist() == (obs[STEPS:, :, 2][done[STEPS:]] + 1).tolist() and torch.isfinite(returns).all()


def test_the_bits_do_not_depend_on_processes_and_threads():
    spec = host_spec(f"{ME}Push", {"sleep": 0.001})

    def run(executors, actors, random=False):
        pool = HostPool(spec, 6, executors=executors, seed=5)
        return filled(pool, Policy(pool), 3, actors, random)[0]

    first = run(1, 1)
    assert torch.equal(first.data, run(3, 2).data)
    random = run(2, 1, random=True)
    assert not torch.equal(first.action, random.action)
    shares = torch.histc(random.action[: 3 * STEPS], 4, -1, 1) / random.action[: 3 * STEPS].numel()
    assert (shares - 1 / 4).abs().max() < 0.15


def test_a_policy_on_a_gpu_cannot_act_there():
    pool = FakePool(2, action_space=BOX)
    policy = Policy(pool)
    policy.device = torch.device("cuda:0")
    with collecting(pool) as collector, pytest.raises(ConfigError, match="need a policy on the CPU"):
        collector.choose(policy)
