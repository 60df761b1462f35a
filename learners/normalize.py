"""Running normalisers of observations and rewards, with float64 sums and statistics that stay put while in use."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from learners.distributed import Group, all_moments


def merge_moments(
    count: Tensor, mean: Tensor, m2: Tensor, other_count: Tensor, other_mean: Tensor, other_m2: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and sum of squared deviations of two sets joined (Chan, Golub and LeVeque 1979, eq. 2.1).

    Symmetric in its two sets up to float64 rounding, so how the data was cut into chunks hardly matters.
    """
    total = count + other_count
    delta = other_mean - mean
    share = other_count / total.clamp(min=1)
    return total, mean + delta * share, m2 + other_m2 + delta.square() * (count * share)


class ObsNorm(nn.Module):
    """Maps obs (N, d) to (obs - mean) / std, clipped to +-`clip`; part of the policy and of its checkpoint.

    `forward` uses statistics that only `update` changes. A schedule calls `update` after the learning from a horizon,
    so acting and learning on it see the very same numbers and stored log-probs stay true. Before the first `update`
    it is the identity.
    """

    count: Tensor
    mean: Tensor
    m2: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, obs_dim: int, clip: float = 10.0, eps: float = 1e-8) -> None:
        super().__init__()
        self.clip = clip
        self.eps = eps
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(obs_dim, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(obs_dim, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(obs_dim))
        self.register_buffer("scale", torch.ones(obs_dim))

    def forward(self, obs: Tensor) -> Tensor:
        """(..., d) float32 -> (..., d) float32."""
        return ((obs - self.shift) * self.scale).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, obs: Tensor, group: Group | None = None) -> None:
        """Take the rows of obs (..., d), and those of the other processes of the group, into the statistics."""
        rows = obs.reshape(-1, obs.shape[-1]).to(torch.float64)
        variance, mean = torch.var_mean(rows, dim=0, correction=0)
        count = torch.full_like(self.count, len(rows))
        for own_mean, m2 in all_moments(mean, variance * len(rows), group):
            merged = merge_moments(self.count, self.mean, self.m2, count, own_mean, m2)
            for buffer, new in zip((self.count, self.mean, self.m2), merged):
                buffer.copy_(new)
        std = (self.m2 / self.count.clamp(min=1) + self.eps).sqrt()
        self.shift.copy_(self.mean)
        self.scale.copy_(1 / std)


class RewardNorm(nn.Module):
    """Divides rewards by the running standard deviation of the discounted return; the mean is left alone.

    The return of each environment restarts at an episode's end, as in Gymnasium's NormalizeReward wrapper. Holds one
    accumulator per environment, so it belongs to the learner's state rather than to the policy. With a group the
    deviation is that of all its processes' returns.
    """

    count: Tensor
    mean: Tensor
    m2: Tensor
    running: Tensor

    def __init__(
        self, num_envs: int, gamma: float, clip: float = 10.0, eps: float = 1e-8, group: Group | None = None
    ) -> None:
        super().__init__()
        self.group = group
        self.gamma = gamma
        self.clip = clip
        self.eps = eps
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("m2", torch.zeros((), dtype=torch.float64))
        self.register_buffer("running", torch.zeros(num_envs, dtype=torch.float64))

    @torch.no_grad()
    def forward(self, reward: Tensor, done: Tensor) -> Tensor:
        """Take a horizon's (T, n) rewards and (T, n) bool episode ends into the statistics; return it scaled."""
        rows = reward.to(torch.float64)
        keep = self.gamma * (~done).to(torch.float64)
        returns = torch.empty_like(rows)
        running = self.running.clone()
        for t in range(len(rows)):
            torch.add(rows[t], running, out=returns[t])
            torch.mul(returns[t], keep[t], out=running)
        self.running.copy_(running)
        variance, mean = torch.var_mean(returns, correction=0)
        count = torch.full_like(self.count, returns.numel())
        for own_mean, m2 in all_moments(mean, variance * count, self.group):
            merged = merge_moments(self.count, self.mean, self.m2, count, own_mean, m2)
            for buffer, new in zip((self.count, self.mean, self.m2), merged):
                buffer.copy_(new)
        std = (self.m2 / self.count + self.eps).sqrt()
        return (rows / std).clamp(-self.clip, self.clip).to(reward.dtype)
