"""The fused sampler of transitions against the loop that defines it."""

from __future__ import annotations

import pytest
import torch

import gpuenvs
from learners.actors import QPolicy, SquashedPolicy, TanhPolicy
from learners.native.replay_rollout import ReplayRollout, misfit
from learners.replay import Replay
from learners.replay_collector import ReplayCollector

CASES = {
    "Pendulum-v1": (SquashedPolicy, {}),
    "MountainCarContinuous-v0": (TanhPolicy, {"num_envs": 12, "noise_min": 0.1, "noise_max": 0.5}),
    "CartPole-v1": (QPolicy, {}),
}


class Settings:
    noise_correlation = 0.0

    def __init__(self, collector):
        self.collector = collector


def collected(env_id, collector, threads=1, blocks=4, norm_obs=True, num_envs=12):
    """Records of a few blocks, the first of them random, and what ended in them."""
    env = gpuenvs.make(env_id, num_envs, device="cpu", seed=1, threads=threads)
    cls, more = CASES[env_id]
    spaces = env.single_observation_space, env.single_action_space
    policy = cls(*spaces, hidden_sizes=(16, 32), norm_obs=norm_obs, seed=2, **more)
    collecting = ReplayCollector(env, "cpu", 5, Settings(collector))
    replay = Replay(num_envs * 64 * 8, num_envs, *spaces, 64)
    data, ends = [], []
    for k in range(blocks):
        block = replay.begin()
        collecting.collect(policy, block, version=k, random=k == 0)
        replay.commit(block)
        data.append(block.data.clone())
        ends.append(torch.cat([part.double() for part in block.finished_episodes()]))
        if policy.obs_norm is not None:
            policy.obs_norm.update(block.obs)
        if isinstance(policy, QPolicy):
            policy.epsilon.fill_(0.4)
    assert collecting.choice.name == collector
    env.close()
    return torch.stack(data), torch.cat(ends), replay


@pytest.mark.parametrize("env_id", CASES)
def test_records_are_those_of_the_loop(env_id):
    fused, fused_ends, replay = collected(env_id, "fused")
    eager, eager_ends, _ = collected(env_id, "eager")
    assert torch.allclose(fused, eager, atol=2e-3, rtol=1e-4)
    assert torch.allclose(fused_ends, eager_ends, rtol=1e-3)
    assert len(fused_ends) or env_id.startswith("MountainCar")
    actions = fused[..., replay.columns["action"]]
    if env_id == "CartPole-v1":
        assert set(actions.unique().tolist()) == {0.0, 1.0}
    else:
        assert -1 <= actions.min() < -0.5 and 0.5 < actions.max() <= 1
    assert replay.version[:256].view(4, 64)[:, 0].tolist() == [0, 1, 2, 3]


def test_two_threads_give_the_same_bits():
    env = gpuenvs.make("Pendulum-v1", 300, device="cpu", threads=2)
    policy = SquashedPolicy(env.single_observation_space, env.single_action_space, hidden_sizes=(16, 32))
    assert ReplayRollout(env, policy, 2)._team.count == 2
    env.close()
    one, two = (collected("Pendulum-v1", "fused", threads, num_envs=300)[0] for threads in (1, 2))
    assert torch.equal(one, two)


def test_what_does_not_fit_says_why():
    env = gpuenvs.make("Pendulum-v1", 4, device="cpu")
    spaces = env.single_observation_space, env.single_action_space
    assert misfit(SquashedPolicy(*spaces, hidden_sizes=(16,)), env) is None
    assert "multiples" in misfit(SquashedPolicy(*spaces, hidden_sizes=(10,)), env)
    assert "layer_norm" in misfit(SquashedPolicy(*spaces, hidden_sizes=(16,), layer_norm=True), env)
    assert ReplayRollout(env, SquashedPolicy(*spaces, hidden_sizes=(16,)), 1) is not None
    env.close()
