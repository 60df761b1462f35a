"""SAC, TD3 and DQN against numbers worked out by hand, and what survives a resume."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from gpuenvs.errors import ConfigError
from learners import compat
from learners.actors import QPolicy, SquashedPolicy, TanhPolicy, squashed_log_prob
from learners.config import make_config
from learners.critics import Critics, follow, least, of_least, project
from learners.rates import rate_at, scaled_rate
from learners.replay import Replay
from learners.sac import SAC, SACConfig
from learners.td3 import TD3, TD3Config

OBS, ACTION, CHOICE = Box(-np.inf, np.inf, (3,)), Box(-2.0, 2.0, (2,)), Discrete(3)


def filled(action_space=ACTION, blocks=20, seed=0):
    """A replay of noise with ends of both kinds."""
    replay, generator = Replay(400, 4, OBS, action_space, 4), torch.Generator().manual_seed(seed)
    for _ in range(blocks):
        block = replay.begin()
        block.data.copy_(torch.randn(block.data.shape, generator=generator))
        if isinstance(action_space, Discrete):
            block.action.copy_(torch.randint(0, 3, block.action.shape, generator=generator))
        else:
            block.action.tanh_()
        for flag in (block.terminated, block.truncated):
            flag.copy_((torch.rand(flag.shape, generator=generator) < 0.15).float())
        replay.commit(block)
    return replay


SMALL = {"num_envs": 4, "num_steps": 4, "batch_size": 32, "hidden_sizes": (16, 16), "buffer_size": 400}


def make(algo, engine="torch", **settings):
    cls = compat.algorithm(algo)
    values = {**SMALL, **({} if algo == "dqn" else {"engine": engine}), **settings}
    return cls(make_config(cls.config_class, values), OBS, CHOICE if algo == "dqn" else ACTION, seed=3)


# --- the squashed Gaussian ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("u", "expected"), [(0.0, -0.91894), (1.0, -0.55138), (5.0, -4.80514), (10.0, -32.30523), (-5.0, -4.80514)]
)
def test_squashed_log_prob(u, expected):
    """Mean 0, deviation 1: log N(u) - log(1 - tanh(u)^2)."""
    x = torch.tensor([[u]], requires_grad=True)
    log_std = torch.zeros(1, 1, requires_grad=True)
    found = squashed_log_prob(x, x, log_std)
    assert found.item() == pytest.approx(expected, abs=2e-5)
    found.backward()
    assert torch.isfinite(x.grad).all() and torch.isfinite(log_std.grad).all()
    assert x.grad.item() == pytest.approx(-u + 2 * math.tanh(u), abs=1e-5)


@pytest.mark.parametrize("u", [30.0, 100.0, -100.0])
def test_far_out_it_stays_finite(u):
    x = torch.tensor([[u]], requires_grad=True)
    found = squashed_log_prob(x, torch.zeros(1, 1), torch.zeros(1, 1)).sum()
    found.backward()
    assert torch.isfinite(found) and torch.isfinite(x.grad).all()
    assert found.item() == pytest.approx(-0.918939 - 2 * (math.log(2) - abs(u)), rel=1e-5)


def test_a_draws_density_integrates_to_one_over_the_actions():
    """Sum over a fine grid of actions of exp(log_prob) da, of one state."""
    policy = SquashedPolicy(OBS, Box(-1.0, 1.0, (1,)), hidden_sizes=(16,), seed=1)
    features = torch.randn(1, 3, generator=torch.Generator().manual_seed(0))
    mean, log_std = policy.parameters_of(features)
    u = torch.linspace(-12, 12, 40001, dtype=torch.float32)[:, None]
    noise = (u - mean) / log_std.exp()
    density = squashed_log_prob(u, noise, log_std.expand_as(u)).exp()
    assert torch.trapezoid(density, torch.tanh(u[:, 0])).item() == pytest.approx(1.0, abs=1e-3)


def test_actions_reach_the_environments_range_and_no_further():
    policy = SquashedPolicy(OBS, Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 10.0], np.float32)), seed=0)
    ends = policy.to_env(torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0]]))
    assert ends.tolist() == [[-1, 0], [3, 10], [1, 5]]
    obs = torch.randn(100, 3)
    acted = policy.act(1000 * obs, generator=torch.Generator().manual_seed(0))
    assert acted[:, 0].min() >= -1 and acted[:, 0].max() <= 3 and acted[:, 1].min() >= 0
    assert torch.equal(policy.act(obs, deterministic=True), policy.to_env(policy.parameters_of(obs)[0].tanh()))
    with pytest.raises(ConfigError, match="bounds"):
        SquashedPolicy(OBS, Box(-np.inf, np.inf, (1,)))


def test_random_actions_are_uniform():
    policy = SquashedPolicy(OBS, ACTION, seed=0)
    drawn = policy.random(torch.randn(200_000, 2, generator=torch.Generator().manual_seed(0))).sort(0).values
    assert (drawn[:, 0] - torch.linspace(-1, 1, 200_000)).abs().max() < 0.01


# --- critics -----------------------------------------------------------------------------------------------------------


def test_least_and_follow():
    assert least(torch.tensor([[1.0, 5.0], [2.0, 3.0]])).tolist() == [1, 3]
    target, source = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])
    follow(target, source, 0.25)
    assert target.tolist() == [1.5, 1.0]
    one = torch.tensor([[[0.1, 0.9], [1.0, 0.0]], [[0.6, 0.4], [0.0, 1.0]]])
    assert of_least(torch.tensor([[1.0, 0.0], [0.5, 1.0]]), one).tolist() == [
        [0.6000000238418579, 0.4000000059604645],
        [1, 0],
    ]


def test_projection_by_hand():
    """Support -1, 0, 1, 2; reward 0.5, discount 0.5: atoms go to 0, 0.5, 1, 1.5."""
    support = torch.tensor([-1.0, 0.0, 1.0, 2.0])
    p = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]])
    found = project(p, support, torch.tensor([0.5, 7.0, -0.25]), torch.tensor([0.5, 1.0, 0.0]))
    expected = [[0, 0.1 + 0.1, 0.1 + 0.3 + 0.2, 0.2], [0, 0, 0, 1], [0.25, 0.75, 0, 0]]
    assert torch.allclose(found, torch.tensor(expected), atol=1e-6)
    assert torch.allclose(found.sum(1), torch.ones(3))


def test_stacked_critics_are_separate_networks():
    critics = Critics(3, 2, hidden_sizes=(8,), seed=0)
    obs, action = torch.randn(5, 3), torch.randn(5, 2)
    weight0, bias0, weight1, bias1 = critics.net.layers
    x = torch.cat((obs, action), 1)
    for j in range(2):
        by_hand = torch.relu(x @ weight0[j].T + bias0[j]) @ weight1[j].T + bias1[j]
        assert torch.allclose(critics(obs, action)[j], by_hand[:, 0], atol=1e-6)
    assert not torch.allclose(*critics(obs, action))


# --- updates -----------------------------------------------------------------------------------------------------------


def test_sacs_target_by_hand():
    """y = r + gamma^n (1 - terminated) (min target Q(s', a') - alpha log pi(a' | s'))."""
    algo, replay = make("sac", gamma=0.9), filled()
    index = replay.draw(3, 0, 32)
    sample = replay.sample(index, 1, 0.9)
    noise = torch.randn(32, 2, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        mean, log_std = algo.policy.parameters_of(sample.next_obs)
        u = mean + log_std.exp() * noise
        q = algo.targets(sample.next_obs, u.tanh()).min(0).values
        log_prob = (
            torch.distributions.Normal(mean, log_std.exp()).log_prob(u) - torch.log(1 - u.tanh() ** 2 + 1e-9)
        ).sum(1)
        ends = sample.discount == 0
        y = sample.reward + torch.where(ends, 0.0, 0.9) * (q - 1.0 * log_prob)
        expected = 0.5 * (algo.critics(sample.obs, sample.action) - y).square().mean(1).sum()
    assert ends.any() and not ends.all()
    assert algo._critic_step(sample, noise)["critic_loss"].item() == pytest.approx(expected.item(), rel=1e-4)


def test_timeouts_bootstrap_and_terminals_do_not():
    replay = filled()
    flat = replay.data.view(-1, replay.data.shape[-1])
    index = replay.draw(0, 0, 400)
    sample, rows = replay.sample(index, 1, 0.9), flat[index]
    terminated, truncated = rows[:, replay.columns["terminated"]][:, 0], rows[:, replay.columns["truncated"]][:, 0]
    assert (sample.discount[terminated == 1] == 0).all()
    only_cut = (truncated == 1) & (terminated == 0)
    assert only_cut.any() and torch.allclose(sample.discount[only_cut], torch.tensor(0.9))


def test_the_entropy_coefficient_moves_towards_its_target():
    replay = filled()
    for target, sign in ((10.0, 1), (-30.0, -1)):
        algo = make("sac", target_entropy=target)
        algo.update(replay)
        assert math.copysign(1, algo.log_alpha.item()) == sign
    fixed = make("sac", ent_coef=0.2)
    fixed.update(replay)
    assert fixed.log_alpha.exp().item() == pytest.approx(0.2)


def test_td3s_noise_is_each_rows_own_and_scales_with_the_range():
    algo = TD3(TD3Config(**SMALL, target_noise=0.2, target_clip=0.5), OBS, Box(-2.0, 2.0, (2,)), seed=0)
    noise = torch.randn(10_000, 2, generator=torch.Generator().manual_seed(0))
    smoothed = algo.smoothed(torch.zeros(10_000, 2), noise)
    assert torch.allclose(smoothed, (0.2 * noise).clamp(-0.5, 0.5))
    assert len(smoothed.unique()) > 19_000
    assert algo.policy.to_env(smoothed).std().item() == pytest.approx(2 * 0.2, rel=0.05)  # an action range of +-2
    assert algo.smoothed(torch.full((10_000, 2), 0.95), noise).max() == 1


def test_td3_updates_actor_and_targets_every_second_time():
    algo, replay = make("td3"), filled()
    actor, target = algo.policy.flat.clone(), algo.targets.flat.clone()
    algo.update(replay)
    assert torch.equal(algo.policy.flat, actor) and torch.equal(algo.targets.flat, target)
    algo.update(replay)
    assert not torch.equal(algo.policy.flat, actor) and not torch.equal(algo.targets.flat, target)
    assert (algo.version, algo.actor_version) == (2, 1)


def test_each_environment_explores_with_its_own_deviation():
    policy = TanhPolicy(OBS, ACTION, num_envs=3, noise_min=0.1, noise_max=0.5, hidden_sizes=(16,), seed=0)
    obs, noise = torch.zeros(3, 3), torch.full((3, 2), 0.1)
    action, _ = policy.sample(obs, noise)
    assert torch.allclose(action - policy(obs), torch.tensor([[0.01], [0.03], [0.05]]).expand(3, 2), atol=1e-6)


def test_dqns_exploration_and_double_targets():
    policy = QPolicy(OBS, CHOICE, hidden_sizes=(16,), seed=0)
    obs = torch.randn(30_000, 3, generator=torch.Generator().manual_seed(0))
    noise = -torch.log(-torch.log(torch.rand(30_000, 4, generator=torch.Generator().manual_seed(1))))
    policy.epsilon.fill_(0.3)
    best = policy.act(obs, deterministic=True)
    differing = (policy.sample(obs, noise)[0] != best).float().mean().item()
    assert differing == pytest.approx(0.3 * 2 / 3, abs=0.01)
    assert torch.bincount(policy.random(noise)).div(30_000).sub(1 / 3).abs().max() < 0.01
    algo, replay = make("dqn", n_step=1, gamma=0.9), filled(CHOICE)
    sample = replay.sample(replay.draw(3, 0, 32), 1, 0.9)
    with torch.no_grad():
        chosen = algo.policy.outputs(sample.next_obs).argmax(1)
        goal = sample.reward + sample.discount * algo.target.outputs(sample.next_obs)[torch.arange(32), chosen]
        value = algo.policy.outputs(sample.obs)[torch.arange(32), sample.action[:, 0].long()]
        expected = torch.nn.functional.smooth_l1_loss(value, goal).item()
    assert algo.update(replay)["critic_loss"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"layer_norm": True}, {"atoms": 21, "v_min": -5.0, "v_max": 5.0}, {"n_step": 3},
                                     {"norm_obs": True}, {"max_grad_norm": 0.1}], ids=str)  # fmt: skip
@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_options_learn_to_value_a_constant_reward(algo, options):
    """With gamma 0 every action is worth its reward, which is made the same everywhere."""
    made, replay = make(algo, gamma=0.0, learning_rate=1e-2, **{**options, "n_step": 1}), filled()
    replay.reward.fill_(1.5)
    block = replay.begin()
    made.observe(block)
    for _ in range(150):
        metrics = made.update(replay)
    assert float(metrics["q_value"]) == pytest.approx(1.5, abs=0.2)


# --- split, resume, rates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo, engine", [("sac", "torch"), ("sac", "fused"), ("td3", "torch"), ("dqn", "torch")])
def test_all_that_an_update_depends_on_survives_a_resume(algo, engine):
    replay = filled(CHOICE if algo == "dqn" else ACTION)
    whole, first, second = (make(algo, engine) for _ in range(3))
    for _ in range(6):
        whole.update(replay)
    for _ in range(3):
        first.update(replay)
    second.load_state_dict(first.state_dict())
    for _ in range(3):
        second.update(replay)
    a, b = whole.state_dict(), second.state_dict()
    assert set(a) == set(b)
    flat = [(name, x, b[name]) for name, x in a.items()]
    while flat:
        name, x, y = flat.pop()
        if isinstance(x, dict):
            flat += [(f"{name}.{key}", x[key], y[key]) for key in x]
        else:
            assert torch.equal(torch.as_tensor(x), torch.as_tensor(y)), name
    if algo == "sac":
        assert a["log_alpha"] != 0 and a["alpha_optimizer"]["m"] != 0


@pytest.mark.parametrize("engine", ["torch", "fused"])
def test_a_split_that_hands_over_every_time_is_the_joint_update(engine):
    replay = filled()
    config = make_config(SACConfig, {**SMALL, "engine": engine, "norm_obs": True})
    joint, split = SAC(config, OBS, ACTION, seed=3), SAC(config, OBS, ACTION, seed=3, split=True)
    block = replay.begin()
    for algo in (joint, split):
        algo.observe(block)
    for _ in range(5):
        joint.update(replay)
        split.critic_update(replay)
        assert split.send_critics() > 0
        split.take_critics()
        split.actor_update(replay)
        assert split.send_actor() > 0
        split.take_actor()
    for algo in (joint, split):
        algo.push_actor(), algo.push_critics()
    assert torch.equal(joint.policy.flat, split.policy.flat)
    assert torch.equal(joint.critics.flat, split.critics.flat)
    before = split._actor_read.flat.clone()
    split.critic_update(replay), split.actor_update(replay)
    assert torch.equal(split._actor_read.flat, before)  # nothing is seen of the other half until it is taken


def test_step_sizes_follow_the_batch_by_the_stated_rule():
    assert scaled_rate(3e-4, 256, "sqrt") == pytest.approx(3e-4)
    assert scaled_rate(3e-4, 1024, "sqrt") == pytest.approx(6e-4)
    assert scaled_rate(3e-4, 1024, "linear") == pytest.approx(1.2e-3)
    assert scaled_rate(3e-4, 32768, "none") == 3e-4
    assert scaled_rate(3e-4, 2**20, "sqrt") == 3e-3
    assert scaled_rate(1e-2, 2**20, "sqrt") == 1e-2


def test_step_sizes_fall_linearly_over_the_updates_of_the_run():
    more = {
        "total_steps": 2000,
        "learning_starts": 1000,
        "update_to_data": 32.0,
        "batch_size": 64,
        "learning_rate": 1e-3,
    }
    config = SACConfig(**more, lr_end=0.1, lr_scaling="none")  # 500 updates
    assert [rate_at(config, update) for update in (0, 250, 500, 600)] == pytest.approx([1e-3, 5.5e-4, 1e-4, 1e-4])
    assert rate_at(SACConfig(**{**more, "update_to_data": 0.0}, lr_end=0.1, lr_scaling="none"), 10**6) == 1e-3


def test_what_does_not_fit_is_one_line():
    with pytest.raises(ConfigError, match="sac cannot act"):
        compat.check("sac", "spreeze", CHOICE)
    with pytest.raises(ConfigError, match="learns from its own newest data"):
        compat.check("ppo", "spreeze", CHOICE)
    with pytest.raises(ConfigError, match="keeps no replay"):
        compat.check("sac", "hts", ACTION)
    with pytest.raises(ConfigError, match="v_min"):
        make("sac", atoms=11, v_min=1.0, v_max=1.0)
    with pytest.raises(ConfigError, match=r"engine=fused: there is no native layer_norm"):
        make("sac", "fused", layer_norm=True)
    with pytest.raises(ConfigError, match="no actor to split"):
        compat.algorithm("dqn")(make_config(compat.algorithm("dqn").config_class, {}), OBS, CHOICE, split=True)


# --- the native engine ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_step": 3, "norm_obs": True, "max_grad_norm": 0.3},
        {"activation": "tanh", "policy_delay": 2, "batch_size": 80},
        {"lr_end": 0.0, "learning_starts": 1000, "total_steps": 1096, "update_to_data": 4.0},
    ],
    ids=str,
)
def test_native_updates_are_those_of_torch(options):
    replay = filled()
    config = make_config(SACConfig, {**SMALL, "learning_rate": 3e-3, "engine": "fused", **options})
    native = SAC(config, OBS, ACTION, seed=3)
    torch_ = SAC(dataclasses.replace(config, engine="torch"), OBS, ACTION, seed=3)
    assert (native.engine, torch_.engine) == ("fused", "torch")
    block = replay.begin()
    for algo in (native, torch_):
        algo.observe(block)
    begin = torch_.policy.flat.clone()
    for _ in range(8):
        found, expected = native.update(replay), torch_.update(replay)
    assert not torch.allclose(begin, torch_.policy.flat, atol=1e-3)
    for name in expected:
        assert float(found[name]) == pytest.approx(float(expected[name]), rel=2e-3, abs=2e-5), name
    a, b = native.state_dict(), torch_.state_dict()
    for name in ("policy", "critics", "targets"):
        for key in a[name]:
            assert torch.allclose(a[name][key], b[name][key], atol=2e-5), (name, key)
    assert torch.allclose(a["log_alpha"], b["log_alpha"], atol=1e-6)
    for name in ("actor_optimizer", "critic_optimizer", "alpha_optimizer"):
        assert a[name]["steps"] == b[name]["steps"]
        assert torch.allclose(a[name]["v"], b[name]["v"], rtol=1e-2, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"norm_obs": True, "n_step": 2, "policy_delay": 1, "batch_size": 80}], ids=str)
@pytest.mark.parametrize("split", [False, True])
def test_native_updates_of_td3_are_those_of_torch(options, split):
    replay = filled()
    config = make_config(TD3Config, {**SMALL, "learning_rate": 3e-3, "tau": 0.05, "engine": "fused", **options})
    native = TD3(config, OBS, ACTION, seed=3, split=split)
    torch_ = TD3(dataclasses.replace(config, engine="torch"), OBS, ACTION, seed=3, split=split)
    assert (native.engine, torch_.engine) == ("fused", "torch")
    begin = native.target_policy.flat.clone()
    for algo in (native, torch_):
        algo.observe(replay.begin())
    for _ in range(8):
        found, expected = native.update(replay), torch_.update(replay)
    assert expected.keys() == found.keys()
    for name in expected:
        assert float(found[name]) == pytest.approx(float(expected[name]), rel=2e-3, abs=2e-5), name
    a, b = native.state_dict(), torch_.state_dict()
    assert not torch.allclose(begin, native.target_policy.flat, atol=1e-4)
    for name in ("policy", "critics", "targets", "target_policy"):
        for key in a[name]:
            assert torch.allclose(a[name][key], b[name][key], atol=2e-5), (name, key)


def test_operations_of_an_update_by_hand():
    """3 observed numbers, 1 action, 64 x 64: 4,416 weights of a critic; 4,416 of SAC's actor, 4,352 of TD3's."""
    from learners.native.offpolicy import flops

    # Multiplications of a row: 5 forward, 2 backward without the way through the first layer of 4 x 64.
    assert flops(True, 3, 1, (64, 64), 256)[0] == 256 * 2 * (5 * 4416 + 2 * (2 * 4416 - 256))
    # Both critics forward and back to the action, the actor forward and backward.
    to_action = 64 + 64 * 64 + 64
    assert flops(True, 3, 1, (64, 64), 256)[1] == 256 * 2 * (2 * (4416 + to_action) + 3 * 4416 - 192)
    assert flops(False, 3, 1, (64, 64), 256)[1] == 256 * 2 * (4416 + to_action + 3 * 4352 - 192)


@pytest.mark.parametrize(
    "name, more",
    [
        ("sac", {"batch_size": 200}),
        ("td3", {"batch_size": 500}),
        ("sac", {"batch_size": 300, "hidden_sizes": (64, 48)}),
    ],
    ids=str,
)
def test_native_updates_on_several_threads_are_those_of_one(monkeypatch, name, more):
    """To the last bit on two, by rounding on more."""
    from learners.native import offpolicy

    monkeypatch.setattr(offpolicy, "PARALLEL_FLOPS", 0.0)
    replay, found = filled(), []
    for threads in (1, 2, 4):
        algo = make(name, "fused", **more)
        algo.set_threads(threads)
        metrics = algo.updates(replay, 6)
        algo.push_actor(), algo.push_critics()
        assert algo._native.threads == threads
        found.append((algo.policy.flat.clone(), algo.critics.flat.clone(), metrics))
    (actor, critics, metrics), two, four = found
    assert torch.equal(actor, two[0]) and torch.equal(critics, two[1]) and metrics == two[2]
    assert torch.allclose(actor, four[0], atol=1e-5) and torch.allclose(critics, four[1], atol=1e-5)


@pytest.mark.parametrize(
    "name, threads, more", [("sac", 2, {"n_step": 3}), ("sac", 1, {"policy_delay": 2}), ("td3", 2, {})]
)
def test_several_updates_in_one_call_are_single_ones_bit_for_bit(monkeypatch, name, threads, more):
    from learners.native import offpolicy

    monkeypatch.setattr(offpolicy, "PARALLEL_FLOPS", 0.0)
    replay, found = filled(), []
    for counts in ((7,), (1, 3, 2, 1)):
        algo = make(name, "fused", batch_size=100, **more)
        algo.set_threads(threads)
        assert algo._native.threads == threads
        for count in counts:
            metrics = algo.updates(replay, count)
        state = algo.state_dict()
        assert algo.version == 7 and algo.critic_optimizer.steps == 7
        assert algo.actor_version == algo.actor_optimizer.steps == 7 // algo.config.policy_delay
        found.append((state, metrics))
    (one, metrics), (several, same) = found
    assert {"critic_loss", "actor_loss", "actor_grad_norm"} <= metrics.keys()
    assert all(float(metrics[key]) == float(same[key]) for key in same)
    for key, value in one.items():
        for part in value if isinstance(value, dict) else ():
            assert torch.equal(torch.as_tensor(value[part]), torch.as_tensor(several[key][part])), (key, part)
    assert name != "sac" or torch.equal(one["log_alpha"], several["log_alpha"])


def test_both_halves_alone_make_what_an_update_makes():
    """Draws within the engine are those of `learners.draws`, of critics and actor apart as together."""
    replay = filled()
    together, apart = make("sac", "fused", batch_size=64), make("sac", "fused", batch_size=64)
    for _ in range(3):
        together.updates(replay, 1)
        apart.update(replay)
    for algo in (together, apart):
        algo.push_actor(), algo.push_critics()
    assert torch.equal(together.policy.flat, apart.policy.flat) and torch.equal(
        together.critics.flat, apart.critics.flat
    )


def test_an_odd_thread_stays_out_and_an_empty_replay_is_refused():
    from learners.native.offpolicy import _even

    assert [_even(n) for n in (1, 2, 3, 4, 5)] == [1, 2, 2, 4, 4]
    with pytest.raises(ValueError, match="cannot draw from 0 transitions"):
        make("sac", "fused").updates(filled(blocks=0), 1)


def test_a_gradient_that_is_not_finite_is_skipped_natively_as_well():
    replay = filled()
    replay.reward.fill_(float("inf"))
    targets = []
    for engine in ("torch", "fused"):
        algo = make("sac", engine, tau=0.5)
        before = algo.critics.flat.clone()
        algo.targets.flat.zero_()
        algo.load_state_dict(algo.state_dict())
        algo.critic_update(replay)
        algo.push_critics()
        assert torch.equal(algo.critics.flat, before) and algo.critic_optimizer.skipped == 1
        targets.append(algo.targets.flat.clone())
    # The targets follow all the same.
    assert torch.equal(*targets) and torch.equal(targets[0], 0.5 * before)


# --- torch.compile -----------------------------------------------------------------------------------------------------


def test_a_compiled_loss_is_taken_after_its_check_and_not_otherwise(monkeypatch):
    """A compiler that changes nothing is used; one that fails, or changes a gradient, is left with a warning."""

    def weights(compiler, **settings):
        monkeypatch.setattr(torch, "compile", compiler)
        algo, replay = make("td3", **settings), filled()
        for _ in range(4):
            algo.update(replay)
        return algo, torch.cat((algo.critics.flat, algo.policy.flat))

    calls = []

    def counted(function, **_):
        return lambda *args: calls.append(1) or function(*args)

    def wrong(function, **_):
        def doubled(*args):
            loss, figures = function(*args)
            return loss + (loss - loss.detach()), figures  # the same loss with twice its gradient

        return doubled

    def failing(function, **_):
        def compiled(*args):
            raise RuntimeError("no compiler\nand a long story")

        return compiled

    _, expected = weights(counted)
    assert not calls
    algo, found = weights(counted, compile="on", engine="auto")
    assert algo.engine == "torch" and len(calls) == 4 + 2 and torch.equal(found, expected)
    for compiler, reason in ((wrong, "its gradient is another one"), (failing, "no compiler$")):
        with pytest.warns(RuntimeWarning, match=f"torch.compile is left out: {reason}"):
            algo, found = weights(compiler, compile="graphs", engine="auto")
        assert algo._critic_gradient.compiled is None and torch.equal(found, expected)


def test_compile_with_the_native_engine_or_graphs_with_a_split_are_one_line():
    with pytest.raises(ConfigError, match="engine=fused: compile=on is for PyTorch's operations"):
        make("sac", engine="fused", compile="on")
    config = make_config(SACConfig, {**SMALL, "compile": "graphs"})
    with pytest.raises(ConfigError, match="leave split out"):
        SAC(config, OBS, ACTION, split=True)
