"""The definition of a rollout: observe, act, step, store, T times. Every other way to collect is held to it."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from learners.collectors.streams import as_array, as_tensor
from learners.networks import Policy
from learners.rollout import Rollout

# Rollout field -> where the environment leaves it after a step.
_STORED = ("reward", "terminated", "truncated", "final_obs", "episode_return", "episode_length")


class StepLoop:
    """One horizon, step by step. Allocates nothing that outlives a step and reads nothing from the host but `t`, so the
    same loop can be recorded in a CUDA graph.

    Args:
        env: a batch env with same-step autoreset that has been reset: its arrays never move.
        device: of policies. Rollouts may be elsewhere: each step is then copied to them.
    """

    def __init__(self, env: Any, device: torch.device) -> None:
        self._env, self.device = env, device
        info = env.info
        arrays = (env.reward, env.terminated, env.truncated, *(info[name] for name in _STORED[3:]))
        self._obs = as_tensor(env.obs)
        self._outputs = dict(zip(_STORED, map(as_tensor, arrays), strict=True))
        self._actions: weakref.WeakKeyDictionary[Rollout, list[Any]] = weakref.WeakKeyDictionary()

    def run(self, policy: Policy, rollout: Rollout, noise: Tensor) -> None:
        """Fill `rollout`, all but its values and versions, with noise (T, n, k) on the policy's device."""
        in_place = self._rows(rollout)
        for t in range(rollout.num_steps):
            rollout.obs[t].copy_(self._obs)
            action, log_prob = policy.sample(self.observe(), noise[t])
            rollout.action[t].copy_(action)
            rollout.log_prob[t].copy_(log_prob)
            self._env.step(self._as_action(action) if in_place is None else in_place[t])
            for name, output in self._outputs.items():
                getattr(rollout, name)[t].copy_(output)
        rollout.obs[rollout.num_steps].copy_(self._obs)

    def observe(self) -> Tensor:
        """The current observations (n, ...) on the policy's device, float32 or uint8; not a copy if they are there."""
        dtype = torch.uint8 if self._obs.dtype == torch.uint8 else torch.float32
        return self._obs.to(self.device, dtype)

    def step(self, action: Tensor) -> dict[str, Tensor]:
        """Step the environment; what it returned, by the names of a rollout's fields, on the policy's device."""
        self._env.step(self._as_action(action))
        return {name: output.to(self.device) for name, output in self._outputs.items()}

    def _rows(self, rollout: Rollout) -> list[Any] | None:
        """The actions of each step as arrays of the environment's kind, where the rollout is on its device."""
        if str(rollout.action.device) != self._env.device:
            return None
        if rollout not in self._actions:
            self._actions[rollout] = [as_array(step) for step in rollout.action]
        return self._actions[rollout]

    def _as_action(self, action: Tensor) -> Any:
        """`action` as an array on the environment's device."""
        return as_array(action.to(self._env.device))
