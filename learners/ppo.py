"""Proximal policy optimisation with a clipped surrogate (Schulman et al. 2017, arXiv 1707.06347).

The details follow OpenAI's baselines as catalogued by Huang et al. 2022, "The 37 implementation details of PPO", but for
one: actor and critic share no weights, so each has its own optimiser and its own gradient norm to clip. A critic far from
its targets then does not slow the actor down, and the two can learn at the same time.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuenvs.errors import ConfigError
from gpuenvs.runtime.threads import allowed_cores
from learners import functional as F
from learners.collectors import COLLECTORS
from learners.config import option, validate
from learners.correction import ON_POLICY, Correction, corrected_batch
from learners.distributed import Group, local_size
from learners.native import ENGINES, choose_engine
from learners.native.network import fits
from learners.native.passes import FusedPasses
from learners.native.update import ACTOR_FIGURES, FusedEpochs
from learners.networks import Policy, cloned_state, flat_gradient
from learners.normalize import RewardNorm
from learners.optim import FlatAdam
from learners.rollout import Batch, Rollout
from learners.whole import whole_batch

# A policy whose KL from the behaviour policy exceeds this many times `target_kl` makes no more steps in that update;
# the factor is Stable-Baselines3's (ppo/ppo.py).
KL_STOP_FACTOR = 1.5


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO."""

    num_envs: int = option(64, "environments stepped at once", ge=1)
    total_steps: int = option(1_000_000, "environment steps of the whole run; annealing ends there", ge=1)
    num_steps: int = option(64, "steps per environment between two updates", ge=1)
    epochs: int = option(4, "passes over the collected rows per update", ge=1)
    minibatches: int = option(4, "minibatches per pass", ge=1)
    learning_rate: float = option(1e-3, "Adam's step size at the start", gt=0)
    lr_end: float = option(0.0, "share of learning_rate left at total_steps; 1 keeps it constant", ge=0, le=1)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    gae_lambda: float = option(0.95, "GAE's lambda: 0 is one-step, 1 Monte Carlo", ge=0, le=1)
    clip_coef: float = option(0.2, "how far the ratio may move from 1 before its gradient stops", gt=0)
    clip_end: float = option(1.0, "share of clip_coef left at total_steps", gt=0, le=1)
    clip_value: float = option(0.0, "how far a value may move per update before it is clipped; 0 is never", ge=0)
    ent_coef: float = option(0.0, "weight of the entropy bonus", ge=0)
    ent_end: float = option(1.0, "share of ent_coef left at total_steps", ge=0, le=1)
    vf_coef: float = option(0.5, "weight of the value loss", ge=0)
    max_grad_norm: float = option(
        0.5, "largest norm of a minibatch's gradient, of actor and critic each; 0 is unlimited", ge=0
    )
    target_kl: float = option(
        0.0, "the actor makes no more steps in an update beyond 1.5 times this KL; 0: never", ge=0
    )
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
        if self.num_envs * self.num_steps < self.minibatches:
            raise ConfigError(
                f"minibatches={self.minibatches}: num_envs * num_steps = {self.num_envs * self.num_steps} rows cannot "
                "fill them; use fewer minibatches"
            )

    @property
    def total_updates(self) -> int:
        """Updates until total_steps is reached."""
        return -(-self.total_steps // (self.num_envs * self.num_steps))


class PPO:
    """The algorithm: a policy, its optimiser and how far annealing has come. Knows no environment.

    Args:
        config: settings.
        observation_space, action_space: of one environment (Gymnasium spaces).
        device: where the weights live and `update` runs.
        seed: decides initial weights and minibatch order; the same seed gives the same bits on one machine.
        group: the processes that train together; the rollouts of each hold its share of `config.num_envs`.

    Attributes:
        policy: the `Policy` being trained.
        num_envs: environments of a rollout.
        version: updates made so far; each stored row carries the version that chose its action.
    """

    config_class = PPOConfig
    # Under hts, of `learners.correction`; docs/schedules.md has the measurements. Its clipping bounds what an old row can do.
    stale_correction = "none"

    def __init__(
        self,
        config: PPOConfig,
        observation_space: Any,
        action_space: Any,
        device: str | torch.device = "cpu",
        seed: int = 0,
        group: Group | None = None,
    ) -> None:
        self.config = config
        self.group = group
        self.num_envs = group.share(config.num_envs) if group else config.num_envs
        if self.num_envs * config.num_steps < config.minibatches:
            raise ConfigError(
                f"minibatches={config.minibatches}: the {self.num_envs * config.num_steps} rows of one process cannot fill "
                "them; use fewer minibatches or processes"
            )
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
        """Learning rate, clip and entropy coefficient of the next update, annealed linearly over the run."""
        c = self.config
        progress = self.version / c.total_updates
        return {
            "learning_rate": F.linear_schedule(c.learning_rate, c.lr_end, progress),
            "clip_coef": F.linear_schedule(c.clip_coef, c.clip_end, progress),
            "ent_coef": F.linear_schedule(c.ent_coef, c.ent_end, progress),
        }

    def actor_loss(
        self, policy: Policy, batch: Batch, clip_coef: float, ent_coef: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The actor's loss on `batch` at the weights of `policy` (0-d, differentiable) and what is worth logging."""
        dist = policy.distribution(batch.features)
        log_prob = dist.log_prob(batch.action)
        policy_loss, ratio = F.ppo_policy_loss(log_prob, batch.log_prob, batch.advantage, clip_coef)
        entropy = dist.entropy().mean()
        with torch.no_grad():
            stats = {
                "policy_loss": policy_loss.detach(),
                "entropy": entropy.detach(),
                "approx_kl": F.approx_kl(log_prob, batch.log_prob),
                "clip_fraction": F.clip_fraction(ratio, clip_coef),
            }
        return policy_loss - ent_coef * entropy, stats

    def critic_loss(self, policy: Policy, batch: Batch) -> Tensor:
        """The value loss on `batch` at the weights of `policy` (0-d, differentiable), without `vf_coef`."""
        return F.value_loss(policy.value(batch.features), batch.target, batch.value, self.config.clip_value)

    def update(self, rollout: Rollout, correction: Correction = ON_POLICY) -> dict[str, Tensor]:
        """Learn from one rollout; returns 0-d tensors on the device and never waits for it.

        `correction` says what to do about rows of older weights. Observation statistics stay put until the last step is
        made and take this rollout in afterwards.
        """
        with correction.applied(self.policy):
            metrics = self._learn(rollout, correction)
        if self.policy.obs_norm is not None:
            self.policy.obs_norm.update(rollout.obs[:-1], self.group)
        self.version += 1
        return metrics

    def _learn(self, rollout: Rollout, correction: Correction) -> dict[str, Tensor]:
        """All steps on the weights, and what is worth logging."""
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
        run_epochs = self._fused_epochs if self.engine == "fused" else self._epochs
        metrics |= run_epochs(batch, **coefficients)
        metrics |= {k: torch.full((), v, device=self.device) for k, v in coefficients.items()}
        metrics["skipped_steps"] = self.actor_optimizer.skipped + self.critic_optimizer.skipped
        return metrics

    def _epochs(self, batch: Batch, learning_rate: float, clip_coef: float, ent_coef: float) -> dict[str, Tensor]:
        """All epochs over the minibatches; the actor's metrics are means over the steps it made."""
        c, policy = self.config, self.policy
        active = torch.ones((), dtype=torch.bool, device=self.device)
        kl_limit = KL_STOP_FACTOR * c.target_kl if c.target_kl > 0 else float("inf")
        made, actor_rows, critic_rows, names = [], [], [], []
        order, bounds = self._order(len(batch.advantage))
        for first, stop in itertools.pairwise(bounds):
            rows = batch.select(order[first:stop])
            loss, stats = self.actor_loss(policy, rows, clip_coef, ent_coef)
            grad = flat_gradient(loss, policy.actor_parameters())
            value_loss = self.critic_loss(policy, rows)
            critic_grad = flat_gradient(c.vf_coef * value_loss, policy.critic_parameters())
            figures = stats | {"value_loss": value_loss.detach()}
            if self.group is not None:
                grad, critic_grad, *means = self.group.mean(grad, critic_grad, *figures.values())
                figures = dict(zip(figures, means, strict=True))
            value_loss = figures.pop("value_loss")
            active = active & ~(figures["approx_kl"] > kl_limit)
            figures["actor_grad_norm"] = self.actor_optimizer.step(grad, learning_rate, c.max_grad_norm, active)
            norm = self.critic_optimizer.step(critic_grad, learning_rate, c.max_grad_norm)
            made.append(active)
            actor_rows.append(torch.stack(list(figures.values())))
            critic_rows.append(torch.stack([value_loss, norm]))
            names = list(figures)
            if self.group is not None:
                self.group.verify_step((self.actor_optimizer, self.critic_optimizer))
        weight = torch.stack(made).to(torch.float32)
        metrics = dict(zip(names, _weighted_mean(torch.stack(actor_rows), weight).unbind()))
        metrics |= dict(zip(("value_loss", "critic_grad_norm"), torch.stack(critic_rows).mean(0).unbind()))
        return metrics | {"actor_steps": weight.sum()}

    def _fused_epochs(self, batch: Batch, learning_rate: float, clip_coef: float, ent_coef: float) -> dict[str, Tensor]:
        """`_epochs` as native kernels: the same steps up to rounding."""
        c = self.config
        order, bounds = self._order(len(batch.advantage))
        knobs = {
            "learning_rate": learning_rate,
            "clip_coef": clip_coef,
            "ent_coef": ent_coef,
            "scale": 1.0,
            "max_grad_norm": c.max_grad_norm,
            "clip_value": c.clip_value,
            "kl_limit": KL_STOP_FACTOR * c.target_kl if c.target_kl > 0 else float("inf"),
            "adam_eps": c.adam_eps,
        }
        critic_knobs = {**knobs, "scale": c.vf_coef, "kl_limit": float("inf")}
        actor, critic = self._fused().run(batch, order.numpy(), np.array(bounds), knobs, critic_knobs)
        steps = actor[:, -1].sum()
        actor, critic = actor[: max(1, int(steps))].mean(0), critic.mean(0)
        names = [*ACTOR_FIGURES[:4], "actor_grad_norm", "value_loss", "critic_grad_norm", "actor_steps"]
        return dict(zip(names, torch.from_numpy(np.array([*actor[:5], critic[0], critic[4], steps])).unbind()))

    def _order(self, rows: int) -> tuple[Tensor, list[int]]:
        """Row indices of all epochs, one permutation after another, and where each minibatch begins and ends in them.

        They depend on seed, version and settings alone. Minibatches that do not divide the rows differ by one row.
        """
        c = self.config
        entropy = [self.seed, self.version, *([self.group.rank] if self.group else [])]
        key = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
        generator = torch.Generator().manual_seed(int(key >> np.uint64(1)))
        order = torch.empty(c.epochs * rows, dtype=torch.int64, pin_memory=self.device.type == "cuda")
        for epoch in order.view(c.epochs, rows).unbind():
            torch.randperm(rows, generator=generator, out=epoch)
        parts = c.epochs * c.minibatches
        bounds = [k // c.minibatches * rows + k % c.minibatches * rows // c.minibatches for k in range(parts + 1)]
        return order.to(self.device, non_blocking=True), bounds

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


def _weighted_mean(table: Tensor, weight: Tensor) -> Tensor:
    """Mean of the rows of `table` (M, k) by `weight` (M,); without any weight its first row."""
    weight = torch.where(weight.any(), weight, torch.eye(len(weight), device=weight.device)[0])
    return torch.where(weight[:, None] > 0, table * weight[:, None], 0.0).sum(0) / weight.sum()
