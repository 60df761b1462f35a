"""What the collector of a replay stores, shown with tagged data and with environments of the product."""

import types

import numpy as np
import pytest
import torch
from gymnasium import spaces

import gpuenvs
from gpuenvs.errors import ConfigError
from learners.collectors import graph
from learners.distributions import Categorical, DiagGaussian
from learners.replay import Replay
from learners.replay_collector import ReplayCollector, make_replay_collector
from tests.learners.tagged_env import TaggedEnv

STEPS, ENVS = 7, 4


class Policy:
    """Actions tanh(w . obs + noise) in [-1, 1], or the best of noise: what collectors ask of a policy, no more."""

    def __init__(self, env, seed=0):
        space = env.single_action_space
        self.continuous = isinstance(space, spaces.Box)
        self.head = DiagGaussian if self.continuous else Categorical
        outputs = space.shape[0] if self.continuous else int(space.n)
        self.noise_shape, self.device = (outputs,), torch.device("cpu")
        shape = (env.single_observation_space.shape[0], outputs)
        self.flat = 0.3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        self.scale = torch.as_tensor(space.high) if self.continuous else None

    def sample(self, obs, noise):
        scores = obs @ self.flat + noise
        return (torch.tanh(scores) if self.continuous else scores.argmax(-1)), torch.zeros(len(obs))

    def random(self, noise):
        return torch.erf(noise / 2**0.5) if self.continuous else noise.argmax(-1)

    def to_env(self, action):
        return action * self.scale if self.continuous else action


def config(collector="eager", noise_correlation=0.0):
    return types.SimpleNamespace(collector=collector, noise_correlation=noise_correlation)


def made(env, horizons=1, policy=None, steps=STEPS, replay=None, random=False, **options):
    policy = policy or Policy(env)
    replay = replay or Replay(200, env.num_envs, env.single_observation_space, env.single_action_space, steps)
    collector = make_replay_collector(env, "cpu", 3, config(**options))
    blocks = []
    for version in range(horizons):
        blocks.append(collector.collect(policy, replay.begin(), version, random))
        replay.commit(blocks[-1])
    return replay, collector, blocks


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(-2, 2, (2,))])
def test_rows_are_aligned_and_next_observations_are_the_true_ones(space):
    env = TaggedEnv(ENVS, space)
    replay, collector, blocks = made(env, horizons=2)
    time, i = np.meshgrid(np.arange(2 * STEPS), np.arange(ENVS), indexing="ij")
    obs, following = replay.obs[: 2 * STEPS].numpy(), replay.next_obs[: 2 * STEPS].numpy()
    assert (obs[..., 0] == i).all() and (obs[..., 1] == time).all()
    done = obs[..., 2] + 1 == 3 + i
    assert (following[..., 1] == time + 1).all() and (following[..., 2] == obs[..., 2] + 1).all()
    assert (following[..., 0] == i + 0.5 * done).all()  # final_obs where an episode ended, and only there
    assert (replay.terminated[: 2 * STEPS].numpy() == (done & (i % 2 == 0))).all()
    assert (replay.truncated[: 2 * STEPS].numpy() == (done & (i % 2 == 1))).all()
    stored, stepped = replay.action[: 2 * STEPS].numpy(), np.array(env.actions)
    assert (stored * (2 if space.shape else 1) == stepped.reshape(2 * STEPS, ENVS, -1)).all()
    np.testing.assert_allclose(
        replay.reward[: 2 * STEPS], 1000 * i + time + stepped.reshape(2 * STEPS, ENVS, -1)[..., 0] / 10, rtol=1e-6
    )
    assert replay.version[: 2 * STEPS].tolist() == [0] * STEPS + [1] * STEPS and collector.step == 2 * STEPS
    returns, lengths = blocks[1].finished_episodes()
    assert lengths.tolist() == (3 + i[STEPS:][done[STEPS:]]).tolist() and torch.isfinite(returns).all()


def test_actions_are_those_of_the_policy_for_the_stored_observations():
    env = TaggedEnv(ENVS, spaces.Box(-1, 1, (2,)))
    policy = Policy(env)
    replay, collector, _ = made(env, policy=policy)
    noise = collector._noise.draw(STEPS, ENVS, policy, 0)
    expected = [policy.sample(replay.obs[t], noise[t])[0] for t in range(STEPS)]
    assert torch.equal(replay.action[:STEPS], torch.stack(expected))


@pytest.mark.parametrize("collector", ["eager", "graph"])
def test_random_horizons_are_uniform_whatever_the_weights_are(collector):
    env = gpuenvs.make("Pendulum-v1", 2000, device="cpu", seed=0)
    policy = Policy(env)
    policy.flat.fill_(50.0)
    replay, _, _ = made(env, policy=policy, steps=4, random=True, collector=collector)
    action = replay.action[:4]
    assert action.min() >= -1 and action.max() <= 1
    shares = torch.histc(action, 8, -1, 1) / action.numel()
    assert (shares - 1 / 8).abs().max() < 0.015
    discrete = TaggedEnv(3000)
    replay, _, _ = made(discrete, policy=Policy(discrete), steps=1, random=True)
    assert (torch.bincount(replay.action[0].flatten().long()) / 3000 - 1 / 3).abs().max() < 0.04


