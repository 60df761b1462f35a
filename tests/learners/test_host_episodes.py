"""Evaluation and videos of policies in host environments."""

import numpy as np
import pytest
import torch
from gymnasium.utils.seeding import np_random

from gpuenvs.errors import ConfigError, HostError, RunError
from gpuenvs.host.spec import host_spec
from learners import evaluate as evaluate_module
from learners.distributions import Categorical, DiagGaussian
from learners.evaluate import episode_seeds, evaluate
from learners.host_episodes import HOST, evaluate_host
from learners.video import record

ENVS = "tests.learners.host_envs"


class Rule:
    """Plays by a rule of observations and noise."""

    device = torch.device("cpu")
    noise_shape = (2,)

    def __init__(self, rule, head=Categorical):
        self.rule, self.head, self.seen = rule, head, []

    def act(self, obs, noise=None, deterministic=False, generator=None):
        self.seen.append(obs.clone())
        return self.rule(obs, noise)


right = Rule(lambda obs, noise: torch.ones(len(obs), dtype=torch.int64))


def corridor(name="Corridor", **keywords):
    return host_spec(f"{ENVS}:{name}", keywords)


# --- evaluation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("episodes", [1, 3, 60])
def test_complete_episodes_from_their_own_seeds(episodes):
    result = evaluate_host(right, corridor(), episodes, seed=4)
    starts = [int(np_random(seed)[0].integers(0, 3)) for seed in episode_seeds(4, episodes)]
    assert result.lengths == tuple(5 - start for start in starts)
    assert result.returns == tuple(7.5 - (length - 1) for length in result.lengths)
    assert (result.on, result.env_id, result.seed) == (HOST, f"{ENVS}:Corridor", 4)
    assert len(set(result.lengths)) > 1 or episodes == 1


def test_it_agrees_with_an_evaluation_in_gymnasium():
    lean = Rule(lambda obs, noise: (obs[:, 2] + 0.3 * obs[:, 3] > 0).long())
    here, there = evaluate_host(lean, host_spec("CartPole-v1"), 30, seed=2), evaluate(lean, "CartPole-v1", 30, seed=2)
    assert here.returns == there.returns and here.lengths == there.lengths


def test_keywords_are_the_specs():
    assert evaluate_host(right, corridor(length=9), 1).lengths[0] == evaluate_host(right, corridor(), 1).lengths[0] + 4


def test_returns_are_not_clipped():
    spec = host_spec(f"{ENVS}:Corridor", clip_reward=True)
    assert spec.clip_reward and max(evaluate_host(right, spec, 3).returns) > 3


def test_sampled_actions_follow_the_seed():
    push = Rule(lambda obs, noise: noise.argmax(-1))
    a, b, c = (evaluate_host(push, corridor(), 10, seed=seed, deterministic=False) for seed in (0, 0, 1))
    assert a.returns == b.returns != c.returns


def test_images_stay_bytes_and_actions_are_clipped():
    bright = Rule(
        lambda obs, noise: (obs[:, :, :, 6:].float().mean((1, 2, 3)) > 50)[:, None] * 20.0 - 10.0, DiagGaussian
    )
    result = evaluate_host(bright, host_spec(f"{ENVS}:Arrows"), 3)
    assert result.returns == (10.0,) * 3
    assert all(obs.dtype == torch.uint8 and obs.shape[1:] == (3, 12, 12) for obs in bright.seen)


def test_an_environments_own_error_is_one_line_with_its_traceback():
    with pytest.raises(HostError, match="Broken: step raised ValueError: the floor is gone") as caught:
        evaluate_host(right, corridor("Broken"), 2)
    assert "\n" not in str(caught.value) and "host_envs.py" in caught.value.traceback


def test_an_episode_that_does_not_end(monkeypatch):
    monkeypatch.setattr(evaluate_module, "LONGEST_EPISODE", 50)
    with pytest.raises(RunError, match="did not end within 50 steps"):
        evaluate_host(right, corridor("Endless"), 1)
    assert evaluate_host(right, corridor("Endless", max_episode_steps=20), 2).lengths == (20, 20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"episodes": 0}, "at least 1"),
        ({"on": "gpuenvs"}, "leave --on gpuenvs out"),
        ({"same_starts": True}, "leave --same-starts out"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        evaluate_host(right, corridor(), **arguments)


# --- videos ------------------------------------------------------------------------------------------------------------


def frames_of(path):
    import imageio.v3 as imageio

    return imageio.imread(path), imageio.immeta(path)


def test_a_video_shows_the_walk(tmp_path):
    pytest.importorskip("imageio")
    recording = record(right, corridor(), tmp_path / "walk.gif", episodes=2, seed=1)
    result = evaluate_host(right, corridor(), 2, seed=1)
    assert recording.returns == result.returns
    assert recording.frames == sum(result.lengths) + 2
    pictures, _ = frames_of(tmp_path / "walk.gif")
    assert len(pictures) == recording.frames
    start = 5 - result.lengths[0]
    for step in range(result.lengths[0] + 1):
        assert pictures[step][8, :, 0].reshape(6, 16).mean(1).argmax() == start + step


def test_no_longer_than_asked(tmp_path):
    pytest.importorskip("imageio")
    assert record(right, corridor("Endless"), tmp_path / "a.gif", max_steps=7).frames == 8


@pytest.mark.parametrize(
    ("name", "message"),
    [("Blind", r"cannot be drawn: its render_modes are \['human'\]"), ("Wordy", "cannot be drawn: render gave str")],
)
def test_what_cannot_be_drawn_is_one_line(tmp_path, name, message):
    pytest.importorskip("imageio")
    with pytest.raises(ConfigError, match=message):
        record(right, corridor(name), tmp_path / "a.gif")
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_a_hint(tmp_path, monkeypatch):
    import sys

    pytest.importorskip("imageio")
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(RunError, match=r"pygame is not installed.*gpurl.render") as caught:
        record(right, host_spec("CartPole-v1"), tmp_path / "a.gif")
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_atari_is_drawn_in_colour_at_its_own_speed(tmp_path):
    pytest.importorskip("ale_py")
    pytest.importorskip("imageio")
    spec = host_spec("ALE/Pong-v5")
    fire = Rule(lambda obs, noise: torch.full((len(obs),), 2))
    recording = record(fire, spec, tmp_path / "pong.gif", max_steps=30)
    pictures, meta = frames_of(tmp_path / "pong.gif")
    assert pictures.shape[1:] == (210, 160, 3) and recording.frames == 31
    assert meta["duration"] == pytest.approx(1000 / 15, abs=10)
    assert np.ptp(pictures[0].astype(int), axis=-1).max() > 30  # not grey
    assert fire.seen[0].dtype == torch.uint8 and fire.seen[0].shape == (1, 4, 84, 84)
