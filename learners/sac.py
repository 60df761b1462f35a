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
from gpuenvs.runtime.threads import allowed_cores
from learners.actors import SquashedPolicy
from learners.collectors import COLLECTORS
from learners.config import option, validate
from learners.critics import Critics, follow, least, of_least, project
from learners.distributed import Group, local_size
from learners.draws import normals
from learners.handover import Handover
from learners.native import ENGINES
from learners.networks import cloned_state
from learners.optim import FlatAdam
from learners.replay import Block, Replay, Sample

# Streams of `learners.draws.normals`.
NEXT_ACTION, OWN_ACTION = 0, 1
REFERENCE_BATCH = 256  # what `learning_rate` is meant for
LARGEST_RATE = 3e-3
SCALINGS = ("sqrt", "linear", "none")


def scaled_rate(learning_rate: float, batch_size: int, scaling: str) -> float:
    """The step size for a batch: times sqrt(batch / 256) (`sqrt`: Adam's noise stays the same; Malladi et al. 2022, arXiv
    2205.10287) or times batch / 256 (`linear`), at most 3e-3 unless `learning_rate` is larger itself."""
    ratio = batch_size / REFERENCE_BATCH
    factor = {"sqrt": math.sqrt(ratio), "linear": ratio, "none": 1.0}[scaling]
    return min(learning_rate * factor, max(LARGEST_RATE, learning_rate))


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
    noise_correlation: float = option(0.0, "correlation of the action noise of successive steps", ge=0, lt=1)

    def __post_init__(self) -> None:
        validate(self)
        if self.atoms > 1 and self.v_min >= self.v_max:
            raise ConfigError(f"v_min={self.v_min:g} must be below v_max={self.v_max:g}")


