"""Fills a replay: runs an off-policy learner's policy in a batch environment, a horizon at a time, straight into the ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from learners.collectors import Choice, choose, kernel_problem
from learners.collectors.base import SteppingCollector
from learners.collectors.check import Agreement, difference
from learners.collectors.graph import GraphRollout, cuda_capture
from learners.collectors.streams import on_torch_stream
from learners.collectors.transitions import TransitionLoop
from learners.replay import Block

# How far a recorded first horizon may be from the loop's: it holds the very same kernels.
CHECKED = 1e-5

# Fills a block from the environment's state on, with noise (T, n, k): `run(policy, block, noise, random)`.
_Run = Callable[[Any, Block, Tensor, bool], None]


class ReplayCollector(SteppingCollector):
    """Steps `env` and writes transitions into blocks of a replay.

    Where the replay is on another device, a horizon is made on the environment's and copied at once. So it is where the loop
    was recorded in a CUDA graph, which writes to one place only; the first such horizon is compared with the eager loop's,
    which takes its place for good, with a warning, where the two do not agree or recording fails.

    Args:
        env, seed: see `SteppingCollector`.
        device: where policies act.
        config: the algorithm's: its `collector` and `noise_correlation` count.
        check: see `SteppingCollector`.
    """

    def __init__(self, env: Any, device: str | torch.device, seed: int, config: Any, check: bool | None = None) -> None:
        super().__init__(env, device, seed, config.noise_correlation, config.collector, check)
        self._loop: TransitionLoop | None = None
        self._run: _Run | None = None
        self._stages: dict[int | None, Block] = {}

    def choose(self, policy: Any) -> Choice:
        """Decide how horizons under `policy` and others like it are collected.

        Raises:
            ConfigError: the collector asked for is not possible; one line that says why.
        """
        if self.choice is None:
            self.choice = choose(self._wanted, self.env, policy, fused_problem)
        return self.choice

    @torch.no_grad()
    def collect(self, policy: Any, block: Block, version: int = 0, random: bool = False) -> Block:
        """One horizon under `policy`, whose weights and statistics must not change meanwhile.

        `version` is stored with every step. With `random` actions are uniform, made from the same noise. Returns `block`,
        which is then to be committed. On CUDA everything happens on torch's current stream.
        """
        if not self._started:
            self.start()
        with on_torch_stream(self._env_device()):
            if self.before is not None:
                self.before(self.step)
            block.version.fill_(version)
            choice = self.choose(policy)
            if random and choice.name == "graph":
                self._fill(self._transitions().run, policy, block, True)
            elif self._run is None:
                self._begin(policy, block, random)
            else:
                self._fill(self._run, policy, block, random)
            block.totals = self.env.take_totals() if hasattr(self.env, "take_totals") else None
        self.step += block.num_steps
        return block

    def _begin(self, policy: Any, block: Block, random: bool) -> None:
        """The first horizon, or of a graph the first that is not random."""
        choice = self.choose(policy)
        self._run = run = self._make(choice.name, policy)
        if choice.name != "graph" or not self._check:
            self._fill(run, policy, block, random)
            return

        def again() -> Agreement:
            other = block.beside(block.data.device)
            self._fill(self._transitions().run, policy, other, False)
            done = block.done()
            parts = ((block.data, other.data), (block.episode_return[done], other.episode_return[done]))
            return Agreement(max(difference(a, b) for a, b in parts), 0.0)

        if not self._agrees(lambda: self._fill(run, policy, block, False), again, CHECKED):
            self._run = self._transitions().run
            self._fill(self._run, policy, block, False)

    def _fill(self, run: _Run, policy: Any, block: Block, random: bool) -> None:
        """Run one horizon, where it can be run, and bring it into `block`."""
        with on_torch_stream(self.device):
            noise = self._noise.draw(block.num_steps, block.num_envs, policy, self.step).to(policy.device)
        # A graph is recorded for the block it writes to, and for the policy it reads.
        recorded = self._run is run and self.choice is not None and self.choice.name == "graph"
        if block.data.device == self._env_device() and not recorded:
            run(policy, block, noise, random)
            return
        key = policy.flat.data_ptr() if recorded else None
        stage = self._stages.get(key)
        if stage is None:
            stage = self._stages[key] = block.beside(self._env_device())
        run(policy, stage, noise, random)
        block.take(stage)

    def _transitions(self) -> TransitionLoop:
        if self._loop is None:
            self._loop = TransitionLoop(self.env)
        return self._loop

    def _make(self, name: str, policy: Any) -> _Run:
        loop: Any = self._transitions()
        if name == "eager":
            return loop.run
        if name == "graph":
            capture = cuda_capture(self.device) if self.device.type == "cuda" else None
            graph = GraphRollout(self.env, loop, capture)
            return lambda policy, block, noise, random: graph.run(policy, block, noise)  # type: ignore[arg-type]
        from gpuenvs.contract import index_error
        from learners.native.replay_rollout import ReplayRollout

        fused = ReplayRollout(self.env, policy, self.env.threads)

        def run(policy: Any, block: Block, noise: Tensor, random: bool) -> None:
            try:
                fused.run(policy, block, noise.numpy(), random)
            except IndexError as error:
                raise index_error(self.env.spec) from error

        return run


def fused_problem(env: Any, policy: Any) -> str | None:
    """Why no fused kernel can be made for transitions, in words; None if one can."""
    problem = kernel_problem(env, policy)
    if problem is not None:
        return problem
    if policy.device.type != "cpu":
        return "there is no fused kernel for transitions on a GPU"
    from learners.native.replay_rollout import misfit

    return misfit(policy, env)


def make_replay_collector(env: Any, device: str | torch.device, seed: int, config: Any, actors: int = 1) -> Any:
    """The collector of an off-policy learner for `env`: a `ReplayCollector`, or a `HostReplayCollector` where the
    environments live in processes of their own.

    `config` is the algorithm's; `device` where its policies act. `actors` is for host environments only: threads that infer.
    """
    if not hasattr(env, "ready"):
        return ReplayCollector(env, device, seed, config)
    from learners.host.replay_collector import HostReplayCollector

    return HostReplayCollector(env, seed, config.noise_correlation, actors=actors)
