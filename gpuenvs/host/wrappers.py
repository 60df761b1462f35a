"""Wrappers that bring any environment to the form of this package: flat float32 or channels-first uint8 observations, and
actions that count from 0 or are one-dimensional and within bounds."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation

from gpuenvs.errors import SpecError


def fit_observation(env: gymnasium.Env, name: str) -> gymnasium.Env:
    """`env` with observations that are a 1-D float32 `Box` or a uint8 `Box` of shape (channels, height, width).

    Raises:
        SpecError: they are of no fixed size.
    """
    space = env.observation_space
    if is_image(space):
        return ChannelsFirst(env) if space.shape[2] < space.shape[0] else env  # type: ignore[index]
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        try:
            size = spaces.flatdim(space)
        except (NotImplementedError, ValueError):
            size = 0
        if size == 0 or not space.is_np_flattenable:
            raise SpecError(f"{name}: observation space {space} has no fixed size") from None
        env = FlattenObservation(env)
    return env if env.observation_space.dtype == np.float32 else Float32Observation(env)


def fit_action(env: gymnasium.Env, name: str) -> gymnasium.Env:
    """`env` with actions that are a `Discrete` counting from 0 or a 1-D float32 `Box`.

    Raises:
        SpecError: they are neither a `Discrete` nor a `Box` of floats.
    """
    space = env.action_space
    if isinstance(space, spaces.Discrete):
        return env if space.start == 0 else ShiftedAction(env, space)
    if isinstance(space, spaces.Box) and space.dtype is not None and np.issubdtype(space.dtype, np.floating):
        return ClippedAction(env, space)
    raise SpecError(f"{name}: action space {space} is not supported; only Discrete and Box of floats are")


def is_image(space: Any) -> bool:
    """Whether observations are images: a `Box` of three axes of uint8."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3


def float_box(space: spaces.Box) -> spaces.Box:
    """The one-dimensional float32 box of a box's bounds."""
    with np.errstate(over="ignore"):  # float64's largest number as a bound becomes infinity
        low, high = (bound.astype(np.float32).reshape(-1) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=np.float32)


class ChannelsFirst(gymnasium.ObservationWrapper):
    """Images (height, width, channels) as (channels, height, width)."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        box: Any = env.observation_space
        self.observation_space = spaces.Box(box.low.transpose(2, 0, 1), box.high.transpose(2, 0, 1), dtype=np.uint8)

    def observation(self, observation: Any) -> np.ndarray:
        return observation.transpose(2, 0, 1)


class Float32Observation(gymnasium.ObservationWrapper):
    """One-dimensional observations as float32."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = float_box(env.observation_space)  # type: ignore[arg-type]

    def observation(self, observation: Any) -> np.ndarray:
        return np.asarray(observation, np.float32)


class ShiftedAction(gymnasium.ActionWrapper):
    """A `Discrete` that starts elsewhere, counted from 0."""

    def __init__(self, env: gymnasium.Env, space: spaces.Discrete) -> None:
        super().__init__(env)
        self.action_space = spaces.Discrete(int(space.n))
        self._start = int(space.start)

    def action(self, action: Any) -> int:
        return int(action) + self._start


class ClippedAction(gymnasium.ActionWrapper):
    """A one-dimensional float32 action, clipped to the box and given in the box's own shape and dtype; always a copy."""

    def __init__(self, env: gymnasium.Env, space: spaces.Box) -> None:
        super().__init__(env)
        self.action_space = float_box(space)
        self._low, self._high, self._shape, self._dtype = space.low, space.high, space.shape, space.dtype

    def action(self, action: Any) -> np.ndarray:
        shaped = np.asarray(action).reshape(self._shape)
        return np.minimum(np.maximum(shaped, self._low), self._high).astype(self._dtype, copy=False)
