"""The expected time of a step under each schedule, when nothing costs time but the environments and a fixed overhead.

n environments collect horizons of alpha steps each; step times are independent and of one distribution. Per step of all
environments:

| schedule | time |
|---|---|
| sync | E[max of n step times]: every step waits for the slowest environment |
| hts with the paper's barrier | E[max of n sums of alpha step times] / alpha: every horizon does |
| hts | as above, but horizon h + 1 of an environment begins when it has finished h and all have finished h - 1 |
| async | E[step time]: nobody waits |

The second one is what Liu et al. (arXiv 2012.09849) claim of the expected runtime, without their extreme-value approximation;
it falls with alpha. Expectations are means over simulated delays, drawn as those that the environments sleep.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from benchmarks.delays import draw

STEPS = 200_000  # simulated per environment
SCHEDULES = ("sync", "hts barrier", "hts", "async")


@cache
def step_seconds(
    schedule: str, num_envs: int, alpha: int, mean: float, distribution: str, cv: float, overhead: float = 0.0
) -> float:
    """Expected seconds for one step of all environments under one of `SCHEDULES`.

    Args:
        mean, distribution, cv: of a step's time in seconds; see `draw`.
        overhead: seconds that every step takes on top.
    """
    horizons = max(20, min(2000, STEPS // alpha))
    times = draw(distribution, mean, cv, np.random.default_rng(0), horizons * alpha * num_envs)
    times = times.reshape(horizons, alpha, num_envs) + overhead
    if schedule == "sync":
        return float(times.max(2).mean())
    if schedule == "async":
        return float(times.mean())
    sums = times.sum(1)
    if schedule == "hts barrier":
        return float(sums.max(1).mean() / alpha)
    if schedule == "hts":
        return _run_ahead(sums) / alpha
    raise ValueError(f"unknown schedule {schedule!r}")


def _run_ahead(sums: np.ndarray) -> float:
    """Mean seconds per horizon of (horizons, envs) times, where an environment may be one horizon ahead of the slowest."""
    done = np.zeros(sums.shape[1])  # when each environment has finished its horizon
    all_done = [0.0, 0.0]  # … and when all had, of the last two
    for times in sums:
        done = np.maximum(done, all_done[-2]) + times
        all_done.append(float(done.max()))
    return all_done[-1] / len(sums)


def steps_per_second(
    schedule: str, num_envs: int, alpha: int, mean: float, distribution: str, cv: float, overhead: float = 0.0
) -> float:
    """Environment steps per second; see `step_seconds`."""
    return num_envs / step_seconds(schedule, num_envs, alpha, mean, distribution, cv, overhead)
