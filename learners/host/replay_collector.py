"""Fills a replay from a pool of environments in other processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpuenvs.errors import ConfigError
from learners.collectors import Choice
from learners.host.collector import HostCollector
from learners.host.inference import TorchInference
from learners.networks import Policy, action_head
from learners.replay import Block
from learners.rollout import Rollout


class _Acting:
    """An off-policy learner's policy as a `HostCollector` wants one: what it samples is what the environment gets."""

    def __init__(self, policy: Any, random: bool) -> None:
        self._policy, self._random = policy, random
        self.device, self.noise_shape, self.continuous = policy.device, policy.noise_shape, policy.continuous

    @torch.no_grad()
    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions for the environment, and zeros where log-probs would be."""
        policy = self._policy
        action = policy.random(noise) if self._random else policy.sample(obs.float(), noise)[0]
        return policy.to_env(action), torch.zeros(len(obs))


class _Collector(HostCollector):
    """Infers with torch, whatever the policy is."""

    def choose(self, policy: Policy) -> Choice:
        if self.choice is None:
            if policy.device.type != "cpu":
                raise ConfigError(
                    f"host environments need a policy on the CPU to act with, and this one is on {policy.device}"
                )
            self._inference = TorchInference(self.env, policy, "off-policy actors have no native form here")
            self.choice = Choice("host", self._inference.why)
        return self.choice


class HostReplayCollector:
    """The counterpart of `learners.replay_collector.ReplayCollector` for a `gpuenvs.host` pool.

    A horizon is filled elsewhere, environments at their own pace, and copied into its block when it is complete. What is
    stored is a function of the seeds and of the weights, as with `HostCollector`, whose arguments these are.
    """

    agreement = None

    def __init__(self, env: Any, seed: int = 0, noise_correlation: float = 0.0, *, actors: int = 1) -> None:
        self.env = env
        self._inner = _Collector(env, seed, noise_correlation, actors=actors)
        self._rollout: Rollout | None = None
        self._scale: tuple[Tensor, Tensor] | None = None
        space = env.single_action_space
        if action_head(space)[0].action_dtype is not torch.int64:
            low, high = (torch.as_tensor(bound, dtype=torch.float32) for bound in (space.low, space.high))
            self._scale = (high + low) / 2, (high - low) / 2

    @property
    def step(self) -> int:
        """Number of the first step that has not been collected."""
        return self._inner.step

    @property
    def choice(self) -> Choice | None:
        """How actions are computed, and why; None before `choose`."""
        return self._inner.choice

    def choose(self, policy: Any) -> Choice:
        """Decide how actions of `policy` and others like it are computed.

        Raises:
            ConfigError: the policy is not on the CPU.
        """
        return self._inner.choose(policy)

    def start(self) -> None:
        """Start the environments' processes and reset every environment. `collect` does it when nobody has."""
        self._inner.start()

    @torch.no_grad()
    def collect(self, policy: Any, block: Block, version: int = 0, random: bool = False) -> Block:
        """As `ReplayCollector.collect`. Raises the first error of an environment, if there has been one."""
        if self._rollout is None:
            spaces = self.env.single_observation_space, self.env.single_action_space
            self._rollout = Rollout(block.num_steps, block.num_envs, *spaces)
        acting: Any = _Acting(policy, random)
        rollout = self._inner.collect(acting, self._rollout, version)
        done = rollout.done().unsqueeze(-1)
        action = rollout.action
        if self._scale is not None:
            mid, half = self._scale
            action = ((action - mid) / half).clamp(-1, 1)
        block.fill(
            obs=rollout.obs[:-1],
            action=action,
            next_obs=torch.where(done, rollout.final_obs, rollout.obs[1:]),
            reward=rollout.reward,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            episode_return=rollout.episode_return,
            episode_length=rollout.episode_length,
        )
        block.version.fill_(version)
        return block

    def state_dict(self) -> dict[str, Any]:
        """Everything the next horizon depends on besides the policy."""
        return self._inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken, bit for bit."""
        self._inner.load_state_dict(state)

    def close(self) -> None:
        """End the actor threads. The pool is left to who made it."""
        self._inner.close()
