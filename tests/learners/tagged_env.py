"""A batch env whose arrays carry tags: every number says which env, episode and step it is of."""

import numpy as np
from gymnasium import spaces


class TaggedEnv:
    """obs = (env, step in the whole run, step in the episode); reward = 1000 * env + step + action / 10.

    Env i terminates every 3 + i steps of an episode, or is truncated there when i is odd. final_obs is marked by adding
    0.5 to the env number and is garbage (NaN) wherever no episode ended.
    """

    autoreset = "same_step"
    device = "cpu"
    env_offset = 0
    seed = 0

    def __init__(self, num_envs, action_space=None):
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (3,))
        self.single_action_space = action_space or spaces.Discrete(3)
        self.obs = np.zeros((3, num_envs), np.float32).T
        self.reward = np.zeros(num_envs, np.float32)
        self.terminated, self.truncated = np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        self.info = {
            "final_obs": np.full((3, num_envs), np.nan, np.float32).T,
            "episode_return": np.full(num_envs, np.nan, np.float32),
            "episode_length": np.zeros(num_envs, np.int32),
        }
        self.actions = []

    def reset(self, seed=None):
        self.time, self.age = 0, np.zeros(self.num_envs, int)
        self.total = np.zeros(self.num_envs, np.float32)
        self._observe()
        return self.obs, self.info

    def _observe(self):
        self.obs[:] = np.stack((np.arange(self.num_envs), np.full(self.num_envs, self.time), self.age), 1)

    def step(self, action):
        action = np.asarray(action)
        self.actions.append(action.copy())
        index = np.arange(self.num_envs)
        flat = action if action.ndim == 1 else action[:, 0]
        self.reward[:] = 1000 * index + self.time + flat / 10
        self.total += self.reward
        self.time += 1
        self.age += 1
        done = self.age == 3 + index
        self.terminated[:], self.truncated[:] = done & (index % 2 == 0), done & (index % 2 == 1)
        self._observe()
        final = self.info["final_obs"]
        final[:] = np.nan
        final[done] = self.obs[done] + np.array([0.5, 0, 0], np.float32)
        self.info["episode_return"][:] = np.where(done, self.total, np.nan)
        self.info["episode_length"][:] = np.where(done, self.age, -1)
        self.age[done] = 0
        self.total[done] = 0
        self._observe()
        return self.obs, self.reward, self.terminated, self.truncated, self.info
