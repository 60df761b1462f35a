"""What the schedules of off-policy learning share: environments, replay, and the accounts of both."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from learners.ratio import Ratio
from learners.replay import Block, Replay
from learners.replay_collector import make_replay_collector
from learners.schedules.common import IterationResult, env_metrics, require_rows

# Horizons of room beside the capacity: so far may the sampler get while an update reads what it drew before.
SPARE_SHARE, MOST_SPARE = 32, 32


def spare_horizons(buffer_size: int, rows: int) -> int:
    """Horizons of `rows` transitions beside a capacity of `buffer_size`."""
    return min(MOST_SPARE, max(1, buffer_size // (SPARE_SHARE * rows)))


@dataclass
class Finished:
    """What ended and was measured in the horizons since it was last taken."""

    steps: int = 0
    returns: list[np.ndarray] = field(default_factory=list)
    lengths: list[np.ndarray] = field(default_factory=list)
    lags: dict[int, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


class ReplayLoop:
    """Environments, collector and replay of one learner, and the ratio between the two.

    Args:
        env: a batch environment with `algo.num_envs` rows and same-step autoreset.
        algo: SAC, TD3 or DQN.
        config: the algorithm's config.
        save_replay: checkpoints hold the replay.
        actors: threads that infer for host environments.
    """

    def __init__(self, env: Any, algo: Any, config: Any, save_replay: bool, actors: int = 1) -> None:
        require_rows(env, algo)
        self.env, self.algo, self.config = env, algo, config
        self.save_replay = save_replay
        self.rows = config.num_steps * env.num_envs
        self.spare = spare_horizons(config.buffer_size, self.rows)
        self.replay = Replay(
            config.buffer_size,
            env.num_envs,
            env.single_observation_space,
            env.single_action_space,
            config.num_steps,
            algo.device,
            spare=self.spare,
        )
        self.collector = make_replay_collector(env, algo.policy.device, algo.seed, config, actors)
        self.collector.choose(algo.policy)
        self.ratio = Ratio(config.update_to_data, self.rows, algo.frames)
        self.env_steps = 0
        self._finished = Finished()
        self._lock = threading.Lock()

    @property
    def warming_up(self) -> bool:
        """Whether the next horizon is one of random actions, before learning begins."""
        return self.env_steps < self.config.learning_starts

    @property
    def filled(self) -> bool:
        """Whether there is enough to learn from; false at the beginning, and after a resume without a replay."""
        return self.replay.size >= max(1, min(self.config.learning_starts, self.config.buffer_size))

    def may_collect(self) -> bool:
        """Whether another horizon may begin, for all that the ratio says."""
        return not self.filled or self.ratio.may_collect()

    def may_learn(self) -> bool:
        """Whether another update may be made."""
        return self.filled and self.ratio.may_learn()

    def updates_owed(self) -> int:
        """Updates to make before the next horizon; one where both may run free."""
        return self.ratio.updates_owed if self.ratio.target and self.filled else int(self.may_learn())

    def collect(self, policy: Any, version: int) -> Block:
        """One horizon into the ring; nobody samples from it yet."""
        return self.collector.collect(policy, self.replay.begin(), version, random=self.warming_up)

    def commit(self, block: Block, lag: int) -> None:
        """From now on the horizon is sampled from; `lag`: updates since the weights that chose its actions."""
        # What is there before learning begins (again) is not owed for, so that no burst of updates follows it.
        filling = not self.filled and self.config.learning_starts > 0
        self.replay.commit(block)
        self.env_steps += block.rows
        if not filling:
            self.ratio.collected(block.rows)
        returns, lengths = (values.cpu().numpy() for values in block.finished_episodes())
        own = env_metrics(self.env, block)
        with self._lock:
            found = self._finished
            found.steps += block.rows
            found.returns.append(returns)
            found.lengths.append(lengths)
            found.lags[lag] = found.lags.get(lag, 0) + block.rows
            found.metrics.update(own)

    def take(self) -> Finished:
        """What was finished since the last call."""
        with self._lock:
            found, self._finished = self._finished, Finished()
        return found

    @staticmethod
    def result(found: Finished, metrics: dict[str, Any]) -> IterationResult:
        """What one iteration of a schedule hands to the training loop."""
        returns = np.concatenate(found.returns) if found.returns else np.zeros(0, np.float32)
        lengths = np.concatenate(found.lengths) if found.lengths else np.zeros(0, np.int32)
        return IterationResult(found.steps, metrics, returns, lengths, found.lags)

    def close(self) -> None:
        """Stop the environments' threads."""
        self.collector.close()
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        """All of it, the replay too if `save_replay`; nothing may be under way."""
        state = {
            "algo": self.algo.state_dict(),
            "collector": self.collector.state_dict(),
            "env_steps": self.env_steps,
            "ratio": self.ratio.state_dict(),
            # What the training loop was not told of yet: its step is behind by so much.
            "finished": dataclasses.asdict(self._finished),
        }
        return state | ({"replay": self.replay.state_dict()} if self.save_replay else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`. Without a replay in it the ring is filled again before learning goes on."""
        self.algo.load_state_dict(state["algo"])
        self.collector.load_state_dict(state["collector"])
        self.env_steps = int(state["env_steps"])
        self.ratio.load_state_dict(state["ratio"])
        self._finished = Finished(**state["finished"])
        if "replay" in state:
            self.replay.load_state_dict(state["replay"])
