"""The policy module."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from gpuenvs.errors import ConfigError
from learners.networks import Policy, flat_gradient

OBS = spaces.Box(-1, 1, (3,))


def test_weights_are_views_of_one_buffer():
    policy = Policy(OBS, spaces.Discrete(2), seed=1)
    assert sum(p.numel() for p in policy.parameters()) == policy.flat.numel()
    before = policy.value(torch.ones(1, 3))
    policy.flat.zero_()
    assert policy.value(torch.ones(1, 3)).item() == 0.0 != before.item()
    other = Policy(OBS, spaces.Discrete(2), seed=2)
    policy.load_state_dict(other.state_dict())
    assert torch.equal(policy.flat, other.flat)


def test_the_seed_decides_the_weights():
    a, b, c = (Policy(OBS, spaces.Discrete(2), seed=s).flat for s in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_act_on_both_kinds_of_action():
    obs = torch.zeros(5, 3)
    discrete, continuous = Policy(OBS, spaces.Discrete(4)), Policy(OBS, spaces.Box(-1, 1, (2,)))
    assert discrete.act(obs, deterministic=True).shape == (5,)
    assert discrete.act(obs, deterministic=True).dtype == torch.int64
    assert continuous.act(obs, deterministic=True).shape == (5, 2)
    for policy in (discrete, continuous):
        first, again, other = (policy.act(obs, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1))
        assert torch.equal(first, again) and not torch.equal(first, other)


def test_act_without_a_generator_draws_from_the_policy():
    policy = Policy(OBS, spaces.Discrete(2))
    actions = policy.act(torch.zeros(4000, 3), generator=torch.Generator().manual_seed(0))
    assert actions.double().mean().item() == pytest.approx(0.5, abs=0.03)


def test_sample_returns_the_log_prob_of_its_action():
    policy = Policy(OBS, spaces.Box(-1, 1, (2,)), log_std_init=0.3)
    obs, noise = torch.randn(6, 3), torch.randn(6, 2)
    action, log_prob = policy.sample(obs, noise)
    dist = torch.distributions.Normal(policy.act(obs, deterministic=True), np.exp(0.3))
    torch.testing.assert_close(log_prob, dist.log_prob(action).sum(-1), rtol=1e-5, atol=1e-5)


def test_observations_are_normalised_inside_the_policy():
    policy = Policy(OBS, spaces.Discrete(2))
    obs = torch.randn(100, 3) * 50 + 7
    policy.obs_norm.update(obs)
    plain = Policy(OBS, spaces.Discrete(2), normalize_obs=False)
    plain.flat.copy_(policy.flat)
    normalised = (obs - obs.mean(0)) / obs.std(0, correction=0)
    torch.testing.assert_close(policy.value(policy.features(obs)), plain.value(normalised), rtol=1e-4, atol=1e-4)
    assert "obs_norm.mean" in policy.state_dict() and "obs_norm.mean" not in plain.state_dict()


def test_flat_gradient_has_the_order_of_the_buffer():
    policy = Policy(OBS, spaces.Box(-1, 1, (2,)), hidden_sizes=(4,), normalize_obs=False)
    x, action = torch.ones(2, 3), torch.zeros(2, 2)

    def losses():
        return policy.distribution(x).log_prob(action).sum(), policy.value(x).sum()

    parts = policy.actor_parameters(), policy.critic_parameters()
    grad = torch.cat([flat_gradient(loss, part) for loss, part in zip(losses(), parts)])
    assert len(grad) == len(policy.flat)
    for index in range(0, len(grad), 5):
        saved, ends = policy.flat[index].item(), []
        for sign in (1, -1):
            policy.flat[index] = saved + sign * 1e-2
            ends.append(sum(loss.item() for loss in losses()))
        policy.flat[index] = saved
        assert grad[index].item() == pytest.approx((ends[0] - ends[1]) / 2e-2, abs=1e-2, rel=1e-2)


@pytest.mark.parametrize(
    "space", [spaces.MultiDiscrete([2, 2]), spaces.Box(-1, 1, (2, 2)), spaces.Discrete(3, start=1)]
)
def test_other_action_spaces_are_refused(space):
    with pytest.raises(ConfigError):
        Policy(OBS, space)


def test_other_observation_spaces_are_refused():
    with pytest.raises(ConfigError):
        Policy(spaces.Discrete(4), spaces.Discrete(2))
