"""Training throughput: PPO samples per second on CartPole with the same network, batch and epochs for everyone.

A sample is one env-step, collected and learned from. Every contender has a separate 64-64 tanh actor and critic, and its
compilation is outside of the timed window (reported apart). Where a library's speed depends on its thread count, the best
is used.

The floor is arithmetic: the multiply-adds of one forward pass of both networks to act, and of a forward and a backward
pass per epoch to learn, over the measured multiply-add rate of the cores. Everything else (activations, noise, the
environment, advantages, Adam) is left out, so nothing can be faster than this.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from benchmarks import machine
from benchmarks.cases import FLOOR, OWN_TRAIN, TRAIN_CASES, TRAIN_PEERS, Contender, TrainCase
from benchmarks.compare import side_by_side
from benchmarks.process import measure, peers_python
from benchmarks.report import Progress, quantity, ratio, silent, table


def run(
    *,
    peers: bool = False,
    peers_python_path: str | None = None,
    seconds: float = 5.0,
    repeats: int = 3,
    progress: Progress = silent,
    cases: Sequence[TrainCase] = TRAIN_CASES,
) -> list[dict[str, Any]]:
    """Measure; returns rows for `json_lines` and `tables`.

    Args:
        peers: also Stable-Baselines3 and rejax.
        peers_python_path: interpreter that has the peers; default GPURL_PEERS_PYTHON, else this one.
        seconds: length of one timed window.
        repeats: timed processes per contender, taking turns; the median counts.
        progress: called with a line about what is measured now.
        cases: shapes of data and updates.

    Returns:
        A `{"benchmark": "machine", ...}` row, then one row per case and contender: `benchmark` "train", `env`, `case`, the
        case's sizes, `contender`, and `samples_per_second` (median), `samples`, `config`, `compile_seconds` where there is
        any; for gpurl `floor`; for a peer `gpurl_ratio`; `missing` + `install`, or `error`.

    Raises:
        ConfigError: no interpreter at the given path.
    """
    python = peers_python(peers_python_path)
    cores = machine.allowed_cores()
    contenders = [OWN_TRAIN, *(TRAIN_PEERS if peers else ())]
    rows: list[dict[str, Any]] = [{"benchmark": "machine", **machine.describe()}]
    for case in cases:
        request = {**case.request(), "seconds": seconds, "threads": sorted({1, cores})}
        results = side_by_side(contenders, request, python, repeats, progress)
        own = results[OWN_TRAIN.name]
        if "rate" in own:
            progress("predicting the floor")
            own["floor"] = _floor(case, own["rate"], {"seconds": seconds, "threads": cores})
        rows += [_row(case, contender, results[contender.name], own) for contender in contenders]
    return rows


def _row(case: TrainCase, contender: Contender, result: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "benchmark": "train",
        "env": case.request()["env_id"],
        "case": case.name,
        "num_envs": case.num_envs,
        "num_steps": case.num_steps,
        "update_epochs": case.update_epochs,
        "num_minibatches": case.num_minibatches,
        "contender": contender.name,
    }
    if "rate" not in result:
        return {**row, **result, **({"install": contender.install} if "missing" in result else {})}
    row["samples_per_second"] = result["rate"]
    row |= {key: value for key, value in result.items() if key != "rate"}
    if contender is not OWN_TRAIN and "rate" in own:
        row["gpurl_ratio"] = own["rate"] / result["rate"]
    return row


def multiply_adds(case: TrainCase, obs_dim: int = 4, actions: int = 2, hidden: Sequence[int] = (64, 64)) -> int:
    """Fewest multiply-adds per sample: actor and critic forward once to act, forward and backward per epoch to learn."""
    forward = backward = 0
    for outputs in (actions, 1):
        sizes = [obs_dim, *hidden, outputs]
        layers = [a * b for a, b in pairwise(sizes)]
        forward += sum(layers)
        # Gradients of all weights, and of the inputs of all layers but the first.
        backward += 2 * sum(layers) - layers[0]
    return forward + case.update_epochs * (forward + backward)


def _floor(case: TrainCase, rate: float, request: dict[str, Any]) -> dict[str, Any]:
    """The bound on samples per second and how much of it was reached; `{"error": ...}` if it could not be measured."""
    rates = measure(FLOOR, "", {**request, "working_set": 2**20})
    if "fma_per_second" not in rates:
        return rates
    count = multiply_adds(case)
    bound = rates["fma_per_second"] / count
    return {
        "multiply_adds_per_sample": count,
        "fma_per_second": rates["fma_per_second"],
        "samples_per_second": bound,
        "fraction": rate / bound,
    }


def tables(rows: list[dict[str, Any]]) -> list[Any]:
    """A rich table of `run`'s rows."""
    head = rows[0]
    title = f"PPO samples per second, {head['cores']} cores of {head['cpu']}, load {head['load']}"
    header = (
        "environment",
        "envs x steps x epochs x minibatches",
        "contender",
        "samples/s",
        "gpurl is",
        "compile s",
        "best at",
    )
    measured = [row for row in rows if row["benchmark"] == "train"]
    return [table(title, header, [_cells(row) for row in measured], right=(3, 4, 5, 6))]


def _cells(row: dict[str, Any]) -> list[str]:
    shape = " x ".join(str(row[key]) for key in ("num_envs", "num_steps", "update_epochs", "num_minibatches"))
    start = [row["env"], shape, row["contender"]]
    if "samples_per_second" not in row:
        why = f"not installed: {row['install']}" if "missing" in row else row["error"]
        return [*start, "-", "-", "", "", why]
    floor = row.get("floor", {})
    reached = f"{floor['fraction']:.0%} of {quantity(floor['samples_per_second'])}" if "fraction" in floor else ""
    compiled = f"{row['compile_seconds']:.1f}" if "compile_seconds" in row else ""
    best = ", ".join(f"{key} {value}" for key, value in row["config"].items())
    return [*start, quantity(row["samples_per_second"]), ratio(row.get("gpurl_ratio")), reached, compiled, best]
