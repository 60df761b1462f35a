"""PPO on made-up and on real rollouts."""

import itertools
import math

import pytest
import torch
from gymnasium import spaces

import gpuenvs
from learners.collector import Collector
from learners.networks import flat_gradient
from learners.ppo import PPO, PPOConfig
from learners.rollout import Rollout, make_batch

OBS = spaces.Box(-1, 1, (3,))
DISCRETE, CONTINUOUS = spaces.Discrete(3), spaces.Box(-1, 1, (2,))


def made_up(action_space, policy, steps=8, envs=16, seed=0):
    """A rollout of random obs and rewards with actions of the policy."""
    generator = torch.Generator().manual_seed(seed)
    rollout = Rollout(steps, envs, OBS, action_space)
    rollout.obs.copy_(torch.randn(rollout.obs.shape, generator=generator) * 3 + 1)
    rollout.final_obs.copy_(torch.randn(rollout.final_obs.shape, generator=generator))
    rollout.reward.copy_(torch.randn(rollout.reward.shape, generator=generator))
    ends = torch.rand(rollout.reward.shape, generator=generator)
    rollout.terminated.copy_(ends < 0.1)
    rollout.truncated.copy_(ends > 0.9)
    for t in range(steps):
        noise = torch.randn((envs, *policy.noise_shape), generator=generator)
        action, log_prob = policy.sample(rollout.obs[t], noise)
        rollout.action[t].copy_(action)
        rollout.log_prob[t].copy_(log_prob)
    return rollout


def ppo(action_space, seed=0, **settings):
    defaults = {
        "num_envs": 16,
        "num_steps": 8,
        "total_steps": 10_000,
        "hidden_sizes": (16, 16),
        "engine": "torch",
        "norm_obs": False,
        "norm_reward": False,
}  # fmt: skip
    return PPO(PPOConfig(**{**defaults, **settings}), OBS, action_space, seed=seed)


@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS])
def test_an_update_returns_finite_device_scalars_and_moves_the_weights(space):
    algo = ppo(space, norm_obs=True, norm_reward=True)
    before = algo.policy.flat.clone()
    metrics = algo.update(made_up(space, algo.policy))
    assert all(torch.is_tensor(v) and v.shape == () and torch.isfinite(v) for v in metrics.values()), metrics
    assert not torch.equal(before, algo.policy.flat)
    assert algo.version == 1 and metrics["lag"].item() == 0


@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS])
def test_the_same_seed_gives_the_same_bits_and_another_does_not(space):
    results = []
    for seed in (1, 1, 2):
        algo = ppo(space, seed)
        for _ in range(3):
            algo.update(made_up(space, algo.policy))
        results.append(algo.policy.flat)
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


@pytest.mark.parametrize("engine", ["torch", "fused"])
def test_the_first_ratio_is_one_even_when_most_actions_are_clipped_by_the_bounds(engine):
    env = gpuenvs.make("Pendulum-v1", 64, device="cpu", seed=0)
    config = PPOConfig(num_envs=64, num_steps=32, log_std_init=2.0, epochs=1, minibatches=1, engine=engine)
    algo = PPO(config, env.single_observation_space, env.single_action_space)
    rollout = Rollout(32, 64, env.single_observation_space, env.single_action_space)
    collector = Collector(env, collector={"torch": "eager", "fused": "fused"}[engine])
    for _ in range(2):  # the second time with observation statistics and a policy that has moved
        collector.collect(algo.policy, rollout, algo.version)
        assert (rollout.action.abs() > 2.0).float().mean() > 0.5
        batch = make_batch(algo.policy, rollout, 0.99, 0.95)
        ratio = (algo.policy.distribution(batch.features).log_prob(batch.action) - batch.log_prob).exp()
        torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=2e-6)
        metrics = algo.update(rollout)
        assert metrics["clip_fraction"].item() == 0 and abs(metrics["approx_kl"].item()) < 1e-12
        if engine == "fused":  # acting and learning share one compiled function: not a bit differs
            assert metrics["approx_kl"].item() == 0


def test_lag_counts_the_updates_since_the_rows_were_made():
    algo = ppo(DISCRETE)
    rollout = made_up(DISCRETE, algo.policy)
    algo.update(rollout)
    algo.update(rollout)
    rollout.version.fill_(1)
    assert algo.update(rollout)["lag"].item() == 1


def entropy_after(space, ent_coef):
    algo = ppo(space, ent_coef=ent_coef, learning_rate=3e-3, log_std_init=-1.0)
    with torch.no_grad():  # begin with decided policies
        list(algo.policy.actor.parameters())[-2].mul_(200)
    for _ in range(15):
        rollout = made_up(space, algo.policy)
        rollout.reward.zero_()
        metrics = algo.update(rollout)
    return metrics["entropy"].item()


@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS])
def test_the_entropy_bonus_raises_entropy(space):
    assert entropy_after(space, 1.0) > entropy_after(space, 0.0) + 0.05


