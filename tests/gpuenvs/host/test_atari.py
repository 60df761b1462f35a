"""Atari games: Gymnasium's preprocessing, stepped in executors."""

import numpy as np
import pytest

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

import gymnasium
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from gpuenvs.errors import ConfigError, UnknownEnvError
from gpuenvs.host import HostPool, host_spec
from gpuenvs.host.executor import episode_seed
from tests.gpuenvs.host.watching import play, step_all


def reference(env_id, **keywords):
    env = gymnasium.make(env_id, frameskip=1, **keywords)
    return FrameStackObservation(AtariPreprocessing(env, noop_max=30, frame_skip=4, terminal_on_life_loss=False), 4)


def test_the_spec():
    spec = host_spec("ALE/Pong-v5")
    assert spec.image and spec.clip_reward
    assert (spec.observation_space.shape, spec.observation_space.dtype) == ((4, 84, 84), np.uint8)
    assert spec.action_space.n == 6 and spec.max_episode_steps == 27000  # 108,000 frames
    assert host_spec("ALE/Pong-v5", {"full_action_space": True}).action_space.n == 18
    assert host_spec("ALE/Pong-v5", {"max_episode_steps": 50, "clip_reward": False}).max_episode_steps == 50


def test_the_pool_steps_what_gymnasium_steps():
    """A life lost in Breakout ends no episode; what is learned from is the reward's sign."""
    spec = host_spec("ALE/Breakout-v5", {"max_episode_steps": 120})
    reward = []
    with HostPool(spec, 2, executors=2, seed=4) as pool:
        pool.start()
        env = reference("ALE/Breakout-v5")
        obs, info = env.reset(seed=episode_seed(4, 1, 0))
        lives = [info["lives"]]
        assert (pool.obs[1] == obs).all()
        for step in range(120):
            action = 1 if step % 10 == 0 else step % 4
            obs, got, terminated, _, info = env.step(action)
            lives.append(info["lives"])
            reward.append(got)
            step_all(pool, action)
            assert pool.reward[1] == np.sign(got)
            assert pool.terminated[1] == terminated and pool.truncated[1] == (step == 119)
            if step < 119:
                assert (pool.obs[1] == obs).all()
        assert (pool.final_obs[1] == obs).all()
        assert min(lives) < lives[0] and sum(reward) > 0
        assert (pool.episode_return[1], pool.episode_length[1]) == (sum(reward), 120)
        assert (pool.obs[1] == reference("ALE/Breakout-v5").reset(seed=episode_seed(4, 1, 1))[0]).all()


def test_resume():
    spec = host_spec("ALE/Pong-v5")
    with HostPool(spec, 2, executors=1) as pool:
        pool.start()
        play(pool, 40)
        state = pool.state_dict()
        onwards = play(pool, 10, begin=40)
    with HostPool(spec, 2, executors=2) as pool:
        pool.load_state_dict(state)
        assert play(pool, 10, begin=40) == onwards


def test_nothing_is_printed(capfd):
    """No banner for each game."""
    with HostPool(host_spec("ALE/Pong-v5"), 2) as pool:
        pool.start()
    assert capfd.readouterr() == ("", "")


def test_old_ids_and_wrong_ones():
    assert host_spec("PongNoFrameskip-v4").image
    with pytest.raises(UnknownEnvError, match="did you mean ALE/Pong-v5"):
        host_spec("ALE/Pongg-v5")
    with pytest.raises(ConfigError, match="frameskip cannot be set"):
        host_spec("ALE/Pong-v5", {"frameskip": 2})
