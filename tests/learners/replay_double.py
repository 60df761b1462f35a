"""A small off-policy algorithm with weights that depend on every row drawn, to see what schedules do."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass

import torch
from torch import nn

from learners.distributions import DiagGaussian


@dataclass(frozen=True)
class Config:
    num_envs: int = 4
    total_steps: int = 100_000
    num_steps: int = 4
    batch_size: int = 16
    update_to_data: float = 4.0
    buffer_size: int = 640
    learning_starts: int = 64
    noise_correlation: float = 0.0
    collector: str = "eager"
    policy_delay: int = 1


class DoublePolicy(nn.Module):
    """action = tanh(obs W + noise)."""

    head, continuous, image = DiagGaussian, True, False

    def __init__(self, obs_dim, actions):
        super().__init__()
        self.flat = nn.Parameter(torch.zeros(obs_dim * actions), requires_grad=False)
        self.obs_dim, self.num_outputs, self.noise_shape = obs_dim, actions, (actions,)
        self.device = torch.device("cpu")

    def acting_tensors(self):
        return [self.flat]

    def copy_on(self, device):
        return copy.deepcopy(self)

    def sample(self, obs, noise):
        return torch.tanh(obs @ self.flat.view(self.obs_dim, -1) + noise), torch.zeros(len(obs))

    def random(self, noise):
        return torch.erf(noise / 2**0.5)

    def to_env(self, action):
        return action


class Double:
    """`on_update(kind, number)` is called within every update; its sleep stands for the work."""

    has_actor = True
    config_class = Config
    burst = 1

    def __init__(self, config, observation_space, action_space, seed=0, on_update=lambda kind, number: None):
        self.config, self.seed, self.num_envs, self.frames = config, seed, config.num_envs, config.batch_size
        self.device = torch.device("cpu")
        self.policy = DoublePolicy(observation_space.shape[0], action_space.shape[0])
        self.version = self.actor_version = 0
        self.on_update, self.drawn, self.sent = on_update, [], []

    def updates(self, replay, count):
        for _ in range(count):
            metrics = self.update(replay)
        return metrics

    def update(self, replay):
        metrics = self.critic_update(replay)
        return metrics | self.actor_update(replay)

    def critic_update(self, replay):
        self.on_update("critic", self.version)
        index = replay.draw(self.seed, self.version, self.config.batch_size)
        sample = replay.sample(index, 2, 0.9)
        self.drawn.append(sample)
        self.last = sum(part.sum() for part in sample)
        self.version += 1
        return {"loss": self.last}

    def actor_update(self, replay):
        self.on_update("actor", self.actor_version)
        self.policy.flat.mul_(0.9).add_(torch.sin(self.last + self.version) * 0.1)
        self.actor_version += 1
        return {}

    def actor_due(self):
        return self.actor_version < self.version

    @property
    def actor_updates_at(self):
        return self.actor_version

    def push_actor(self):
        pass

    def take_actor(self):
        self.sent.append("actor taken")
        return 0

    def send_critics(self):
        return 10

    def take_critics(self):
        return 10

    def send_actor(self):
        return 5

    def observe(self, block):
        self.observed = block.first

    def state_dict(self):
        return {
            "policy": {"flat": self.policy.flat.clone()},
            "version": self.version,
            "actor_version": self.actor_version,
        }

    def load_state_dict(self, state):
        self.policy.flat.copy_(state["policy"]["flat"])
        self.version, self.actor_version = state["version"], state["actor_version"]


def sleeping(critic=0.0, actor=0.0, fail_at=None):
    """An `on_update` that takes its time, and raises in the part and at the number given by `fail_at`."""

    def on_update(kind, number):
        time.sleep(critic if kind == "critic" else actor)
        if (kind, number) == fail_at:
            raise ValueError(f"{kind} {number}")

    return on_update
