"""What SAC and TD3 share: critics and targets, counters, draws, and the hand-over between two halves that learn apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from gpuenvs.errors import ConfigError
from learners.compiled import Loss
from learners.critics import Critics, least, of_least, project
from learners.distributed import Group
from learners.draws import normals
from learners.handover import Handover
from learners.native.offpolicy_update import ACTOR, CRITICS
from learners.networks import cloned_state
from learners.optim import FlatAdam
from learners.rates import rate_at
from learners.replay import Block, Replay, Sample

Metrics = dict[str, Tensor | float]
# Streams of `learners.draws.normals`; `learners.native.offpolicy_update` uses the same.
NEXT_ACTION, OWN_ACTION = 0, 1


class ActorCritic(ABC):
    """Actor and twin critics. `critic_update` and `actor_update` are the two halves of an update.

    With `split` each half reads copies of the other's weights and the two may run on two threads at once, on two devices:
    `send_...` leaves an immutable copy, `take_...` reads the newest one. Without, both read the very same tensors and
    sending is nothing.

    Subclasses give the actor, and the losses of both.

    Args:
        config: settings.
        observation_space, action_space: of one environment (Gymnasium spaces); actions must be bounded.
        device: where the critics live and learn.
        seed: decides weights, draws and noise; the same seed gives the same bits on one machine.
        group: must be None: several processes do not train one of these.
        split: see above.
        actor_device: where the actor learns, if not on `device`; implies `split`.

    Attributes:
        policy: the actor that is trained.
        critics, targets: on `device`.
        version, actor_version: updates made of critics and actor.
        frames: rows of an update.
        engine: `fused` or `torch`.
    """

    has_actor = True
    config_class: Any

    def __init__(
        self,
        config: Any,
        observation_space: Any,
        action_space: Any,
        device: str | torch.device = "cpu",
        seed: int = 0,
        group: Group | None = None,
        split: bool = False,
        actor_device: str | torch.device | None = None,
    ) -> None:
        if group is not None:
            raise ConfigError(f"{type(self).__name__.lower()} trains in one process; use ppo or a2c for several")
        self.config, self.seed, self.num_envs, self.frames = config, seed, config.num_envs, config.batch_size
        self.device = torch.device(device)
        self.actor_device = torch.device(actor_device or device)
        self.split = split or self.actor_device != self.device
        c = config
        self.policy = self._make_policy(observation_space, action_space)
        self.critics = Critics(
            self.policy.obs_dim, self.policy.num_outputs, hidden_sizes=c.hidden_sizes, activation=c.activation,
            layer_norm=c.layer_norm, atoms=c.atoms, v_min=c.v_min, v_max=c.v_max, device=self.device, seed=seed + 1,
        )  # fmt: skip
        self.targets = self.critics.copy_on(self.device)
        self.actor_optimizer = FlatAdam(self.policy.flat, c.adam_eps)
        self.critic_optimizer = FlatAdam(self.critics.flat, c.adam_eps)
        self.version = self.actor_version = 0
        self._actor_read = self.policy.copy_on(self.device) if self.split else self.policy
        self._critics_read = self.critics.copy_on(self.actor_device) if self.split else self.critics
        self._to_critics, self._to_actor = Handover(self.device), Handover(self.actor_device)
        if c.compile == "graphs" and self.split:
            raise ConfigError(
                "compile=graphs needs actor and critics on one device and thread: leave split out, or use on"
            )
        self._critic_gradient = Loss(self._critic_objective, self.critics, c.compile)
        self._actor_gradient = Loss(self._actor_objective, self.policy, c.compile)
        self._native: Any = None

    @property
    def engine(self) -> str:
        """`fused` or `torch`."""
        return "torch" if self._native is None else "fused"

    # --- what subclasses give --------------------------------------------------------------------------------------------

    @abstractmethod
    def _make_policy(self, observation_space: Any, action_space: Any) -> Any:
        """The actor, on its own device."""

    @abstractmethod
    def _critic_objective(self, sample: Sample, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(loss, values of both critics)."""

    @abstractmethod
    def _critic_step(self, sample: Sample, noise: Tensor) -> Metrics:
        """One step of the critics and their targets by PyTorch's operations."""

    @abstractmethod
    def _actor_objective(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(loss, figures of each row)."""

    @abstractmethod
    def _actor_step(self, obs: Tensor, noise: Tensor) -> Metrics:
        """One step of the actor by PyTorch's operations."""

    def _modules(self) -> dict[str, nn.Module]:
        """Everything with weights, for checkpoints."""
        return {"policy": self.policy, "critics": self.critics, "targets": self.targets}

    def _optimizers(self) -> dict[str, FlatAdam]:
        return {"actor_optimizer": self.actor_optimizer, "critic_optimizer": self.critic_optimizer}

    def _sent_besides(self) -> tuple[list[Tensor], list[Tensor]]:
        """(what the actor's half sends besides its weights, where the critics read that)."""
        return [], []

    # --- updates ---------------------------------------------------------------------------------------------------------

    @property
    def learning_rate(self) -> float:
        """Of the next update; see `rate_at`."""
        return rate_at(self.config, self.version)

    @property
    def burst(self) -> int:
        """How many updates one call of `updates` should make at most, so that it is over soon."""
        return 1 if self._native is None else self._native.burst

    def set_threads(self, threads: int) -> None:
        """Learn on at most so many threads, where the engine makes its own."""
        if self._native is not None:
            self._native.set_threads(threads)

    def updates(self, replay: Replay, count: int) -> Metrics:
        """`count` times `update`; what the last one returned."""
        if self._native is not None and not self.split:
            return self._native.update(replay, replay.committed, count, CRITICS | ACTOR)
        metrics: Metrics = {}
        for _ in range(count):
            metrics = metrics | self.update(replay)
        return metrics

    def update(self, replay: Replay) -> Metrics:
        """One update of the critics and their targets, and of the actor when that is due; returns 0-d tensors or numbers."""
        metrics = self.critic_update(replay)
        if not self.actor_due():
            return metrics
        self.send_critics()
        self.take_critics()
        metrics = metrics | self.actor_update(replay)
        self.send_actor()
        self.take_actor()
        return metrics

    def actor_due(self) -> bool:
        """Whether the critics are `policy_delay` updates ahead of the actor."""
        return self.version // self.config.policy_delay > self.actor_version

    @property
    def actor_updates_at(self) -> int:
        """Critic updates that the actor has kept up with."""
        return self.actor_version * self.config.policy_delay

    def critic_update(self, replay: Replay) -> Metrics:
        """One step of the critics, one of the targets towards them."""
        c, update, committed = self.config, self.version, replay.committed
        if self._native is not None:
            return self._native.update(replay, committed, 1, CRITICS)
        index = replay.draw(self.seed, update, c.batch_size, committed)
        noise = normals(self.seed, update, NEXT_ACTION, c.batch_size, self.policy.num_outputs, self.device)
        metrics = self._critic_step(replay.sample(index, c.n_step, c.gamma, committed), noise)
        self.version += 1
        return metrics

    def actor_update(self, replay: Replay) -> Metrics:
        """One step of the actor, on the rows of the critics' update that it follows."""
        c, update = self.config, (self.actor_version + 1) * self.config.policy_delay - 1
        if self._native is not None:
            return self._native.update(replay, replay.committed, 1, ACTOR)
        index = replay.draw(self.seed, update, c.batch_size, replay.committed)
        noise = normals(self.seed, update, OWN_ACTION, c.batch_size, self.policy.num_outputs, self.actor_device)
        metrics = self._actor_step(replay.sample(index, 1, c.gamma).obs.to(self.actor_device), noise)
        self.actor_version += 1
        return metrics

    def _critic_loss(
        self, sample: Sample, features: Tensor, following: Tensor, action: Tensor, bonus: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(loss, values) of both critics towards the smaller target of `action` in the following state, with `bonus` (B,)
        added to its value: the mean of half the squared error, or the cross entropy to the projected distribution."""
        extra = 0.0 if bonus is None else bonus
        if self.config.atoms == 1:
            with torch.no_grad():
                target = sample.reward + sample.discount * (least(self.targets(following, action)) + extra)
            value = self.critics(features, sample.action)
            return 0.5 * (value - target).square().mean(-1).sum(), value.detach()
        support = self.targets.support
        with torch.no_grad():
            probabilities = self.targets.outputs(following, action).softmax(-1)
            chosen = of_least((probabilities * support).sum(-1), probabilities)
            goal = project(chosen, support, sample.reward + sample.discount * extra, sample.discount)
        logits = self.critics.outputs(features, sample.action)
        loss = -(goal * logits.log_softmax(-1)).sum(-1).mean(-1).sum()
        return loss, (logits.detach().softmax(-1) * support).sum(-1)

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
        actor = self.policy.flat if self._native is None else self._native.actor_sent
        return self._to_critics.send([actor, *self._sent_besides()[0]])

    def take_actor(self) -> int:
        """The newest actor sent; no bytes move."""
        if self.split:
            into = self._actor_read.flat if self._native is None else self._native.actor_read
            self._to_critics.take([into, *self._sent_besides()[1]])
        return 0

    def send_critics(self) -> int:
        """Critics and statistics as they stand, for the actor; bytes."""
        if not self.split:
            return 0
        critics = self.critics.flat if self._native is None else self._native.critics_sent
        return self._to_actor.send([critics, *_statistics(self._actor_read)])

    def take_critics(self) -> int:
        """The newest critics sent; no bytes move."""
        if self.split:
            into = self._critics_read.flat if self._native is None else self._native.critics_read
            if self._to_actor.take([into, *_statistics(self.policy)]) and self._native is not None:
                self._native.critics_taken()
        return 0

    # --- checkpoints -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything an update depends on besides the replay."""
        self.push_actor()
        self.push_critics()
        state: dict[str, Any] = {name: cloned_state(module) for name, module in self._modules().items()}
        state |= {name: optimizer.state_dict() for name, optimizer in self._optimizers().items()}
        state |= {"version": self.version, "actor_version": self.actor_version}
        if self.split:
            if self._native is not None:
                self._native.push_read()
            state["read"] = {
                "actor": cloned_state(self._actor_read),
                "critics": cloned_state(self._critics_read),
                "sent": [tensor.clone() for tensor in self._sent_besides()[1]],
            }
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a `state_dict` of the same config and spaces over, of a split one or not."""
        for name, module in self._modules().items():
            module.load_state_dict(state[name])
        for name, optimizer in self._optimizers().items():
            optimizer.load_state_dict(state[name])
        self.version, self.actor_version = int(state["version"]), int(state["actor_version"])
        if self.split:
            sent, read_by_critics = self._sent_besides()
            read = state.get("read", {"actor": state["policy"], "critics": state["critics"], "sent": sent})
            self._actor_read.load_state_dict(read["actor"])
            self._critics_read.load_state_dict(read["critics"])
            for target, source in zip(read_by_critics, read["sent"], strict=True):
                target.copy_(source)
        if self._native is not None:
            self._native.pull()


def _statistics(policy: Any) -> list[Tensor]:
    return [] if policy.obs_norm is None else list(policy.obs_norm.buffers())