def test_horizons_may_be_cut_anywhere_and_environments_counted_anyhow():
    one, _, _ = made(gpuenvs.make("Pendulum-v1", 6, device="cpu", seed=0), horizons=2, steps=6)
    env = gpuenvs.make("Pendulum-v1", 6, device="cpu", seed=0)
    other, _, _ = made(env, horizons=4, steps=3)
    assert torch.equal(one.data[:12], other.data[:12])
    part, _, _ = made(gpuenvs.make("Pendulum-v1", 2, device="cpu", seed=0), horizons=2, steps=6)
    assert torch.equal(part.data[:12], one.data[:12, :2])


def test_a_collector_resumes_bit_for_bit():
    def fresh():
        return gpuenvs.make("Pendulum-v1", 3, device="cpu", seed=4)

    whole, _, _ = made(fresh(), horizons=4, noise_correlation=0.5)
    half, collector, _ = made(fresh(), horizons=2, noise_correlation=0.5)
    state = collector.state_dict()
    env = fresh()
    resumed = ReplayCollector(env, "cpu", 3, config(noise_correlation=0.5))
    resumed.load_state_dict(state)
    replay = Replay(200, 3, env.single_observation_space, env.single_action_space, STEPS)
    replay.load_state_dict(half.state_dict())
    for _ in range(2):
        replay.commit(resumed.collect(Policy(env), replay.begin()))
    assert torch.equal(replay.data[: 4 * STEPS], whole.data[: 4 * STEPS])


def test_a_recorded_horizon_goes_through_a_block_of_its_own_for_each_policy():
    """On a CPU nothing is recorded: the loop runs where the graph would, and the copies are those of a GPU."""
    first, second = (gpuenvs.make("Pendulum-v1", 4, device="cpu", seed=0) for _ in range(2))
    eager, graphs = (Replay(200, 4, e.single_observation_space, e.single_action_space, STEPS) for e in (first, second))
    policies = Policy(first, seed=1), Policy(first, seed=2)
    collectors = (
        ReplayCollector(first, "cpu", 3, config()),
        ReplayCollector(second, "cpu", 3, config("graph"), check=True),
    )
    for turn in range(5):
        for replay, collector in zip((eager, graphs), collectors):
            block = collector.collect(policies[turn % 2], replay.begin(), turn, random=turn == 0)
            replay.commit(block)
    assert collectors[1].choice.name == "graph" and collectors[1].agreement.env == 0
    assert len(collectors[1]._stages) == 2
    assert torch.equal(eager.data, graphs.data) and torch.equal(eager.version, graphs.version)


@pytest.mark.filterwarnings("ignore:collector graph is replaced")
@pytest.mark.parametrize("fault", ["wrong", "raises"])
def test_a_recording_that_does_not_agree_gives_way_to_the_loop(monkeypatch, fault):
    def run(self, policy, block, noise):
        if fault == "raises":
            raise RuntimeError("capture failed")
        self._loop.run(policy, block, noise)
        block.reward[2, 1] += 0.01

    monkeypatch.setattr(graph.GraphRollout, "run", run)
    env = gpuenvs.make("Pendulum-v1", 4, device="cpu", seed=0)
    replay = Replay(200, 4, env.single_observation_space, env.single_action_space, STEPS)
    collector = ReplayCollector(env, "cpu", 3, config("graph"), check=True)
    for _ in range(2):
        replay.commit(collector.collect(Policy(env), replay.begin()))
    assert collector.choice.name == "eager" and "graph failed" in collector.choice.why
    loop, _, _ = made(gpuenvs.make("Pendulum-v1", 4, device="cpu", seed=0), horizons=2)
    assert torch.equal(replay.data[: 2 * STEPS], loop.data[: 2 * STEPS])


def test_what_is_not_possible_is_one_line():
    env = gpuenvs.make("Pendulum-v1", 2, device="cpu", dtype="float64")
    with pytest.raises(ConfigError, match="collector=fused: the environment computes in float64"):
        ReplayCollector(env, "cpu", 0, config("fused")).choose(Policy(env))
    assert ReplayCollector(env, "cpu", 0, config("auto")).choose(Policy(env)).name == "eager"
    later = gpuenvs.make("Pendulum-v1", 2, device="cpu", autoreset="next_step")
    with pytest.raises(ConfigError, match="autoreset='same_step'"):
        ReplayCollector(later, "cpu", 0, config())


def test_the_collector_can_be_told_to_do_something_before_each_horizon():
    env = TaggedEnv(ENVS)
    collector = ReplayCollector(env, "cpu", 3, config())
    seen = []
    collector.before = seen.append
    replay = Replay(200, ENVS, env.single_observation_space, env.single_action_space, STEPS)
    for _ in range(3):
        replay.commit(collector.collect(Policy(env), replay.begin()))
    assert seen == [0, STEPS, 2 * STEPS]
