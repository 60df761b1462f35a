"""Action noise of whole horizons: a function of (seed, env, step), in one buffer that never moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuenvs.rng import fill_gumbel, fill_normal
from learners.collectors.streams import as_array

# Which stream of the counter-based generator the action noise uses; evaluation uses others.
ACTION_STREAM = 0


class ActionNoise:
    """Normal noise for continuous, Gumbel noise for discrete actions.

    Args:
        seed: of the noise.
        env_offset: number of the first row's environment.
        correlation: see `learners.collector.Collector`.
        device: where the noise is wanted. On CUDA it is computed there, with the same random bits.

    Attributes:
        last: the noise of the step before, (n, k) on `device`, if it is correlated; None before the first.
    """

    def __init__(self, seed: int, env_offset: int, correlation: float, device: torch.device) -> None:
        self.seed, self.env_offset, self.correlation, self.device = seed, env_offset, correlation, device
        self.last: Tensor | None = None
        self._buffer = torch.empty(0)

    def draw(self, steps: int, envs: int, policy: Any, step: int) -> Tensor:
        """The noise of the steps `step`, `step + 1` ..., (steps, envs, k): the same tensor in every call."""
        shape = (steps, envs, *policy.noise_shape)
        if self._buffer.shape != shape:
            self._buffer = torch.empty(shape, device=self.device)
        self._fill("normal" if policy.continuous else "gumbel", step)
        if self.correlation > 0 and policy.continuous:
            self._correlate(self._buffer)
        return self._buffer

    def _fill(self, kind: str, step: int) -> None:
        if self.device.type == "cpu":
            fill = fill_normal if kind == "normal" else fill_gumbel
            fill(self._buffer.numpy(), self.seed, self.env_offset, step, ACTION_STREAM)
            return
        from gpuenvs.runtime.cuda_noise import fill_noise

        fill_noise(as_array(self._buffer), kind, self.seed, self.env_offset, step, ACTION_STREAM)

    def _correlate(self, noise: Tensor) -> None:
        keep, add = self.weights()
        last = self.last
        for now in noise:
            if last is not None:
                now.mul_(add).add_(last, alpha=keep)
            last = now
        self.last = noise[-1].clone()

    def weights(self) -> tuple[float, float]:
        """What a step keeps of the noise before it, and how much new noise it adds."""
        return self.correlation, float(np.sqrt(1 - self.correlation**2))