class SAC:
    """The algorithm: actor, critics and their targets, and how far they have come. Knows no environment.

    Args:
        config: settings.
        observation_space, action_space: of one environment (Gymnasium spaces); actions must be bounded.
        device: where the critics live and learn.
        seed: decides weights, draws and noise; the same seed gives the same bits on one machine.
        group: must be None: several processes do not train one SAC.
        split: actor and critics have copies of what they need of each other and may learn on two threads at once.
        actor_device: where the actor learns, if not on `device`; implies `split`.

    Attributes:
        policy: the actor that is trained.
        critics, targets: on `device`.
        version, actor_version: updates made of critics and actor.
        frames: rows of an update.
        engine: `fused` or `torch`.
    """

    config_class = SACConfig
    has_actor = True

    def __init__(
        self,
        config: SACConfig,
        observation_space: Any,
        action_space: Any,
        device: str | torch.device = "cpu",
        seed: int = 0,
        group: Group | None = None,
        split: bool = False,
        actor_device: str | torch.device | None = None,
    ) -> None:
        if group is not None:
            raise ConfigError("sac trains in one process; use ppo or a2c for several")
        self.config, self.seed, self.num_envs, self.frames = config, seed, config.num_envs, config.batch_size
        self.device = torch.device(device)
        self.actor_device = torch.device(actor_device or device)
        self.split = split or self.actor_device != self.device
        c = config
        networks: dict[str, Any] = {"hidden_sizes": c.hidden_sizes, "activation": c.activation}
        self.policy = SquashedPolicy(
            observation_space, action_space, norm_obs=c.norm_obs, device=self.actor_device, seed=seed, **networks
        )
        self.critics = Critics(
            self.policy.obs_dim, self.policy.num_outputs, layer_norm=c.layer_norm, atoms=c.atoms, v_min=c.v_min,
            v_max=c.v_max, device=self.device, seed=seed + 1, **networks,
        )  # fmt: skip
        self.targets = self.critics.copy_on(self.device)
        self.log_alpha = torch.tensor(
            [math.log(c.ent_coef if c.ent_coef > 0 else c.ent_coef_init)], device=self.actor_device
        )
        self.learns_alpha = c.ent_coef < 0
        self.target_entropy = c.target_entropy or -float(self.policy.num_outputs)
        self.actor_optimizer = FlatAdam(self.policy.flat, c.adam_eps)
        self.critic_optimizer = FlatAdam(self.critics.flat, c.adam_eps)
        self.alpha_optimizer = FlatAdam(self.log_alpha, c.adam_eps)
        self.version = self.actor_version = 0
        # What each side reads of the other: the very same objects, or copies of its own.
        self._actor_read = self.policy.copy_on(self.device) if self.split else self.policy
        self._alpha_read = self.log_alpha.to(self.device, copy=True) if self.split else self.log_alpha
        self._critics_read = self.critics.copy_on(self.actor_device) if self.split else self.critics
        self._to_critics, self._to_actor = Handover(self.device), Handover(self.actor_device)
        self._native = self._make_native()
        self.engine = "torch" if self._native is None else "fused"

    def _make_native(self) -> Any:
        """The native engine where it fits and is wanted.

        Raises:
            ConfigError: it was asked for and does not fit; one line that says why.
        """
        if self.config.engine == "torch":
            return None
        from learners.native import offpolicy

        problem = offpolicy.misfit(self)
        if problem is None:
            return offpolicy.FusedSAC(self, max(1, allowed_cores() // local_size()))
        if self.config.engine == "fused":
            raise ConfigError(f"engine=fused: {problem}; use engine=auto or torch")
        return None

    # --- updates -------------------------------------------------------------------------------------------------------

    @property
    def learning_rate(self) -> float:
        """Of all optimisers, for the config's batch."""
        return scaled_rate(self.config.learning_rate, self.config.batch_size, self.config.lr_scaling)

    def update(self, replay: Replay) -> dict[str, Tensor | float]:
        """One update of the critics and their targets, and of the actor when that is due; returns 0-d tensors."""
        metrics = self.critic_update(replay)
        return metrics | self.actor_update(replay) if self.actor_due() else metrics

    def actor_due(self) -> bool:
        """Whether the critics are `policy_delay` updates ahead of the actor."""
        return self.version // self.config.policy_delay > self.actor_version

    @property
    def actor_updates_at(self) -> int:
        """Critic updates that the actor has kept up with."""
        return self.actor_version * self.config.policy_delay

    def critic_update(self, replay: Replay) -> dict[str, Tensor | float]:
        """One step of the critics, one of the targets towards them."""
        c, update = self.config, self.version
        committed = replay.committed
        index = replay.draw(self.seed, update, c.batch_size, committed)
        noise = normals(self.seed, update, NEXT_ACTION, c.batch_size, self.policy.num_outputs, self.device)
        if self._native is not None:
            metrics = self._native.critic(replay, index, noise, committed)
        else:
            metrics = self._critic_step(replay.sample(index, c.n_step, c.gamma, committed), noise)
        self.version += 1
        return metrics

    def actor_update(self, replay: Replay) -> dict[str, Tensor | float]:
        """One step of the actor, and of a learned entropy coefficient, on the rows of the critics' last update."""
        c, update = self.config, (self.actor_version + 1) * self.config.policy_delay - 1
        committed = replay.committed
        index = replay.draw(self.seed, update, c.batch_size, committed)
        noise = normals(self.seed, update, OWN_ACTION, c.batch_size, self.policy.num_outputs, self.actor_device)
        if self._native is not None:
            metrics = self._native.actor(replay, index, noise)
        else:
            metrics = self._actor_step(replay.sample(index, 1, c.gamma).obs.to(self.actor_device), noise)
        self.actor_version += 1
        return metrics

    def _critic_step(self, sample: Sample, noise: Tensor) -> dict[str, Tensor]:
        actor, c = self._actor_read, self.config
        with torch.no_grad():
            following = actor.features(sample.next_obs)
            action, log_prob = actor.draw(following, noise)
            bonus = -self._alpha_read.exp() * log_prob
        features = actor.features(sample.obs)
        if c.atoms == 1:
            with torch.no_grad():
                target = sample.reward + sample.discount * (least(self.targets(following, action)) + bonus)
            value = self.critics(features, sample.action)
            loss = 0.5 * (value - target).square().mean(-1).sum()
        else:
            support = self.targets.support
            with torch.no_grad():
                probabilities = self.targets.outputs(following, action).softmax(-1)
                chosen = of_least((probabilities * support).sum(-1), probabilities)
                goal = project(chosen, support, sample.reward + sample.discount * bonus, sample.discount)
            logits = self.critics.outputs(features, sample.action)
            loss = -(goal * logits.log_softmax(-1)).sum(-1).mean(-1).sum()
            value = (logits.detach().softmax(-1) * support).sum(-1)
        (grad,) = _flat_gradient(loss, self.critics)
        norm = self.critic_optimizer.step(grad, self.learning_rate, c.max_grad_norm)
        follow(self.targets.flat, self.critics.flat, c.tau)
        return {"critic_loss": loss.detach(), "q_value": value.detach().mean(), "critic_grad_norm": norm}

    def _actor_step(self, obs: Tensor, noise: Tensor) -> dict[str, Tensor]:
        c = self.config
        features = self.policy.features(obs)
        action, log_prob = self.policy.draw(features, noise)
        alpha = self.log_alpha.exp()
        loss = (alpha * log_prob - least(self._critics_read(features, action))).mean()
        (grad,) = _flat_gradient(loss, self.policy)
        norm = self.actor_optimizer.step(grad, self.learning_rate, c.max_grad_norm)
        if self.learns_alpha:
            # d/d log_alpha of -alpha (log_prob + target_entropy)
            slope = -alpha * (log_prob.detach().mean() + self.target_entropy)
            self.alpha_optimizer.step(slope, self.learning_rate)
        return {
            "actor_loss": loss.detach(),
            "entropy": -log_prob.detach().mean(),
            "ent_coef": alpha.detach()[0].clone(),
            "actor_grad_norm": norm,
        }

    def observe(self, block: Block) -> None:
        """Take a block's observations into the statistics, if there are any. For the thread of the critics."""
        norm = self._actor_read.obs_norm
        if norm is not None:
            norm.update(block.obs)

    # --- hand-over between the halves ------------------------------------------------------------------------------------

    def push_actor(self) -> None:
        """See to it that `policy` holds the newest weights, whichever engine learns. For the thread of the actor."""
        if self._native is not None:
            self._native.push_actor()

    def push_critics(self) -> None:
        """The same for critics and targets. For their thread."""
        if self._native is not None:
            self._native.push_critics()

    def send_actor(self) -> int:
        """The actor as it stands, for the critics; bytes. Nothing to do without `split`."""
        if not self.split:
            return 0
        self.push_actor()
        return self._to_critics.send([self.policy.flat, self.log_alpha])

    def take_actor(self) -> int:
        """The newest actor sent; no bytes move."""
        if self.split and self._to_critics.take([self._actor_read.flat, self._alpha_read]) and self._native is not None:
            self._native.pull_actor_read()
        return 0

    def send_critics(self) -> int:
        """Critics and statistics as they stand, for the actor; bytes."""
        if not self.split:
            return 0
        self.push_critics()
        return self._to_actor.send([self.critics.flat, *_statistics(self._actor_read)])

    def take_critics(self) -> int:
        """The newest critics sent; no bytes move."""
        if self.split:
            taken = self._to_actor.take([self._critics_read.flat, *_statistics(self.policy)])
            if taken and self._native is not None:
                self._native.pull_critics_read()
        return 0

    # --- checkpoints -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything an update depends on besides the replay."""
        self.push_actor()
        self.push_critics()
        state = {
            "policy": cloned_state(self.policy),
            "critics": cloned_state(self.critics),
            "targets": cloned_state(self.targets),
            "log_alpha": self.log_alpha.clone(),
            "version": self.version,
            "actor_version": self.actor_version,
        }
        state |= {name: getattr(self, name).state_dict() for name in _OPTIMIZERS}
        if self.split:
            read = {"actor": cloned_state(self._actor_read), "critics": cloned_state(self._critics_read)}
            state["read"] = read | {"log_alpha": self._alpha_read.clone()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a `state_dict` of the same config and spaces over, of a split one or not."""
        self.policy.load_state_dict(state["policy"])
        self.critics.load_state_dict(state["critics"])
        self.targets.load_state_dict(state["targets"])
        self.log_alpha.copy_(state["log_alpha"])
        for name in _OPTIMIZERS:
            getattr(self, name).load_state_dict(state[name])
        self.version, self.actor_version = int(state["version"]), int(state["actor_version"])
        if self.split:
            read = state.get(
                "read", {"actor": state["policy"], "critics": state["critics"], "log_alpha": state["log_alpha"]}
            )
            self._actor_read.load_state_dict(read["actor"])
            self._critics_read.load_state_dict(read["critics"])
            self._alpha_read.copy_(read["log_alpha"])
        if self._native is not None:
            self._native.pull()


_OPTIMIZERS = ("actor_optimizer", "critic_optimizer", "alpha_optimizer")


def _flat_gradient(loss: Tensor, module: torch.nn.Module) -> tuple[Tensor]:
    """d loss / d all parameters of `module`, in the order of its flat buffer."""
    return (torch.cat([grad.reshape(-1) for grad in torch.autograd.grad(loss, list(module.parameters()))]),)


def _statistics(policy: SquashedPolicy) -> list[Tensor]:
    return [] if policy.obs_norm is None else list(policy.obs_norm.buffers())
