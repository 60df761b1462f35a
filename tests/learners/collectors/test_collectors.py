"""Fused, graph and eager give the same transitions; which one is taken; what a check finds."""

import types

import numpy as np
import pytest
import torch

import gpuenvs
from gpuenvs.errors import ConfigError
from learners.collector import Collector
from learners.collectors import choose
from learners.collectors.check import TOLERANCE, replay
from learners.collectors.graph import GraphRollout
from learners.collectors.loop import StepLoop
from learners.collectors.noise import ActionNoise
from learners.networks import Policy
from learners.rollout import Rollout
from tests.gpuenvs.classic import CLASSIC
from tests.learners.tagged_env import TaggedEnv

MUJOCO = ("InvertedPendulum-v5", "Hopper-v5", "HalfCheetah-v5")
FIELDS = (
    "obs",
    "action",
    "log_prob",
    "reward",
    "terminated",
    "truncated",
    "final_obs",
    "episode_return",
    "episode_length",
)
SEED = 3


def make(env_id, num_envs=70, num_steps=24, **options):
    """Environment, a policy whose outputs matter, and a rollout."""
    env = gpuenvs.make(env_id, num_envs, device="cpu", seed=5, max_episode_steps=13, dtype="float32", **options)
    policy = Policy(env.single_observation_space, env.single_action_space, hidden_sizes=(32, 32), seed=2)
    policy.actor_flat.mul_(1.5)
    return env, policy, Rollout(num_steps, num_envs, env.single_observation_space, env.single_action_space)


def collected(kind, env_id, horizons=2, correlation=0.0, **options):
    """The last of `horizons` rollouts; the statistics of the policy are those of the ones before."""
    env, policy, rollout = make(env_id, **options)
    collector = Collector(env, "cpu", SEED, correlation, kind)
    for version in range(horizons):
        collector.collect(policy, rollout, version)
        if version < horizons - 1:
            policy.obs_norm.update(rollout.obs[:-1])
    return rollout, collector


@pytest.mark.parametrize("env_id", [*CLASSIC, *MUJOCO])
def test_fused_transitions_are_those_of_the_eager_loop(env_id):
    """Given a fused rollout's actions the environment does bit for bit the same; given its observations so does the policy
    to 1e-5. So an action can differ only where two were equally good to rounding."""
    env, policy, rollout = make(env_id)
    fused = Collector(env, "cpu", SEED, collector="fused")
    for version in range(2):  # in the second horizon the statistics change something
        fused.start() if version == 0 else policy.obs_norm.update(rollout.obs[:-1])
        start, step = env.snapshot(), fused.step
        fused.collect(policy, rollout, version)
        after = env.snapshot()
        noise = ActionNoise(SEED, 0, 0.0, torch.device("cpu")).draw(rollout.num_steps, env.num_envs, policy, step)
        env.restore(start)
        found = replay(StepLoop(env, torch.device("cpu")), policy, rollout, noise)
        assert found.env == 0.0
        assert found.policy <= TOLERANCE
        assert (rollout.terminated | rollout.truncated).any()
        again = env.snapshot()
        assert all(np.array_equal(again[name], value, equal_nan=True) for name, value in after.items())


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCarContinuous-v0", "InvertedPendulum-v5"])
@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_graph_transitions_are_those_of_the_eager_loop_bit_for_bit(env_id, correlation):
    expected, _ = collected("eager", env_id, 3, correlation)
    found, collector = collected("graph", env_id, 3, correlation)
    assert collector.choice.name == "graph"
    done = expected.terminated | expected.truncated
    for name in FIELDS:
        a, b = getattr(found, name), getattr(expected, name)
        ended = name in ("final_obs", "episode_return", "episode_length")
        assert torch.equal(a[done] if ended else a, b[done] if ended else b), name


