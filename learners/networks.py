"""The policy: observation normaliser, actor and critic networks, all weights in one flat buffer."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpuenvs.errors import ConfigError
from learners.distributions import Categorical, DiagGaussian, Distribution
from learners.images import Encoder, is_image, repeatable_convolutions
from learners.normalize import ObsNorm

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def action_head(action_space: Any) -> tuple[type[Categorical] | type[DiagGaussian], int]:
    """The distribution for an action space and how many numbers the actor must put out for it.

    Raises ConfigError for anything but a Discrete space and a one-dimensional Box of floats.
    """
    kind = type(action_space).__name__
    if kind == "Discrete":
        if action_space.start != 0:
            raise ConfigError(f"{action_space}: discrete actions must start at 0")
        return Categorical, int(action_space.n)
    if kind == "Box" and len(action_space.shape) == 1 and np.issubdtype(action_space.dtype, np.floating):
        return DiagGaussian, int(action_space.shape[0])
    raise ConfigError(f"action space {action_space} is not supported: use Discrete or a one-dimensional float Box")


def obs_shape(observation_space: Any) -> tuple[int, ...]:
    """(d,) of vectors, (C, H, W) of images. Raises ConfigError unless the space is a Box of one or the other."""
    if is_image(observation_space):
        return tuple(map(int, observation_space.shape))
    if type(observation_space).__name__ == "Box" and len(observation_space.shape) == 1:
        return (int(observation_space.shape[0]),)
    raise ConfigError(
        f"observation space {observation_space} is not supported: use a one-dimensional Box, or one of images (uint8, "
        "channels first)"
    )


class MLP(nn.Sequential):
    """Linear layers with an activation between them; orthogonal weights and zero biases from `generator`.

    Hidden gains are sqrt(2) and the last layer's gain is given, as in OpenAI's baselines (a2c/utils.py).
    """

    def __init__(
        self,
        sizes: Iterable[int],
        activation: str,
        last_gain: float,
        generator: torch.Generator,
    ) -> None:
        sizes = tuple(sizes)
        modules: list[nn.Module] = []
        for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            last = i == len(sizes) - 2
            layer = nn.Linear(fan_in, fan_out)
            nn.init.orthogonal_(layer.weight, last_gain if last else 2**0.5, generator=generator)
            nn.init.zeros_(layer.bias)
            modules += [layer] if last else [layer, ACTIVATIONS[activation]()]
        super().__init__(*modules)
        self.sizes = sizes
        self.activation = activation


class ImageNetwork(nn.Module):
    """An encoder of its own, then an MLP: images (N, C, H, W) of 0..255, uint8 or float32, -> (N, sizes[-1]).

    Arguments are those of `MLP`; `sizes` begin after the encoder.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        sizes: Iterable[int],
        activation: str,
        last_gain: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(shape, generator)
        self.mlp = MLP((self.encoder.size, *sizes), activation, last_gain, generator)

    def forward(self, obs: Tensor) -> Tensor:
        return self.mlp(self.encoder(obs / 255))


