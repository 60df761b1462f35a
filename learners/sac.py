"""Soft actor-critic with twin critics and automatic entropy (Haarnoja et al. 2018, arXiv 1812.05905).

Options that make large batches and many environments pay: n-step returns, layer normalisation, distributional critics
(Bellemare et al. 2017), learning rates that follow the batch (FastTD3, arXiv 2505.22642, has all of them).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from gpuenvs.errors import ConfigError
from learners.actors import SquashedPolicy
from learners.collectors import COLLECTORS
from learners.compiled import COMPILE
from learners.config import option, validate
from learners.critics import follow, least
from learners.native import ENGINES, offpolicy
from learners.off_policy import ActorCritic, Metrics
from learners.optim import FlatAdam
from learners.rates import SCALINGS, rate_at
from learners.replay import Sample


@dataclasses.dataclass(frozen=True)
class SACConfig:
    """Settings of SAC."""

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
    tau: float = option(0.005, "share of the critics that the targets take over in each update", gt=0, le=1)
    policy_delay: int = option(1, "critic updates per actor update", ge=1)
    ent_coef: float = option(-1.0, "entropy coefficient; below 0 it is learned")
    ent_coef_init: float = option(1.0, "where a learned entropy coefficient begins", gt=0)
    target_entropy: float = option(
        0.0, "wanted entropy in nats for a learned coefficient; 0 is minus the action numbers"
    )
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


class SAC(ActorCritic):
    """The algorithm; see `learners.off_policy.ActorCritic`. Knows no environment.

    Attributes:
        log_alpha: (1,) logarithm of the entropy coefficient, with the actor.
    """

    config_class = SACConfig

    def __init__(self, config: SACConfig, *args: Any, **keywords: Any) -> None:
        super().__init__(config, *args, **keywords)
        c = config
        begin = math.log(c.ent_coef if c.ent_coef > 0 else c.ent_coef_init)
        self.log_alpha = torch.tensor([begin if c.ent_coef else -math.inf], device=self.actor_device)
        self.learns_alpha = c.ent_coef < 0
        self.target_entropy = c.target_entropy or -float(self.policy.num_outputs)
        self.alpha_optimizer = FlatAdam(self.log_alpha, c.adam_eps)
        self._alpha_read = self.log_alpha.to(self.device, copy=True) if self.split else self.log_alpha
        self._native = offpolicy.engine(self, offpolicy.FusedSAC)

    def _make_policy(self, observation_space: Any, action_space: Any) -> SquashedPolicy:
        c = self.config
        return SquashedPolicy(
            observation_space, action_space, hidden_sizes=c.hidden_sizes, activation=c.activation, norm_obs=c.norm_obs,
            device=self.actor_device, seed=self.seed,
        )  # fmt: skip

    def _optimizers(self) -> dict[str, FlatAdam]:
        return {**super()._optimizers(), "alpha_optimizer": self.alpha_optimizer}

    def _sent_besides(self) -> tuple[list[Tensor], list[Tensor]]:
        return [self.log_alpha], [self._alpha_read]

    def _critic_objective(self, sample: Sample, noise: Tensor) -> tuple[Tensor, Tensor]:
        actor = self._actor_read
        with torch.no_grad():
            following = actor.features(sample.next_obs)
            action, log_prob = actor.draw(following, noise)
            bonus = -self._alpha_read.exp() * log_prob
        return self._critic_loss(sample, actor.features(sample.obs), following, action, bonus)

    def _critic_step(self, sample: Sample, noise: Tensor) -> Metrics:
        c = self.config
        loss, value, grad = self._critic_gradient(sample, noise)
        norm = self.critic_optimizer.step(grad, rate_at(c, self.version), c.max_grad_norm)
        follow(self.targets.flat, self.critics.flat, c.tau)
        return {"critic_loss": loss, "q_value": value.mean(), "critic_grad_norm": norm}

    def _actor_objective(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        features = self.policy.features(obs)
        action, log_prob = self.policy.draw(features, noise)
        loss = (self.log_alpha.exp() * log_prob - least(self._critics_read(features, action))).mean()
        return loss, log_prob

    def _actor_step(self, obs: Tensor, noise: Tensor) -> Metrics:
        c, rate = self.config, rate_at(self.config, self.actor_updates_at)
        loss, log_prob, grad = self._actor_gradient(obs, noise)
        norm = self.actor_optimizer.step(grad, rate, c.max_grad_norm)
        alpha = self.log_alpha.exp()
        if self.learns_alpha:
            # d/d log_alpha of -alpha (log_prob + target_entropy)
            slope = -alpha * (log_prob.mean() + self.target_entropy)
            self.alpha_optimizer.step(slope, rate)
        return {
            "actor_loss": loss,
            "entropy": -log_prob.mean(),
            "ent_coef": alpha[0].clone(),
            "actor_grad_norm": norm,
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything an update depends on besides the replay."""
        return {**super().state_dict(), "log_alpha": self.log_alpha.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a `state_dict` of the same config and spaces over, of a split one or not."""
        self.log_alpha.copy_(state["log_alpha"])
        super().load_state_dict(state)
