"""PPO from start to goal on the device, then judged in Gymnasium's own environment."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.checks import Report
from benchmarks.checks.common import schedule, wait


def run(request: dict[str, Any], report: Report) -> None:
    """Trains `env_id` with `settings` and compares its mean return with `goal`; `small`: a few iterations, no goal."""
    from learners.evaluate import evaluate

    env_id, device, small = request["env_id"], request["device"], request["small"]
    settings = dict(request["settings"])
    if small:
        settings |= {"num_envs": 64, "num_steps": 16, "total_steps": 3 * 64 * 16, "minibatches": 4}
    began = time.perf_counter()
    loop = schedule(env_id, device, settings, seed=request.get("seed", 0))
    loop.iterate()
    wait(device)
    first = time.perf_counter()
    latest: list[float] = []
    while loop.env_steps < settings["total_steps"]:
        latest = [*latest, *loop.iterate().episode_returns.tolist()][-1000:]
    wait(device)
    ended = time.perf_counter()
    rate = (loop.env_steps - settings["num_envs"] * settings["num_steps"]) / (ended - first)
    figures = {
        "env_steps": loop.env_steps,
        "seconds": round(ended - began, 2),
        "first_iteration_seconds": round(first - began, 2),
        "steps_per_second": rate,
        "collector": loop.collector.choice.name,
        "training_return": sum(latest) / len(latest) if latest else None,
        "settings": settings,
    }
    policy = loop.algo.policy.copy_on("cpu")
    result = evaluate(policy, env_id, episodes=2 if small else request.get("episodes", 50), on="gymnasium")
    goal = None if small else request["goal"]
    ok = small or result.mean >= request["goal"]
    report.row(f"{env_id} PPO", ok, mean_return=result.mean, episodes=len(result.returns), goal=goal, **figures)
    loop.env.close()
