"""Policies of off-policy learners. Inside learners actions are in [-1, 1]; `to_env` gives them the environment's range."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from gpuenvs.errors import ConfigError
from learners.distributions import DiagGaussian
from learners.networks import action_head, flatten_parameters, obs_shape
from learners.normalize import ObsNorm
from learners.stacked import StackedMLP

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0  # CleanRL's (sac_continuous_action.py)
_LOG_2 = math.log(2.0)
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def squashed_log_prob(u: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """(N,) log-density of tanh(u) for u = mean + std * noise (N, k) (Haarnoja et al. 2018, arXiv 1812.05905, appendix C).

    The Jacobian log(1 - tanh(u)^2) is 2 (log 2 - u - softplus(-2 u)): finite, and with finite gradients, however large u is.
    """
    gaussian = -0.5 * noise.square() - log_std - _HALF_LOG_2PI
    return (gaussian - 2.0 * (_LOG_2 - u - softplus(-2.0 * u))).sum(-1)


class OffPolicyActor(nn.Module):
    """What these policies share: statistics, one flat buffer of weights, the way to the environment and back.

    Args:
        observation_space: a Box of vectors.
        action_space: of one environment.
        outputs: of the network per action number.
        hidden_sizes, activation, layer_norm: of the network.
        norm_obs: normalise observations by running statistics, which `learners.normalize.ObsNorm.update` changes.
        device: of the weights.
        seed: decides the initial weights, whatever the device.
    """

    image = False

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        outputs: int,
        hidden_sizes: tuple[int, ...],
        activation: str,
        layer_norm: bool,
        norm_obs: bool,
        device: str | torch.device,
        seed: int,
    ) -> None:
        super().__init__()
        shape = obs_shape(observation_space)
        if len(shape) != 1:
            raise ConfigError("off-policy learning from images is not supported: use ppo or a2c")
        self.head, self.num_outputs = action_head(action_space)
        self.obs_dim = shape[0]
        self.obs_norm = ObsNorm(self.obs_dim) if norm_obs else None
        generator = torch.Generator().manual_seed(seed)
        sizes = (self.obs_dim, *hidden_sizes, outputs * self.num_outputs)
        self.actor = StackedMLP(1, sizes, activation, layer_norm, generator)
        if self.continuous:
            low, high = (torch.as_tensor(bound, dtype=torch.float32) for bound in (action_space.low, action_space.high))
            if not torch.isfinite(low).all() or not torch.isfinite(high).all():
                raise ConfigError(f"action space {action_space} has no bounds: squashed actions need them")
            self.register_buffer("action_mid", (high + low) / 2, persistent=False)
            self.register_buffer("action_half", (high - low) / 2, persistent=False)
        self._settle(device)

    action_mid: Tensor
    action_half: Tensor

    def _settle(self, device: str | torch.device) -> None:
        self.to(device)
        self.flat = flatten_parameters(self.actor.parameters())

    def copy_on(self, device: str | torch.device) -> Any:
        """A copy with memory of its own on `device`."""
        other = copy.deepcopy(self)
        other._settle(device)
        return other

    def acting_tensors(self) -> list[Tensor]:
        """All that actions depend on, each contiguous."""
        return [self.flat, *([] if self.obs_norm is None else [self.obs_norm.shift, self.obs_norm.scale])]

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
        """Normalised observations, with the statistics as they stand."""
        return obs if self.obs_norm is None else self.obs_norm(obs)

    def outputs(self, features: Tensor) -> Tensor:
        """What the network puts out, (N, outputs * k)."""
        return self.actor(features)[0]

    def random(self, noise: Tensor) -> Tensor:
        """Uniform actions in [-1, 1] from standard normal noise (N, k)."""
        return torch.erf(noise * 0.5**0.5)

    def to_env(self, action: Tensor) -> Tensor:
        """Actions (N, k) in [-1, 1] in the environment's own range."""
        return torch.addcmul(self.action_mid, self.action_half, action)


