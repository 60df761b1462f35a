"""Fills rollouts: runs a policy in a batch environment, with noise that is a function of (seed, env, step)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuenvs.errors import ConfigError
from gpuenvs.rng import fill_gumbel, fill_normal
from learners.native import choose_engine
from learners.native.rollout import FusedRollout, can_fuse
from learners.networks import Policy
from learners.rollout import Rollout

# Which stream of the counter-based generator the action noise uses; evaluation uses others.
ACTION_STREAM = 0


class Collector:
    """Steps `env` (a `gpuenvs` batch env with same-step autoreset) and writes what happened into rollouts.

    The env starts at its own seed when the first rollout is collected. Apart from the env, the only state is the global
    step number and, with correlated noise, the last noise of each environment.

    Args:
        env: the batch environment.
        device: where policy and rollouts live.
        seed: of the action noise.
        noise_correlation: the noise of continuous actions is the stationary AR(1) process with this coefficient and
            variance 1, one per environment; 0 is independent noise. (Hollenstein et al. 2024, arXiv 2312.11091, show
            that a moderate correlation helps on-policy learning; each action's own distribution stays the policy's.)
        engine: see `learners.native.choose_engine`.
    """

    def __init__(
        self,
        env: Any,
        device: str | torch.device = "cpu",
        seed: int = 0,
        noise_correlation: float = 0.0,
        engine: str = "auto",
    ) -> None:
        if getattr(env, "autoreset", "same_step") != "same_step":
            raise ConfigError(f"learning needs autoreset='same_step'; this env has {env.autoreset!r}")
        self.env = env
        self.device = torch.device(device)
        self.seed = seed
        self.noise_correlation = noise_correlation
        self.step = 0
        self._started = False
        self._noise = np.empty((0, 0, 0), np.float32)
        self._last_noise: Tensor | None = None
        self._engine = engine
        self._fused: FusedRollout | None = None

    def start(self) -> None:
        """Reset the env to its seed. `collect` does it when nobody has."""
        self.env.reset(seed=self.env.seed)
        self._started = True

    @torch.no_grad()
    def collect(self, policy: Policy, rollout: Rollout, version: int = 0) -> Rollout:
        """One horizon under `policy`, whose weights and statistics must not change meanwhile.

        `version` is stored with every row. Returns `rollout`.
        """
        if not self._started:
            self.start()
        env, info = self.env, self.env.info
        obs, reward = as_tensor(env.obs), as_tensor(env.reward)
        terminated, truncated = as_tensor(env.terminated), as_tensor(env.truncated)
        final_obs, episode_return = as_tensor(info["final_obs"]), as_tensor(info["episode_return"])
        episode_length = as_tensor(info["episode_length"])
        noise = self._draw(policy, rollout)
        rollout.version.fill_(version)
        self.step += rollout.num_steps
        if choose_engine(self._engine, can_fuse(env, policy)) == "fused":
            self._fused = self._fused or FusedRollout(env, policy, env.threads)
            self._fused.run(policy, rollout, noise.numpy())
            rollout.has_value = True
            return rollout
        rollout.has_value = False
        for t in range(rollout.num_steps):
            rollout.obs[t].copy_(obs)
            action, log_prob = policy.sample(rollout.obs[t], noise[t])
            rollout.action[t].copy_(action)
            rollout.log_prob[t].copy_(log_prob)
            env.step(self._to_env(rollout.action[t]))
            rollout.reward[t].copy_(reward)
            rollout.terminated[t].copy_(terminated)
            rollout.truncated[t].copy_(truncated)
            rollout.final_obs[t].copy_(final_obs)
            rollout.episode_return[t].copy_(episode_return)
            rollout.episode_length[t].copy_(episode_length)
        rollout.obs[rollout.num_steps].copy_(obs)
        return rollout

    def _to_env(self, action: Tensor) -> Any:
        """`action` as an array on the env's device; no copy when it is there already."""
        if self.env.device != "cpu":
            return action.to(self.env.device)
        return action.cpu().numpy()

    def _draw(self, policy: Policy, rollout: Rollout) -> Tensor:
        """Noise of the whole horizon, (T, n, k) on the policy's device."""
        shape = (rollout.num_steps, rollout.num_envs, *policy.noise_shape)
        if self._noise.shape != shape:
            self._noise = np.empty(shape, np.float32)
        fill = fill_normal if policy.continuous else fill_gumbel
        fill(self._noise, self.seed, self.env.env_offset, self.step, ACTION_STREAM)
        noise = torch.from_numpy(self._noise)
        if self.noise_correlation > 0 and policy.continuous:
            keep, add = self.noise_correlation, (1 - self.noise_correlation**2) ** 0.5
            last = self._last_noise
            for t in range(rollout.num_steps):
                if last is not None:
                    noise[t].mul_(add).add_(last, alpha=keep)
                last = noise[t]
            self._last_noise = noise[-1].clone()
        return noise.to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Everything the next horizon depends on besides the policy."""
        return {
            "env": self.env.snapshot() if self._started else {},
            "step": self.step,
            "last_noise": self._last_noise,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken, bit for bit."""
        if state["env"]:
            self.env.restore(state["env"])
            self._started = True
        self.step = int(state["step"])
        self._last_noise = state["last_noise"]


def as_tensor(array: Any) -> Tensor:
    """A tensor that shares the memory of a numpy array or of anything that speaks DLPack."""
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array)
    return torch.from_dlpack(array)
