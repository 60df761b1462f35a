"""An environment that takes a random time for each step and writes down when each began and ended."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

_SPAN = struct.Struct("<dd")


class RecordedEnv(gymnasium.Env):
    """Sleeps for a time from an exponential distribution in every step; its episodes never end.

    The times are a function of the first reset's seed and the number of the step, so every schedule meets the same ones.

    Args:
        folder: where each environment writes a file named after that seed, two float64 `time.perf_counter()` a step.
        mean: of a step, in seconds.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, folder: str, mean: float) -> None:
        self._folder, self._mean = Path(folder), mean
        self._file: int | None = None
        self._times = np.random.default_rng(0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if self._file is None and seed is not None:
            self._times = np.random.default_rng(seed)
            self._file = os.open(self._folder / str(seed), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        began = time.perf_counter()
        time.sleep(self._times.exponential(self._mean))
        obs = self._observation()
        if self._file is not None:
            os.write(self._file, _SPAN.pack(began, time.perf_counter()))
        return obs, float(action), False, False, {}

    def _observation(self) -> np.ndarray:
        return self.np_random.uniform(-1.0, 1.0, 4).astype(np.float32)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read(file: Path) -> list[tuple[float, float]]:
    """(begin, end) of every step in one environment's file."""
    return list(_SPAN.iter_unpack(file.read_bytes()))
