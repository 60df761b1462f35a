"""Fills rollouts from a pool of environments in other processes, several horizons at a time if asked to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpuenvs.errors import ConfigError
from learners.collectors import Choice
from learners.collectors.noise import ActionNoise
from learners.host.actors import Actors, Span
from learners.host.horizon import Horizon, Weights
from learners.host.inference import Inference, make_inference
from learners.networks import Policy
from learners.rollout import Rollout


class HostCollector:
    """The counterpart of `learners.collector.Collector` for a `gpuenvs.host` pool.

    What is stored is a function of the seeds and of the weights: the same bits for any number of executors and actors, in
    lockstep or not, and however many horizons are open.

    A schedule that does nothing while horizons are filled calls `collect`. One that learns meanwhile calls `open` for one
    or more horizons, which returns at once, and `wait` for the oldest. It must not change a policy it gave to `open` before
    `wait` has returned that horizon.

    Args:
        env: a pool, same-step autoreset; `start` starts it. Who made it closes it, after this.
        seed: of the action noise.
        noise_correlation: see `learners.collector.Collector`.
        actors: threads that store results and choose actions.
        lockstep: every environment waits for all others after each step.

    Attributes:
        step: number of the first step that has not been opened.
        choice: how actions are computed, and why; None before `choose`.
        agreement: always None: there is no other way to compare with.
    """

    agreement = None

    def __init__(
        self, env: Any, seed: int = 0, noise_correlation: float = 0.0, *, actors: int = 1, lockstep: bool = False
    ) -> None:
        if env.autoreset != "same_step":
            raise ConfigError(f"learning needs autoreset='same_step'; this env has {env.autoreset!r}")
        if actors < 1:
            raise ConfigError(f"actors={actors}: at least one thread must act")
        self.env = env
        self.step = 0
        self.choice: Choice | None = None
        self._count, self._lockstep = actors, lockstep
        self._noise = ActionNoise(seed, env.env_offset, noise_correlation, torch.device("cpu"))
        self._started = False
        self._inference: Inference | None = None
        self._actors: Actors | None = None

    def choose(self, policy: Policy) -> Choice:
        """Decide how actions of `policy` and others like it are computed."""
        if self.choice is None:
            self._inference = make_inference(self.env, policy)
            self.choice = Choice("host", self._inference.why)
        return self.choice

    def start(self) -> None:
        """Start the environments' processes and reset every environment. `open` does it when nobody has."""
        self.env.start()
        self._started = True

    # --- collecting -------------------------------------------------------------------------------------------------

    def collect(self, policy: Policy, rollout: Rollout, version: int = 0) -> Rollout:
        """One horizon under `policy`; `version` is stored with every row. Returns `rollout`."""
        self.open(policy, rollout, version)
        return self.wait()

    @torch.no_grad()
    def open(
        self,
        policy: Policy,
        rollout: Rollout,
        version: int = 0,
        latest: Callable[[], tuple[Policy, int]] | None = None,
    ) -> None:
        """Let environments go on into `rollout` as soon as they have finished the horizons opened before; returns at once.

        With `latest` every inference asks it for the policy and the version to use and to store; it is called by the actor
        threads, and a policy it returned must stay as it is until it has returned another one to every thread.

        Raises the first error of an actor or of an environment, if there has been one.
        """
        if not self._started:
            self.start()
        actors = self._threads(policy)
        rollout.has_value = False
        noise = self._noise.draw(rollout.num_steps, rollout.num_envs, policy, self.step).clone()
        weights = self._fixed(policy, version) if latest is None else self._newest(latest)
        actors.open(Horizon(rollout, noise, weights))
        self.step += rollout.num_steps

    def wait(self) -> Rollout:
        """The oldest open horizon when it is complete.

        Raises the first error of an actor or of an environment, RuntimeError when nothing is open.
        """
        if self._actors is None:
            raise RuntimeError("no horizon is open")
        return self._actors.wait().rollout

    def settle(self) -> None:
        """Wait until all open horizons are complete, so that the environments rest. Raises what `wait` raises."""
        if self._actors is not None:
            self._actors.settle()

    def _threads(self, policy: Policy) -> Actors:
        if self._actors is None:
            self.choose(policy)
            assert self._inference is not None
            self._actors = Actors(self.env, self._inference, self._count, self._lockstep)
        return self._actors

    def _fixed(self, policy: Policy, version: int) -> Callable[[], Weights]:
        assert self._inference is not None
        weights = self._inference.load(policy), version
        return lambda: weights

    def _newest(self, latest: Callable[[], tuple[Policy, int]]) -> Callable[[], Weights]:
        """`latest` with its policies loaded once each."""
        inference, lock = self._inference, threading.Lock()
        assert inference is not None
        known: tuple[Policy, int, Any] | None = None

        def newest() -> Weights:
            nonlocal known
            with lock:
                policy, version = latest()
                if known is None or known[0] is not policy or known[1] != version:
                    known = policy, version, inference.load(policy)
                return known[2], version

        return newest

    # --- reports and checkpoints ------------------------------------------------------------------------------------

    @property
    def idle_seconds(self) -> float:
        """How long actors have waited for environments, summed over them."""
        return 0.0 if self._actors is None else self._actors.idle_seconds

    def spans(self) -> list[Span]:
        """When environments had an open horizon to fill, since the last call: `time.perf_counter` at begin and end."""
        return [] if self._actors is None else self._actors.spans()

    def complete(self) -> int:
        """How many open horizons are complete that nobody has waited for."""
        return 0 if self._actors is None else self._actors.complete()

    def state_dict(self) -> dict[str, Any]:
        """Everything the next horizon depends on besides the policy. Settles first; complete horizons stay open."""
        if self._actors is not None:
            self._actors.rest()
        return {
            "env": self.env.state_dict() if self._started else {},
            "step": self.step,
            "last_noise": self._noise.last,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken, bit for bit. Horizons that are open are dropped."""
        if self._actors is not None:
            self._actors.rest()
            self._actors.forget()
        if state["env"]:
            self.env.load_state_dict(state["env"])
            self._started = True
        self.step = int(state["step"])
        last: Tensor | None = state["last_noise"]
        self._noise.last = last

    def close(self) -> None:
        """End the actor threads. The pool is left to who made it."""
        if self._actors is not None:
            self._actors.close()
