"""Action distributions. Sampling is a function of noise given from outside, so it never hides a random state.

Both classes share one shape of interface: `sample(noise)`, `mode()`, `log_prob(action)`, `entropy()`, and the class
attributes `noise` (which fill of `gpuenvs.rng` it wants) and `action_dtype`. Rows are the leading dimension N.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Categorical:
    """Discrete actions 0..k-1 from unnormalised `logits` (N, k)."""

    noise: ClassVar[str] = "gumbel"
    action_dtype: ClassVar[torch.dtype] = torch.int64

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def sample(self, noise: Tensor) -> Tensor:
        """argmax(logits + Gumbel noise (N, k)) is a draw from the softmax (the Gumbel-max trick). Returns (N,) int64."""
        return (self.logits + noise).argmax(-1)

    def mode(self) -> Tensor:
        """The most probable action, (N,) int64; the lowest index of equals."""
        return self.logits.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """(N,) log-probabilities of int64 actions (N,)."""
        return torch.log_softmax(self.logits, -1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """(N,) in nats."""
        log_p = torch.log_softmax(self.logits, -1)
        return -(log_p.exp() * log_p).sum(-1)


class DiagGaussian:
    """Real actions (N, k) from `mean` (N, k) and a `log_std` (k,) or (N, k).

    Not squashed: an action may lie outside the bounds and the environment clips it. log_prob is always that of the raw
    draw, which is what makes a ratio of two policies exact however many actions were clipped.
    """

    noise: ClassVar[str] = "normal"
    action_dtype: ClassVar[torch.dtype] = torch.float32

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean = mean
        self.log_std = log_std

    def sample(self, noise: Tensor) -> Tensor:
        """mean + std * standard normal noise (N, k)."""
        return torch.addcmul(self.mean, self.log_std.exp(), noise)

    def mode(self) -> Tensor:
        """The mean, (N, k)."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """(N,) log-densities of actions (N, k), summed over the k independent coordinates."""
        z = (action - self.mean) * (-self.log_std).exp()
        return (-0.5 * z.square() - self.log_std - _HALF_LOG_2PI).sum(-1)

    def entropy(self) -> Tensor:
        """(N,) in nats."""
        return (self.log_std + (0.5 + _HALF_LOG_2PI)).expand_as(self.mean).sum(-1)


Distribution = Categorical | DiagGaussian
