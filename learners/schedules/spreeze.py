"""Spreeze's schedule: whoever acts, learns, evaluates and watches does so at its own pace (arXiv 2312.06126).

    sampler  | D_0 | D_1 | D_2 |     | D_3 | D_4 ...      newest published weights; writes into the replay
    critic   |     | u u u u u u u u u u u u u ...        draws batches from what is committed
    actor    |       u   u   u   u   u   u   ...          with `split`; else the critic's thread makes its steps too

The paper's internals are not public; this is gpurl's own design. What one part needs of another is an immutable, versioned
copy: weights through `Leases`, experience through a ring whose newest horizon nobody samples from before it is complete. The
update-to-data ratio is enforced (`learners.ratio`): the part that is ahead sleeps.

With `deterministic` the parts work in rounds: in each the sampler collects one horizon under the weights that it began
with, while the learner makes the updates that the data of the rounds before calls for. Both still work at the same time, and
the weights depend on the seed alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuenvs.errors import ConfigError
from learners.config import option, validate
from learners.cores import CoreSplit
from learners.fence import Fence
from learners.parts import Part, Parts
from learners.replay import Block
from learners.replay_loop import ReplayLoop
from learners.schedules.common import IterationResult
from learners.snapshots import Leases


@dataclass(frozen=True)
class SpreezeConfig:
    """Settings of the spreeze schedule."""

    deterministic: bool = option(
        False, "parts work in rounds of one horizon: weights depend on the seed alone, and parts wait for each other"
    )
    split: bool = option(
        False, "actor and critics are updated by a part each; --actor-device and --critic-device imply it"
    )
    actor_lag: int = option(16, "with split: most critic updates that the actor may be behind; 0 is no bound", ge=0)
    publish_every: int = option(8, "updates between two publications of the weights that act", ge=1)
    sampler_cores: int = option(
        0, "cores for stepping environments alone, the others for learning alone; 0: all share all", ge=0
    )
    save_replay: bool = option(
        True, "checkpoints hold the replay; without it a resumed run fills a new one before it learns on"
    )
    slice_seconds: float = option(0.5, "time between two looks at the parts, for metrics and checkpoints", gt=0)

    def __post_init__(self) -> None:
        validate(self)


class SpreezeSchedule:
    """See the module's docstring.

    Args:
        env: a batch environment with `algo.num_envs` rows and same-step autoreset.
        algo: SAC, TD3 or DQN.
        config: the algorithm's config.
        transfer: None: the collector writes into the learner's replay.
        own: this schedule's settings.
        actors: threads that infer for host environments.
    """

    config_class = SpreezeConfig
    apart = True

    def __init__(
        self,
        env: Any,
        algo: Any,
        config: Any,
        transfer: None = None,
        own: SpreezeConfig | None = None,
        actors: int = 1,
    ) -> None:
        self.own = own = own or SpreezeConfig()
        self.env, self.algo, self.config = env, algo, config
        self.loop = ReplayLoop(env, algo, config, own.save_replay, actors)
        self.collector = self.loop.collector
        if own.split and not algo.has_actor:
            raise ConfigError(f"{type(algo).__name__.lower()} has no actor to split from its critic; leave split out")
        self._cores = CoreSplit(own.sampler_cores) if own.sampler_cores else None
        if self._cores is not None and self._cores.learner:
            algo.set_threads(len(self._cores.learner))
        self._fence = Fence(algo.device, algo.policy.device)
        self.weights = Leases(algo.policy, algo.version, algo.policy.device, self._fence)
        self._parts: Parts | None = None
        self._limit = config.total_steps
        self._in_flight = False  # a horizon is being collected
        self._reading: dict[str, int] = {}  # part -> what was committed when its update under way drew its rows
        self._metrics: dict[str, Any] = {}
        self._exchanged = 0  # bytes between actor and critics
        self._turns = {"sampler": 0, "critic": 0}  # with `deterministic`: what is left to do in this round
        self._waiting: Block | None = None  # with `deterministic`: this round's horizon
        self._to_observe: list[Block] = []

    @property
    def env_steps(self) -> int:
        """Environment steps so far."""
        return self.loop.env_steps

    # --- the parts -----------------------------------------------------------------------------------------------------

    def _start(self) -> Parts:
        if self._parts is None:
            enter_sampler = self._cores.enter_sampler if self._cores else None
            enter_learner = self._cores.enter_learner if self._cores else None
            parts = [
                Part("sampler", self._may_collect, self._begin_horizon, self._collect, self._collected, enter_sampler)
            ]
            if self.own.split and not self.own.deterministic:
                parts.append(
                    Part("critic", self._may_learn, self._begin_update, self._critic, self._learned, enter_learner)
                )
                parts.append(Part("actor", self._actor_due, self._begin_step, self._actor, self._acted, enter_learner))
            else:
                parts.append(
                    Part("learner", self._may_learn, self._begin_burst, self._learn, self._learned, enter_learner)
                )
            self._parts = Parts(parts)
        return self._parts

    def _may_collect(self) -> bool:
        if self.own.deterministic:
            return self._turns["sampler"] > 0
        loop = self.loop
        if self._done_collecting() or not loop.may_collect():
            return False
        # The rows that the next horizon overwrites must not be among those that an update has drawn from.
        oldest = min(self._reading.values(), default=loop.replay.committed)
        return loop.replay.committed - oldest < loop.spare * self.config.num_steps

    def _done_collecting(self) -> bool:
        return self.loop.env_steps >= self._limit

    def _begin_horizon(self) -> bool:
        self._in_flight = True
        return self.loop.warming_up

    def _collect(self, random: bool) -> tuple[Block, int]:
        with self.weights.lease() as (policy, version), self._fence.work():
            return self.loop.collect(policy, version), version

    def _collected(self, result: tuple[Block, int]) -> None:
        block, version = result
        self._in_flight = False
        if self.own.deterministic:
            self._waiting, self._turns["sampler"] = block, self._turns["sampler"] - 1
            return
        self.loop.commit(block, self.algo.version - version)
        self._to_observe = [*self._to_observe[-3:], block]  # statistics do not need every row

    def _may_learn(self) -> bool:
        if self.own.deterministic:
            return self._turns["critic"] > 0
        if not self.loop.may_learn():
            return False
        behind = self.algo.version - self.algo.actor_updates_at if self.own.split else 0
        return not (self.own.split and self.own.actor_lag and behind >= self.own.actor_lag + self._delay)

    @property
    def _delay(self) -> int:
        return self.config.policy_delay

    def _begin_update(self) -> list[Block]:
        self._reading["critic"] = self.loop.replay.committed
        blocks, self._to_observe = self._to_observe, []
        return blocks

    def _begin_burst(self) -> tuple[list[Block], int]:
        """As many updates as are owed and soon over: between two publications there is one call of the engine."""
        most = self.algo.burst if self.own.deterministic else min(self.algo.burst, self.own.publish_every)
        if self.own.deterministic:
            most = min(most, self._turns["critic"])
        elif self.loop.ratio.target:
            most = min(most, self.loop.updates_owed())
        return self._begin_update(), max(1, most)

    def _learn(self, given: tuple[list[Block], int]) -> tuple[dict[str, Any], int]:
        blocks, count = given
        with self._fence.work():
            for block in blocks:
                self.algo.observe(block)
            metrics = self.algo.updates(self.loop.replay, count)
            self._publish()
        return metrics, count

    def _critic(self, blocks: list[Block]) -> tuple[dict[str, Any], int]:
        with self._fence.work():
            for block in blocks:
                self.algo.observe(block)
            self._exchanged += self.algo.take_actor()
            metrics = self.algo.critic_update(self.loop.replay)
            self._exchanged += self.algo.send_critics()
        return metrics, 1

    def _learned(self, result: tuple[dict[str, Any], int]) -> None:
        metrics, count = result
        del self._reading["critic"]
        self._metrics = {**self._metrics, **metrics}
        self.loop.ratio.learned(count)
        if self.own.deterministic:
            self._turns["critic"] -= count

    def _actor_due(self) -> bool:
        return self.algo.actor_due()

    def _begin_step(self) -> None:
        self._reading["actor"] = self.loop.replay.committed

    def _actor(self, _: None) -> dict[str, Any]:
        with self._fence.work():
            self._exchanged += self.algo.take_critics()
            metrics = self.algo.actor_update(self.loop.replay)
            self._exchanged += self.algo.send_actor()
            self._publish()
        return metrics

    def _acted(self, metrics: dict[str, Any]) -> None:
        del self._reading["actor"]
        self._metrics = {**self._metrics, **metrics}

    def _publish(self) -> None:
        """Between rounds in deterministic mode, else every so many updates."""
        if not self.own.deterministic and self.algo.version - self.weights.version >= self.own.publish_every:
            self._publish_now()

    def _publish_now(self) -> None:
        self.algo.push_actor()
        self.weights.publish(self.algo.version)

    # --- what the training loop sees -----------------------------------------------------------------------------------

    def iterate(self) -> IterationResult:
        """A slice of time, or with `deterministic` one round."""
        parts = self._start()
        self._limit = max(self._limit, self.loop.env_steps + 1)
        if self.own.deterministic:
            self._round(parts)
        else:
            parts.wait(self._complete, self.own.slice_seconds)
            if self._done_collecting():  # what is owed at the end is a horizon's worth or two
                parts.wait(self._complete)
        with parts.lock:
            found = self.loop.take()
            metrics, self._metrics = self._metrics, {}
            metrics |= self.loop.ratio.measured()
        more = {"update_to_data_target": self.loop.ratio.target, "exchanged_mb": self._exchanged / 1e6}
        return self.loop.result(found, {**metrics, **more, **parts.busy(), **found.metrics})

    def _complete(self) -> bool:
        """Everything is collected, and learned from as far as the ratio asks."""
        done = self._done_collecting() and not self._in_flight
        return done and (not self.loop.ratio.target or not self.loop.may_learn())

    def _round(self, parts: Parts) -> None:
        loop = self.loop
        with parts.lock:
            self._turns = {"sampler": 1, "critic": loop.updates_owed()}
            began = self.algo.version
        parts.wait(lambda: not any(self._turns.values()))
        block, self._waiting = self._waiting, None
        assert block is not None
        loop.commit(block, self.algo.version - began)
        self.algo.observe(block)
        self._publish_now()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[tuple[Any, int]]:
        """The newest published policy and its version, to be read within; training goes on."""
        with self.weights.lease() as (policy, version):
            yield policy, version

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Within, nothing is under way; every part goes on afterwards where it was."""
        return self._parts.paused() if self._parts else contextlib.nullcontext()

    def close(self) -> None:
        """End all parts and stop the environments."""
        if self._parts is not None:
            self._parts.close()
        if self._cores is not None:
            self._cores.leave()
        self.loop.close()

    def state_dict(self) -> dict[str, Any]:
        """Everything, taken while all parts rest."""
        with self.paused():
            return self.loop.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        with self.paused():
            self.loop.load_state_dict(state)
            self._publish_now()
