"""Critics of off-policy learners: Q(obs, action), several at once, each with a target that follows it slowly."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from learners.networks import flatten_parameters
from learners.stacked import StackedMLP


class Critics(nn.Module):
    """`count` critics over normalised observations and actions in [-1, 1]; one number per action, or a distribution of it.

    Args:
        obs_dim, action_dim: widths of the inputs.
        hidden_sizes, activation, layer_norm: of the networks.
        atoms: 1 for numbers; else the support of the distribution, evenly from `v_min` to `v_max` (Bellemare et al. 2017,
            arXiv 1707.06887).
        count: critics.
        device, seed: of the weights.
    """

    support: Tensor

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        *,
        hidden_sizes: tuple[int, ...] = (256, 256),
        activation: str = "relu",
        layer_norm: bool = False,
        atoms: int = 1,
        v_min: float = 0.0,
        v_max: float = 0.0,
        count: int = 2,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.obs_dim, self.action_dim, self.count, self.atoms = obs_dim, action_dim, count, atoms
        self.v_min, self.v_max = v_min, v_max
        generator = torch.Generator().manual_seed(seed)
        self.net = StackedMLP(count, (obs_dim + action_dim, *hidden_sizes, atoms), activation, layer_norm, generator)
        self.register_buffer("support", torch.linspace(v_min, v_max, atoms), persistent=False)
        self._settle(device)

    def _settle(self, device: str | torch.device) -> None:
        self.to(device)
        self.flat = flatten_parameters(self.net.parameters())

    def copy_on(self, device: str | torch.device) -> Critics:
        """A copy with memory of its own on `device`."""
        other = copy.deepcopy(self)
        other._settle(device)
        return other

    def outputs(self, features: Tensor, action: Tensor) -> Tensor:
        """(count, B) values, or (count, B, atoms) logits."""
        found = self.net(torch.cat((features, action), -1))
        return found.squeeze(-1) if self.atoms == 1 else found

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """(count, B) values."""
        found = self.outputs(features, action)
        return found if self.atoms == 1 else (found.softmax(-1) * self.support).sum(-1)


@torch.no_grad()
def follow(target: Tensor, source: Tensor, tau: float) -> None:
    """target <- (1 - tau) target + tau source."""
    target.lerp_(source, tau)


@torch.no_grad()
def project(probabilities: Tensor, support: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """Distributions (B, atoms) of reward + discount * Z on the same support (Bellemare et al. 2017, algorithm 1).

    `reward` and `discount` are (B,); what falls off the support's ends is put on them.
    """
    atoms = support.numel()
    low, high = support[0], support[-1]
    step = (high - low) / (atoms - 1)
    place = ((reward[:, None] + discount[:, None] * support).clamp(low, high) - low) / step
    below = place.floor().clamp(0, atoms - 2)
    share = place - below
    below = below.long()
    found = torch.zeros_like(probabilities)
    found.scatter_add_(1, below, probabilities * (1 - share))
    return found.scatter_add_(1, below + 1, probabilities * share)


def least(values: Tensor) -> Tensor:
    """(B,) the smallest of (count, B): clipped double Q-learning (Fujimoto et al. 2018, arXiv 1802.09477)."""
    return values.min(0).values


def of_least(values: Tensor, probabilities: Tensor) -> Tensor:
    """(B, atoms) the distribution of the critic with the smallest value, of values (count, B), probabilities (count, B,
    atoms)."""
    index: Any = values.argmin(0)[None, :, None].expand(1, -1, probabilities.shape[-1])
    return probabilities.gather(0, index)[0]
