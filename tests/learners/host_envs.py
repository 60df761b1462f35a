"""Environments of a user's own: classes that only Gymnasium's interface knows, good ones and bad ones."""

from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env):
    """Walk right for `length` steps. Drawn as one line of pixels."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 12}
    observation_space = spaces.Box(0.0, 100.0, (2,), np.float32)
    action_space = spaces.Discrete(2, start=1)

    def __init__(self, length=5, render_mode=None):
        self.length, self.render_mode = length, render_mode

    def _obs(self):
        return np.array([self.place, self.start], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.start = int(self.np_random.integers(0, 3))
        return self._obs(), {}

    def step(self, action):
        assert action in (1, 2)
        self.place = max(0, self.place + (1 if action == 2 else -1))
        done = self.place >= self.length
        return self._obs(), 7.5 if done else -1.0, done, False, {}

    def render(self):
        if self.render_mode is None:
            return None
        picture = np.zeros((16, 16 * (self.length + 1), 3), np.uint8)
        picture[:, 16 * self.place : 16 * self.place + 16] = 255
        return picture


class Blind(Corridor):
    """Cannot be drawn."""

    metadata: ClassVar = {"render_modes": ["human"]}


class Wordy(Corridor):
    """Draws text and says that it were pixels."""

    def render(self):
        return "..x.."


class Endless(Corridor):
    """Nobody arrives."""

    def step(self, action):
        return self._obs(), 0.0, False, False, {}


class Broken(Corridor):
    """Raises in its third step."""

    def step(self, action):
        if self.place == self.start + 2:
            raise ValueError("the floor\nis gone")
        return super().step(action)

    def close(self):
        raise RuntimeError("cannot even close")


class Arrows(gymnasium.Env):
    """An image (height, width, channels) of 12 x 12: go where the bright side is. Its one action is a number."""

    observation_space = spaces.Box(0, 255, (12, 12, 3), np.uint8)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def _obs(self):
        picture = np.zeros((12, 12, 3), np.uint8)
        self.side = int(self.np_random.integers(0, 2))
        picture[:, 6 * self.side : 6 * self.side + 6] = 200
        return picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        reward = float(action[0] * (2 * self.side - 1))
        self.time += 1
        return self._obs(), reward, False, self.time == 10, {}


class Lamps(gymnasium.Env):
    """An image (height, width, channels) of 40 x 40: act by the number of the channel that is lit."""

    observation_space = spaces.Box(0, 255, (40, 40, 3), np.uint8)
    action_space = spaces.Discrete(3)

    def _obs(self):
        picture = np.zeros((40, 40, 3), np.uint8)
        self.lit = int(self.np_random.integers(0, 3))
        picture[:, :, self.lit] = 255
        return picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action):
        reward = float(action == self.lit)
        self.time += 1
        return self._obs(), reward, self.time == 8, False, {}
