"""`python -m benchmarks.timelines`: records who works when under each schedule, and draws the pictures of docs/schedules.md.

Four environments take a random time for each step (`benchmarks.recorded_env`), PPO learns from their horizons. Every step
of every environment and every update is timed; benchmarks/results/timelines.json holds them, docs/timeline-*.svg shows the
beginning. `--draw` draws the file that is there. The network and the number of epochs are chosen so that an update takes a
good part of the time of a horizon, because then it matters who waits for whom.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import machine, recorded_env, timeline_picture

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results" / "timelines.json"
SCHEDULES = ("sync", "hts", "async")
NUM_ENVS, NUM_STEPS, MEAN_STEP = 4, 8, 0.02
SETTINGS: dict[str, Any] = {
    "num_envs": NUM_ENVS,
    "num_steps": NUM_STEPS,
    "epochs": 8,
    "minibatches": 2,
    "hidden_sizes": (256, 256),
    "engine": "torch",
}
WARM_UP, MEASURED, SHOWN = 6, 40, 5  # updates


def picture(schedule: str) -> Path:
    """Where the picture of a schedule is."""
    return ROOT / "docs" / f"timeline-{schedule}.svg"


def record(schedule: str, seed: int = 0) -> dict[str, Any]:
    """The steps and updates of one training, times in ms from the end of the warm-up on.

    Returns a dict with `steps` [[environment, horizon, weights, begin, end], ...], `updates` [[horizon, weights before it,
    begin, end], ...] and what they come to: `environments_busy`, `learner_busy` (shares of the time), `steps_per_second` and
    `lag` (mean number of updates that a row is old when it is learned from).
    """
    with tempfile.TemporaryDirectory(prefix="gpurl-timeline-") as folder:
        updates, versions = [], []
        with _training(schedule, seed, folder) as training:
            algo, update = training.algo, training.algo.update

            def timed(rollout: Any, *rest: Any) -> Any:
                versions.append(rollout.version.numpy().copy())
                before, began = algo.version, time.perf_counter()
                result = update(rollout, *rest)
                updates.append((len(updates), before, began, time.perf_counter()))
                return result

            algo.update = timed
            while len(updates) < WARM_UP + MEASURED:
                training.iterate()
            rows = [_file(folder, training.env, row) for row in range(NUM_ENVS)]
            spans = [recorded_env.read(file) for file in rows]
    steps = [
        (row, k // NUM_STEPS, int(versions[k // NUM_STEPS][k % NUM_STEPS, row]), *span)
        for row, own in enumerate(spans)
        for k, span in enumerate(own)
        if k // NUM_STEPS < len(versions)
    ]
    return _summary(steps, updates)


@contextlib.contextmanager
def _training(schedule: str, seed: int, folder: str) -> Iterator[Any]:
    import torch

    from gpuenvs.host import HostPool, host_spec
    from learners import compat
    from learners.ppo import PPO, PPOConfig

    torch.set_num_threads(1)  # as `gpurl train` does
    spec = host_spec("benchmarks.recorded_env:RecordedEnv", {"folder": folder, "mean": MEAN_STEP})
    env = HostPool(spec, NUM_ENVS, executors=NUM_ENVS, seed=seed)
    config = PPOConfig(**SETTINGS)
    algo = PPO(config, env.single_observation_space, env.single_action_space, "cpu", seed)
    training = compat.schedule(schedule)(env, algo, config)
    try:
        yield training
    finally:
        training.close()


def _file(folder: str, env: Any, row: int) -> Path:
    from gpuenvs.host.executor import episode_seed

    return Path(folder) / str(episode_seed(env.seed, env.env_offset + row, 0))


def _summary(steps: list[Any], updates: list[Any]) -> dict[str, Any]:
    start, end = updates[WARM_UP - 1][3], updates[-1][3]
    wall = end - start

    def within(begin: float, stop: float) -> float:
        return max(0.0, min(stop, end) - max(begin, start))

    learned = [(horizon, before) for horizon, before, *_ in updates[WARM_UP:]]
    rows = {horizon: [weights for _, h, weights, *_ in steps if h == horizon] for horizon, _ in learned}
    ages = [before - weights for horizon, before in learned for weights in rows[horizon]]
    shown = updates[min(WARM_UP + SHOWN, len(updates) - 1)][3]
    return {
        "environments_busy": round(sum(within(*step[3:]) for step in steps) / wall / NUM_ENVS, 3),
        "learner_busy": round(sum(within(*update[2:]) for update in updates) / wall, 3),
        "steps_per_second": round(NUM_ENVS * NUM_STEPS * len(learned) / wall, 1),
        "lag": round(sum(ages) / len(ages), 2),
        "steps": [_moved(item, start) for item in steps if start < item[-1] and item[-2] < shown],
        "updates": [_moved(item, start) for item in updates if start < item[-1] and item[-2] < shown],
    }


def _moved(item: tuple[Any, ...], start: float) -> list[Any]:
    """With begin and end, its last two numbers, in ms after `start`."""
    return [*item[:-2], *(round(1e3 * (moment - start), 2) for moment in item[-2:])]


def draw(document: dict[str, Any]) -> dict[Path, str]:
    """The pictures of a recorded document: all with the same scale of time."""
    schedules = document["schedules"]
    until = min(max(update[-1] for update in recorded["updates"]) for recorded in schedules.values())
    return {
        picture(name): timeline_picture.svg(recorded["steps"], recorded["updates"], NUM_ENVS, until)
        for name, recorded in schedules.items()
    }


def main() -> None:
    """Record, write and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="only draw what was recorded")
    if not parser.parse_args().draw:
        document = {
            "machine": machine.describe(),
            "mean_step_ms": 1e3 * MEAN_STEP,
            "settings": SETTINGS,
            "schedules": {name: record(name) for name in SCHEDULES},
        }
        RESULTS.write_text(timeline_picture.compact(document))
    for file, text in draw(json.loads(RESULTS.read_text())).items():
        file.write_text(text)


if __name__ == "__main__":
    main()
