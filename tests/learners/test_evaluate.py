import numpy as np
import pytest
import torch

import gpuenvs
from gpuenvs.errors import ConfigError, UnknownEnvError
from learners.distributions import Categorical, DiagGaussian
from learners.evaluate import EvalResult, evaluate
from tests.learners.tiny import nan_reward_env


class FixedPolicy:
    """Plays by a rule; records what it was asked."""

    device = torch.device("cpu")
    noise_shape = (2,)
    head = Categorical

    def __init__(self, rule):
        self.rule = rule
        self.asked = []

    def act(self, obs, noise=None, deterministic=False):
        self.asked.append((noise is None, deterministic))
        return self.rule(obs, noise)


def lean(obs, noise):
    """Push towards where the pole leans: a fair CartPole player with episodes of many lengths."""
    return (obs[:, 2] + 0.3 * obs[:, 3] > 0).long()


def random_push(obs, noise):
    return noise.argmax(-1)


@pytest.mark.parametrize("on", ["gymnasium", "gpuenvs"])
@pytest.mark.parametrize("episodes", [1, 7, 60])
def test_exactly_as_many_complete_episodes_as_asked(on, episodes):
    result = evaluate(FixedPolicy(lean), "CartPole-v1", episodes, on)
    assert len(result.returns) == len(result.lengths) == episodes
    # CartPole pays 1 a step: a return that is no length would be a cut or merged episode.
    assert list(result.returns) == [float(length) for length in result.lengths]
    assert min(result.lengths) >= 5


def test_gymnasium_episodes_are_those_of_their_seeds_one_by_one():
    """No bias to short episodes: the set is that of playing every seed alone, in whatever order they end."""
    import gymnasium

    from learners.evaluate import episode_seeds

    policy = FixedPolicy(lambda obs, noise: (obs[:, 2] > 0).long())
    result = evaluate(policy, "CartPole-v1", 40, "gymnasium", seed=3)
    env = gymnasium.make("CartPole-v1")
    expected = []
    for seed in episode_seeds(3, 40):
        obs, length, over = env.reset(seed=seed)[0], 0, False
        while not over:
            obs, _, terminated, truncated, _ = env.step(int(obs[2] > 0))
            length, over = length + 1, terminated or truncated
        expected.append(length)
    assert list(result.lengths) == expected


def test_quota_beyond_one_episode_a_row(monkeypatch):
    import learners.evaluate as module

    monkeypatch.setattr(module, "GPUENVS_ROWS", 4)
    result = evaluate(FixedPolicy(lean), "CartPole-v1", 10, "gpuenvs")
    assert len(result.returns) == 10 and all(length >= 5 for length in result.lengths)
    monkeypatch.setattr(module, "GPUENVS_ROWS", 4096)
    # Row r's first episode does not depend on how many rows there are.
    assert result.lengths[:4] == evaluate(FixedPolicy(lean), "CartPole-v1", 4, "gpuenvs").lengths


@pytest.mark.parametrize("on", ["gymnasium", "gpuenvs"])
def test_sampled_actions_follow_the_seed_alone(on):
    first, second = (evaluate(FixedPolicy(random_push), "CartPole-v1", 30, on, 5, False) for _ in range(2))
    assert first == second
    assert first.returns != evaluate(FixedPolicy(random_push), "CartPole-v1", 30, on, 6, False).returns
    assert not first.deterministic


def test_sampled_noise_does_not_depend_on_the_number_of_episodes():
    few = evaluate(FixedPolicy(random_push), "CartPole-v1", 5, "gymnasium", 5, False)
    many = evaluate(FixedPolicy(random_push), "CartPole-v1", 50, "gymnasium", 5, False)
    assert many.lengths[:5] == few.lengths


def test_random_play_has_the_known_mean():
    result = evaluate(FixedPolicy(random_push), "CartPole-v1", 400, "gpuenvs", 0, False)
    assert 18 < result.mean < 27  # about 22 in CartPole


@pytest.mark.parametrize("deterministic", [True, False])
def test_noise_is_given_only_when_sampling(deterministic):
    policy = FixedPolicy(lean)
    evaluate(policy, "CartPole-v1", 2, "gymnasium", 0, deterministic)
    assert set(policy.asked) == {(deterministic, deterministic)}


@pytest.mark.parametrize("on", ["gymnasium", "gpuenvs"])
def test_continuous_actions(on):
    policy = FixedPolicy(lambda obs, noise: torch.zeros(len(obs), 1))
    policy.head, policy.noise_shape = DiagGaussian, (1,)
    result = evaluate(policy, "Pendulum-v1", 5, on)
    assert set(result.lengths) == {200} and -2000 < result.mean < 0


def test_returns_are_summed_in_float64():
    from learners.evaluate import episode_seeds

    policy = FixedPolicy(lambda obs, noise: torch.zeros(len(obs), 1))
    result = evaluate(policy, "Pendulum-v1", 3, "gpuenvs")
    env = gpuenvs.make("Pendulum-v1", 3, device="cpu", seed=episode_seeds(0, 1)[0])
    env.reset()
    rewards = [env.step(np.zeros((3, 1), np.float32))[1].astype(np.float64) for _ in range(200)]
    assert list(result.returns) == sum(rewards).tolist()


def test_both_places_agree_on_a_policy():
    here, there = (
        evaluate(FixedPolicy(random_push), "CartPole-v1", 300, on, 1, False) for on in ("gpuenvs", "gymnasium")
    )
    assert abs(here.mean - there.mean) < 4 * (here.stderr**2 + there.stderr**2) ** 0.5


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Hopper-v5"])
def test_from_the_same_starts_episode_follows_episode(env_id):
    """In float64 both environments play the same episodes from the same states."""
    policy = FixedPolicy(lambda obs, noise: (obs[:, 2] > 0).long() if env_id == "CartPole-v1" else -0.5 * obs[:, 2:5])
    options = {"episodes": 12, "seed": 4}
    there = evaluate(policy, env_id, on="gymnasium", **options)
    here = evaluate(policy, env_id, on="gpuenvs", dtype="float64", same_starts=True, **options)
    assert here.lengths == there.lengths and len(set(here.lengths)) > 3
    assert here.returns == pytest.approx(there.returns, rel=1e-5)
    assert here.same_starts and not there.same_starts


def test_evaluation_seeds_are_not_trainings():
    env = gpuenvs.make("CartPole-v1", 4, device="cpu", seed=0)
    first = np.array(env.reset()[0])
    seen = []

    def look(obs, noise):
        seen.append(obs.clone())
        return lean(obs, noise)

    evaluate(FixedPolicy(look), "CartPole-v1", 4, "gpuenvs", seed=0)
    assert not np.allclose(first, seen[0].numpy())


def test_params_change_gpuenvs_and_are_refused_on_gymnasium():
    slow = evaluate(FixedPolicy(lean), "CartPole-v1", 20, "gpuenvs", params={"gravity": 30.0})
    assert slow.mean < evaluate(FixedPolicy(lean), "CartPole-v1", 20, "gpuenvs").mean
    with pytest.raises(ConfigError, match="cannot take the params gravity"):
        evaluate(FixedPolicy(lean), "CartPole-v1", 1, "gymnasium", params={"gravity": 30.0})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("CartPole-v1", 0), ConfigError, "episodes must be at least 1"),
        (("CartPole-v1", 1, "moon"), ConfigError, "gymnasium, gpuenvs"),
        (("CartPol-v1", 1), UnknownEnvError, "CartPole-v1"),
        (("NaNPole-v0", 1), ConfigError, "no counterpart in Gymnasium"),
        (("CartPole-v1", 1, "gymnasium", 0, True, True), ConfigError, "starts are for an evaluation on gpuenvs"),
    ],
)
def test_bad_arguments(arguments, error, message):
    nan_reward_env()
    with pytest.raises(error, match=message):
        evaluate(FixedPolicy(lean), *arguments[:5], same_starts=len(arguments) > 5)


def test_statistics():
    result = EvalResult("E", "gymnasium", 0, True, (1.0, 2.0, 6.0), (1, 2, 3))
    assert result.mean == 3.0
    assert result.std == pytest.approx(7**0.5)
    assert result.stderr == pytest.approx((7 / 3) ** 0.5)
    assert EvalResult("E", "gymnasium", 0, True, (4.0,), (1,)).stderr == 0.0
    document = result.to_dict()
    assert document["returns"] == [1.0, 2.0, 6.0] and document["episodes"] == 3 and document["max"] == 6.0
