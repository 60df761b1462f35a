"""What an update does about rows of older weights, against direct computations."""

import copy

import pytest
import torch

import gpuenvs
from learners import functional as F
from learners.collector import Collector
from learners.compat import algorithm
from learners.correction import Correction
from learners.networks import flat_gradient
from learners.rollout import Rollout

CASES = [("CartPole-v1", "ppo"), ("CartPole-v1", "a2c"), ("Pendulum-v1", "ppo"), ("Pendulum-v1", "a2c")]
ENVS, STEPS = 8, 32


class Descent:
    """Plain gradient descent in place of Adam; remembers the norms it was asked to clip to."""

    def __init__(self, param):
        self.param = param
        self.skipped = torch.zeros(())
        self.limits = []

    def step(self, grad, learning_rate, max_grad_norm, active=None):
        self.limits.append(max_grad_norm)
        self.param.sub_(learning_rate * grad)
        return grad.norm()


def prepared(env_id, algo, **settings):
    """(learner, a rollout of its weights, those weights): the learner has moved on since, and so have its statistics."""
    one_step = {"epochs": 1, "minibatches": 1} if algo == "ppo" else {}
    cls = algorithm(algo)
    config = cls.config_class(
        num_envs=ENVS, num_steps=STEPS, total_steps=10_000, engine="torch", collector="eager", hidden_sizes=(16,),
        norm_obs=True, norm_reward=False, norm_adv=True, ent_coef=0.02, lr_end=1.0, **{**one_step, **settings},
    )  # fmt: skip
    env = gpuenvs.make(env_id, ENVS, device="cpu", seed=3)
    spaces = env.single_observation_space, env.single_action_space
    learner = cls(config, *spaces, "cpu", 5)
    collector = Collector(env, "cpu", 5, 0.0, "eager")
    warm, rollout = Rollout(STEPS, ENVS, *spaces), Rollout(STEPS, ENVS, *spaces)
    learner.update(collector.collect(learner.policy, warm))
    collector.collect(learner.policy, rollout, learner.version)
    behaviour = learner.policy.copy_on("cpu")
    learner.update(collector.collect(learner.policy, warm))
    with torch.no_grad():
        learner.policy.flat.add_(0.05 * torch.randn(learner.policy.flat.shape, generator=torch.manual_seed(0)))
    assert not torch.equal(learner.policy.obs_norm.shift, behaviour.obs_norm.shift)
    learner.actor_optimizer = Descent(learner.policy.actor_flat)
    learner.critic_optimizer = Descent(learner.policy.critic_flat)
    return learner, rollout, behaviour


def rows_at(policy, rollout, config):
    """(features, action, advantage, target) as the policy sees the rollout, written out."""
    with torch.no_grad():
        features = policy.features(rollout.obs)
        value = policy.value(features)
        final = policy.value(policy.features(rollout.final_obs))
        ends = rollout.terminated, rollout.truncated, final
        advantage = F.gae(rollout.reward, value[:-1], value[-1], *ends, config.gamma, config.gae_lambda)
    advantage, target = advantage.flatten(), (advantage + value[:-1]).flatten()
    advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
    return features[:-1].flatten(0, 1), rollout.action.flatten(0, 1), advantage, target


@pytest.mark.parametrize("env_id, algo", CASES)
def test_the_delayed_gradient_is_that_of_the_weights_that_collected(env_id, algo):
    learner, rollout, behaviour = prepared(env_id, algo)
    before, config = learner.policy.flat.clone(), learner.config
    learner.update(rollout, Correction("delayed", tuple(behaviour.acting_tensors())))

    features, action, advantage, target = rows_at(behaviour, rollout, config)
    dist = behaviour.distribution(features)
    log_prob = dist.log_prob(action)
    if algo == "ppo":
        objective = ((log_prob - rollout.log_prob.flatten()).exp() * advantage).mean()
    else:
        objective = (log_prob * advantage).mean()
    actor = flat_gradient(-objective - config.ent_coef * dist.entropy().mean(), behaviour.actor_parameters())
    value_loss = 0.5 * (behaviour.value(features) - target).square().mean()
    critic = flat_gradient(config.vf_coef * value_loss, behaviour.critic_parameters())
    expected = before - config.learning_rate * torch.cat((actor, critic))
    assert (learner.policy.flat - expected).abs().max() < 1e-6
    # and it is another one than that of the weights it is applied to
    here = learner.policy.distribution(learner.policy.features(rollout.obs[:-1]).flatten(0, 1))
    other = flat_gradient(-(here.log_prob(action) * advantage).mean(), learner.policy.actor_parameters())
    assert (other - actor).abs().max() > 1e-3