class SquashedPolicy(OffPolicyActor):
    """SAC's actor: a Gaussian with a standard deviation of its own in each state, squashed by tanh."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        hidden_sizes: tuple[int, ...] = (256, 256),
        activation: str = "relu",
        layer_norm: bool = False,
        norm_obs: bool = False,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(
            observation_space, action_space, 2, hidden_sizes, activation, layer_norm, norm_obs, device, seed
        )

    def parameters_of(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation (N, k) before squashing; the latter between its bounds by a tanh."""
        mean, raw = self.outputs(features).chunk(2, dim=-1)
        return mean, LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (torch.tanh(raw) + 1)

    def draw(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Differentiable actions (N, k) in [-1, 1] and their log-probs (N,), of normalised observations."""
        mean, log_std = self.parameters_of(features)
        u = torch.addcmul(mean, log_std.exp(), noise)
        return torch.tanh(u), squashed_log_prob(u, noise, log_std)

    @torch.no_grad()
    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (N, k) in [-1, 1] drawn with standard normal noise (N, k), and their log-probs (N,)."""
        return self.draw(self.features(obs), noise)

    @torch.no_grad()
    def act(
        self,
        obs: Tensor,
        noise: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Actions (N, k) for the environment. `deterministic` is tanh of the mean; else `noise` (N, k) or draws from
        `generator`."""
        features = self.features(obs.to(self.flat.dtype))
        if deterministic:
            return self.to_env(torch.tanh(self.parameters_of(features)[0]))
        if noise is None:
            noise = torch.randn((len(obs), *self.noise_shape), generator=generator, device=obs.device)
        return self.to_env(self.draw(features, noise)[0])


class TanhPolicy(OffPolicyActor):
    """TD3's actor: tanh of the network, explored with normal noise.

    With many environments each has a standard deviation of its own, evenly from `noise_min` to `noise_max` (FastTD3, arXiv
    2505.22642, section 3).
    """

    env_noise: Tensor

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        num_envs: int,
        noise_min: float,
        noise_max: float,
        hidden_sizes: tuple[int, ...] = (256, 256),
        activation: str = "relu",
        layer_norm: bool = False,
        norm_obs: bool = False,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(
            observation_space, action_space, 1, hidden_sizes, activation, layer_norm, norm_obs, device, seed
        )
        spread = torch.linspace(noise_min, noise_max, num_envs) if num_envs > 1 else torch.tensor([noise_max])
        self.register_buffer("env_noise", spread.to(device), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Actions (N, k) in [-1, 1] of normalised observations; differentiable."""
        return torch.tanh(self.outputs(features))

    def _explore(self, action: Tensor, noise: Tensor) -> Tensor:
        each = self.env_noise if len(action) == len(self.env_noise) else self.env_noise.mean().expand(len(action))
        return torch.addcmul(action, each[:, None], noise).clamp(-1, 1)

    @torch.no_grad()
    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Explored actions (N, k) in [-1, 1] with standard normal noise (N, k); row i with the deviation of environment i, or
        all with their mean if N is not the number of environments. The second is zeros: there is no density."""
        action = self._explore(self(self.features(obs)), noise)
        return action, torch.zeros(len(obs), device=obs.device)

    @torch.no_grad()
    def act(
        self,
        obs: Tensor,
        noise: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Actions (N, k) for the environment. `deterministic` is without noise."""
        action = self(self.features(obs.to(self.flat.dtype)))
        if not deterministic:
            if noise is None:
                noise = torch.randn((len(obs), *self.noise_shape), generator=generator, device=obs.device)
            action = self._explore(action, noise)
        return self.to_env(action)


class QPolicy(OffPolicyActor):
    """DQN's policy: the action with the largest value, or with probability epsilon a uniform one.

    Noise is Gumbel numbers, one more than there are actions: the largest of the first n names a uniform action, and the
    last one, as the uniform number exp(-exp(-g)), says whether it is taken. A training lowers the tensor `epsilon`.
    """

    epsilon: Tensor

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        hidden_sizes: tuple[int, ...] = (120, 84),
        activation: str = "relu",
        layer_norm: bool = False,
        norm_obs: bool = False,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(
            observation_space, action_space, 1, hidden_sizes, activation, layer_norm, norm_obs, device, seed
        )
        if self.continuous:
            raise ConfigError(f"dqn cannot act in {action_space}: it needs discrete actions; use sac or td3")
        self.register_buffer("epsilon", torch.ones(1, device=device))

    def acting_tensors(self) -> list[Tensor]:
        """All that actions depend on, each contiguous."""
        return [*super().acting_tensors(), self.epsilon]

    @property
    def noise_shape(self) -> tuple[int]:
        """Shape of the noise one row of `sample` wants."""
        return (self.num_outputs + 1,)

    def _explore(self, values: Tensor, noise: Tensor) -> Tensor:
        uniform = torch.exp(-torch.exp(-noise[:, -1]))
        return torch.where(uniform < self.epsilon, noise[:, :-1].argmax(-1), values.argmax(-1))

    @torch.no_grad()
    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (N,) int64 with Gumbel noise (N, n + 1), and zeros: there is no density to learn from."""
        return self._explore(self.outputs(self.features(obs)), noise), torch.zeros(len(obs), device=obs.device)

    def random(self, noise: Tensor) -> Tensor:
        """Uniform actions (N,) int64."""
        return noise[:, :-1].argmax(-1)

    def to_env(self, action: Tensor) -> Tensor:
        """The environment's actions are the numbers themselves."""
        return action

    @torch.no_grad()
    def act(
        self,
        obs: Tensor,
        noise: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Actions (N,) int64. `deterministic` is the action with the largest value."""
        values = self.outputs(self.features(obs.to(self.flat.dtype)))
        if deterministic:
            return values.argmax(-1)
        if noise is None:
            uniform = torch.rand((len(obs), *self.noise_shape), generator=generator, device=obs.device)
            noise = -(-uniform.clamp(1e-7, 1 - 1e-7).log()).log()
        return self._explore(values, noise)
