"""Env-steps per second: stepping alone, with inference, with training."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import gpuenvs
from benchmarks.checks import Report
from benchmarks.checks.common import actions, array_module, make_policy, make_rollout, on_device, schedule, wait


def run(request: dict[str, Any], report: Report) -> None:
    """`env_id` with `sizes` envs."""
    env_id, device, small = request["env_id"], request["device"], request["small"]
    seconds = 0.05 if small else 1.0
    for num_envs in [64] if small else request["sizes"]:
        with report.attempt(f"{env_id} step"):
            rate = stepping(env_id, device, num_envs, seconds)
            report.row(f"{env_id} step", True, num_envs=num_envs, steps_per_second=rate)
        for name in ("eager", "graph", "fused"):
            label, steps = f"{env_id} step + inference, {name}", 8 if small else 32
            with report.attempt(label):
                rate, found = inference(env_id, device, num_envs, name, steps, seconds)
                report.row(label, found == name, num_envs=num_envs, steps_per_second=rate, collector=found)
    num_envs = 64 if small else request["train_envs"]
    settings = {"num_envs": num_envs, "num_steps": 8 if small else 32, "epochs": 1 if small else 4, "minibatches": 4}
    loop = schedule(env_id, device, {**settings, "total_steps": 10**9}, seed=0)
    rate = per_second(lambda: loop.iterate().env_steps, device, seconds)
    figures = {**settings, "collector": loop.collector.choice.name}
    report.row(f"{env_id} step + inference + train", True, steps_per_second=rate, **figures)
    loop.env.close()


def per_second(work: Callable[[], int], device: str, seconds: float) -> float:
    """Units of `work`, which returns how many it did, per second; the first two calls do not count."""
    for _ in range(2):
        work()
    wait(device)
    began, done, burst = time.perf_counter(), 0, 1
    while True:
        done += sum(work() for _ in range(burst))
        wait(device)
        elapsed = time.perf_counter() - began
        if elapsed >= seconds:
            return done / elapsed
        burst = min(2 * burst, 256)


def stepping(env_id: str, device: str, num_envs: int, seconds: float) -> float:
    """`env.step` under random actions that lie on the device already."""
    xp = array_module(device)
    with on_device(device), gpuenvs.make(env_id, num_envs, device=device) as env:
        env.reset(seed=0)
        # Actions as rows of the action buffer, as policies hand them over: nothing is turned.
        rounds = [xp.asarray(np.asfortranarray(actions(env.spec, np.arange(num_envs), t)), order="F") for t in range(8)]
        turn = iter(range(10**12))

        def work() -> int:
            env.step(rounds[next(turn) % 8])
            return num_envs

        return per_second(work, device, seconds)


def inference(env_id: str, device: str, num_envs: int, name: str, steps: int, seconds: float) -> tuple[float, str]:
    """(env-steps per second of whole horizons under the default policy, the collector that did it)."""
    from learners.collector import Collector

    with gpuenvs.make(env_id, num_envs, device=device) as env:
        policy, rollout = make_policy(env, device), make_rollout(env, steps, device)
        collector = Collector(env, device, seed=0, collector=name)

        def work() -> int:
            collector.collect(policy, rollout)
            return rollout.rows

        rate = per_second(work, device, seconds)
        assert collector.choice is not None
        return rate, collector.choice.name
