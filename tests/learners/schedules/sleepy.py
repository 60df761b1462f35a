"""A small environment that dawdles: how long a step takes is up to chance, what it returns is not."""

import random
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Sleepy(gymnasium.Env):
    """A walk on a line with some noise; ends beyond 1, or after 23 steps by its time limit."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, longest_ms: float = 2.0) -> None:
        self._longest = longest_ms / 1e3
        self._chance = random.Random()  # of the clock, not of the seed

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._time, self._place = 0, float(self.np_random.uniform(-0.5, 0.5))
        return self._observe(), {}

    def step(self, action):
        if self._longest:
            time.sleep(self._longest * self._chance.random() ** 4)
        self._time += 1
        self._place += 0.1 * (int(action) - 1) + float(self.np_random.normal(0.0, 0.05))
        return self._observe(), -abs(self._place), abs(self._place) > 1, self._time >= 23, {}

    def _observe(self):
        return np.array([self._place, self._time / 23], np.float32)


class Failing(Sleepy):
    """Raises in one of its steps."""

    def step(self, action):
        if self._time == 11:
            raise ZeroDivisionError("planted in the environment")
        return super().step(action)
