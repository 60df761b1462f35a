"""The synchronous schedule of off-policy learning: collect a horizon, then make the updates that it calls for, repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from learners.config import option
from learners.replay_loop import ReplayLoop
from learners.schedules.common import IterationResult


@dataclass(frozen=True)
class ReplaySyncConfig:
    """Settings of the sync schedule with a replay."""

    save_replay: bool = option(
        True, "checkpoints hold the replay; without it a resumed run fills a new one before it learns on"
    )


class ReplaySyncSchedule:
    """Actions are chosen by the newest weights there are; a run and its resume are the same bit for bit on the CPU.

    Args:
        env: a batch environment with `algo.num_envs` rows and same-step autoreset.
        algo: SAC, TD3 or DQN.
        config: the algorithm's config.
        transfer: None: the collector writes into the learner's replay.
        own: this schedule's settings.
        actors: threads that infer for host environments.
    """

    config_class = ReplaySyncConfig
    apart = False

    def __init__(
        self,
        env: Any,
        algo: Any,
        config: Any,
        transfer: None = None,
        own: ReplaySyncConfig | None = None,
        actors: int = 1,
    ) -> None:
        self.own = own or ReplaySyncConfig()
        self.env, self.algo, self.config = env, algo, config
        self.loop = ReplayLoop(env, algo, config, self.own.save_replay, actors)
        self.collector = self.loop.collector

    @property
    def env_steps(self) -> int:
        """Environment steps so far."""
        return self.loop.env_steps

    def iterate(self) -> IterationResult:
        """One horizon, and the updates that are owed for it."""
        loop = self.loop
        self.algo.push_actor()
        block = loop.collect(self.algo.policy, self.algo.version)
        loop.commit(block, lag=0)
        self.algo.observe(block)
        metrics, owed = {}, loop.updates_owed()
        while owed:
            count = min(owed, self.algo.burst)
            metrics = {**metrics, **self.algo.updates(loop.replay, count)}
            loop.ratio.learned(count)
            owed -= count
        found = loop.take()
        metrics = {**metrics, **loop.ratio.measured(), **found.metrics}
        return loop.result(found, metrics)

    def close(self) -> None:
        """Stop the environments' threads."""
        self.loop.close()

    def state_dict(self) -> dict[str, Any]:
        """Everything the run depends on."""
        return self.loop.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.loop.load_state_dict(state)
