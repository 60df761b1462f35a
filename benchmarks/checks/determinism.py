"""The same seed gives the same bits: environments twice, a part of a batch, and a training twice."""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuenvs
from benchmarks.checks import Report
from benchmarks.checks.common import actions, array_module, on_device, schedule, snapshot_differences


def run(request: dict[str, Any], report: Report) -> None:
    """Each of `env_ids`, then PPO on the first of them."""
    device, small = request["device"], request["small"]
    num_envs, steps = (259, 20) if small else (65_537, 200)
    for env_id in request["env_ids"]:
        rows = num_envs // 16 if gpuenvs.get(env_id).traced and not small else num_envs
        whole = play(env_id, device, rows, 0, steps)
        again = snapshot_differences(play(env_id, device, rows, 0, steps), whole)
        report.row(f"{env_id} twice", not again, rows=rows, steps=steps, differ=again)
        for count, offset in ((1, 0), (129, 101), (130, rows - 130)):
            part = play(env_id, device, count, offset, steps)
            wrong = snapshot_differences(part, whole, slice(offset, offset + count))
            report.row(f"{env_id} rows {offset}..{offset + count - 1} alone", not wrong, differ=wrong)
    env_id = request["env_ids"][0]
    settings = {"num_envs": 64 if small else 4096, "num_steps": 8 if small else 32}
    weights = [train(env_id, device, settings) for _ in range(2)]
    apart = float(np.abs(weights[0] - weights[1]).max())
    report.row(f"{env_id} PPO twice", apart == 0.0, largest_difference=apart)


def play(env_id: str, device: str, rows: int, offset: int, steps: int) -> dict[str, np.ndarray]:
    """Everything a batch holds after `steps` steps."""
    xp, numbers = array_module(device), np.arange(offset, offset + rows)
    with on_device(device), gpuenvs.make(env_id, rows, device=device, env_offset=offset) as env:
        env.reset(seed=3)
        rounds = [xp.asarray(actions(env.spec, numbers, t)) for t in range(16)]
        for t in range(steps):
            env.step(rounds[t % 16])
        return env.snapshot()


def train(env_id: str, device: str, settings: dict[str, Any]) -> np.ndarray:
    """All weights after three iterations."""
    loop = schedule(env_id, device, settings, seed=1)
    for _ in range(3):
        loop.iterate()
    weights = loop.algo.policy.flat.cpu().numpy().copy()
    loop.env.close()
    return weights
