"""Fills rollouts: runs a policy in a batch environment, with noise that is a function of (seed, env, step)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from learners.collectors import Choice, choose
from learners.collectors.base import SteppingCollector
from learners.collectors.check import Agreement, replay
from learners.collectors.graph import GraphRollout, cuda_capture
from learners.collectors.loop import StepLoop
from learners.collectors.streams import on_torch_stream
from learners.networks import Policy
from learners.rollout import Rollout

# How far the first horizon may be from the loop's. A graph holds the very same kernels; a fused one is compiled by another
# compiler, which fuses other multiplications and additions, and physics with contacts makes more of the difference.
CHECKED = {"graph": 1e-5, "fused": 1e-3}

# Fills a rollout from the environment's state on, with the noise of the steps from `step` on.
_Run = Callable[[Policy, Rollout, int], None]


class Collector(SteppingCollector):
    """Steps `env` (a `gpuenvs` batch env with same-step autoreset) and writes what happened into rollouts.

    The env starts at its own seed when the first rollout is collected. Apart from the env, the only state is the global
    step number and, with correlated noise, the last noise of each environment.

    The first horizon of a collector that was recorded or compiled for a GPU is compared with the eager loop. The loop takes
    its place for good, with a warning, where the two do not agree or recording fails.

    Args:
        env: the batch environment.
        device: where policy and rollouts live.
        seed: of the action noise.
        noise_correlation: the noise of continuous actions is the stationary AR(1) process with this coefficient and
            variance 1, one per environment; 0 is independent noise. (Hollenstein et al. 2024, arXiv 2312.11091, show
            that a moderate correlation helps on-policy learning; each action's own distribution stays the policy's.)
        collector: one of `learners.collectors.COLLECTORS`.
        check: compare the first horizon of whatever is not the eager loop with it; None: on GPUs.

    Attributes:
        choice: how rollouts are collected, and why; None before `choose` or `collect`.
        agreement: what the comparison found; None if there was none.
        before: called with the number of a horizon's first step before the horizon begins, if somebody sets it.
    """

    def __init__(
        self,
        env: Any,
        device: str | torch.device = "cpu",
        seed: int = 0,
        noise_correlation: float = 0.0,
        collector: str = "auto",
        check: bool | None = None,
    ) -> None:
        super().__init__(env, device, seed, noise_correlation, collector, check)
        self._loop: StepLoop | None = None
        self._run: _Run | None = None

    def choose(self, policy: Policy) -> Choice:
        """Decide how rollouts under `policy` and others like it are collected.

        Raises:
            ConfigError: the collector asked for is not possible; one line that says why.
        """
        if self.choice is None:
            self.choice = choose(self._wanted, self.env, policy)
        return self.choice

    @torch.no_grad()
    def collect(self, policy: Policy, rollout: Rollout, version: int = 0) -> Rollout:
        """One horizon under `policy`, whose weights and statistics must not change meanwhile.

        `version` is stored with every row. Returns `rollout`. On CUDA everything happens on torch's current stream.
        """
        if not self._started:
            self.start()
        with on_torch_stream(self._env_device()):
            if self.before is not None:
                self.before(self.step)
            rollout.version.fill_(version)
            rollout.has_value = False
            if self._run is None:
                self._begin(policy, rollout)
            else:
                self._run(policy, rollout, self.step)
            rollout.totals = self.env.take_totals() if hasattr(self.env, "take_totals") else None
        self.step += rollout.num_steps
        return rollout

    def _begin(self, policy: Policy, rollout: Rollout) -> None:
        """The first horizon."""
        choice = self.choose(policy)
        self._run = run = self._make(choice.name, policy)
        if choice.name == "eager" or not self._check:
            run(policy, rollout, self.step)
            return

        def again() -> Agreement:
            noise = self._noise.draw(rollout.num_steps, rollout.num_envs, policy, self.step)
            return replay(self._step_loop(), policy, rollout, noise)

        if self._agrees(lambda: run(policy, rollout, self.step), again, CHECKED[choice.name]):
            return
        rollout.has_value = False
        self._run = self._make("eager", policy)
        self._run(policy, rollout, self.step)

    def _step_loop(self) -> StepLoop:
        if self._loop is None:
            self._loop = StepLoop(self.env, self.device)
        return self._loop

    def _make(self, name: str, policy: Policy) -> _Run:
        if name == "fused":
            return self._fused(policy)
        loop = self._step_loop()
        if name == "graph":
            capture = cuda_capture(self.device) if self.device.type == "cuda" else None
            fill = GraphRollout(self.env, loop, capture).run
        else:
            fill = loop.run

        def run(policy: Policy, rollout: Rollout, step: int) -> None:
            fill(policy, rollout, self._noise.draw(rollout.num_steps, rollout.num_envs, policy, step))

        return run

    def _fused(self, policy: Policy) -> _Run:
        if self.device.type == "cpu":
            from gpuenvs.contract import index_error
            from learners.native.rollout import FusedRollout

            fused = FusedRollout(self.env, policy, self.env.threads)

            def run(policy: Policy, rollout: Rollout, step: int) -> None:
                noise = self._noise.draw(rollout.num_steps, rollout.num_envs, policy, step)
                try:
                    fused.run(policy, rollout, noise.numpy())
                except IndexError as error:
                    raise index_error(self.env.spec) from error
                rollout.has_value = True

            return run
        from learners.collectors.fused_cuda import FusedCudaRollout

        return FusedCudaRollout(self.env, policy, self._noise).run


def make_collector(
    env: Any, device: torch.device, seed: int, config: Any, actors: int = 1, lockstep: bool = False
) -> Any:
    """The collector for `env`: a `Collector`, or a `HostCollector` where the environments live in processes of their own.

    `config` is the algorithm's. `actors` and `lockstep` are for host environments only: threads that infer, and whether all
    environments wait for one another in each step.
    """
    if not hasattr(env, "ready"):
        return Collector(env, device, seed, config.noise_correlation, config.collector)
    from learners.host.collector import HostCollector

    return HostCollector(env, seed, config.noise_correlation, actors=actors, lockstep=lockstep)
