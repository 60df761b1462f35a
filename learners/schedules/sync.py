"""The synchronous schedule: collect a horizon, learn from it, repeat. The policy that learns is the one that acted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from learners.collector import make_collector
from learners.schedules.common import IterationResult, env_metrics, episodes, require_rows
from learners.transfer import Transfer, make_transfer


@dataclass(frozen=True)
class SyncConfig:
    """The sync schedule has no settings of its own."""


class SyncSchedule:
    """Alternates `Collector.collect` and `algo.update`; every stored row has lag 0.

    Args:
        env: a `gpuenvs` batch env with `algo.num_envs` rows and same-step autoreset.
        algo: PPO or A2C.
        config: the algorithm's config.
        transfer: how horizons get to the learner's device; None where that is the environments' own.
        own: nothing yet.
        actors: threads that infer for host environments.
    """

    config_class = SyncConfig
    apart = False  # collector and learner may use one storage and the same weights

    def __init__(
        self,
        env: Any,
        algo: Any,
        config: Any,
        transfer: Transfer | None = None,
        own: SyncConfig | None = None,
        actors: int = 1,
    ) -> None:
        require_rows(env, algo)
        self.env = env
        self.algo = algo
        self.config = config
        self.transfer = transfer or make_transfer("alias", None, env, algo, config)
        policy = self.transfer.policy
        self.collector = make_collector(env, policy.device, algo.seed, config, actors, lockstep=True)
        self.collector.choose(policy)
        self.rollout = self.transfer.begin()
        self.env_steps = 0

    def iterate(self) -> IterationResult:
        """One horizon and one update."""
        transfer = self.transfer
        self.rollout = transfer.begin()
        with transfer.collecting():
            self.collector.collect(transfer.policy, self.rollout, self.algo.version)
        transfer.send()
        with transfer.learning():
            metrics = self.algo.update(transfer.receive())
        transfer.release()
        transfer.publish()
        with transfer.statistics() as rollout:
            returns, lengths = episodes(rollout)
            own = env_metrics(self.env, self.rollout)
        rows = self.rollout.rows
        self.env_steps += rows
        return IterationResult(rows, {**metrics, **transfer.metrics(), **own}, returns, lengths, {0: rows})

    def close(self) -> None:
        """Wait for what is under way and stop the environments' threads."""
        self.transfer.drain()
        self.collector.close()
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        """Everything the run depends on; loading it into a new schedule continues bit for bit on the CPU."""
        return {
            "algo": self.algo.state_dict(),
            "collector": self.collector.state_dict(),
            "env_steps": self.env_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`; env, algo and config must be made with the same options."""
        self.transfer.drain()
        self.algo.load_state_dict(state["algo"])
        self.transfer.reset()
        self.collector.load_state_dict(state["collector"])
        self.env_steps = int(state["env_steps"])