def test_a_delayed_update_of_many_steps_is_the_move_from_the_weights_that_collected():
    learner, rollout, behaviour = prepared("CartPole-v1", "ppo", epochs=3, minibatches=4)
    twin = copy.copy(learner)
    twin.policy = learner.policy.copy_on("cpu")
    with torch.no_grad():
        twin.policy.flat.copy_(behaviour.flat)
        twin.policy.obs_norm.load_state_dict(behaviour.obs_norm.state_dict())
    twin.actor_optimizer, twin.critic_optimizer = Descent(twin.policy.actor_flat), Descent(twin.policy.critic_flat)
    before = learner.policy.flat.clone()
    learner.update(rollout, Correction("delayed", tuple(behaviour.acting_tensors())))
    twin.update(rollout)
    torch.testing.assert_close(learner.policy.flat - before, twin.policy.flat - behaviour.flat, rtol=0, atol=1e-6)


def test_the_learners_own_statistics_come_back():
    learner, rollout, behaviour = prepared("Pendulum-v1", "a2c")
    expected = copy.deepcopy(learner.policy.obs_norm)
    expected.update(rollout.obs[:-1])
    learner.update(rollout, Correction("delayed", tuple(behaviour.acting_tensors())))
    for name, value in expected.state_dict().items():
        assert torch.equal(value, learner.policy.obs_norm.state_dict()[name]), name


def test_a_failed_delayed_update_leaves_the_weights():
    learner, _, behaviour = prepared("Pendulum-v1", "a2c")
    before = [tensor.clone() for tensor in learner.policy.acting_tensors()]
    correction = Correction("delayed", tuple(behaviour.acting_tensors()))
    with pytest.raises(ZeroDivisionError), correction.applied(learner.policy):
        assert torch.equal(learner.policy.flat, behaviour.flat)
        raise ZeroDivisionError
    assert all(map(torch.equal, before, learner.policy.acting_tensors()))


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
@pytest.mark.parametrize("kind", ["ratio", "vtrace", "none"])
def test_the_gradient_of_the_other_corrections(kind, algo):
    learner, rollout, _ = (
        prepared("Pendulum-v1", algo, clip_coef=1e6) if algo == "ppo" else prepared("Pendulum-v1", algo)
    )
    twin, config = learner.policy.copy_on("cpu"), learner.config
    features, action, advantage, target = rows_at(twin, rollout, config)
    dist = twin.distribution(features)
    log_prob = dist.log_prob(action)
    ratio = (log_prob - rollout.log_prob.flatten()).exp().detach()
    assert (ratio - 1).abs().max() > 0.1
    if kind == "vtrace":
        with torch.no_grad():
            value = twin.value(twin.features(rollout.obs))
            final = twin.value(twin.features(rollout.final_obs))
            target, advantage = vtrace_by_hand(rollout, ratio.view(STEPS, ENVS), value, final, config)
        target, advantage = target.flatten(), F.normalize_advantage(advantage.flatten())
        ratio = torch.ones_like(ratio)  # it is in the advantages
    weight = ratio if kind == "ratio" else torch.ones_like(ratio)
    loss = -(weight * log_prob * advantage).mean() - config.ent_coef * dist.entropy().mean()
    expected = twin.actor_flat - config.learning_rate * flat_gradient(loss, twin.actor_parameters())
    value_loss = 0.5 * (twin.value(features) - target).square().mean()
    critic = twin.critic_flat - config.learning_rate * config.vf_coef * flat_gradient(
        value_loss, twin.critic_parameters()
    )
    learner.update(rollout, Correction(kind))
    assert (learner.policy.actor_flat - expected).abs().max() < 1e-6
    assert (learner.policy.critic_flat - critic).abs().max() < 1e-6


def vtrace_by_hand(rollout, ratio, value, final, config):
    """Row by row, from the definitions: v_s = V_s + rho_s delta_s + gamma lambda c_s (v_{s+1} - V_{s+1})."""
    target, advantage = torch.empty(STEPS, ENVS), torch.empty(STEPS, ENVS)
    for i in range(ENVS):
        following = value[-1, i]
        correction = 0.0
        for t in reversed(range(STEPS)):
            ended = bool(rollout.terminated[t, i] | rollout.truncated[t, i])
            bootstrap = value[t + 1, i]
            if ended:
                bootstrap = torch.zeros(()) if rollout.terminated[t, i] else final[t, i]
                following, correction = bootstrap, 0.0
            rho = min(1.0, float(ratio[t, i]))
            delta = rho * (rollout.reward[t, i] + config.gamma * bootstrap - value[t, i])
            ahead = config.gae_lambda * following + (1 - config.gae_lambda) * bootstrap
            advantage[t, i] = rho * (rollout.reward[t, i] + config.gamma * ahead - value[t, i])
            correction = delta + config.gamma * config.gae_lambda * rho * correction
            target[t, i] = value[t, i] + correction
            following = target[t, i]
    return target, advantage


@pytest.mark.parametrize("kind", ["", "ratio"])
def test_the_gradient_is_clipped_in_every_minibatch(kind):
    learner, rollout, _ = prepared("CartPole-v1", "ppo", epochs=3, minibatches=4, max_grad_norm=0.25)
    learner.update(rollout, Correction(kind))
    for optimizer in (learner.actor_optimizer, learner.critic_optimizer):
        assert optimizer.limits == [0.25] * 12
