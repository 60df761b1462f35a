"""Environment steps per second of each way to collect, and how many times the eager loop's that is, in one run.

    python -m benchmarks.collectors
    python -m benchmarks.collectors CartPole-v1 HalfCheetah-v5 --num-envs 1024 --threads 1 --json

The ways take turns, so that whatever else the machine does hits all of them; a figure is the best of the turns.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import gpuenvs
from gpuenvs.errors import ConfigError, GpurlError
from gpuenvs.runtime.threads import allowed_cores

ENVS = ("CartPole-v1", "Pendulum-v1", "HalfCheetah-v5")
WAYS = ("eager", "graph", "fused")


def measure(
    env_id: str,
    device: str,
    num_envs: int,
    num_steps: int,
    threads: int,
    hidden: tuple[int, ...],
    seconds: float,
    turns: int,
) -> dict[str, Any]:
    """Steps per second of every way that is possible, `fused_over_eager`, and how far the fused rollout is from the loop's.

    Raises:
        GpurlError: no such environment or device.
    """
    import torch

    from learners.collector import Collector
    from learners.networks import Policy
    from learners.rollout import Rollout

    torch.set_num_threads(threads)
    ways: dict[str, Any] = {}
    for name in WAYS if device != "cpu" else ("eager", "fused"):
        env = gpuenvs.make(env_id, num_envs, device=device, dtype="float32", seed=0, threads=threads)
        spaces = (env.single_observation_space, env.single_action_space)
        policy = Policy(*spaces, hidden_sizes=hidden, device=device)
        rollout = Rollout(num_steps, num_envs, *spaces, device=device)
        collector = Collector(env, device, collector=name, check=name != "eager")
        try:
            collector.collect(policy, rollout)  # compiles
        except ConfigError:
            continue
        ways[name] = (collector, policy, rollout)
    best = dict.fromkeys(ways, 0.0)
    for _ in range(turns):
        for name, parts in ways.items():
            best[name] = max(best[name], _rate(parts, seconds / turns))
    agreement = ways["fused"][0].agreement if "fused" in ways else None
    return {
        "benchmark": "collectors", "env": env_id, "device": device, "num_envs": num_envs, "num_steps": num_steps,
        "threads": threads, "hidden_sizes": list(hidden), "steps_per_second": {name: round(best[name]) for name in best},
        "fused_over_eager": round(best["fused"] / best["eager"], 2) if "fused" in best else None,
        "env_difference": agreement.env if agreement else None,
        "policy_difference": agreement.policy if agreement else None,
    }  # fmt: skip


def _rate(way: tuple[Any, Any, Any], seconds: float) -> float:
    import torch

    collector, policy, rollout = way
    steps, start = 0, time.perf_counter()
    while True:
        collector.collect(policy, rollout)
        steps += rollout.rows
        if rollout.obs.device.type == "cuda":
            torch.cuda.synchronize(rollout.obs.device)
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return steps / elapsed


def main(arguments: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.collectors", description=(__doc__ or "").splitlines()[0]
    )
    options.add_argument("envs", nargs="*", default=list(ENVS))
    options.add_argument("--device", default="cpu")
    options.add_argument("--num-envs", type=int, default=1024)
    options.add_argument("--num-steps", type=int, default=64)
    options.add_argument("--threads", type=int, default=allowed_cores())
    options.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    options.add_argument("--seconds", type=float, default=6.0, help="measured per way and environment")
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--json", action="store_true", help="one JSON line per environment")
    given = options.parse_args(arguments)
    sizes = (given.num_envs, given.num_steps, given.threads, tuple(given.hidden), given.seconds, given.turns)
    for env_id in given.envs:
        try:
            row = measure(env_id, given.device, *sizes)
        except GpurlError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        if given.json:
            print(json.dumps(row), flush=True)
            continue
        rates = ", ".join(f"{name} {rate / 1e6:.3g}M" for name, rate in row["steps_per_second"].items())
        print(f"{env_id}: {rates} steps/s; fused/eager {row['fused_over_eager']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
