"""Environment throughput: env-steps per second under random actions, resets included.

Every contender is measured at its own best batch size on the same cores (see `compare.py`). Each returned row counts as
a step, also those that are a mere reset in the peers' next-step autoreset mode.

The floor is the least time an env-step can take here, predicted from two counts and three measured rates:

* bytes: what the buffer table says a step reads and writes (plus its action), over the copy bandwidth at that working set;
* arithmetic: additions and multiplications as two per fused multiply-add, over the multiply-add rate, plus the divisions
  over the division rate. Comparisons and choices are left out, so nothing can be faster than this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks import machine, mujoco_bench
from benchmarks.cases import ENV_IDS, ENV_PEERS, FLOOR, OWN_ENV, Contender
from benchmarks.compare import side_by_side
from benchmarks.process import measure, peers_python
from benchmarks.report import Progress, quantity, ratio, silent, table

_OPERATIONS = Contender("operations", "gpurl_operations", "gpuenvs", OWN_ENV.install, peer=False)


def run(
    env_ids: Sequence[str] = ENV_IDS,
    *,
    peers: bool = False,
    peers_python_path: str | None = None,
    seconds: float = 1.0,
    repeats: int = 3,
    progress: Progress = silent,
) -> list[dict[str, Any]]:
    """Measure; returns rows for `json_lines` and `tables`.

    Args:
        env_ids: environments to measure: ids, or references such as `path/to/my_env.py:SPEC`.
        peers: also EnvPool and Gymnasium's vector environments.
        peers_python_path: interpreter that has the peers; default GPURL_PEERS_PYTHON, else this one.
        seconds: length of one timed window.
        repeats: timed processes per contender; the median counts.
        progress: called with a line about what is measured now.

    Returns:
        A `{"benchmark": "machine", ...}` row, then one row per environment and contender:
        `benchmark` "env", `env`, `contender`, and `steps_per_second` (median), `samples`, `config`, `sweep`; for
        gpurl also `jit_seconds` and `floor`; for a peer `gpurl_ratio`; `missing` + `install`, or `error`.

    Raises:
        UnknownEnvError: an id that is not registered, or a file that is not there.
        ConfigError: no interpreter at the given path.
    """
    import gpuenvs
    from gpuenvs import loading

    specs = {loading.canonical(env_id): gpuenvs.get(env_id) for env_id in env_ids}
    python = peers_python(peers_python_path)
    cores = machine.allowed_cores()
    rows: list[dict[str, Any]] = [{"benchmark": "machine", **machine.describe()}]
    for env_id, spec in specs.items():
        own_kind = loading.is_reference(env_id)  # nobody else has it
        if spec.traced:
            rows += mujoco_bench.measure_task(
                spec,
                env_id,
                peers=peers and not own_kind,
                python=python,
                cores=cores,
                seconds=seconds,
                repeats=repeats,
                progress=progress,
            )
            continue
        request = {
            "env_id": env_id,
            "action": action_request(spec),
            "seconds": seconds,
            "threads": sorted({1, cores}),
        }
        known = () if own_kind or not peers else ENV_PEERS
        others = [peer for peer in known if peer.env_ids is None or spec.id in peer.env_ids]
        contenders = [OWN_ENV, *others]
        results = side_by_side(contenders, request, python, repeats, progress)
        own = results[OWN_ENV.name]
        if "rate" in own:
            progress(f"{spec.id}: predicting the floor")
            own["floor"] = _floor(spec, env_id, own, seconds)
        rows += [_row(spec.id, contender, results[contender.name], own) for contender in contenders]
    return rows


def _row(env_id: str, contender: Contender, result: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"benchmark": "env", "env": env_id, "contender": contender.name}
    if "rate" not in result:
        return {**row, **result, **({"install": contender.install} if "missing" in result else {})}
    row["steps_per_second"] = result["rate"]
    row |= {key: value for key, value in result.items() if key != "rate"}
    if contender is not OWN_ENV and "rate" in own:
        row["gpurl_ratio"] = own["rate"] / result["rate"]
    return row


def action_request(spec: Any) -> dict[str, Any]:
    """What `workers/actions.py` draws from."""
    if spec.discrete:
        return {"n": int(spec.action_space.n)}
    space = spec.action_space
    return {"k": spec.action_dim, "low": float(space.low.min()), "high": float(space.high.max())}


def _floor(spec: Any, env_id: str, own: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Predicted least seconds per env-step and the measured rate as a fraction of it; `{"error": ...}` if it failed."""
    import numpy as np

    from gpuenvs.runtime.buffers import SAME_STEP, bytes_per_step, make_layout

    moved = bytes_per_step(make_layout(spec, SAME_STEP), np.dtype(np.float32))
    # The thread count that the run was best with, not how many it was allowed.
    request = {
        "env_id": env_id,
        "action": action_request(spec),
        "seconds": seconds,
        "threads": own["config"]["threads"],
    }
    counted = measure(_OPERATIONS, "", request)
    rates = measure(FLOOR, "", {**request, "working_set": moved * own["config"]["num_envs"]})
    for answer in (counted, rates):
        if "error" in answer or "missing" in answer:
            return answer
    operations = counted["operations"]
    flops = operations.get("add", 0) + operations.get("multiply", 0)
    memory = moved / rates["copy_bytes_per_second"]
    arithmetic = flops / (2 * rates["fma_per_second"]) + operations.get("divide", 0) / rates["div_per_second"]
    return {
        "bytes_per_step": moved,
        "operations_per_step": operations,
        **rates,
        "memory_steps_per_second": 1 / memory,
        "arithmetic_steps_per_second": 1 / arithmetic,
        "bound": "memory" if memory >= arithmetic else "arithmetic",
        "fraction": own["rate"] * max(memory, arithmetic),
    }