class Policy(nn.Module):
    """Separate actor and critic over normalised observations.

    Raw observations (N, obs_dim) enter `act`, `sample` and `features`; `distribution` and `value` take what `features`
    returns, so that a learner normalises a batch once for many passes.

    Where the observation space holds images, observations are (N, C, H, W) uint8 and stay so until they enter the networks,
    which begin with an encoder each (`learners.images`) and know no statistics: `normalize_obs` is for vectors.

    Every weight is a view into `flat` (float32), which holds `actor_flat` (the actor's layers, then log_std for
    continuous actions) and `critic_flat`; of each layer first the weight (out, in), then the bias. A snapshot of all
    weights is one copy, an optimiser step one kernel. Loading a state dict writes into that buffer.

    Initial weights depend on `seed` alone, not on the device.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        hidden_sizes: tuple[int, ...] = (64, 64),
        activation: str = "tanh",
        log_std_init: float = 0.0,
        normalize_obs: bool = True,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__()
        shape = obs_shape(observation_space)
        self.image = len(shape) == 3
        self.head, num_outputs = action_head(action_space)
        generator = torch.Generator().manual_seed(seed)
        self.obs_dim = math.prod(shape)
        self.num_outputs = num_outputs
        self.obs_norm = ObsNorm(self.obs_dim) if normalize_obs and not self.image else None

        def network(outputs: int, last_gain: float) -> MLP | ImageNetwork:
            if self.image:
                return ImageNetwork(shape, (*hidden_sizes, outputs), activation, last_gain, generator)
            return MLP((*shape, *hidden_sizes, outputs), activation, last_gain, generator)

        self.actor = network(num_outputs, 0.01)
        self.log_std = nn.Parameter(torch.full((num_outputs,), log_std_init)) if self.continuous else None
        self.critic = network(1, 1.0)
        self._settle(device)

    def _settle(self, device: str | torch.device) -> None:
        """Move to the device and lay out the weights there."""
        self.to(device)
        if self.image and torch.device(device).type == "cuda":
            repeatable_convolutions()
        self.flat = flatten_parameters([*self.actor_parameters(), *self.critic.parameters()])
        split = sum(p.numel() for p in self.actor_parameters())
        self.actor_flat, self.critic_flat = self.flat[:split], self.flat[split:]

    def copy_on(self, device: str | torch.device) -> Policy:
        """A copy with memory of its own on `device`."""
        other = copy.deepcopy(self)
        other._settle(device)
        return other

    def acting_tensors(self) -> list[Tensor]:
        """All that actions and values depend on, each contiguous: what another copy must take over to act alike."""
        return [self.flat, *([] if self.obs_norm is None else [self.obs_norm.shift, self.obs_norm.scale])]

    def actor_parameters(self) -> list[nn.Parameter]:
        """What decides actions, in the order of `actor_flat`."""
        return [*self.actor.parameters(), *([] if self.log_std is None else [self.log_std])]

    def critic_parameters(self) -> list[nn.Parameter]:
        """What decides values, in the order of `critic_flat`."""
        return list(self.critic.parameters())

    @property
    def continuous(self) -> bool:
        """True for a Box action space."""
        return self.head is DiagGaussian

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.flat.device

    @property
    def noise_shape(self) -> tuple[int]:
        """Shape of the noise one row of `sample` wants."""
        return (self.num_outputs,)

    def features(self, obs: Tensor) -> Tensor:
        """Normalised observations, with the statistics as they stand; images as they are."""
        return obs if self.obs_norm is None else self.obs_norm(obs)

    def distribution(self, features: Tensor) -> Distribution:
        """The action distribution of each row of `features`."""
        outputs = self.actor(features)
        return Categorical(outputs) if self.log_std is None else DiagGaussian(outputs, self.log_std)

    def value(self, features: Tensor) -> Tensor:
        """The critic's value of each row, (N,)."""
        return self.critic(features).squeeze(-1)

    @torch.no_grad()
    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions drawn with the given noise (N, *noise_shape) and their log-probs (N,)."""
        dist = self.distribution(self.features(obs))
        action = dist.sample(noise)
        return action, dist.log_prob(action)

    @torch.no_grad()
    def act(
        self,
        obs: Tensor,
        noise: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Actions for raw obs (N, ...): (N,) int64 or (N, k) float32, on the obs' device.

        `deterministic` gives the mode. Otherwise the randomness is `noise` (N, *noise_shape) or, without it, drawn
        from `generator` (torch's global one if None).
        """
        dist = self.distribution(self.features(obs if self.image else obs.to(self.flat.dtype)))
        if deterministic:
            return dist.mode()
        if noise is None:
            shape = (len(obs), *self.noise_shape)
            if self.continuous:
                noise = torch.randn(shape, generator=generator, device=obs.device)
            else:
                uniform = torch.rand(shape, generator=generator, device=obs.device)
                noise = -(-uniform.clamp(1e-7, 1 - 1e-7).log()).log()
        return dist.sample(noise)


def flatten_parameters(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Move `parameters` into one contiguous buffer and return it; they become views of it."""
    parameters = list(parameters)
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    offset = 0
    for p in parameters:
        p.data = flat[offset : offset + p.numel()].view_as(p)
        offset += p.numel()
    return flat


def flat_gradient(loss: Tensor, parameters: Iterable[nn.Parameter]) -> Tensor:
    """d loss / d parameters as one vector, in the order given."""
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(parameters))])


def cloned_state(module: nn.Module | None) -> dict[str, Tensor]:
    """A module's state dict that later training does not change; empty for None."""
    return {} if module is None else {name: tensor.clone() for name, tensor in module.state_dict().items()}
