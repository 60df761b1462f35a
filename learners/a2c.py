"""Advantage actor-critic: one gradient step per rollout (Mnih et al. 2016, arXiv 1602.01783, the synchronous form).

Actor and critic share no weights; each has its own optimiser and its own gradient norm to clip.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuenvs.runtime.threads import allowed_cores
from learners import functional as F
from learners.collectors import COLLECTORS
from learners.config import option, validate
from learners.correction import ON_POLICY, Correction, corrected_batch
from learners.distributed import Group, local_size
from learners.native import ENGINES, choose_engine
from learners.native.network import fits
from learners.native.passes import FusedPasses
from learners.native.update import FusedEpochs
from learners.networks import Policy, cloned_state, flat_gradient
from learners.normalize import RewardNorm
from learners.optim import FlatAdam
from learners.rollout import Batch, Rollout
from learners.whole import whole_batch


@dataclasses.dataclass(frozen=True)
class A2CConfig:
    """Settings of A2C."""

    num_envs: int = option(16, "environments stepped at once", ge=1)
    total_steps: int = option(1_000_000, "environment steps of the whole run; annealing ends there", ge=1)
    num_steps: int = option(8, "steps per environment between two updates", ge=1)
    learning_rate: float = option(1e-3, "Adam's step size at the start", gt=0)
    lr_end: float = option(0.0, "share of learning_rate left at total_steps; 1 keeps it constant", ge=0, le=1)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    gae_lambda: float = option(0.95, "GAE's lambda: 0 is one-step, 1 Monte Carlo", ge=0, le=1)
    ent_coef: float = option(0.0, "weight of the entropy bonus", ge=0)
    ent_end: float = option(1.0, "share of ent_coef left at total_steps", ge=0, le=1)
    vf_coef: float = option(0.5, "weight of the value loss", ge=0)
    max_grad_norm: float = option(0.5, "largest norm of the gradient, of actor and critic each; 0 is unlimited", ge=0)
    norm_adv: bool = option(True, "normalise the advantages of each update")
    norm_obs: bool = option(True, "normalise observations by their running mean and deviation")
    norm_reward: bool = option(True, "divide rewards by the running deviation of the return")
    hidden_sizes: tuple[int, ...] = option((64, 64), "hidden layer sizes of actor and critic", ge=1)
    activation: str = option("tanh", "activation of the hidden layers", choices=("tanh", "relu"))
    adam_eps: float = option(1e-5, "Adam's epsilon", gt=0)
    log_std_init: float = option(0.0, "initial log standard deviation of continuous actions", ge=-10, le=5)
    collector: str = option(
        "auto",
        "how rollouts are filled: by one fused kernel, a recorded graph or step by step; auto is the first that fits",
        choices=COLLECTORS,
    )
    engine: str = option(
        "auto",
        "updates by fused native CPU kernels or PyTorch operations; auto is fused where it fits",
        choices=ENGINES,
    )
    noise_correlation: float = option(
        0.0, "correlation of the action noise of successive steps (continuous actions)", ge=0, lt=1
    )

    def __post_init__(self) -> None:
        validate(self)

    @property
    def total_updates(self) -> int:
        """Updates until total_steps is reached."""
        return -(-self.total_steps // (self.num_envs * self.num_steps))


class A2C:
    """The algorithm: a policy, its optimiser and how far annealing has come. Knows no environment.

    Args and attributes are those of `learners.ppo.PPO`; the seed only decides the initial weights.
    """

    config_class = A2CConfig
    stale_correction = "vtrace"  # under hts, of `learners.correction`; docs/schedules.md has the measurements

    def __init__(
        self,
        config: A2CConfig,
        observation_space: Any,
        action_space: Any,
        device: str | torch.device = "cpu",
        seed: int = 0,
        group: Group | None = None,
    ) -> None:
        self.config = config
        self.group = group
        self.num_envs = group.share(config.num_envs) if group else config.num_envs
        self.seed = seed
        self.device = torch.device(device)
        self.policy = Policy(
            observation_space,
            action_space,
            hidden_sizes=config.hidden_sizes,
            activation=config.activation,
            log_std_init=config.log_std_init,
            normalize_obs=config.norm_obs,
            device=device,
            seed=seed,
        )
        self.actor_optimizer = FlatAdam(self.policy.actor_flat, config.adam_eps)
        self.critic_optimizer = FlatAdam(self.policy.critic_flat, config.adam_eps)
        self.reward_norm = (
            RewardNorm(self.num_envs, config.gamma, group=group).to(device) if config.norm_reward else None
        )
        self.version = 0
        fused = self.device.type == "cpu" and fits(self.policy)
        self.engine = choose_engine(config.engine, fused)
        self._native: FusedEpochs | None = None
        self._passes = FusedPasses(self.policy, allowed_cores()) if self.engine == "fused" else None

    def compile_ahead(self) -> None:
        """Let another process compile the kernels of `update` while this one compiles those of the collection."""
        if self.engine == "fused":
            self._fused().compile_ahead()

    def _fused(self) -> FusedEpochs:
        if self._native is None:
            threads = max(1, allowed_cores() // local_size())
            self._native = FusedEpochs(self.policy, self.actor_optimizer, self.critic_optimizer, threads, self.group)
        return self._native

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Action, its log-prob (N,) and the value (N,) of raw obs (N, d) with the given noise."""
        action, log_prob = self.policy.sample(obs, noise)
        with torch.no_grad():
            return action, log_prob, self.policy.value(self.policy.features(obs))

    def coefficients(self) -> dict[str, float]:
        """Learning rate and entropy coefficient of the next update, annealed linearly over the run."""
        c = self.config
        progress = self.version / c.total_updates
        return {
            "learning_rate": F.linear_schedule(c.learning_rate, c.lr_end, progress),
            "ent_coef": F.linear_schedule(c.ent_coef, c.ent_end, progress),
        }

    def actor_loss(
        self, policy: Policy, batch: Batch, ent_coef: float, weighted: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The actor's loss on `batch` at the weights of `policy` (0-d, differentiable) and what is worth logging.

        `weighted`: rows count by the ratio of their log-probs to the stored ones.
        """
        dist = policy.distribution(batch.features)
        log_prob = dist.log_prob(batch.action)
        if weighted:
            policy_loss = F.ppo_policy_loss(log_prob, batch.log_prob, batch.advantage, float("inf"))[0]
        else:
            policy_loss = F.policy_gradient_loss(log_prob, batch.advantage)
        entropy = dist.entropy().mean()
        stats = {"policy_loss": policy_loss.detach(), "entropy": entropy.detach()}
        return policy_loss - ent_coef * entropy, stats

    def critic_loss(self, policy: Policy, batch: Batch) -> Tensor:
        """The value loss on `batch` at the weights of `policy` (0-d, differentiable), without `vf_coef`."""
        return F.value_loss(policy.value(batch.features), batch.target, batch.value)

    def update(self, rollout: Rollout, correction: Correction = ON_POLICY) -> dict[str, Tensor]:
        """Learn from one rollout; returns 0-d tensors on the device and never waits for it.

        `correction` says what to do about rows of older weights. Observation statistics stay put until the step is made and
        take this rollout in afterwards.
        """
        with correction.applied(self.policy):
            metrics = self._learn(rollout, correction)
        if self.policy.obs_norm is not None:
            self.policy.obs_norm.update(rollout.obs[:-1], self.group)
        self.version += 1
        return metrics

    def _learn(self, rollout: Rollout, correction: Correction) -> dict[str, Tensor]:
        """The step on the weights, and what is worth logging."""
        c = self.config
        batch = corrected_batch(self.policy, rollout, c.gamma, c.gae_lambda, self.reward_norm, correction, self._passes)
        if self.group is None:
            metrics = {
                "explained_variance": F.explained_variance(batch.value, batch.target),
                "value_mean": batch.value.mean(),
            }
            if c.norm_adv:
                batch = batch._replace(advantage=F.normalize_advantage(batch.advantage))
        else:
            batch, metrics = whole_batch(batch, self.group, c.norm_adv)
        metrics["lag"] = (self.version - rollout.version).to(torch.float32).mean()
        coefficients = self.coefficients()
        step = self._fused_step if self.engine == "fused" else self._step
        metrics |= step(batch, correction.weighted, **coefficients)
        metrics |= {k: torch.full((), v, device=self.device) for k, v in coefficients.items()}
        metrics["skipped_steps"] = self.actor_optimizer.skipped + self.critic_optimizer.skipped
        return metrics

    def _step(self, batch: Batch, weighted: bool, learning_rate: float, ent_coef: float) -> dict[str, Tensor]:
        """The gradient step of both networks on the whole batch."""
        c, policy = self.config, self.policy
        loss, figures = self.actor_loss(policy, batch, ent_coef, weighted)
        grad = flat_gradient(loss, policy.actor_parameters())
        value_loss = self.critic_loss(policy, batch)
        critic_grad = flat_gradient(c.vf_coef * value_loss, policy.critic_parameters())
        figures["value_loss"] = value_loss.detach()
        if self.group is not None:
            grad, critic_grad, *means = self.group.mean(grad, critic_grad, *figures.values())
            figures = dict(zip(figures, means, strict=True))
        value_loss = figures.pop("value_loss")
        figures["actor_grad_norm"] = self.actor_optimizer.step(grad, learning_rate, c.max_grad_norm)
        figures["critic_grad_norm"] = self.critic_optimizer.step(critic_grad, learning_rate, c.max_grad_norm)
        if self.group is not None:
            self.group.verify_step((self.actor_optimizer, self.critic_optimizer))
        return figures | {"value_loss": value_loss}

    def _fused_step(self, batch: Batch, weighted: bool, learning_rate: float, ent_coef: float) -> dict[str, Tensor]:
        """`_step` as native kernels: PPO's, whose unclipped surrogate has A2C's gradient where the ratio is 1.

        It is 1 unless `weighted`: then the rows' log-probs are those of the weights that collected.
        """
        c = self.config
        knobs = {
            "learning_rate": learning_rate,
            "clip_coef": float("inf"),
            "ent_coef": ent_coef,
            "scale": 1.0,
            "max_grad_norm": c.max_grad_norm,
            "clip_value": 0.0,
            "kl_limit": float("inf"),
            "adam_eps": c.adam_eps,
        }
        rows = len(batch.advantage)
        policy_loss = None if weighted else F.policy_gradient_loss(batch.log_prob, batch.advantage)
        if policy_loss is not None and self.group is not None:
            (policy_loss,) = self.group.mean(policy_loss)
        bounds = np.array([0, rows])
        actor, critic = self._fused().run(batch, np.arange(rows), bounds, knobs, {**knobs, "scale": c.vf_coef})
        return {
            "policy_loss": torch.tensor(actor[0, 0]) if policy_loss is None else policy_loss,
            "entropy": torch.tensor(actor[0, 1]),
            "actor_grad_norm": torch.tensor(actor[0, 4]),
            "critic_grad_norm": torch.tensor(critic[0, 4]),
            "value_loss": torch.tensor(critic[0, 0]),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything `update` depends on: weights and observation statistics, optimiser, reward scale, version."""
        return {
            "policy": cloned_state(self.policy),
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "reward_norm": cloned_state(self.reward_norm),
            "version": self.version,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a `state_dict` of the same config and spaces over; raises what torch raises when shapes differ."""
        self.policy.load_state_dict(state["policy"])
        self.actor_optimizer.load_state_dict(state["actor_optimizer"])
        self.critic_optimizer.load_state_dict(state["critic_optimizer"])
        if self.reward_norm is not None:
            self.reward_norm.load_state_dict(state["reward_norm"])
        self.version = int(state["version"])
