"""A whole horizon in one CUDA launch: policy, sampling, environment steps and storage, one environment per thread."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpuenvs.runtime.cuda_policy import Mlp
from gpuenvs.runtime.cuda_rollout import OUTPUTS, FusedRolloutKernel, problem
from learners.collectors.noise import ACTION_STREAM, ActionNoise
from learners.networks import MLP, Policy
from learners.rollout import Rollout


def describe(policy: Policy) -> Mlp:
    """The policy's actor as the kernels know it. It must be an MLP."""
    assert isinstance(policy.actor, MLP)
    return Mlp(policy.actor.sizes, policy.actor.activation, policy.continuous)


def misfit(env: Any, policy: Policy) -> str | None:
    """Why there is no fused CUDA kernel for this environment and policy, in words; None if there is."""
    if policy.image:
        return "the policy reads images"
    return problem(env.backend.layout, env.dtype, describe(policy))


class FusedCudaRollout:
    """Fills rollouts, all but their values, in one launch each, on the current stream.

    Args:
        env: a CUDA batch env, float32, same-step autoreset.
        policy: one of the kind that will collect; weights and statistics are read anew by every launch.
        noise: whose seed and correlation to use; the kernel computes the numbers itself.
    """

    def __init__(self, env: Any, policy: Policy, noise: ActionNoise) -> None:
        self._noise = noise
        self._correlated = noise.correlation > 0 and policy.continuous
        self._kernel = FusedRolloutKernel(env.backend, describe(policy), self._correlated)
        device = policy.device
        self._identity = (torch.zeros(policy.obs_dim, device=device), torch.ones(policy.obs_dim, device=device))
        self._unused = torch.zeros((1, 1), device=device)

    def run(self, policy: Policy, rollout: Rollout, step: int) -> None:
        """One horizon, with the noise of the steps from `step` on."""
        norm, noise = policy.obs_norm, self._noise
        shift, scale = self._identity if norm is None else (norm.shift, norm.scale)
        last, shares = self._unused, (1.0, 1.0, 0.0)
        if self._correlated:
            keep, add = noise.weights()
            shares = (1.0 if noise.last is None else add, add, keep)
            size = (rollout.num_envs, policy.num_outputs)
            last = torch.zeros(size, device=policy.device) if noise.last is None else noise.last.clone()
        stored = {name: getattr(rollout, name) for name in OUTPUTS}
        stored |= {name: stored[name].transpose(1, 2) for name in ("obs", "final_obs")}
        self._kernel.launch(
            (_array(policy.actor_flat), _array(shift), _array(scale), _array(last)),
            {name: _array(tensor) for name, tensor in stored.items()},
            seed=noise.seed,
            step=step,
            stream=ACTION_STREAM,
            clip=float("inf") if norm is None else norm.clip,
            shares=shares,
        )
        if self._correlated:
            noise.last = last


def _array(tensor: Tensor) -> Any:
    """What a launch takes: tensors on GPUs say where they are themselves, the simulator wants numpy arrays."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor
