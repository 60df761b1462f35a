"""An environment on the device against the CPU backend: the same random bits and flags, floats within a tolerance.

Each step starts from the device's own state, so differences of a last bit do not grow from step to step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuenvs
from benchmarks.checks import Report
from benchmarks.checks.common import actions, array_module, on_device

OFFSET = 1000
SEED = 2**63 + 11  # both words of the key matter
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
# A contact or a limit that is met in a last bit's doubt moves a row further; that few rows may.
TRACED_TOLERANCE = {"float32": 1e-3, "float64": 1e-9}
TRACED_ROWS_ALLOWED = 0.005


def run(request: dict[str, Any], report: Report) -> None:
    """Both dtypes of one environment, `env_id`."""
    spec = gpuenvs.get(request["env_id"])
    rows, steps = (32, 4) if request["small"] else (256, 20) if spec.traced else (4096, 40)
    for dtype in request.get("dtypes", ("float32", "float64")):
        found = compare(spec, request["device"], dtype, rows, steps)
        report.row(f"{spec.id} {dtype}", found.pop("ok"), **found)


def compare(spec: Any, device: str, dtype: str, rows: int, steps: int) -> dict[str, Any]:
    """`ok`, the largest relative difference of a float (absolute below 1), values that must be equal and are not, and
    the share of (row, step) pairs beyond the tolerance."""
    options: dict[str, Any] = {"dtype": dtype, "env_offset": OFFSET, "seed": SEED, "max_episode_steps": 3 * steps // 4}
    tolerance = (TRACED_TOLERANCE if spec.traced else TOLERANCE)[dtype]
    xp, numbers = array_module(device), np.arange(OFFSET, OFFSET + rows)
    largest, beyond, unequal, ended = 0.0, 0, 0, 0
    with (
        on_device(device),
        gpuenvs.make(spec, rows, device=device, **options) as env,
        gpuenvs.make(spec, rows, device="cpu", **options) as host,
    ):
        env.reset(seed=SEED)
        host.reset(seed=SEED)
        for step in range(steps):
            difference, wrong = _apart(_record(env), _record(host))
            largest, unequal = max(largest, float(difference.max())), unequal + wrong
            beyond += int((difference > tolerance).sum())
            host.restore(env.snapshot())
            action = actions(spec, numbers, step, dtype)
            env.step(xp.asarray(action))
            host.step(action)
            ended += int((host.terminated | host.truncated).sum())
    share = beyond / (rows * steps)
    allowed = TRACED_ROWS_ALLOWED if spec.traced else 0.0
    return {
        "ok": unequal == 0 and share <= allowed and ended > 0,
        "largest_difference": largest,
        "tolerance": tolerance,
        "share_beyond": share,
        "unequal_values": unequal,
        "rows": rows,
        "steps": steps,
        "episodes_ended": ended,
    }


def _record(env: Any) -> dict[str, np.ndarray]:
    """Every array that matters, (k, n) on the host."""
    record = env.snapshot()
    del record["totals"]
    for name in env.spec.metrics:
        value = env.info[name]
        record[f"metric {name}"] = (value if isinstance(value, np.ndarray) else value.get())[None].copy()
    return record


def _apart(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> tuple[np.ndarray, int]:
    """(largest difference of a float in each row (n,), how many other values differ)."""
    rows = found["elapsed"].shape[1]
    largest, unequal = np.zeros(rows), 0
    for name, value in found.items():
        other = expected[name]
        if value.dtype.kind != "f":
            unequal += int((value != other).sum())
            continue
        if value.size:
            a, b = value.astype(np.float64), other.astype(np.float64)
            apart = np.abs(a - b) / np.maximum(1.0, np.abs(b))
            apart[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
            largest = np.maximum(largest, np.nan_to_num(apart, nan=np.inf).max(axis=0))
    return largest, unequal
