"""Speeds of this machine, and short trainings: everything of tuning that needs a clock."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from learners.build import RunConfig, build, policy_for
from learners.compat import algorithm, off_policy
from learners.config import make_config, to_dict
from learners.networks import cloned_state
from learners.session import evaluate_run
from learners.tuning.verdict import Point, Trial

MEASURE_SECONDS = 0.2
MOST_REPLAY = 200_000  # transitions of room while speeds are measured
COMPILING_SECONDS = 300.0
ENDLESS = 10**12  # steps: a schedule that has collected all there is to collect rests
FILLED = 4096  # transitions there are to learn from
POINTS = 24  # weights kept of a training
EPISODES = 16  # that each are evaluated in
EVALUATION_SHARE = 0.3  # of a training's length: so long all its evaluations may take

Clock = Callable[[], float]


def changed(config: RunConfig, settings: dict[str, Any], seed: int | None = None, **own: Any) -> RunConfig:
    """The run with other settings of the algorithm and (`own`) of the schedule.

    Raises:
        ConfigError: they do not fit.
    """
    values = to_dict(make_config(algorithm(config.algo).config_class, {**config.settings, **settings}))
    schedule_settings = {**config.schedule_settings, **own}
    seed = config.seed if seed is None else seed
    return dataclasses.replace(config, settings=values, schedule_settings=schedule_settings, seed=seed)


def hz(work: Callable[[], int], seconds: float = MEASURE_SECONDS, clock: Clock = time.perf_counter) -> float:
    """What `work` returns, summed, per second: two calls to warm up, then as many as fit into `seconds`, at least one."""
    work()
    work()
    began, done = clock(), 0
    while True:
        done += work()
        passed = clock() - began
        if passed >= seconds:
            return done / max(passed, 1e-9)


def sampling_hz(config: RunConfig, seconds: float = MEASURE_SECONDS) -> float:
    """Environment steps per second of collecting into a replay, by the policy, with nobody learning."""
    with _loop(config, batch_size=1) as (algo, loop):

        def collect() -> int:
            block = loop.collect(algo.policy, 0)
            _wait(block.reward)
            loop.replay.commit(block)
            return loop.rows

        return hz(collect, seconds)


def update_frames_hz(config: RunConfig, seconds: float = MEASURE_SECONDS) -> float:
    """Rows per second that updates learn from, with nobody collecting."""
    with _loop(config) as (algo, loop):
        for _ in range(math.ceil(FILLED / loop.rows)):
            loop.replay.commit(loop.collect(algo.policy, 0))

        def update() -> int:
            for value in algo.updates(loop.replay, algo.burst).values():
                _wait(value)
            return algo.frames * algo.burst

        return hz(update, seconds)


@contextlib.contextmanager
def _loop(config: RunConfig, **settings: Any) -> Iterator[tuple[Any, Any]]:
    """(algorithm, replay loop) of a training that acts by its policy at once and never begins on its own."""
    room = min(config.settings["buffer_size"], MOST_REPLAY)
    plain = dataclasses.replace(config, schedule="sync", schedule_settings={"save_replay": False})
    schedule = build(changed(plain, {"learning_starts": 0, "buffer_size": room, **settings}))
    try:
        yield schedule.algo, schedule.loop
    finally:
        schedule.close()


def training_hz(config: RunConfig, seconds: float = MEASURE_SECONDS) -> float:
    """Environment steps per second of collecting and learning together, by the config's own schedule."""
    if off_policy(config.algo):
        config = changed(config, {"learning_starts": 0, "total_steps": ENDLESS}, save_replay=False)
    slices = "slice_seconds" in config.schedule_settings
    if slices:
        config = changed(config, {}, slice_seconds=seconds / 4)
    schedule = build(config)
    try:

        def iterate() -> int:
            result = schedule.iterate()
            for value in result.metrics.values():
                float(value)
            return result.env_steps

        # Parts on threads of their own come back from the first iterations before their kernels are compiled.
        began, steps = time.perf_counter(), 0
        while not (steps and schedule.algo.version) and time.perf_counter() - began < COMPILING_SECONDS:
            steps += iterate()
        return hz(iterate, seconds)
    finally:
        schedule.close()


def train(config: RunConfig, name: str, seconds: float, clock: Clock = time.perf_counter) -> Trial:
    """Train for `seconds` (or to the run's end), then evaluate weights kept on the way.

    Evaluation takes no time of the training's: it comes afterwards, of copies of the weights.
    """
    if "save_replay" in config.schedule_settings:
        config = changed(config, {}, save_replay=False)
    if "slice_seconds" in config.schedule_settings:
        config = changed(config, {}, slice_seconds=min(0.5, seconds / POINTS))
    schedule = build(config)
    try:
        kept = [(0.0, 0, _weights(schedule))]
        began, step, due, passed = clock(), 0, seconds / POINTS, 0.0
        while passed < seconds and step < config.total_steps:
            step += schedule.iterate().env_steps
            passed = clock() - began
            if passed >= due:
                kept.append((passed, step, _weights(schedule)))
                due = (math.floor(passed * POINTS / seconds) + 1) * seconds / POINTS
        if kept[-1][1] != step:
            kept.append((passed, step, _weights(schedule)))
    finally:
        schedule.close()
    return Trial(name, config.seed, passed, _evaluated(config, kept, seconds * EVALUATION_SHARE, clock))


def _evaluated(
    config: RunConfig, kept: list[tuple[float, int, dict[str, Any]]], seconds: float, clock: Clock
) -> tuple[Point, ...]:
    """The first, the last two, and as many of the others as `seconds` allow."""
    policy = policy_for(config, "cpu")
    on = None if config.env_backend == "host" else "gpuenvs"
    found: dict[int, Point] = {}
    began = clock()
    for index in order(len(kept)):
        if len(found) >= 3 and clock() - began > seconds:
            break
        passed, step, weights = kept[index]
        policy.load_state_dict(weights)
        result = evaluate_run(config, policy, EPISODES, on, seed=config.seed)
        found[index] = Point(round(passed, 4), step, result.mean, result.stderr)
    return tuple(found[index] for index in sorted(found))


def order(count: int) -> list[int]:
    """In which order `count` points are evaluated: the ends and the last but one, then whatever halves the widest gap."""
    chosen = [index for index in dict.fromkeys((0, count - 1, count - 2)) if 0 <= index < count]
    while len(chosen) < count:
        have = sorted(chosen)
        low, high = max(itertools.pairwise(have), key=lambda pair: (pair[1] - pair[0], pair[0]))
        chosen.append((low + high) // 2)
    return chosen


def _weights(schedule: Any) -> dict[str, Any]:
    """A copy of the weights that act."""
    if hasattr(schedule, "snapshot"):
        with schedule.snapshot() as (policy, _):
            return _on_host(policy)
    if hasattr(schedule.algo, "push_actor"):
        schedule.algo.push_actor()
    return _on_host(schedule.algo.policy)


def _on_host(policy: Any) -> dict[str, Any]:
    return {name: value.cpu() for name, value in cloned_state(policy).items()}


def _wait(value: Any) -> None:
    """Until the device has computed it."""
    if hasattr(value, "reshape"):
        float(value.reshape(-1)[-1])
