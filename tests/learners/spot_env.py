"""A batch env of images: a bright spot stands over one of the actions, and that one is rewarded."""

import numpy as np
from gymnasium import spaces


class SpotEnv:
    """Images (2, size, size) uint8: noise of 0..60, and in one of `actions` upright stripes a spot of 2 x 2 pixels of 255.

    Channel 1 is what channel 0 showed a step before, zeros at an episode's start. Acting with the stripe's number is rewarded
    by 1, anything else by 0. Episodes last 8 steps; those of odd environments are truncated, the others terminate.
    """

    autoreset = "same_step"
    device = "cpu"
    dtype = np.float32
    env_offset = 0
    seed = 0
    length = 8
    nonfinite_states = nonfinite_rewards = 0

    def __init__(self, num_envs, size=12, actions=3):
        self.num_envs, self.size = num_envs, size
        self.single_observation_space = spaces.Box(0, 255, (2, size, size), np.uint8)
        self.single_action_space = spaces.Discrete(actions)
        self.obs = np.zeros((num_envs, 2, size, size), np.uint8)
        self.reward = np.zeros(num_envs, np.float32)
        self.terminated, self.truncated = np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        self.info = {
            "final_obs": np.zeros_like(self.obs),
            "episode_return": np.zeros(num_envs, np.float32),
            "episode_length": np.zeros(num_envs, np.int32),
        }

    def reset(self, seed=None):
        self._random = np.random.default_rng(self.seed if seed is None else seed)
        self._age = np.zeros(self.num_envs, int)
        self._total = np.zeros(self.num_envs, np.float32)
        self.obs[:] = 0
        self._show()
        return self.obs, self.info

    def _show(self):
        self.obs[:, 1] = self.obs[:, 0]
        self.obs[:, 0] = self._random.integers(0, 61, self.obs[:, 0].shape)
        actions = int(self.single_action_space.n)
        self._stripe = self._random.integers(0, actions, self.num_envs)
        width = self.size // actions
        for env, stripe in enumerate(self._stripe):
            x = stripe * width + self._random.integers(0, width - 1)
            y = self._random.integers(0, self.size - 1)
            self.obs[env, 0, y : y + 2, x : x + 2] = 255

    def step(self, action):
        self.reward[:] = np.asarray(action) == self._stripe
        self._total += self.reward
        self._age += 1
        done = self._age == self.length
        odd = np.arange(self.num_envs) % 2 == 1
        self.terminated[:], self.truncated[:] = done & ~odd, done & odd
        self._show()
        self.info["final_obs"][done] = self.obs[done]
        self.info["episode_return"][:], self.info["episode_length"][:] = self._total, self._age
        self.obs[done, 1] = 0
        self._total[done] = 0
        self._age[done] = 0
        return self.obs, self.reward, self.terminated, self.truncated, self.info

    def close(self):
        pass
