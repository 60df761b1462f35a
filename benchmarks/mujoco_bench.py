"""MuJoCo tasks: env-steps per second of gpurl against the C engine (`mujoco.rollout`) and EnvPool, in one run.

gpurl's figure includes resets, observations and rewards; the C engine's does not. A ratio compares equal thread counts:
gpurl's float64 with the C engine's float64 on as many threads.
"""

from __future__ import annotations

from typing import Any

from benchmarks.cases import Contender
from benchmarks.compare import side_by_side
from benchmarks.report import Progress, quantity, ratio, table

_SIZES, _LARGE_SIZES = [256, 1024, 4096], [1024, 4096, 16384, 65536]
_WIDE = 100  # numbers in an observation from which a task is so slow that larger batches gain nothing


def contenders(cores: int, peers: bool, obs_dim: int) -> list[Contender]:
    """Whom to measure on a machine with that many cores; a second thread pays where a step of the batch takes long enough."""
    sizes = _SIZES if obs_dim >= _WIDE else _LARGE_SIZES
    found = []
    for dtype in ("float64", "float32"):
        for threads in sorted({1, cores}):
            options = {"batch_sizes": sizes, "dtype": dtype, "threads": [threads]}
            name = f"gpurl {dtype}, {_threads(threads)}"
            found.append(Contender(name, "gpurl_env", "gpuenvs", "pip install gpurl", peer=False, options=options))
    if not peers:
        return found
    for threads in sorted({1, cores}):
        name, options = f"mujoco.rollout, {_threads(threads)}", {"threads": threads}
        found.append(Contender(name, "mujoco_rollout", "mujoco", "pip install mujoco", peer=False, options=options))
    options = {"batch_sizes": [cores, 16, 64, 256], "threads": [cores]}
    found.append(
        Contender(f"EnvPool, {_threads(cores)}", "envpool_env", "envpool", "pip install envpool", True, options)
    )
    return found


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def measure_task(
    spec: Any, env_id: str, *, peers: bool, python: str, cores: int, seconds: float, repeats: int, progress: Progress
) -> list[dict[str, Any]]:
    """Rows of one task, which `gpuenvs.get(env_id)` finds.

    `benchmark` "mujoco", `env`, `contender`, `steps_per_second`, and for gpurl `jit_seconds` and `warm_seconds` (from
    `make` to the end of the first step, without and with the kernels on disk), `ratio` to the C engine.
    """
    space = spec.action_space
    action = {"k": spec.action_dim, "low": float(space.low.min()), "high": float(space.high.max())}
    request = {"env_id": env_id, "action": action, "seconds": seconds}
    chosen = contenders(cores, peers, spec.obs_dim)
    results = side_by_side(chosen, request, python, repeats, progress)
    rows = []
    for contender in chosen:
        result = results[contender.name]
        row: dict[str, Any] = {"benchmark": "mujoco", "env": spec.id, "contender": contender.name}
        if "rate" not in result:
            rows.append({**row, **result, **({"install": contender.install} if "missing" in result else {})})
            continue
        row["steps_per_second"] = result["rate"]
        row |= {key: value for key, value in result.items() if key not in ("rate", "sweep")}
        rows.append(row)
    _compare(rows)
    return rows


def _compare(rows: list[dict[str, Any]]) -> None:
    """Add what is judged: float64 to the C engine on as many threads, float32 to float64, many threads to one."""
    rates = {row["contender"]: row.get("steps_per_second") for row in rows}
    for row in rows:
        name, rate = row["contender"], row.get("steps_per_second")
        if rate is None or not name.startswith("gpurl"):
            continue
        threads = name.split(", ")[1]
        pairs = {
            "c_engine_ratio": f"mujoco.rollout, {threads}",
            "float64_ratio": f"gpurl float64, {threads}" if "float32" in name else None,
            "one_thread_ratio": name.replace(threads, "1 thread") if threads != "1 thread" else None,
            "envpool_ratio": f"EnvPool, {threads}",
        }
        for key, other in pairs.items():
            if other is not None and rates.get(other):
                row[key] = rate / rates[other]


def tables(rows: list[dict[str, Any]], title: str) -> list[Any]:
    """rich tables of the rows of `measure_task`."""
    lines = [cells(row) for row in rows if row["benchmark"] == "mujoco"]
    return [table(title, HEADER, lines, right=tuple(range(2, 8)))] if lines else []


HEADER = (
    "task",
    "contender",
    "steps/s",
    "x C engine",
    "x EnvPool",
    "x float64",
    "x 1 thread",
    "compile s, cold / warm",
)


def cells(row: dict[str, Any]) -> list[str]:
    """A row as it is printed under `HEADER`."""
    if "steps_per_second" not in row:
        why = f"not installed: {row['install']}" if "missing" in row else row["error"]
        return [row["env"], row["contender"], "-", "-", "-", "-", "-", why]
    numbers = [row.get(key) for key in ("c_engine_ratio", "envpool_ratio", "float64_ratio", "one_thread_ratio")]
    shown = [ratio(value) if value is not None else "" for value in numbers]
    jit = f"{row['jit_seconds']:.1f} / {row['warm_seconds']:.2f}" if "warm_seconds" in row else ""
    return [row["env"], row["contender"], quantity(row["steps_per_second"]), *shown, jit]
