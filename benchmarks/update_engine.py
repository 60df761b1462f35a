"""`python -m benchmarks.update_engine`: updates of SAC and TD3 by the native engine, against PyTorch operations and against
the machine's own matrix product.

The floor of an update is the time that torch.mm of two 1024 x 1024 float32 matrices, on as many threads, takes for as many
operations (`learners.native.offpolicy.flops`, matrix products alone). All parts are measured in turns, round by round, so
that what else the machine does meets them alike; a figure is the best call's: of processor time on one thread, of the clock
on several. The engine makes as many updates a call as schedules ask it for (`burst`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box

from benchmarks import machine
from learners import compat
from learners.config import make_config
from learners.native.offpolicy import flops
from learners.replay import Replay

RESULTS = Path(__file__).resolve().parent / "results" / "update_engine.json"
MM_SIZE = 1024
ENVS = 64


@dataclasses.dataclass(frozen=True)
class Case:
    """One measurement. Sizes of observations and actions are those of an environment it is named after."""

    algo: str
    like: str
    obs_dim: int
    actions: int
    hidden_sizes: tuple[int, int]
    batch_size: int


CASES = tuple(
    Case(algo, like, obs_dim, actions, (width, width), batch)
    for algo, like, obs_dim, actions, width, batch in (
        ("sac", "Pendulum-v1", 3, 1, 64, 256),
        ("sac", "Pendulum-v1", 3, 1, 64, 4096),
        ("sac", "HalfCheetah-v5", 17, 6, 256, 256),
        ("sac", "HalfCheetah-v5", 17, 6, 256, 4096),
        ("td3", "HalfCheetah-v5", 17, 6, 256, 256),
    )
)


def filled(case: Case) -> Replay:
    """A replay of random records."""
    observation, action = Box(-np.inf, np.inf, (case.obs_dim,)), Box(-1.0, 1.0, (case.actions,))
    replay = Replay(32_768, ENVS, observation, action, 32)
    generator = torch.Generator().manual_seed(0)
    while replay.size < 32_768:
        block = replay.begin()
        block.data.copy_(torch.randn(block.data.shape, generator=generator))
        block.action.tanh_()
        block.terminated.zero_()
        block.truncated.zero_()
        replay.commit(block)
    return replay


def algorithm(case: Case, engine: str) -> Any:
    """An algorithm of the case that learns natively ("fused") or by PyTorch operations ("torch")."""
    cls = compat.algorithm(case.algo)
    settings = {
        "num_envs": ENVS, "batch_size": case.batch_size, "hidden_sizes": case.hidden_sizes, "policy_delay": 1,
        "engine": engine,
    }  # fmt: skip
    observation, action = Box(-np.inf, np.inf, (case.obs_dim,)), Box(-1.0, 1.0, (case.actions,))
    return cls(make_config(cls.config_class, settings), observation, action, seed=0)


def measure(case: Case, threads: int, seconds: float, rounds: int = 8) -> dict[str, Any]:
    """Milliseconds of one update of critics and actor by either engine, and what the matrix product makes of its operations.

    Args:
        threads: of all three; the engine takes one (`engine_threads`) where an update is too short for more.
        seconds: about how long each of the three is run in all.
    """
    torch.set_num_threads(threads)
    replay = filled(case)
    start = time.perf_counter()
    algos = {engine: algorithm(case, engine) for engine in ("fused", "torch")}
    algos["fused"].set_threads(threads)
    algos["fused"].update(replay)
    first = time.perf_counter() - start
    a, b, c = (torch.randn(MM_SIZE, MM_SIZE) for _ in range(3))
    counts = {name: algo.burst for name, algo in algos.items()}
    work: dict[str, Callable[[], Any]] = {
        name: lambda algo=algo: algo.updates(replay, algo.burst) for name, algo in algos.items()
    }
    work["mm"] = lambda: torch.mm(a, b, out=c)
    best = {name: _best(run, seconds / rounds, threads) for name, run in work.items()}
    for _ in range(rounds - 1):
        for name, run in work.items():
            best[name] = min(best[name], _best(run, seconds / rounds, threads))
    best |= {name: best[name] / count for name, count in counts.items()}
    critic, actor = flops(case.algo == "sac", case.obs_dim, case.actions, case.hidden_sizes, case.batch_size)
    rate = 2 * MM_SIZE**3 / best["mm"]
    return {
        **dataclasses.asdict(case),
        "threads": threads,
        "engine_threads": algos["fused"]._native.threads,
        "mflop": round((critic + actor) / 1e6, 2),
        "sgemm_gflops": round(rate / 1e9, 1),
        "floor_ms": round((critic + actor) / rate * 1e3, 4),
        "fused_ms": round(best["fused"] * 1e3, 4),
        "torch_ms": round(best["torch"] * 1e3, 4),
        "frames_per_second": round(case.batch_size / best["fused"]),
        "of_floor": round((critic + actor) / rate / best["fused"], 3),
        "torch_over_fused": round(best["torch"] / best["fused"], 2),
        "first_seconds": round(first, 2),
    }


def _best(run: Callable[[], Any], seconds: float, threads: int) -> float:
    """The shortest of several calls, in seconds: of this thread's own time if there is one thread, else of the clock's."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    best, end = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < end:
        start = clock()
        run()
        best = min(best, clock() - start)
    return best


def main(arguments: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.update_engine")
    options.add_argument("--threads", type=int, nargs="+", default=[1], help="several: on an idle machine only")
    options.add_argument("--seconds", type=float, default=4.0, help="of each part of each case")
    options.add_argument("--only", default="", help="algorithm or environment")
    options.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    given = options.parse_args(arguments)
    rows = []
    print(
        "algo like            net      batch  thr   MFLOP  GF/s   floor   fused   torch   of floor  x torch  frames/s  first"
    )
    for case in CASES:
        if given.only not in f"{case.algo} {case.like}":
            continue
        for threads in given.threads:
            row = measure(case, threads, given.seconds)
            rows.append(row)
            net = "x".join(map(str, case.hidden_sizes))
            used = f"{row['engine_threads']}/{threads}"
            print(
                f"{case.algo:4} {case.like:15} {net:8} {case.batch_size:5} {used:4} {row['mflop']:7} "
                f"{row['sgemm_gflops']:5} {row['floor_ms']:7.3f} {row['fused_ms']:7.3f} {row['torch_ms']:7.3f} "
                f"{row['of_floor']:9.0%} {row['torch_over_fused']:8} {row['frames_per_second']:9,} {row['first_seconds']:8}",
                flush=True,
            )
    if given.save:
        RESULTS.write_text(json.dumps({"machine": machine.describe(), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
