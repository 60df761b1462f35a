"""Fills blocks of a replay: runs a policy in a batch environment, with noise that is a function of (seed, env, step)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuenvs.errors import ConfigError
from learners.collectors import Choice
from learners.collectors.noise import ActionNoise
from learners.collectors.streams import as_array, as_tensor, on_torch_stream
from learners.replay import Block

COLLECTORS = ("auto", "fused", "eager")


class ReplayCollector:
    """Steps `env` (a `gpuenvs` batch env with same-step autoreset) and writes records into the replay.

    The interface is that of `learners.collector.Collector`, with blocks in the place of rollouts. The env starts at its own
    seed when the first block is collected. Apart from the env, the only state is the global step number and, with correlated
    noise, the last noise of each environment.

    Args:
        env: the batch environment.
        device: where policies live.
        seed: of the action noise.
        noise_correlation: see `learners.collector.Collector`.
        collector: one of `COLLECTORS`.

    Attributes:
        choice: how blocks are collected, and why; None before `choose` or `collect`.
        before: called with the number of a block's first step before it begins, if somebody sets it.
    """

    agreement = None

    def __init__(
        self,
        env: Any,
        device: str | torch.device = "cpu",
        seed: int = 0,
        noise_correlation: float = 0.0,
        collector: str = "auto",
    ) -> None:
        if getattr(env, "autoreset", "same_step") != "same_step":
            raise ConfigError(f"learning needs autoreset='same_step'; this env has {env.autoreset!r}")
        self.env = env
        self.device = torch.device(device)
        self.step = 0
        self.choice: Choice | None = None
        self.before: Callable[[int], None] | None = None
        self._wanted = collector
        self._noise = ActionNoise(seed, env.env_offset, noise_correlation, self.device)
        self._started = False
        self._run: Callable[[Any, Block, bool], None] | None = None

    def start(self) -> None:
        """Reset the env to its seed. `collect` does it when nobody has."""
        with on_torch_stream(self._env_device()):
            self.env.reset(seed=self.env.seed)
        self._started = True

    def choose(self, policy: Any) -> Choice:
        """Decide how blocks under `policy` and others like it are collected.

        Raises:
            ConfigError: the collector asked for is not possible; one line that says why.
        """
        if self.choice is None:
            problem = fused_problem(self.env, policy)
            if self._wanted == "fused" and problem is not None:
                raise ConfigError(f"collector=fused: {problem}; use collector=auto or eager")
            if self._wanted == "eager":
                self.choice = Choice("eager", "asked for")
            elif problem is None:
                self.choice = Choice("fused", "asked for" if self._wanted == "fused" else "the policy is a small MLP")
            else:
                self.choice = Choice("eager", f"fused is not possible: {problem}")
        return self.choice

    @torch.no_grad()
    def collect(self, policy: Any, block: Block, version: int = 0, random: bool = False) -> Block:
        """One horizon under `policy`, whose weights and statistics must not change meanwhile; with `random`, of uniform
        actions. `version` is stored with every step. Returns `block`. On CUDA everything happens on torch's current stream.
        """
        if not self._started:
            self.start()
        with on_torch_stream(self._env_device()):
            if self.before is not None:
                self.before(self.step)
            block.version.fill_(version)
            if self._run is None:
                self._run = (
                    self._fused(policy) if self.choose(policy).name == "fused" else _Loop(self.env, self._noise).run
                )
            self._run(policy, block, random)
            block.totals = self.env.take_totals() if hasattr(self.env, "take_totals") else None
        self.step += block.num_steps
        return block

    def _env_device(self) -> torch.device:
        return torch.device(getattr(self.env, "device", "cpu"))

    def _fused(self, policy: Any) -> Callable[[Any, Block, bool], None]:
        from gpuenvs.contract import index_error
        from learners.native.replay_rollout import ReplayRollout

        fused = ReplayRollout(self.env, policy, self.env.threads)

        def run(policy: Any, block: Block, random: bool) -> None:
            noise = self._noise.draw(block.num_steps, block.num_envs, policy, block.first)
            try:
                fused.run(policy, block, noise.numpy(), random)
            except IndexError as error:
                raise index_error(self.env.spec) from error

        return run

    def state_dict(self) -> dict[str, Any]:
        """Everything the next block depends on besides the policy."""
        return {
            "env": self.env.snapshot() if self._started else {},
            "step": self.step,
            "last_noise": self._noise.last,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken, bit for bit."""
        if state["env"]:
            self.env.restore(state["env"])
            self._started = True
        self.step = int(state["step"])
        last: Tensor | None = state["last_noise"]
        self._noise.last = None if last is None else last.to(self.device)

    def close(self) -> None:
        """Nothing runs on by itself."""


class _Loop:
    """The definition of a block: observe, act, step, record, T times. The fused kernel is held to it."""

    def __init__(self, env: Any, noise: ActionNoise) -> None:
        self._env, self._noise = env, noise
        info = env.info
        self._obs = as_tensor(env.obs)
        self._flags = {name: as_tensor(getattr(env, name)) for name in ("reward", "terminated", "truncated")}
        self._final = as_tensor(info["final_obs"])
        self._episode = {name: as_tensor(info[name]) for name in ("episode_return", "episode_length")}

    def run(self, policy: Any, block: Block, random: bool) -> None:
        """Fill `block`; policy and noise are on the policy's device, the rest is copied to the block's."""
        noise = self._noise.draw(block.num_steps, block.num_envs, policy, block.first)
        for t in range(block.num_steps):
            block.obs[t].copy_(self._obs)
            obs = self._obs.to(policy.device, torch.float32)
            action = policy.random(noise[t]) if random else policy.sample(obs, noise[t])[0]
            block.action[t].copy_(action if action.ndim == 2 else action[:, None])
            self._env.step(as_array(policy.to_env(action).to(self._env.device).contiguous()))
            for name, output in self._flags.items():
                getattr(block, name)[t].copy_(output)
            done = (self._flags["terminated"] | self._flags["truncated"])[:, None]
            block.next_obs[t].copy_(torch.where(done, self._final, self._obs))
            for name, output in self._episode.items():
                getattr(block, name)[t].copy_(output)


def fused_problem(env: Any, policy: Any) -> str | None:
    """Why no fused kernel can be made, in words; None if one can."""
    if str(policy.device) != "cpu" or getattr(env, "device", "") != "cpu":
        return "there is a fused off-policy kernel for the CPU only"
    if not hasattr(env, "native_step"):
        return f"{type(env).__name__} has no native step"
    if env.dtype != np.float32:
        return f"the environment computes in {env.dtype}, the fused kernel in float32"
    try:
        from learners.native.replay_rollout import misfit
    except ImportError:
        return "it is not built"
    return misfit(policy, env)


def make_replay_collector(env: Any, device: torch.device, seed: int, config: Any) -> ReplayCollector:
    """The collector for `env`; `config` is the algorithm's."""
    return ReplayCollector(env, device, seed, config.noise_correlation, config.collector)
