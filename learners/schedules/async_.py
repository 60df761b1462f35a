"""The asynchronous schedule: the collector never waits for an update (GA3C, Babaeizadeh et al. 2017, arXiv 1611.06256;
IMPALA, Espeholt et al. 2018, arXiv 1802.01561).

Whoever acts takes the newest weights there are; the learner takes the oldest complete horizon. How old rows are depends on
who happens to be faster, so a run cannot be repeated: it is here to be compared with. Rows carry the version of the weights
that chose their action: environments on a device change weights between horizons, host environments at any step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from gpuenvs.errors import ConfigError
from learners.collector import make_collector
from learners.config import option, validate
from learners.correction import Correction
from learners.rollout import Rollout
from learners.sampler import Activity, make_sampler
from learners.schedules.common import IterationResult, env_metrics, episodes, require_rows
from learners.snapshots import Published

AHEAD = 2  # horizons open at any time, so that the collector always has a next one


@dataclass(frozen=True)
class AsyncConfig:
    """Settings of the async schedule."""

    correction: str = option(
        "vtrace", "what is done about rows being older than the weights", choices=("ratio", "vtrace", "none")
    )
    max_lag: int = option(
        4,
        "most updates between the weights that collect and those that learn: the collector waits; 0 is no bound",
        ge=0,
    )

    def __post_init__(self) -> None:
        validate(self)

    @property
    def slots(self) -> int:
        """Storages that it begins with."""
        return max(AHEAD, self.max_lag + 1)


class AsyncSchedule:
    """See the module's docstring; the arguments are those of `learners.schedules.hts.HTSSchedule`.

    With `max_lag` L there are L + 1 storages: a horizon can only begin once the one L + 1 before it has been learned from, so
    none is more than L updates old. Without a bound storages are added as the collector needs them.

    Raises:
        ConfigError: a placement other than all on the CPU.
    """

    config_class = AsyncConfig
    apart = True

    def __init__(
        self,
        env: Any,
        algo: Any,
        config: Any,
        transfer: Any = None,
        own: AsyncConfig | None = None,
        actors: int = 1,
    ) -> None:
        require_rows(env, algo)
        if str(env.device) != "cpu" or algo.device.type != "cpu":
            raise ConfigError("--schedule async works on the CPU only; use --device cpu, or --schedule hts on a GPU")
        self.own = own = own or AsyncConfig()
        self.env, self.algo, self.config = env, algo, config
        self.collector = make_collector(env, algo.device, algo.seed, config, actors)
        self.collector.choose(algo.policy)
        self.sampler = make_sampler(self.collector, overlap=True)
        self._published = Published(algo.policy, algo.version, algo.device)
        self._free = [self._storage() for _ in range(own.slots)]
        self._open = 0  # horizons that the collector is at, or will be
        self._complete: list[Rollout] = []
        self._activity = Activity()
        self.iteration = self.env_steps = 0

    def _storage(self) -> Rollout:
        return Rollout(
            self.config.num_steps, self.env.num_envs, self.env.single_observation_space, self.env.single_action_space
        )

    def iterate(self) -> IterationResult:
        """Learn from the oldest complete horizon, as soon as there is one."""
        self._top_up(AHEAD)
        rollout = self._next()
        began = time.perf_counter()
        age = self.algo.version - rollout.version
        versions, counts = torch.unique(age, return_counts=True)
        returns, lengths = episodes(rollout)
        own = env_metrics(self.env, rollout)
        metrics = self.algo.update(rollout, Correction(self.own.correction))
        self._published.publish(self.algo.version)
        self._free.append(rollout)
        self._activity.learned(began)
        self._top_up(AHEAD + 2 * self.sampler.complete())
        self.iteration += 1
        self.env_steps += rollout.rows
        lags = {int(lag): int(count) for lag, count in zip(versions, counts)}
        more = self._activity.metrics(self.sampler.spans())
        return IterationResult(rollout.rows, {**metrics, **more, **own}, returns, lengths, lags)

    def _next(self) -> Rollout:
        if self._complete:
            return self._complete.pop(0)
        self._open -= 1
        return self.sampler.wait()

    def _top_up(self, ahead: int) -> None:
        """Have the collector go on with every storage that is free, and without a bound with `ahead` of them at least."""
        if not self.own.max_lag:
            self._free += [self._storage() for _ in range(ahead - self._open - len(self._free))]
        while self._free:
            rollout = self._free.pop(0)
            self.sampler.open(self.algo.policy, rollout, self.algo.version, self._published.newest)
            self._open += 1

    def close(self) -> None:
        """End the sampler and stop the environments."""
        self.sampler.close()
        self.collector.close()
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        """The learner and the environments. Waits for the open horizons; a resumed run does not learn from them."""
        while self._open:
            self._open -= 1
            self._complete.append(self.sampler.wait())
        return {
            "algo": self.algo.state_dict(),
            "collector": self.collector.state_dict(),
            "env_steps": self.env_steps,
            "iteration": self.iteration,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.algo.load_state_dict(state["algo"])
        self._published.publish(self.algo.version)
        self.collector.load_state_dict(state["collector"])
        self.env_steps = int(state["env_steps"])
        self.iteration = int(state["iteration"])
