"""`python -m benchmarks.hts_samples`: environment steps that hts learns in, against sync, and how fast each of them steps.

Learning: every preset of the two algorithms on three environments, over five seeds; the steps after which the mean return
of the last hundred episodes (while training, with noise) reaches the environment's goal. Speed: environment steps per second
of the presets under both schedules, in turns; hts as it is, with the delayed gradient, and with cores of its own. Writes
`benchmarks/results/hts_samples.json` and the table beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.report import markdown
from learners.build import build, resolve

RESULTS = Path(__file__).resolve().parent / "results" / "hts_samples.json"
GOALS = {"CartPole-v1": 475.0, "Acrobot-v1": -100.0, "Pendulum-v1": -200.0}
LEARNERS = ("ppo", "a2c")
SEEDS = 5
EPISODES = 100  # in the running mean
SPEED_CASES = (("CartPole-v1", "ppo"), ("CartPole-v1", "a2c"), ("Pendulum-v1", "ppo"), ("Hopper-v5", "ppo"))
WAYS = {
    "sync": ("sync", ()),
    "hts": ("hts", ()),
    "hts, delayed": ("hts", ("correction=delayed",)),
    "hts, own cores": ("hts", ("sampler_cores=1",)),
}


def steps_to_goal(env_id: str, algo: str, schedule: str, seed: int) -> tuple[int | None, float]:
    """(environment steps until the goal, None if never; mean return of the last episodes) of one whole training."""
    config = resolve(env_id, algo=algo, schedule=schedule, seed=seed, device="cpu")
    loop = build(config)
    recent: deque[float] = deque(maxlen=EPISODES)
    step, reached = 0, None
    try:
        while step < config.total_steps:
            result = loop.iterate()
            step += result.env_steps
            recent.extend(result.episode_returns.tolist())
            if reached is None and len(recent) == EPISODES and np.mean(recent) >= GOALS[env_id]:
                reached = step
    finally:
        loop.close()
    return reached, float(np.mean(recent))


def speed(env_id: str, algo: str, way: str, seconds: float) -> float:
    """Environment steps per second once everything is compiled."""
    schedule, overrides = WAYS[way]
    loop = build(resolve(env_id, algo=algo, schedule=schedule, overrides=overrides, device="cpu"))
    try:
        for _ in range(5):
            loop.iterate()
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            steps += loop.iterate().env_steps
        return steps / (time.perf_counter() - began)
    finally:
        loop.close()


def learning_rows(seeds: int) -> list[dict[str, Any]]:
    """One row for each environment, algorithm and schedule."""
    rows = []
    for env_id in GOALS:
        for algo in LEARNERS:
            for schedule in ("sync", "hts"):
                found = [steps_to_goal(env_id, algo, schedule, seed) for seed in range(seeds)]
                rows.append(
                    {
                        "env": env_id,
                        "algo": algo,
                        "schedule": schedule,
                        "steps": [steps for steps, _ in found],
                        "last": [round(last, 2) for _, last in found],
                    }
                )
                print(json.dumps(rows[-1]), flush=True)
    return rows


def speed_rows(seconds: float, turns: int) -> list[dict[str, Any]]:
    """One row for each case: the samples of each way, taken in turns."""
    rows = []
    for env_id, algo in SPEED_CASES:
        samples: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(turns):
            for way, found in samples.items():
                found.append(speed(env_id, algo, way, seconds))
        rows.append({"env": env_id, "algo": algo, "samples": samples})
        print(json.dumps({way: round(statistics.median(found)) for way, found in samples.items()}), flush=True)
    return rows


def median_steps(steps: list[int | None]) -> float:
    """The median over seeds; a seed that never reaches the goal counts as infinitely many."""
    return statistics.median(float("inf") if count is None else count for count in steps)


def _against_sync(samples: dict[str, list[float]], way: str) -> float:
    """How many times as fast as sync, the median over turns: what the machine does in a turn hits both."""
    return statistics.median(a / b for a, b in zip(samples[way], samples["sync"], strict=True))


def tables(document: dict[str, Any]) -> str:
    """The tables as Markdown."""
    learning = document.get("learning", [])
    rows = []
    for sync, hts in zip(learning[::2], learning[1::2], strict=True):
        ours, theirs = median_steps(hts["steps"]), median_steps(sync["steps"])
        reached = " / ".join(f"{len(row['steps']) - row['steps'].count(None)}" for row in (sync, hts))
        rows.append(
            [sync["env"], sync["algo"], f"{GOALS[sync['env']]:g}", f"{theirs:,.0f}", f"{ours:,.0f}", f"{ours / theirs:.2f}x",
             f"{reached} of {len(hts['steps'])}"]
        )  # fmt: skip
    header = ["environment", "algorithm", "return", "sync, steps", "hts, steps", "hts / sync", "seeds that reach it"]
    text = markdown(header, rows)
    lines = []
    for row in document.get("speed", []):
        speeds = {way: statistics.median(found) for way, found in row["samples"].items()}
        best = max(_against_sync(row["samples"], way) for way in speeds if way != "sync")
        lines.append([row["env"], row["algo"], *(f"{value:,.0f}" for value in speeds.values()), f"{best:.2f}x"])
    where = document["machine"]
    second = markdown(["environment", "algorithm", *(f"{way}, steps/s" for way in WAYS), "best hts / sync"], lines)
    return (
        f"{where['cores']} cores of {where['cpu']}.\n\nEnvironment steps until the mean return of the last {EPISODES} "
        f"training episodes, medians of {SEEDS} seeds:\n\n{text}\n\nSpeed of the presets, medians of turns:\n\n{second}\n"
    )


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("learning", "speed", "all"), nargs="?", default="all")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--seconds", type=float, default=1.5, help="of one sample of a speed")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    document = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    document["machine"] = machine.describe()
    if options.what != "speed":
        document["learning"] = learning_rows(options.seeds)
    if options.what != "learning":
        document["speed"] = speed_rows(options.seconds, options.turns)
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(tables(document))
    print(tables(document))


if __name__ == "__main__":
    main()
