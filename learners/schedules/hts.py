"""HTS-RL's schedule: one horizon is collected while another is learned from (Liu et al. 2020, arXiv 2012.09849).

Horizon h is collected under theta_h. Meanwhile update h learns from horizon h - 1 and makes theta_{h+1} (theta_1 = theta_0:
there is nothing to learn from yet). So every row is exactly one update old, whoever is faster, and the weights depend on
the seed alone: with or without overlap, on any number of threads, executors and actors.

    sampler   | D_0        | D_1        | D_2        | D_3 ...
    learner                | u_1(D_0)   | u_2(D_1)   | u_3(D_2) ...

Two storages are enough, also for `run_ahead`: D_{h+1} may begin as soon as theta_{h+1} is there, whether or not all
environments have finished D_h, since D_{h-1} has been learned from by then and its storage is free. The paper's barrier makes
everybody wait for the slowest environment in each horizon; without it the same data is collected earlier.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from learners.collector import make_collector
from learners.config import option, validate
from learners.cores import CoreSplit
from learners.correction import CORRECTIONS, Correction
from learners.rollout import Rollout
from learners.sampler import Activity, InlineSampler, make_sampler
from learners.schedules.common import IterationResult, env_metrics, episodes, require_rows
from learners.snapshots import History, load_fields, save_fields
from learners.swap import Swap
from learners.transfer import Transfer, make_transfer


@dataclass(frozen=True)
class HTSConfig:
    """Settings of the hts schedule."""

    correction: str = option(
        "auto",
        "what is done about rows being older than the weights; auto is vtrace for a2c and none for ppo",
        choices=("auto", *CORRECTIONS),
    )
    overlap: bool = option(True, "collect and learn at the same time; false gives the same weights one after the other")
    run_ahead: bool = option(
        True,
        "begin the next horizon as soon as its weights are there, before the slowest environment has finished this one",
    )
    lag: int = option(1, "updates between the weights that collect and those that learn; 1 is the paper's", ge=1)
    sampler_cores: int = option(
        0, "cores for stepping device environments alone, the others for learning alone; 0: both share all", ge=0
    )

    def __post_init__(self) -> None:
        validate(self)

    @property
    def slots(self) -> int:
        """Storages that it takes."""
        return self.lag + 1


class HTSSchedule:
    """See the module's docstring.

    Args:
        env: a batch environment with `algo.num_envs` rows and same-step autoreset.
        algo: PPO or A2C.
        config: the algorithm's config.
        transfer: of `own.slots` storages, between collector and learner; None where both are on the CPU.
        own: this schedule's settings.
        actors: threads that infer for host environments.
    """

    config_class = HTSConfig
    apart = True  # collector and learner have storages and weights of their own

    def __init__(
        self,
        env: Any,
        algo: Any,
        config: Any,
        transfer: Transfer | None = None,
        own: HTSConfig | None = None,
        actors: int = 1,
    ) -> None:
        require_rows(env, algo)
        self.own = own = own or HTSConfig()
        self.env, self.algo, self.config = env, algo, config
        self.transfer = transfer or make_transfer("alias", None, env, algo, config, own.slots, apart=True)
        policy = self.transfer.policy
        self.collector = make_collector(env, policy.device, algo.seed, config, actors)
        self.collector.choose(policy)
        self._cores = CoreSplit(own.sampler_cores) if own.sampler_cores and own.overlap else None
        self.correction = algo.stale_correction if own.correction == "auto" else own.correction
        on_cuda = str(env.device) != "cpu"
        begin = None if self._cores is None else self._cores.enter_sampler
        self.sampler = make_sampler(self.collector, own.overlap and not on_cuda, begin)
        self._inline = isinstance(self.sampler, InlineSampler)
        if self._cores is not None:
            self._cores.enter_learner()
        # The host goes on while CUDA works, in the order that it was told; other transfers publish between horizons.
        self._ahead = own.run_ahead and own.overlap and isinstance(self.transfer, Swap)
        with self.transfer.learning():
            self._history = History(algo.policy, own.lag + 1) if self.correction == "delayed" else None
        self._complete: deque[Rollout] = deque()
        self._activity = None if on_cuda else Activity()
        self._opened = self.iteration = 0
        self.env_steps = 0

    @property
    def lag(self) -> int:
        """Of every row that is learned from."""
        return self.own.lag

    def iterate(self) -> IterationResult:
        """One horizon is completed and, from the second on, one learned from."""
        if self._opened == self.iteration:
            self._open()
        began = time.perf_counter()
        metrics = self._learn()
        if self._activity is not None:
            self._activity.learned(began)
        if self._ahead:
            self.transfer.publish()
            self._open()
        self._finish()
        if not self._ahead:
            self.transfer.publish()
        self.iteration += 1
        with self.transfer.statistics() as rollout:
            returns, lengths = episodes(rollout)
            own = env_metrics(self.env, rollout)
        rows = rollout.rows
        self.env_steps += rows
        more = self._activity.metrics(self.sampler.spans()) if self._activity else {}
        lags = {self.lag: rows} if metrics else {}
        return IterationResult(rows, {**metrics, **self.transfer.metrics(), **more, **own}, returns, lengths, lags)

    def _open(self) -> None:
        """The next horizon is collected from now on, under the weights published last."""
        transfer = self.transfer
        rollout = transfer.begin()
        with transfer.collecting():
            self.sampler.open(transfer.policy, rollout, self._opened)
        self._opened += 1
        if self._inline:
            transfer.send()

    def _finish(self) -> None:
        """Until the oldest open horizon is complete; from now on it can be learned from."""
        if self._complete:
            self._complete.popleft()
        else:
            self.sampler.wait()
        if not self._inline:
            self.transfer.send()

    def _learn(self) -> dict[str, Any]:
        """Update `iteration` if its horizon is there; the weights' next version either way."""
        algo, transfer = self.algo, self.transfer
        metrics: dict[str, Any] = {}
        with transfer.learning():
            if self.iteration < self.lag:
                algo.version += 1  # theta_{h+1} = theta_h
            else:
                behaviour = self._history.get(self.iteration - self.lag) if self._history else ()
                metrics = algo.update(transfer.receive(), Correction(self.correction, behaviour))
            if self._history:
                self._history.keep(algo.version)
        if metrics:
            transfer.release()
        return metrics

    def close(self) -> None:
        """End the sampler, wait for what is under way and stop the environments."""
        self.sampler.close()
        self.transfer.drain()
        self.collector.close()
        self.env.close()
        if self._cores is not None:
            self._cores.leave()

    def state_dict(self) -> dict[str, Any]:
        """Everything the run depends on, horizons that nobody has learned from among it. Waits for the open ones."""
        while self.iteration + len(self._complete) < self._opened:
            self._complete.append(self.sampler.wait())
        self.transfer.drain()
        return {
            "algo": self.algo.state_dict(),
            "collector": self.collector.state_dict(),
            "env_steps": self.env_steps,
            "iteration": self.iteration,
            "weights": self._history.state_dict() if self._history else [],
            "horizons": self.transfer.pending(),
            "ahead": [save_fields(rollout) | save_episodes(rollout) for rollout in self._complete],
            "totals": [rollout.totals for rollout in self._complete],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`; env, algo and config must be made with the same options."""
        self.transfer.drain()
        self.algo.load_state_dict(state["algo"])
        if self._history:
            self._history.load_state_dict(state["weights"])
        self.transfer.restore(state["horizons"])
        self.transfer.reset()
        self.collector.load_state_dict(state["collector"])
        self.iteration = self._opened = int(state["iteration"])
        self.env_steps = int(state["env_steps"])
        for fields, totals in zip(state["ahead"], state["totals"], strict=True):
            rollout = self.transfer.begin()
            load_fields(rollout, fields)
            rollout.totals = totals
            self._complete.append(rollout)
            self._opened += 1


def save_episodes(rollout: Rollout) -> dict[str, Any]:
    """What only people read of a horizon."""
    return {name: getattr(rollout, name).clone() for name in ("episode_return", "episode_length")}
