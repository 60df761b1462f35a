"""What a rollout holds, shown with tagged data."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import gpuenvs
from gpuenvs.errors import ConfigError
from learners.collector import Collector
from learners.networks import Policy
from learners.rollout import Rollout, final_values, make_batch
from tests.learners.tagged_env import TaggedEnv

STEPS, ENVS = 7, 4


def collected(env, horizons=1, **options):
    policy = Policy(env.single_observation_space, env.single_action_space, seed=5)
    rollout = Rollout(STEPS, env.num_envs, env.single_observation_space, env.single_action_space)
    collector = Collector(env, seed=3, **options)
    for version in range(horizons):
        collector.collect(policy, rollout, version)
    return policy, rollout, collector


def test_rows_are_aligned():
    env = TaggedEnv(ENVS)
    _, rollout, _ = collected(env, horizons=2)
    t, i = np.meshgrid(np.arange(STEPS), np.arange(ENVS), indexing="ij")
    time = STEPS + t  # the second horizon
    obs = rollout.obs.numpy()
    assert (obs[:-1, :, 0] == i).all() and (obs[:-1, :, 1] == time).all()
    assert (obs[-1, :, 1] == 2 * STEPS).all()
    action = rollout.action.numpy()
    assert (action == np.array(env.actions[STEPS:])).all()
    np.testing.assert_allclose(rollout.reward, 1000 * i + time + action / 10, rtol=1e-6)
    assert (rollout.version == 1).all()
    done = (obs[:-1, :, 2] + 1) == 3 + i
    assert (rollout.terminated.numpy() == (done & (i % 2 == 0))).all()
    assert (rollout.truncated.numpy() == (done & (i % 2 == 1))).all()
    assert (rollout.done().numpy() == done).all()
    final = rollout.final_obs.numpy()[done]
    assert (final[:, 0] == i[done] + 0.5).all() and (final[:, 1] == time[done] + 1).all()
    returns, lengths = rollout.finished_episodes()
    assert lengths.tolist() == (3 + i[done]).tolist() and torch.isfinite(returns).all()


def test_log_probs_are_those_of_the_stored_actions():
    policy, rollout, _ = collected(TaggedEnv(ENVS))
    dist = policy.distribution(policy.features(rollout.obs[:-1]))
    torch.testing.assert_close(dist.log_prob(rollout.action), rollout.log_prob, rtol=1e-6, atol=1e-6)


def test_truncated_rows_bootstrap_from_final_obs_and_no_others_are_read():
    policy, rollout, _ = collected(TaggedEnv(ENVS))
    values = final_values(policy, rollout)
    cut = rollout.truncated
    expected = policy.value(policy.features(rollout.final_obs[cut]))
    torch.testing.assert_close(values[cut], expected)
    batch = make_batch(policy, rollout, 0.9, 0.0)
    assert torch.isfinite(batch.target).all()
    # With lambda 0 the target of a truncated row is r + gamma * V(final_obs), of a terminated row r.
    target = batch.target.view(STEPS, ENVS)
    torch.testing.assert_close(target[cut], rollout.reward[cut] + 0.9 * expected)
    over = rollout.terminated
    torch.testing.assert_close(target[over], rollout.reward[over])
    inside = ~rollout.done()
    following = policy.value(policy.features(rollout.obs[1:].reshape(-1, 3))).view(STEPS, ENVS)
    torch.testing.assert_close(target[inside], (rollout.reward + 0.9 * following)[inside])


def test_a_batch_keeps_the_order_of_time_then_environment():
    policy, rollout, _ = collected(TaggedEnv(ENVS))
    policy.obs_norm = None
    batch = make_batch(policy, rollout, 0.9, 0.9)
    assert batch.features[:, 1].tolist() == [t for t in range(STEPS) for _ in range(ENVS)]
    assert batch.features[:, 0].tolist() == [i for _ in range(STEPS) for i in range(ENVS)]
    picked = batch.select(torch.tensor([5, 2]))
    assert picked.features[:, 0].tolist() == [1, 2] and torch.equal(picked.log_prob, batch.log_prob[[5, 2]])


def test_noise_belongs_to_environment_and_step():
    """The first rows of a wide env see the same noise as a narrow one, and horizons may be cut anywhere."""
    wide, narrow = TaggedEnv(8), TaggedEnv(2)
    _, one, _ = collected(wide)
    _, two, _ = collected(narrow)
    assert torch.equal(one.action[:, :2], two.action)
    policy = Policy(narrow.single_observation_space, narrow.single_action_space, seed=5)
    short = Rollout(1, 2, narrow.single_observation_space, narrow.single_action_space)
    collector = Collector(TaggedEnv(2), seed=3)
    steps = [collector.collect(policy, short).action.clone() for _ in range(STEPS)]
    assert torch.equal(torch.cat(steps), two.action)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_noise_is_standard_normal_with_the_correlation_asked_for(correlation):
    env = TaggedEnv(400, spaces.Box(-1, 1, (1,)))
    policy = Policy(env.single_observation_space, env.single_action_space, normalize_obs=False)
    policy.flat.zero_()
    rollout = Rollout(50, 400, env.single_observation_space, env.single_action_space)
    collector = Collector(env, seed=0, noise_correlation=correlation)
    first = collector.collect(policy, rollout).action.clone().squeeze(-1)
    second = collector.collect(policy, rollout).action.squeeze(-1)
    noise = torch.cat((first, second))
    assert noise.std().item() == pytest.approx(1, abs=0.05) and noise.mean().item() == pytest.approx(0, abs=0.06)
    assert noise[-1].std().item() == pytest.approx(1, abs=0.15)
    lag_one = (noise[1:] * noise[:-1]).mean().item()
    assert lag_one == pytest.approx(correlation, abs=0.05)
    across = (second[0] * first[-1]).mean().item()  # the correlation goes on over horizons
    assert across == pytest.approx(correlation, abs=0.2)


def test_the_bounds_of_a_box_do_not_touch_stored_actions():
    env = gpuenvs.make("Pendulum-v1", 8, device="cpu", seed=0)
    policy = Policy(env.single_observation_space, env.single_action_space, log_std_init=3.0)
    rollout = Rollout(4, 8, env.single_observation_space, env.single_action_space)
    Collector(env, collector="eager").collect(policy, rollout)
    assert (rollout.action.abs() > 2).float().mean() > 0.5


def test_resuming_continues_bit_for_bit():
    def run(env, collector, policy, count):
        rollout = Rollout(5, 16, env.single_observation_space, env.single_action_space)
        return [collector.collect(policy, rollout).obs.clone() for _ in range(count)]

    def fresh():
        env = gpuenvs.make("MountainCarContinuous-v0", 16, device="cpu", seed=1)
        return env, Collector(env, seed=1, noise_correlation=0.7, collector="eager")

    env, collector = fresh()
    policy = Policy(env.single_observation_space, env.single_action_space)
    run(env, collector, policy, 3)
    state = collector.state_dict()
    rest = run(env, collector, policy, 3)
    env, collector = fresh()
    collector.load_state_dict(state)
    again = run(env, collector, policy, 3)
    assert all(torch.equal(a, b) for a, b in zip(rest, again))


def test_other_autoreset_modes_are_refused():
    env = TaggedEnv(2)
    env.autoreset = "next_step"
    with pytest.raises(ConfigError, match="same_step"):
        Collector(env)