def tables(rows: list[dict[str, Any]]) -> list[Any]:
    """rich tables of `run`'s rows: throughput, then gpurl against its floor."""
    drawn = []
    head = rows[0]
    title = f"Env-steps per second, {head['cores']} cores of {head['cpu']}, load {head['load']}"
    measured = [row for row in rows if row["benchmark"] == "env"]
    drawn += mujoco_bench.tables(rows, title)
    if not measured:
        return drawn
    drawn.append(
        table(
            title,
            ("environment", "contender", "steps/s", "gpurl is", "JIT s", "best at"),
            [_cells(row) for row in measured],
            right=(2, 3, 4),
        )
    )
    floors = [row for row in measured if "bound" in row.get("floor", {})]
    drawn.append(
        table(
            "gpurl against the predicted floor",
            (
                "environment",
                "bytes/step",
                "flops/step",
                "copy GB/s",
                "GFMA/s",
                "memory bound",
                "arithmetic bound",
                "reached",
            ),
            [_floor_cells(row) for row in floors],
            right=tuple(range(1, 8)),
        )
    )
    return drawn


def _cells(row: dict[str, Any]) -> list[str]:
    if "steps_per_second" not in row:
        why = f"not installed: {row['install']}" if "missing" in row else row["error"]
        return [row["env"], row["contender"], "-", "-", "-", why]
    jit = f"{row['jit_seconds']:.1f}" if "jit_seconds" in row else ""
    best = ", ".join(f"{key} {value}" for key, value in row["config"].items())
    return [row["env"], row["contender"], quantity(row["steps_per_second"]), ratio(row.get("gpurl_ratio")), jit, best]


def _floor_cells(row: dict[str, Any]) -> list[str]:
    floor = row["floor"]
    operations = floor["operations_per_step"]
    return [
        row["env"],
        str(floor["bytes_per_step"]),
        f"{operations.get('add', 0) + operations.get('multiply', 0):.0f}",
        f"{floor['copy_bytes_per_second'] / 1e9:.0f}",
        f"{floor['fma_per_second'] / 1e9:.0f}",
        quantity(floor["memory_steps_per_second"]),
        quantity(floor["arithmetic_steps_per_second"]),
        f"{floor['fraction']:.0%} ({floor['bound']})",
    ]
