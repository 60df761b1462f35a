"""Environments and learner apart: on two GPUs where there are two, else both roles on one card with streams of their own.

The synchronous schedule learns the same, bit for bit, wherever the horizon was copied through.
"""

from __future__ import annotations

import inspect
import time
from typing import Any

import numpy as np

from benchmarks.checks import Report, Skip
from benchmarks.checks.common import schedule, wait

KINDS = ("peer", "staged", "remote")


def run(request: dict[str, Any], report: Report) -> None:
    """PPO on `env_id`, colocated against split by each kind of transfer, and from CPU environments."""
    from learners.build import resolve

    if "placement" not in inspect.signature(resolve).parameters:
        raise Skip("this version of gpurl knows no placements")
    env_id, device, small = request["env_id"], request["device"], request["small"]
    settings = {"num_envs": 64 if small else 4096, "num_steps": 8 if small else 32, "total_steps": 10**9}
    base = train(env_id, device, settings, {"device": device})
    report.row("colocated", np.isfinite(base["weights"]).all(), **figures(base))
    if device == "cpu":
        again = train(env_id, device, settings, {"device": device, "placement": "cpu"})
        report.row("cpu", np.array_equal(base["weights"], again["weights"]), **figures(again))
        report.skip("split", "transfers need a CUDA device")
        return
    import torch

    others = [f"cuda:{k}" for k in range(torch.cuda.device_count()) if f"cuda:{k}" != device][:1]
    plans = [
        (
            f"split {kind} {device} -> {there}",
            {"device": device, "learner_device": there, "placement": "split", "transfer": kind},
        )
        for there in [device, *others]
        for kind in KINDS
    ]
    plans.append((f"host pinned cpu -> {device}", {"device": "cpu", "learner_device": device, "placement": "host"}))
    for label, options in plans:
        with report.attempt(label):
            found = train(env_id, options["learner_device"], settings, options)
            apart = float(np.abs(found["weights"] - base["weights"]).max())
            # The CPU's environments differ in a last bit, and another card may compute in another order.
            same = options["placement"] == "host" or options["learner_device"] != device or apart == 0.0
            report.row(label, same and apart < 0.1, largest_difference=apart, **figures(found))


def figures(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "weights"}


def train(env_id: str, device: str, settings: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Weights after three iterations, then the speed of some more, and what the transfer says of itself."""
    options = dict(options)
    loop = schedule(env_id, options.pop("device"), settings, seed=1, **options)
    for _ in range(3):
        loop.iterate()
    weights = loop.algo.policy.flat.cpu().numpy().copy()
    began, steps, metrics = time.perf_counter(), 0, {}
    while time.perf_counter() - began < 0.5:
        result = loop.iterate()
        steps, metrics = steps + result.env_steps, result.metrics
    wait(device)
    seconds = time.perf_counter() - began
    loop.env.close()
    transfer = {name: float(value) for name, value in metrics.items() if name.startswith("transfer_")}
    return {"weights": weights, "steps_per_second": steps / seconds, **transfer}
