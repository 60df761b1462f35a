"""graph = eager = fused: three ways to fill a rollout give the same transitions from the same seed."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from benchmarks.checks import Report, one_line
from benchmarks.checks.common import make, make_policy, make_rollout, wait

TOLERANCE = 1e-5  # of the policy's numbers for equal observations
ALIKE = 0.9  # share of environments whose whole horizon must be that of the eager loop
ENDED_ONLY = ("final_obs", "episode_return", "episode_length")


def run(request: dict[str, Any], report: Report) -> None:
    """Every collector on each of `env_ids`."""
    device = request["device"]
    num_envs, num_steps = (64, 8) if request["small"] else (1024, 32)
    for env_id in request["env_ids"]:
        eager = None
        for name in ("eager", "graph", "fused"):
            label = f"{env_id} {name}"
            with report.attempt(label):
                found = collect(env_id, device, name, num_envs, num_steps)
                if name == "eager":
                    eager = found["rollout"]
                figures = {key: value for key, value in found.items() if key not in ("rollout", "ok")}
                if eager is not None:
                    figures["rows_as_eager"] = alike(found["rollout"], eager)
                report.row(label, found["ok"] and figures.get("rows_as_eager", 1.0) > ALIKE, **figures)


def collect(env_id: str, device: str, name: str, num_envs: int, num_steps: int) -> dict[str, Any]:
    """Two horizons by one collector, the first of them compared with the loop step by step."""
    from learners.collector import Collector

    with make(env_id, num_envs, device, seed=5) as env:
        policy, rollout = make_policy(env, device, seed=3), make_rollout(env, num_steps, device)
        collector = Collector(env, device, seed=7, collector=name, check=True)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            collector.collect(policy, rollout)
        first = {name: getattr(rollout, name).cpu().numpy().copy() for name in rollout.fields}
        collector.collect(policy, rollout)
        wait(device)
        agreement, choice = collector.agreement, collector.choice
        assert choice is not None
        found: dict[str, Any] = {"collector": choice.name, "why": choice.why, "rollout": first}
        found["ok"] = choice.name == name
        if agreement is not None:
            found |= {"env_difference": agreement.env, "policy_difference": agreement.policy}
            found["ok"] &= agreement.env <= TOLERANCE and agreement.policy <= TOLERANCE
        if said:
            found["warning"] = one_line(said[0].message)
    return found


def alike(rollout: dict[str, np.ndarray], eager: dict[str, np.ndarray]) -> float:
    """Share of the environments whose whole horizon agrees with the eager loop's.

    Less than all: where a policy's last bit decides between two actions, an environment goes another way from then on.
    """
    num_envs = rollout["reward"].shape[1]
    same = np.ones(num_envs, bool)
    done = eager["terminated"] | eager["truncated"]
    for name in ("obs", "action", "log_prob", "reward", "terminated", "truncated", *ENDED_ONLY):
        a, b = rollout[name], eager[name]
        close = np.isclose(a, b, rtol=1e-3, atol=1e-3) if a.dtype.kind == "f" else a == b
        if name in ENDED_ONLY:
            close |= ~(done if close.ndim == 2 else done[..., None])
        axes = (0, *range(2, close.ndim))
        same &= close.all(axis=axes)
    return float(same.mean())
