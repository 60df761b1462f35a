"""An environment that takes its time: any Gymnasium environment with a random delay in every step, for `benchmarks/hts.py`.

    gpurl train benchmarks.delays:Delayed --env-backend host --executors 16 --set env.cv=2

The delays of an episode are a function of the seed that its `reset` got, which the host backend derives from the run's seed,
the row and the episode. So every schedule meets the same ones, whoever steps when.
"""

from __future__ import annotations

import math
import time
from typing import Any

import gymnasium
import numpy as np

from gpuenvs.errors import ConfigError

BLOCK = 512  # delays drawn at a time


def draw(distribution: str, mean: float, cv: float, rng: np.random.Generator, count: int) -> np.ndarray:
    """`count` delays with a mean in any unit and a coefficient of variation (standard deviation over mean).

    `gamma` with cv 1 is the exponential distribution and with cv 0 a constant. The tail of `lognormal` is heavier than any
    exponential one.

    Raises:
        ConfigError: an unknown distribution, or a mean or cv that there cannot be.
    """
    if mean < 0 or cv < 0:
        raise ConfigError(f"delays cannot have a mean of {mean} and a cv of {cv}")
    if cv == 0:
        return np.full(count, float(mean))
    if distribution == "gamma":
        return rng.gamma(cv**-2, mean * cv**2, count)
    if distribution == "lognormal":
        spread = math.log1p(cv**2)
        return rng.lognormal(math.log(mean) - spread / 2 if mean else -math.inf, math.sqrt(spread), count)
    raise ConfigError(f"unknown distribution {distribution!r}; there are: gamma, lognormal")


class Delayed(gymnasium.Wrapper):
    """Environment `id` with a delay before each step, `mean_ms` milliseconds on average; see `draw`."""

    def __init__(
        self,
        id: str = "CartPole-v1",
        mean_ms: float = 2.0,
        distribution: str = "gamma",
        cv: float = 1.0,
        **keywords: Any,
    ) -> None:
        draw(distribution, mean_ms, cv, np.random.default_rng(0), 1)  # its errors are the user's
        super().__init__(gymnasium.make(id, disable_env_checker=True, **keywords))
        self._law = distribution, mean_ms / 1000.0, cv
        self._delays: Any = iter(())
        self._rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._rng = np.random.default_rng(None if seed is None else np.random.Philox(key=seed))
        self._delays = iter(())
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(self._delay())
        return super().step(action)

    def _delay(self) -> float:
        """Seconds before the next step."""
        delay = next(self._delays, None)
        if delay is None:
            self._delays = iter(draw(*self._law, self._rng, BLOCK).tolist())
            delay = next(self._delays)
        return delay
