"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv 1802.09477).

With many environments, large batches, layer normalisation and distributional critics it is what FastTD3 trains with (Seo et
al. 2025, arXiv 2505.22642); see `SACConfig` for the same options there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from gpuenvs.errors import ConfigError
from learners.actors import TanhPolicy
from learners.collectors import COLLECTORS
from learners.compiled import COMPILE
from learners.config import option, validate
from learners.critics import follow
from learners.native import ENGINES, offpolicy
from learners.off_policy import ActorCritic, Metrics
from learners.rates import SCALINGS, rate_at
from learners.replay import Sample


@dataclasses.dataclass(frozen=True)
class TD3Config:
    """Settings of TD3."""

    num_envs: int = option(16, "environments stepped at once", ge=1)
    total_steps: int = option(1_000_000, "environment steps of the whole run", ge=1)
    num_steps: int = option(1, "steps per environment that are collected and made available together", ge=1)
    batch_size: int = option(256, "rows of an update", ge=1)
    update_to_data: float = option(
        256.0, "rows learned from per environment step: batch_size * updates / steps; 0 lets both run free", ge=0
    )
    buffer_size: int = option(1_000_000, "transitions kept in the replay", ge=1)
    learning_starts: int = option(5_000, "steps of random actions before learning begins", ge=0)
    learning_rate: float = option(3e-4, "Adam's step size at a batch of 256 rows", gt=0)
    lr_end: float = option(1.0, "share of learning_rate left at total_steps; 1 keeps it constant", ge=0, le=1)
    lr_scaling: str = option("sqrt", "how step sizes follow batch_size / 256, up to 3e-3", choices=SCALINGS)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    n_step: int = option(1, "steps of reward before bootstrapping", ge=1)
    tau: float = option(0.005, "share of the networks that the targets take over in each of their updates", gt=0, le=1)
    policy_delay: int = option(2, "critic updates per update of the actor and the targets", ge=1)
    noise_min: float = option(0.1, "deviation of the exploration noise, of the first environment", ge=0)
    noise_max: float = option(0.1, "deviation of the exploration noise, of the last environment", ge=0)
    target_noise: float = option(0.2, "deviation of the noise on the target's actions, of actions in [-1, 1]", ge=0)
    target_clip: float = option(0.5, "largest noise on the target's actions", ge=0)
    hidden_sizes: tuple[int, ...] = option((256, 256), "hidden layer sizes of actor and critics", ge=1)
    activation: str = option("relu", "activation of the hidden layers", choices=("relu", "tanh"))
    layer_norm: bool = option(False, "normalise hidden layers of the critics")
    norm_obs: bool = option(False, "normalise observations by their running mean and deviation")
    atoms: int = option(1, "atoms of distributional critics; 1 is a number", ge=1)
    v_min: float = option(-100.0, "lowest atom")
    v_max: float = option(100.0, "highest atom")
    max_grad_norm: float = option(0.0, "largest norm of a gradient; 0 is unlimited", ge=0)
    adam_eps: float = option(1e-8, "Adam's epsilon", gt=0)
    collector: str = option(
        "auto", "how experience is collected: one fused kernel, or step by step", choices=COLLECTORS
    )
    engine: str = option(
        "auto",
        "updates by fused native CPU kernels or PyTorch operations; auto is fused where it fits",
        choices=ENGINES,
    )
    compile: str = option(
        "off",
        "PyTorch's operations by torch.compile, after a check; graphs records them as CUDA graphs too",
        choices=COMPILE,
    )
    noise_correlation: float = option(0.0, "correlation of the action noise of successive steps", ge=0, lt=1)

    def __post_init__(self) -> None:
        validate(self)
        if self.atoms > 1 and self.v_min >= self.v_max:
            raise ConfigError(f"v_min={self.v_min:g} must be below v_max={self.v_max:g}")


class TD3(ActorCritic):
    """The algorithm; see `learners.off_policy.ActorCritic`. Knows no environment.

    Attributes:
        target_policy: the actor that the critics' targets ask, with the critics.
    """

    config_class = TD3Config

    def __init__(self, config: TD3Config, *args: Any, **keywords: Any) -> None:
        super().__init__(config, *args, **keywords)
        self.target_policy = self.policy.copy_on(self.device)
        self._native = offpolicy.engine(self, offpolicy.FusedTD3)

    def _make_policy(self, observation_space: Any, action_space: Any) -> TanhPolicy:
        c = self.config
        return TanhPolicy(
            observation_space, action_space, num_envs=c.num_envs, noise_min=c.noise_min, noise_max=c.noise_max,
            hidden_sizes=c.hidden_sizes, activation=c.activation, norm_obs=c.norm_obs, device=self.actor_device,
            seed=self.seed,
        )  # fmt: skip

    def _modules(self) -> dict[str, nn.Module]:
        return {**super()._modules(), "target_policy": self.target_policy}

    def smoothed(self, action: Tensor, noise: Tensor) -> Tensor:
        """The target's actions (B, k) in [-1, 1] with clipped noise of each row's own (equation 14 of the paper).

        Actions are in [-1, 1] whatever the environment's range is, so the noise scales with it.
        """
        c = self.config
        return (action + (c.target_noise * noise).clamp(-c.target_clip, c.target_clip)).clamp(-1, 1)

    def _critic_objective(self, sample: Sample, noise: Tensor) -> tuple[Tensor, Tensor]:
        actor = self._actor_read
        with torch.no_grad():
            following = actor.features(sample.next_obs)
            action = self.smoothed(self.target_policy(following), noise)
        return self._critic_loss(sample, actor.features(sample.obs), following, action, None)

    def _critic_step(self, sample: Sample, noise: Tensor) -> Metrics:
        c = self.config
        loss, value, grad = self._critic_gradient(sample, noise)
        norm = self.critic_optimizer.step(grad, rate_at(c, self.version), c.max_grad_norm)
        if (self.version + 1) % c.policy_delay == 0:
            follow(self.targets.flat, self.critics.flat, c.tau)
            follow(self.target_policy.flat, self._actor_read.flat, c.tau)
        return {"critic_loss": loss, "q_value": value.mean(), "critic_grad_norm": norm}

    def _actor_objective(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        features = self.policy.features(obs)
        value = self._critics_read(features, self.policy(features))[0]
        return -value.mean(), value

    def _actor_step(self, obs: Tensor, noise: Tensor) -> Metrics:
        loss, _, grad = self._actor_gradient(obs, noise)
        rate = rate_at(self.config, self.actor_updates_at)
        norm = self.actor_optimizer.step(grad, rate, self.config.max_grad_norm)
        return {"actor_loss": loss, "actor_grad_norm": norm}