def test_gradients_are_clipped_in_every_minibatch_of_each_network():
    algo = ppo(DISCRETE, max_grad_norm=1e-3, learning_rate=1e-3)
    seen = {"actor": [], "critic": []}

    def watch(name, optimizer):
        step = optimizer.step

        def spy(grad, learning_rate, max_grad_norm=0.0, active=None):
            before = optimizer.m.clone()
            norm = step(grad, learning_rate, max_grad_norm, active)
            applied = (optimizer.m - 0.9 * before) / 0.1
            seen[name].append((norm.item(), applied.norm().item()))
            return norm

        optimizer.step = spy

    watch("actor", algo.actor_optimizer)
    watch("critic", algo.critic_optimizer)
    algo.update(made_up(DISCRETE, algo.policy))
    for steps in seen.values():
        assert len(steps) == 16
        assert all(norm > 1e-3 for norm, _ in steps)
        assert all(applied == pytest.approx(1e-3, rel=2e-2) for _, applied in steps)


def test_a_kl_stop_ends_the_actors_steps_and_leaves_the_critic_learning():
    free, stopped = ppo(DISCRETE, learning_rate=0.03), ppo(DISCRETE, learning_rate=0.03, target_kl=1e-3)
    for algo in (free, stopped):
        algo.metrics = algo.update(made_up(DISCRETE, algo.policy))
    assert free.metrics["actor_steps"].item() == 16
    made = stopped.metrics["actor_steps"].item()
    assert 1 <= made < 16 and stopped.actor_optimizer.steps.item() == made
    assert stopped.critic_optimizer.steps.item() == 16
    assert torch.equal(free.policy.critic_flat, stopped.policy.critic_flat)


def test_coefficients_anneal_over_the_run():
    algo = ppo(DISCRETE, total_steps=16 * 8 * 4, learning_rate=1.0, lr_end=0.0, clip_end=0.5, ent_coef=0.1, ent_end=0.0)
    seen = []
    for version in range(5):
        algo.version = version
        seen.append(tuple(algo.coefficients().values()))
    assert seen[0] == (1.0, 0.2, 0.1)
    assert seen[2] == pytest.approx((0.5, 0.15, 0.05))
    assert seen[4] == pytest.approx((0.0, 0.1, 0.0))


def test_observation_statistics_stay_put_while_learning():
    algo = ppo(DISCRETE, norm_obs=True)
    rollout = made_up(DISCRETE, algo.policy)
    seen = []
    loss = algo.actor_loss

    def spy(*args):
        seen.append(algo.policy.obs_norm.count.item())
        return loss(*args)

    algo.actor_loss = spy
    algo.update(rollout)
    assert set(seen) == {0.0} and algo.policy.obs_norm.count.item() == 8 * 16
    torch.testing.assert_close(algo.policy.obs_norm.mean, rollout.obs[:-1].double().mean((0, 1)), rtol=1e-6, atol=1e-6)


def test_every_row_is_used_once_per_epoch_when_minibatches_do_not_divide_the_rows():
    algo = ppo(DISCRETE, minibatches=5, epochs=2)
    order, bounds = algo._order(128)
    sizes = [stop - first for first, stop in itertools.pairwise(bounds)]
    assert len(sizes) == 10 and set(sizes) == {25, 26} and bounds[5] == 128 and bounds[-1] == 256
    first, second = order[:128], order[128:]
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(128))
    assert first.tolist() != second.tolist()
    algo.version = 1
    assert algo._order(128)[0].tolist() != order.tolist()


def test_a_bad_reward_does_not_reach_the_weights():
    algo = ppo(DISCRETE)
    rollout = made_up(DISCRETE, algo.policy)
    before = algo.policy.actor_flat.clone()
    rollout.reward[3, 2] = math.nan
    metrics = algo.update(rollout)
    assert torch.isfinite(algo.policy.flat).all() and torch.equal(algo.policy.actor_flat, before)
    assert metrics["skipped_steps"].item() >= 16 + 4  # all of the actor's, and the critic's on the rows it reached


def test_value_clipping_limits_the_critics_gradient():
    algo = ppo(DISCRETE, clip_value=0.1)
    batch = make_batch(algo.policy, made_up(DISCRETE, algo.policy), 0.99, 0.95)
    far = batch._replace(value=batch.value - 10.0, target=batch.value - 20.0)
    # All values have moved by +10 > 0.1 and towards nothing: the clipped error is the larger one, without a gradient.
    far = far._replace(target=batch.value + 20.0)
    grad = flat_gradient(algo.critic_loss(algo.policy, far), algo.policy.critic_parameters())
    assert not grad.any()


def test_state_dict_round_trip_continues_bit_for_bit():
    settings = {"norm_obs": True, "norm_reward": True, "target_kl": 0.01}
    algo = ppo(CONTINUOUS, **settings)
    algo.update(made_up(CONTINUOUS, algo.policy, seed=1))
    twin = ppo(CONTINUOUS, **settings)
    twin.load_state_dict(algo.state_dict())
    for learner in (algo, twin):
        for k in range(2):
            learner.update(made_up(CONTINUOUS, learner.policy, seed=2 + k))
    assert torch.equal(algo.policy.flat, twin.policy.flat)
    assert algo.coefficients() == twin.coefficients()
    assert all(torch.equal(a, b) for a, b in zip(algo.reward_norm.buffers(), twin.reward_norm.buffers()))
