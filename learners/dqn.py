"""Deep Q-learning for discrete actions (Mnih et al. 2015, Nature 518), with double targets (van Hasselt et al. 2016, arXiv
1509.06461) and n-step returns."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from gpuenvs.errors import ConfigError
from learners.actors import QPolicy
from learners.collectors import COLLECTORS
from learners.compiled import COMPILE, Loss
from learners.config import option, validate
from learners.critics import follow
from learners.distributed import Group
from learners.networks import cloned_state
from learners.off_policy import Metrics
from learners.optim import FlatAdam
from learners.rates import SCALINGS, rate_at, total_updates
from learners.replay import Block, Replay, Sample


@dataclasses.dataclass(frozen=True)
class DQNConfig:
    """Settings of DQN."""

    num_envs: int = option(16, "environments stepped at once", ge=1)
    total_steps: int = option(500_000, "environment steps of the whole run", ge=1)
    num_steps: int = option(1, "steps per environment that are collected and made available together", ge=1)
    batch_size: int = option(128, "rows of an update", ge=1)
    update_to_data: float = option(
        8.0, "rows learned from per environment step: batch_size * updates / steps; 0 lets both run free", ge=0
    )
    buffer_size: int = option(100_000, "transitions kept in the replay", ge=1)
    learning_starts: int = option(5_000, "steps of random actions before learning begins", ge=0)
    learning_rate: float = option(5e-4, "Adam's step size at a batch of 256 rows", gt=0)
    lr_end: float = option(1.0, "share of learning_rate left at total_steps; 1 keeps it constant", ge=0, le=1)
    lr_scaling: str = option("sqrt", "how step sizes follow batch_size / 256, up to 3e-3", choices=SCALINGS)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    n_step: int = option(3, "steps of reward before bootstrapping", ge=1)
    tau: float = option(0.01, "share of the network that the target takes over in each update", gt=0, le=1)
    epsilon_end: float = option(0.05, "probability of a random action in the end", ge=0, le=1)
    epsilon_share: float = option(0.2, "share of the run's updates in which it falls from 1 to there", gt=0, le=1)
    double: bool = option(True, "the network chooses the next action, the target values it")
    hidden_sizes: tuple[int, ...] = option((128, 128), "hidden layer sizes", ge=1)
    activation: str = option("relu", "activation of the hidden layers", choices=("relu", "tanh"))
    layer_norm: bool = option(False, "normalise hidden layers")
    norm_obs: bool = option(False, "normalise observations by their running mean and deviation")
    max_grad_norm: float = option(10.0, "largest norm of a gradient; 0 is unlimited", ge=0)
    adam_eps: float = option(1e-8, "Adam's epsilon", gt=0)
    collector: str = option(
        "auto", "how experience is collected: one fused kernel, or step by step", choices=COLLECTORS
    )
    compile: str = option(
        "off",
        "PyTorch's operations by torch.compile, after a check; graphs records them as CUDA graphs too",
        choices=COMPILE,
    )
    noise_correlation: float = option(0.0, "must be 0: discrete noise is not correlated", ge=0, le=0)

    def __post_init__(self) -> None:
        validate(self)


class DQN:
    """The algorithm: a network of action values and its target. Arguments are those of `learners.off_policy.ActorCritic`.

    Attributes:
        policy: the network, acting by the largest value.
        target: the copy that follows it.
        version: updates made.
    """

    config_class = DQNConfig
    has_actor = False
    engine = "torch"
    burst = 1

    def __init__(
        self,
        config: DQNConfig,
        observation_space: Any,
        action_space: Any,
        device: str | torch.device = "cpu",
        seed: int = 0,
        group: Group | None = None,
        **split: Any,
    ) -> None:
        if group is not None:
            raise ConfigError("dqn trains in one process; use ppo or a2c for several")
        if split:
            raise ConfigError("dqn has no actor to split from its critic; leave split, --actor-device out")
        self.config, self.seed, self.num_envs, self.frames = config, seed, config.num_envs, config.batch_size
        self.device = torch.device(device)
        self.policy = QPolicy(
            observation_space, action_space, hidden_sizes=config.hidden_sizes, activation=config.activation,
            layer_norm=config.layer_norm, norm_obs=config.norm_obs, device=device, seed=seed,
        )  # fmt: skip
        self.target = self.policy.copy_on(self.device)
        self.optimizer = FlatAdam(self.policy.flat, config.adam_eps)
        self._gradient = Loss(self._objective, self.policy, config.compile)
        self.version = 0

    @property
    def learning_rate(self) -> float:
        """Of the next update; see `learners.off_policy.rate_at`."""
        return rate_at(self.config, self.version)

    def updates(self, replay: Replay, count: int) -> Metrics:
        """`count` times `update`; what the last one returned."""
        metrics: Metrics = {}
        for _ in range(count):
            metrics = self.update(replay)
        return metrics

    def set_threads(self, threads: int) -> None:
        """Its operations are PyTorch's, which has threads of its own."""

    def update(self, replay: Replay) -> Metrics:
        """One step of the network, one of the target towards it; returns 0-d tensors."""
        c, committed = self.config, replay.committed
        index = replay.draw(self.seed, self.version, c.batch_size, committed)
        loss, value, grad = self._gradient(replay.sample(index, c.n_step, c.gamma, committed))
        norm = self.optimizer.step(grad, self.learning_rate, c.max_grad_norm)
        follow(self.target.flat, self.policy.flat, c.tau)
        self.version += 1
        self.policy.epsilon.fill_(self.epsilon)
        return {"critic_loss": loss, "q_value": value.mean(), "critic_grad_norm": norm, "epsilon": self.epsilon}

    def _objective(self, sample: Sample) -> tuple[Tensor, Tensor]:
        """(loss, values of the actions taken)."""
        with torch.no_grad():
            following = self.policy.features(sample.next_obs)
            ahead = self.target.outputs(following)
            chosen = (self.policy.outputs(following) if self.config.double else ahead).argmax(-1, keepdim=True)
            goal = sample.reward + sample.discount * ahead.gather(1, chosen).squeeze(1)
        values = self.policy.outputs(self.policy.features(sample.obs))
        value = values.gather(1, sample.action.long()).squeeze(1)
        return smooth_l1_loss(value, goal), value

    @property
    def epsilon(self) -> float:
        """Probability of a random action after the updates made so far."""
        c = self.config
        falling = c.epsilon_share * total_updates(c)
        progress = min(1.0, self.version / falling) if falling else 1.0
        return 1.0 + (c.epsilon_end - 1.0) * progress

    def observe(self, block: Block) -> None:
        """Take a block's observations into the statistics, if there are any."""
        if self.policy.obs_norm is not None:
            self.policy.obs_norm.update(block.obs)

    def push_actor(self) -> None:
        """The policy always holds the newest weights."""

    def state_dict(self) -> dict[str, Any]:
        """Everything an update depends on besides the replay."""
        return {
            "policy": cloned_state(self.policy),
            "target": cloned_state(self.target),
            "optimizer": self.optimizer.state_dict(),
            "version": self.version,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a `state_dict` of the same config and spaces over."""
        self.policy.load_state_dict(state["policy"])
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.version = int(state["version"])
