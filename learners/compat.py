"""The one table of what fits together: algorithm x schedule x action space, with a reason for every no."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from gpuenvs.errors import ConfigError, near_names

CONTINUOUS, DISCRETE = "continuous", "discrete"


@dataclass(frozen=True)
class AlgoInfo:
    """What an algorithm is and what it can learn from."""

    module: str
    class_name: str
    on_policy: bool
    actions: tuple[str, ...]


@dataclass(frozen=True)
class ScheduleInfo:
    """What a schedule is and which data it hands to the learner.

    `replay`: module and class for algorithms that learn from a replay, where those are others.
    """

    module: str
    class_name: str
    on_policy: bool
    off_policy: bool
    replay: tuple[str, str] | None = None


ALGORITHMS = {
    "ppo": AlgoInfo("learners.ppo", "PPO", on_policy=True, actions=(DISCRETE, CONTINUOUS)),
    "a2c": AlgoInfo("learners.a2c", "A2C", on_policy=True, actions=(DISCRETE, CONTINUOUS)),
    "sac": AlgoInfo("learners.sac", "SAC", on_policy=False, actions=(CONTINUOUS,)),
    "td3": AlgoInfo("learners.td3", "TD3", on_policy=False, actions=(CONTINUOUS,)),
    "dqn": AlgoInfo("learners.dqn", "DQN", on_policy=False, actions=(DISCRETE,)),
}
SCHEDULES = {
    "sync": ScheduleInfo(
        "learners.schedules.sync",
        "SyncSchedule",
        on_policy=True,
        off_policy=True,
        replay=("learners.schedules.replay_sync", "ReplaySyncSchedule"),
    ),
    "hts": ScheduleInfo("learners.schedules.hts", "HTSSchedule", on_policy=True, off_policy=False),
    "async": ScheduleInfo("learners.schedules.async_", "AsyncSchedule", on_policy=True, off_policy=False),
    "spreeze": ScheduleInfo("learners.schedules.spreeze", "SpreezeSchedule", on_policy=False, off_policy=True),
}


def check(algo: str, schedule: str, action_space: Any) -> None:
    """Raise ConfigError, one line with the reason and a way out, unless the three fit together."""
    if algo not in ALGORITHMS:
        raise ConfigError(_unknown("algorithm", algo, ALGORITHMS))
    if schedule not in SCHEDULES:
        raise ConfigError(_unknown("schedule", schedule, SCHEDULES))
    learner, loop = ALGORITHMS[algo], SCHEDULES[schedule]
    if learner.on_policy and not loop.on_policy:
        raise ConfigError(
            f"{algo} does not fit --schedule {schedule}: {algo} learns from its own newest data, {schedule} replays old "
            f"data; use one of {', '.join(s for s, info in SCHEDULES.items() if info.on_policy)}"
        )
    if not learner.on_policy and not loop.off_policy:
        raise ConfigError(
            f"{algo} does not fit --schedule {schedule}: {schedule} keeps no replay; use one of "
            f"{', '.join(s for s, info in SCHEDULES.items() if info.off_policy)}"
        )
    kind = action_kind(action_space)
    if kind not in learner.actions:
        fitting = ", ".join(name for name, info in ALGORITHMS.items() if kind in info.actions)
        raise ConfigError(f"{algo} cannot act in {action_space}: it needs {learner.actions[0]} actions; use {fitting}")


def action_kind(action_space: Any) -> str:
    """`"discrete"` or `"continuous"`; ConfigError for a space no learner here can act in."""
    kind = {"Discrete": DISCRETE, "Box": CONTINUOUS}.get(type(action_space).__name__)
    if kind is None:
        raise ConfigError(f"action space {action_space} is not supported: use Discrete or Box")
    return kind


def algorithm(name: str) -> Any:
    """The algorithm's class (imports torch); its config class is `.config_class`."""
    if name not in ALGORITHMS:
        raise ConfigError(_unknown("algorithm", name, ALGORITHMS))
    info = ALGORITHMS[name]
    return getattr(importlib.import_module(info.module), info.class_name)


def schedule(name: str, algo: str = "ppo") -> Any:
    """The schedule's class for an algorithm (imports torch)."""
    if name not in SCHEDULES:
        raise ConfigError(_unknown("schedule", name, SCHEDULES))
    info = SCHEDULES[name]
    module, class_name = info.module, info.class_name
    if info.replay is not None and off_policy(algo):
        module, class_name = info.replay
    return getattr(importlib.import_module(module), class_name)


def off_policy(algo: str) -> bool:
    """True for an algorithm that learns from a replay."""
    return algo in ALGORITHMS and not ALGORITHMS[algo].on_policy


def _unknown(what: str, name: str, known: Any) -> str:
    hint = near_names(name, known) or f"; use one of {', '.join(known)}"
    return f"unknown {what} {name!r}{hint}"
