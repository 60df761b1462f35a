"""Training throughput: PPO samples per second on CartPole with the same network, batch and epochs for everyone.

A sample is one env-step, collected and learned from. Every contender has a separate 64-64 tanh actor and critic, and its
compilation is outside of the timed window (reported apart). Where a library's speed depends on its thread count, the best
is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks import machine
from benchmarks.cases import OWN_TRAIN, TRAIN_CASES, TRAIN_PEERS, Contender, TrainCase
from benchmarks.compare import side_by_side
from benchmarks.process import peers_python
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
        any; for a peer `gpurl_ratio`; `missing` + `install`, or `error`.

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
    return [table(title, header, [_cells(row) for row in measured], right=(3, 4, 5))]


def _cells(row: dict[str, Any]) -> list[str]:
    shape = " x ".join(str(row[key]) for key in ("num_envs", "num_steps", "update_epochs", "num_minibatches"))
    start = [row["env"], shape, row["contender"]]
    if "samples_per_second" not in row:
        why = f"not installed: {row['install']}" if "missing" in row else row["error"]
        return [*start, "-", "-", "-", why]
    compiled = f"{row['compile_seconds']:.1f}" if "compile_seconds" in row else ""
    best = ", ".join(f"{key} {value}" for key, value in row["config"].items())
    return [*start, quantity(row["samples_per_second"]), ratio(row.get("gpurl_ratio")), compiled, best]