def test_fused_and_eager_choose_the_same_actions_in_cartpole():
    expected, _ = collected("eager", "CartPole-v1", 3)
    found, _ = collected("fused", "CartPole-v1", 3)
    for name in ("obs", "action", "reward", "terminated", "truncated"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_auto_takes_what_is_possible():
    env, policy, _ = make("CartPole-v1")
    assert choose("auto", env, policy).name == "fused"
    small = Policy(env.single_observation_space, env.single_action_space, hidden_sizes=(10,))
    choice = choose("auto", env, small)
    assert choice.name == "eager" and "multiples of the SIMD width" in choice.why
    assert choose("auto", TaggedEnv(4), policy).name == "eager"
    assert choose("eager", env, policy) == ("eager", "asked for")
    assert choose("auto", gpuenvs.make("CartPole-v1", 4, device="cpu", dtype="float64"), policy).name == "eager"


def test_what_is_impossible_is_refused_in_one_line_that_says_why():
    env, policy, _ = make("CartPole-v1")
    small = Policy(env.single_observation_space, env.single_action_space, hidden_sizes=(10,))
    wide = gpuenvs.make("CartPole-v1", 4, device="cpu", dtype="float64")
    elsewhere = types.SimpleNamespace(device=torch.device("cuda:1"))
    for wanted, given, chosen, reason in (
        ("fused", env, small, "hidden_sizes must be multiples"),
        ("fused", wide, policy, "the environment computes in float64"),
        ("fused", TaggedEnv(4), policy, "TaggedEnv has no native step"),
        ("graph", env, elsewhere, "the environment is on cpu, the policy on cuda:1; use collector=auto or eager"),
        ("fused", env, elsewhere, "the environment is on cpu, the policy on cuda:1"),
    ):
        with pytest.raises(ConfigError, match=f"collector={wanted}: .*{reason}") as caught:
            choose(wanted, given, chosen)
        assert "\n" not in str(caught.value)
    assert choose("auto", env, elsewhere).name == "eager"


def test_the_first_horizon_is_checked_and_leaves_no_trace():
    results = []
    for check in (False, True):
        env, policy, rollout = make("Pendulum-v1")
        collector = Collector(env, "cpu", SEED, 0.6, "fused", check)
        for version in range(2):
            collector.collect(policy, rollout, version)
        results.append((rollout.obs.clone(), rollout.action.clone(), collector.agreement))
    (obs, action, nothing), (again, same, agreement) = results
    assert nothing is None and agreement.env == 0.0 and 0 < agreement.policy <= TOLERANCE
    assert torch.equal(obs, again) and torch.equal(action, same)


class Wrong:
    """A graph whose horizons have one wrong number."""

    def __init__(self, field, error=None):
        self.field, self.error = field, error

    def __call__(self, env, loop, capture):
        inner = GraphRollout(env, loop, capture)

        def run(policy, rollout, noise):
            if self.error:
                raise self.error
            inner.run(policy, rollout, noise)
            getattr(rollout, self.field)[1, 2] += 1

        return types.SimpleNamespace(run=run)


@pytest.mark.parametrize("field", ["obs", "log_prob", "reward", "action"])
def test_a_wrong_horizon_is_found_and_the_loop_takes_over(monkeypatch, field):
    monkeypatch.setattr("learners.collector.GraphRollout", Wrong(field))
    env, policy, rollout = make("Pendulum-v1")
    expected, _ = collected("eager", "Pendulum-v1", 1)
    collector = Collector(env, "cpu", SEED, collector="graph", check=True)
    with pytest.warns(RuntimeWarning, match="collector graph is replaced by eager: .* differ by") as caught:
        collector.collect(policy, rollout)
        assert torch.equal(rollout.obs, expected.obs) and torch.equal(rollout.action, expected.action)
        collector.collect(policy, rollout)
    assert len(caught) == 1  # said once
    assert collector.choice.name == "eager" and "graph failed" in collector.choice.why


def test_a_graph_that_cannot_be_recorded_is_replaced(monkeypatch):
    error = RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore lines")
    monkeypatch.setattr("learners.collector.GraphRollout", Wrong("obs", error))
    env, policy, rollout = make("Pendulum-v1")
    collector = Collector(env, "cpu", SEED, 0.5, collector="graph", check=True)
    with pytest.warns(RuntimeWarning, match="operation not permitted when stream is capturing more lines"):
        collector.collect(policy, rollout)
    expected, _ = collected("eager", "Pendulum-v1", 1, 0.5)
    assert torch.equal(rollout.action, expected.action)


def test_a_graph_is_recorded_once_for_each_rollout_and_reads_changed_weights():
    env, policy, _ = make("Pendulum-v1")
    spaces = (env.single_observation_space, env.single_action_space)
    rollouts = [Rollout(5, env.num_envs, *spaces) for _ in range(2)]
    env.reset(seed=5)
    recorded = []

    def capture(body):
        recorded.append(body)
        return body

    graph = GraphRollout(env, StepLoop(env, torch.device("cpu")), capture)
    noise = ActionNoise(SEED, 0, 0.0, torch.device("cpu"))
    for turn in range(4):
        graph.run(policy, rollouts[turn % 2], noise.draw(5, env.num_envs, policy, 5 * turn))
        policy.flat.mul_(1.1)
    assert len(recorded) == 2
    env, policy, _ = make("Pendulum-v1")
    env.reset(seed=5)
    loop, eager = StepLoop(env, torch.device("cpu")), Rollout(5, env.num_envs, *spaces)
    for turn in range(4):
        loop.run(policy, eager, noise.draw(5, env.num_envs, policy, 5 * turn))
        policy.flat.mul_(1.1)
    assert torch.equal(rollouts[1].action, eager.action)  # warming up left no trace
