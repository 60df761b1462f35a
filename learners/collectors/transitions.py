"""The definition of a horizon of transitions: observe, act, step, store, T times, into the records of a replay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learners.collectors.streams import as_array, as_tensor
from learners.networks import action_head
from learners.replay import Block

# Block field -> where the environment leaves it after a step.
_STORED = ("reward", "terminated", "truncated", "episode_return", "episode_length")


class TransitionLoop:
    """One horizon, step by step. Allocates nothing that outlives a step and reads nothing from the host but `t`, so the
    same loop can be recorded in a CUDA graph.

    Args:
        env: a batch env with same-step autoreset that has been reset: its arrays never move.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        info = env.info
        arrays = (env.reward, env.terminated, env.truncated, *(info[name] for name in _STORED[3:]))
        self._obs, self._final_obs = as_tensor(env.obs), as_tensor(info["final_obs"])
        self._outputs = dict(zip(_STORED, map(as_tensor, arrays), strict=True))
        head, size = action_head(env.single_action_space)
        shape = (env.num_envs,) if head.action_dtype is torch.int64 else (env.num_envs, size)
        self._action = torch.zeros(shape, dtype=head.action_dtype, device=self._obs.device)
        self._as_array = as_array(self._action)

    def run(self, policy: Any, block: Block, noise: Tensor, random: bool = False) -> None:
        """Fill `block`, all but its versions, with noise (T, n, k) on the policy's device.

        `random`: actions are uniform, whatever the weights are.
        """
        choose = policy.random if random else lambda noise: policy.sample(self._observe(policy.device), noise)[0]
        ended = (self._outputs["terminated"], self._outputs["truncated"])
        for t in range(block.num_steps):
            block.obs[t].copy_(self._obs)
            action = choose(noise[t])
            block.action[t].copy_(action.view(block.num_envs, -1))
            self._action.copy_(policy.to_env(action))
            self._env.step(self._as_array)
            over = (ended[0] | ended[1]).unsqueeze(-1)
            block.next_obs[t].copy_(torch.where(over, self._final_obs, self._obs))
            for name, output in self._outputs.items():
                getattr(block, name)[t].copy_(output)

    def _observe(self, device: torch.device) -> Tensor:
        """The current observations (n, d) f32 on `device`; not a copy if they are there."""
        return self._obs.to(device, torch.float32)
