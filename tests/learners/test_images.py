"""Images as observations: the encoders, how rollouts store them, and that both algorithms learn from what they see."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from gpuenvs.errors import ConfigError
from learners import rollout as rollout_module
from learners.a2c import A2C, A2CConfig
from learners.images import NATURE, SMALL, Encoder, encoder_sizes, in_chunks, is_image, layers_for
from learners.native.network import misfit
from learners.networks import Policy, flat_gradient
from learners.ppo import PPO, PPOConfig
from learners.rollout import Rollout, final_values, make_batch
from learners.schedules.sync import SyncSchedule
from tests.learners.spot_env import SpotEnv


def image_space(*shape):
    return spaces.Box(0, 255, shape, np.uint8)


def images(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, np.uint8))


def image_policy(space=None, **options):
    options = {"hidden_sizes": (32,), "activation": "relu", **options}
    return Policy(space or image_space(2, 12, 12), spaces.Discrete(3), **options)


# --- the networks ------------------------------------------------------------------------------------------------------


def test_which_spaces_are_images():
    assert is_image(image_space(4, 84, 84))
    assert not is_image(spaces.Box(0, 1, (4, 84, 84), np.float32))
    assert not is_image(spaces.Box(0, 255, (84, 84), np.uint8))
    assert not is_image(spaces.Box(0, 255, (128,), np.uint8)) and not is_image(spaces.Discrete(3))


def test_an_encoder_for_each_size():
    assert layers_for((4, 84, 84)) == layers_for((1, 36, 36)) == NATURE
    assert layers_for((4, 35, 84)) == layers_for((1, 3, 3)) == SMALL
    for shape in ((84, 84, 2), (3, 2, 50)):
        with pytest.raises(ConfigError, match="channels"):
            layers_for(shape)


def test_the_encoder_is_that_of_the_nature_paper():
    encoder = Encoder((4, 84, 84), torch.Generator())
    weights, activations, last = encoder_sizes((4, 84, 84))
    assert last == encoder.size == 64 * 7 * 7 == encoder(torch.zeros(1, 4, 84, 84)).shape[1]
    assert weights == sum(p.numel() for p in encoder.parameters())
    assert activations == 32 * 20 * 20 + 64 * 9 * 9 + 64 * 7 * 7
    assert [tuple(p.shape) for p in encoder.parameters() if p.dim() == 4] == [
        (32, 4, 8, 8),
        (64, 32, 4, 4),
        (64, 64, 3, 3),
    ]


def test_actor_and_critic_share_no_weights_and_all_lie_in_one_buffer():
    policy = image_policy()
    assert sum(p.numel() for p in policy.parameters()) == policy.flat.numel()
    obs = images(5, 2, 12, 12)
    value, logits = policy.value(obs), policy.distribution(obs).logits
    policy.actor_flat.zero_()
    assert torch.equal(policy.value(obs), value) and not policy.distribution(obs).logits.any() and logits.any()
    other = image_policy(seed=3)
    policy.load_state_dict(other.state_dict())
    assert torch.equal(policy.flat, other.flat) and not torch.equal(policy.flat, image_policy(seed=4).flat)


def test_a_copy_has_memory_of_its_own():
    policy = image_policy()
    other, obs = policy.copy_on("cpu"), images(5, 2, 12, 12)
    assert torch.equal(other.value(obs), policy.value(obs))
    other.flat.zero_()
    assert not other.value(obs).any() and policy.value(obs).any()


def test_the_gradient_has_the_order_of_the_buffer():
    policy = image_policy(image_space(2, 36, 36), hidden_sizes=(8,))
    obs, action = images(3, 2, 36, 36), torch.zeros(3, dtype=torch.int64)

    def losses():
        return policy.distribution(obs).log_prob(action).sum() * 10, policy.value(obs).sum()

    parts = policy.actor_parameters(), policy.critic_parameters()
    grad = torch.cat([flat_gradient(loss, part) for loss, part in zip(losses(), parts)])
    direction = torch.randn(len(grad), generator=torch.Generator().manual_seed(0))
    ends = []
    for sign in (1, -1):
        policy.flat.add_(direction, alpha=sign * 1e-4)
        ends.append(sum(loss.item() for loss in losses()))
        policy.flat.sub_(direction, alpha=sign * 1e-4)
    assert float(grad @ direction) == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=0.05)


def test_pixels_go_in_as_shares_of_255_from_bytes_and_floats_alike():
    policy = image_policy(normalize_obs=True)
    assert policy.obs_norm is None and policy.image
    obs = images(4, 2, 12, 12)
    assert policy.features(obs) is obs
    by_hand = policy.critic.mlp(policy.critic.encoder(obs.float() / 255)).squeeze(-1)
    assert torch.equal(policy.value(obs), by_hand) and torch.equal(policy.value(obs.float()), by_hand)
    action, log_prob = policy.sample(obs, torch.zeros(4, 3))
    assert torch.equal(action, policy.act(obs, deterministic=True))
    torch.testing.assert_close(log_prob, policy.distribution(obs).log_prob(action))


def test_continuous_actions_from_images():
    policy = Policy(image_space(3, 12, 12), spaces.Box(-1, 1, (2,)), hidden_sizes=(16,))
    assert policy.act(images(4, 3, 12, 12), deterministic=True).shape == (4, 2)


def test_native_kernels_are_not_for_images():
    assert misfit(image_policy(hidden_sizes=(64, 64))) == "the policy reads images"
    with pytest.raises(ConfigError, match="engine=fused needs a policy on the CPU, of vectors"):
        PPO(PPOConfig(engine="fused"), image_space(2, 12, 12), spaces.Discrete(3))


# --- the storage -------------------------------------------------------------------------------------------------------


def test_images_are_stored_as_bytes_in_their_own_order():
    rollout = Rollout(5, 3, image_space(2, 12, 12), spaces.Discrete(3))
    assert rollout.obs.shape == (6, 3, 2, 12, 12) and rollout.final_obs.shape == (5, 3, 2, 12, 12)
    assert rollout.obs.dtype == rollout.final_obs.dtype == torch.uint8
    assert rollout.obs.is_contiguous() and rollout.final_obs.is_contiguous()
    assert rollout.obs.data_ptr() == rollout.chunk.data_ptr()
    assert Rollout.size(5, 3, image_space(2, 12, 12), spaces.Discrete(3)) == rollout.chunk.nbytes


def collected(steps=20, envs=4, algo=None):
    env = SpotEnv(envs)
    config = PPOConfig(num_envs=envs, num_steps=steps, hidden_sizes=(32,), activation="relu", minibatches=2)
    algo = algo or PPO(config, env.single_observation_space, env.single_action_space, seed=1)
    schedule = SyncSchedule(env, algo, config)
    env.reset(seed=0)
    return algo.policy, schedule.collector.collect(algo.policy, schedule.rollout)


def test_a_batch_holds_the_images_as_they_are():
    policy, rollout = collected()
    batch = make_batch(policy, rollout, 0.99, 0.95)
    assert batch.features.dtype == torch.uint8 and batch.features.shape == (80, 2, 12, 12)
    assert torch.equal(batch.features[4 * 7 + 2], rollout.obs[7, 2])
    picked = batch.select(torch.tensor([30, 3]))
    assert torch.equal(picked.features, batch.features[[30, 3]])
    torch.testing.assert_close(batch.log_prob, policy.distribution(batch.features).log_prob(batch.action))


def test_values_do_not_depend_on_how_many_images_go_through_at_once(monkeypatch):
    policy, rollout = collected()
    whole = make_batch(policy, rollout, 0.99, 0.95)
    assert len(rollout.obs[:-1].flatten(0, 1)) > 7
    monkeypatch.setattr(rollout_module, "IMAGE_ROWS", 7)
    seen = []
    monkeypatch.setattr(policy, "value", lambda rows, value=policy.value: seen.append(len(rows)) or value(rows))
    parts = make_batch(policy, rollout, 0.99, 0.95)
    assert max(seen) == 7
    for one, other in zip(whole, parts):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert torch.equal(in_chunks(lambda rows: rows * 2, torch.arange(10), 4), torch.arange(10) * 2)


def test_truncated_rows_bootstrap_from_their_final_image():
    policy, rollout = collected()
    values = final_values(policy, rollout)
    t, env = rollout.truncated.nonzero(as_tuple=True)
    assert len(t) == 4 and set(env.tolist()) == {1, 3}
    with torch.no_grad():
        torch.testing.assert_close(values[t, env], policy.value(rollout.final_obs[t, env]))
        assert not torch.allclose(values[t, env], policy.value(rollout.obs[t + 1, env]), atol=1e-6)


# --- learning ----------------------------------------------------------------------------------------------------------

ALGORITHMS = {
    "ppo": (PPO, PPOConfig, {"num_envs": 16, "num_steps": 16, "epochs": 4, "minibatches": 4, "learning_rate": 2e-3}),
    "a2c": (A2C, A2CConfig, {"num_envs": 16, "num_steps": 8, "learning_rate": 1e-3}),
}


@pytest.mark.parametrize("size", [12, 36])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_learns_where_the_spot_is(name, size):
    algorithm, config_class, settings = ALGORITHMS[name]
    config = config_class(**settings, total_steps=40_000, hidden_sizes=(64,), activation="relu", gamma=0.5, lr_end=1.0)
    env = SpotEnv(config.num_envs, size)
    algo = algorithm(config, env.single_observation_space, env.single_action_space, seed=0)
    schedule = SyncSchedule(env, algo, config)
    assert algo.engine == "torch" and schedule.collector.choice.name == "eager"
    assert "images" in schedule.collector.choice.why or "native step" in schedule.collector.choice.why
    before = algo.policy.flat.clone()
    for _ in range(config.total_updates):
        result = schedule.iterate()
        assert all(torch.isfinite(torch.as_tensor(value)) for value in result.metrics.values())
        if len(result.episode_returns) and result.episode_returns.mean() > 0.9 * env.length:
            break
    assert result.episode_returns.mean() > 0.9 * env.length  # a third of it by chance
    assert not torch.equal(before, algo.policy.flat)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_resumed_algorithm_continues_bit_for_bit(name):
    algorithm, config_class, settings = ALGORITHMS[name]
    config = config_class(**{**settings, "num_envs": 4}, hidden_sizes=(16,))
    algos = [algorithm(config, image_space(2, 12, 12), spaces.Discrete(3), seed=seed) for seed in (0, 0)]
    _, rollout = collected(config.num_steps, 4, algos[0])
    algos[0].update(rollout)
    algos[1].load_state_dict(algos[0].state_dict())
    for algo in algos:
        algo.update(rollout)
    assert torch.equal(algos[0].policy.flat, algos[1].policy.flat)
