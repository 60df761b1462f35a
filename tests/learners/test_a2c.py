"""A2C: one step per rollout."""

import pytest
import torch

from learners.a2c import A2C, A2CConfig
from learners.correction import ON_POLICY, Correction
from learners.networks import flat_gradient
from learners.rollout import make_batch
from tests.learners.test_ppo import CONTINUOUS, DISCRETE, OBS, made_up


def a2c(space, seed=0, **settings):
    defaults = {
        "num_envs": 16,
        "num_steps": 8,
        "total_steps": 10_000,
        "hidden_sizes": (16,),
        "engine": "torch",
        "learning_rate": 2e-3,
        "norm_adv": False,
        "norm_obs": False,
        "norm_reward": False,
    }
    return A2C(A2CConfig(**{**defaults, **settings}), OBS, space, seed=seed)


@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS])
def test_an_update_is_one_adam_step_of_each_network(space):
    algo, twin = a2c(space, max_grad_norm=0.0, ent_coef=0.01), a2c(space)
    rollout = made_up(space, algo.policy)
    batch = make_batch(twin.policy, rollout, 0.99, 0.95)
    metrics = algo.update(rollout)
    assert all(torch.isfinite(v) and v.shape == () for v in metrics.values())
    # Adam's first step is the sign of the gradient times the learning rate, apart from epsilon.
    log_prob = twin.policy.distribution(batch.features).log_prob(batch.action)
    loss = -(log_prob * batch.advantage).mean() - 0.01 * twin.policy.distribution(batch.features).entropy().mean()
    grad = flat_gradient(loss, twin.policy.actor_parameters())
    step = 2e-3 * grad / (grad.abs() + 1e-5)
    torch.testing.assert_close(twin.policy.actor_flat - algo.policy.actor_flat, step, rtol=1e-3, atol=1e-6)
    value_loss = 0.5 * (twin.policy.value(batch.features) - batch.target).square().mean()
    grad = flat_gradient(0.5 * value_loss, twin.policy.critic_parameters())
    step = 2e-3 * grad / (grad.abs() + 1e-5)
    torch.testing.assert_close(twin.policy.critic_flat - algo.policy.critic_flat, step, rtol=1e-3, atol=1e-6)
    assert metrics["value_loss"].item() == pytest.approx(value_loss.item(), rel=1e-5)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS])
def test_the_fused_step_is_the_torch_step(space, lag):
    settings = {"ent_coef": 0.01, "norm_adv": True, "hidden_sizes": (32, 16)}
    learners = [a2c(space, engine=engine, **settings) for engine in ("torch", "fused")]
    for k in range(3):
        results = []
        for learner in learners:
            rollout = made_up(space, learners[0].policy, seed=k)
            rollout.version.fill_(learner.version - lag)
            if lag:  # the behaviour policy was another one; A2C does not look at what it thought
                rollout.log_prob.sub_(0.5)
            results.append(rollout)
        correction = Correction("none") if lag else ON_POLICY
        metrics = [learner.update(rollout, correction) for learner, rollout in zip(learners, results)]
        assert metrics[0].keys() == metrics[1].keys()
        for name, value in metrics[0].items():
            assert metrics[1][name].item() == pytest.approx(value.item(), rel=1e-4, abs=1e-5), name
        torch.testing.assert_close(learners[0].policy.flat, learners[1].policy.flat, rtol=1e-4, atol=1e-5)


def test_same_seed_same_bits():
    flats = []
    for seed in (1, 1, 2):
        algo = a2c(DISCRETE, seed)
        for k in range(3):
            algo.update(made_up(DISCRETE, algo.policy, seed=k))
        flats.append(algo.policy.flat)
    assert torch.equal(flats[0], flats[1]) and not torch.equal(flats[0], flats[2])


def test_the_entropy_bonus_raises_entropy():
    def entropy(ent_coef):
        algo = a2c(DISCRETE, ent_coef=ent_coef, learning_rate=1e-2, lr_end=1.0)
        with torch.no_grad():
            list(algo.policy.actor.parameters())[-2].mul_(200)
        for k in range(60):
            rollout = made_up(DISCRETE, algo.policy, seed=k)
            rollout.reward.zero_()
            metrics = algo.update(rollout)
        return metrics["entropy"].item()

    assert entropy(1.0) > entropy(0.0) + 0.05


def test_gradients_are_clipped():
    algo = a2c(DISCRETE, max_grad_norm=1e-3)
    metrics = algo.update(made_up(DISCRETE, algo.policy))
    assert metrics["actor_grad_norm"].item() > 1e-3 and metrics["critic_grad_norm"].item() > 1e-3
    for optimizer in (algo.actor_optimizer, algo.critic_optimizer):
        assert (optimizer.m / 0.1).norm().item() == pytest.approx(1e-3, rel=1e-2)


def test_state_dict_round_trip_continues_bit_for_bit():
    algo, twin = (a2c(CONTINUOUS, norm_obs=True, norm_reward=True) for _ in range(2))
    algo.update(made_up(CONTINUOUS, algo.policy, seed=1))
    twin.load_state_dict(algo.state_dict())
    for learner in (algo, twin):
        learner.update(made_up(CONTINUOUS, learner.policy, seed=2))
    assert torch.equal(algo.policy.flat, twin.policy.flat)
