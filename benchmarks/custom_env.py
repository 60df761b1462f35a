"""`python -m benchmarks.custom_env`: what an environment of one's own costs beside a kernel written by hand for it alone.

The environment is examples/quadrotor.py, stepped by `BatchEnv.step` as a user does; the kernels are those of
`benchmarks.custom_env_kernel`, which compute the same numbers. All step on one thread of this process, from the same states
and with the same random actions, and take turns of a few hundredths of a second. The medians of the turns count, in CPU time
of the thread, so that other work on the machine disturbs little. Compared is each at its best batch size, as in the other
benchmarks. Where gpurl is slower it moves more bytes (states beside observations) and looks for NaN.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

import gpuenvs
from benchmarks import machine
from benchmarks.custom_env_kernel import FusedQuadrotor
from benchmarks.publish import where
from benchmarks.report import markdown, quantity
from gpuenvs.spec import EnvSpec

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
ENV = ROOT / "examples" / "quadrotor.py"
SIZES = (1024, 2048, 4096, 8192, 16384, 65536)
BATCHES = 8  # of random actions, used in turn
CONTENDERS = {"gpurl": "gpurl", "blocks": "by hand, in vectors", "rows": "by hand, row by row"}


def spec() -> EnvSpec:
    """The environment that is measured."""
    return gpuenvs.get(f"{ENV}:SPEC")


def measure(num_envs: int, turns: int, seconds: float) -> dict[str, float]:
    """Steps per second of each contender with `num_envs` environments: the median of `turns` turns of `seconds` each."""
    rng = np.random.default_rng(0)
    with gpuenvs.make(spec(), num_envs, device="cpu", seed=0, threads=1) as env:
        env.reset()
        rows = [np.ascontiguousarray(rng.uniform(-1, 1, (2, num_envs)).astype(np.float32)) for _ in range(BATCHES)]
        views = [array.T for array in rows]
        blocks, loop = FusedQuadrotor(env, blocks=True), FusedQuadrotor(env, blocks=False)
        steps: dict[str, Callable[[int], object]] = {
            "gpurl": lambda k: env.step(views[k % BATCHES]),
            "blocks": lambda k: blocks.step(rows[k % BATCHES]),
            "rows": lambda k: loop.step(rows[k % BATCHES]),
        }
        for step in steps.values():
            _turn(step, seconds)  # compiles, and spreads the ends of episodes
        found: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(turns):
            for name, step in steps.items():
                found[name].append(num_envs / _turn(step, seconds))
    return {name: statistics.median(rates) for name, rates in found.items()}


def _turn(step: Callable[[int], object], seconds: float) -> float:
    """CPU seconds per call."""
    calls, began = 0, time.thread_time()
    while True:
        for k in range(BATCHES):
            step(k)
        calls += BATCHES
        elapsed = time.thread_time() - began
        if elapsed >= seconds:
            return elapsed / calls


def share(rows: list[dict[str, Any]]) -> float:
    """gpurl's steps per second over those of the faster kernel by hand, each at its best batch size."""
    best = {name: max(row[name] for row in rows) for name in CONTENDERS}
    return best["gpurl"] / max(best["blocks"], best["rows"])


def table(document: dict[str, Any]) -> str:
    """The measurement as Markdown."""
    rows = document["rows"]
    lines = [
        [f"{row['num_envs']:,}", *(quantity(row[name]) for name in CONTENDERS), f"{row['gpurl'] / row['blocks']:.0%}"]
        for row in rows
    ]
    best = [quantity(max(row[name] for row in rows)) for name in CONTENDERS]
    lines.append(["best", *best, f"{document['share']:.0%}"])
    header = ("environments", *(f"{name}, steps/s" for name in CONTENDERS.values()), "gpurl of the faster")
    return where(document["machine"]) + markdown(header, lines, right=range(len(header)))


@click.command()
@click.option("--turns", default=20, show_default=True, help="Of each contender at each batch size.")
@click.option("--seconds", default=0.05, show_default=True, help="CPU time of a turn.")
@click.option(
    "--least", default=0.7, show_default=True, help="Fail if gpurl reaches less of the faster kernel by hand."
)
@click.option("--write", is_flag=True, help="Write the table to benchmarks/results.")
def main(turns: int, seconds: float, least: float, write: bool) -> None:
    """An environment of one's own beside a kernel written by hand for it alone."""
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        rows.append({"num_envs": size, **measure(size, turns, seconds)})
        click.echo("  ".join(f"{key} {quantity(value)}" for key, value in rows[-1].items()))
    document = {"machine": machine.describe(), "rows": rows, "share": share(rows)}
    if write:
        (RESULTS / "custom_env.json").write_text(json.dumps(document, indent=1) + "\n")
        (RESULTS / "custom_env.md").write_text(table(document))
    click.echo(table(document))
    if document["share"] < least:
        raise click.ClickException(f"{document['share']:.1%} of the kernel by hand; {least:.0%} are wanted")


if __name__ == "__main__":
    main()
