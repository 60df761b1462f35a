"""Kernel by kernel: bytes and operations per env-step, the floor they imply on this device, and what was reached.

| kernel | one row of it is | bytes | operations |
|---|---|---|---|
| `step_kernel` | a step with time limit and autoreset | buffer table, resets left out | counted |
| `begin_kernel` | a reset | what it reads and writes | counted |
| `observe_kernel` | an observation | what it reads and writes | counted |
| `rollout` | a step of a horizon in one call: policy, sampling, step, storage | what is stored | networks, and the step's |
| `32 steps, random actions` (CUDA) | a step of many in one launch, state in registers | loads and stores / 32 | the step's |

GB/s are those bytes over the time. They are compared with a copy measured in the same process: at the kernel's own working
set, and on CUDA also of memory that no cache holds. Flops of networks are compared with a sgemm, the environment's
arithmetic with multiply-adds and divisions. Integer work (random numbers), comparisons, and sines and exponentials of
networks are left out, so nothing can be faster than the floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks import machine
from benchmarks.cases import ENV_IDS, OWN_ENV, Contender
from benchmarks.env_bench import action_request
from benchmarks.kernel_costs import floor, flops
from benchmarks.process import measure
from benchmarks.report import Progress, quantity, silent, table

_KERNELS = Contender("kernels", "gpurl_kernels", "gpuenvs", OWN_ENV.install, peer=False)
_CLASSIC = Contender("operations", "gpurl_operations", "gpuenvs", OWN_ENV.install, peer=False)
_TRACED = Contender("operations", "gpurl_traced_operations", "gpuenvs", OWN_ENV.install, peer=False)
# Rows of a batch: on a CPU within the second-level cache, on a GPU more than fit into any.
_ROWS = {"cpu": (16_384, 4096), "cuda": (2**20, 2**16)}  # classic control, traced
_STEPPING = ("step_kernel", "rollout")  # kernels that do the operations of a step, as do those of many steps


def run(
    env_ids: Sequence[str] = ENV_IDS,
    *,
    device: str = "cpu",
    num_envs: int | None = None,
    seconds: float = 0.5,
    repeats: int = 3,
    progress: Progress = silent,
) -> list[dict[str, Any]]:
    """Measure; returns rows for `json_lines` and `tables`.

    Args:
        env_ids: environments to measure.
        device: `cpu`, `cuda` or `cuda:N`.
        num_envs: rows of a batch; default by device and kind of environment.
        seconds: length of one timed window.
        repeats: processes per environment; the median of each figure counts.
        progress: called with a line about what is measured now.

    Returns:
        A `{"benchmark": "machine", ...}` row, then one row per environment and kernel: `benchmark` "kernels", `env`,
        `kernel`, `device`, `num_envs`, `steps_per_second`, `bytes_per_step`, `operations_per_step`, `policy_flops_per_step`,
        `gigabytes_per_second`, `copy_share` (of the copy at the same working set), `card_copy_share` (CUDA),
        `sgemm_share`, `floor` and `fraction` of it; on CUDA `registers`, `local_bytes`, `occupancy`. Or `skipped`, `error`.

    Raises:
        UnknownEnvError: an id that is not registered.
        DeviceError: the device cannot be used.
    """
    import gpuenvs
    from gpuenvs import loading
    from gpuenvs.runtime.options import resolve_device

    specs = {loading.canonical(env_id): gpuenvs.get(env_id) for env_id in env_ids}
    device = resolve_device(device)
    rows: list[dict[str, Any]] = [{"benchmark": "machine", "device": device, **machine.describe()}]
    for env_id, spec in specs.items():
        size = num_envs or _ROWS[device.partition(":")[0]][int(spec.traced)]
        request = {
            "env_id": env_id,
            "action": action_request(spec),
            "device": device,
            "num_envs": size,
            "threads": machine.allowed_cores(),
            "seconds": seconds,
        }
        progress(f"{spec.id}: counting operations")
        counted = measure(_TRACED if spec.traced else _CLASSIC, "", request)
        answers = []
        for turn in range(repeats):
            progress(f"{spec.id}: kernels on {device}, {size} envs, repeat {turn + 1} of {repeats}")
            answers.append(measure(_KERNELS, "", request))
        rows += _rows(spec.id, request, counted, answers)
    return rows


def _rows(
    env_id: str, request: dict[str, Any], counted: dict[str, Any], answers: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    head = {"benchmark": "kernels", "env": env_id, "device": request["device"], "num_envs": request["num_envs"]}
    failed = next((answer for answer in answers if "kernels" not in answer), None)
    if failed is not None:
        return [{**head, "kernel": "all", **failed}]
    rates = _median([answer["rates"] for answer in answers])
    rows = []
    for number, kernel in enumerate(answers[0]["kernels"]):
        found = _median([answer["kernels"][number] for answer in answers])
        row = {**head, **found}
        if "steps_per_second" in found:
            operations = counted.get("kernels", {}).get(_work_of(kernel["kernel"]))
            row |= _judge(found, operations, rates)
            if "error" in counted:
                row["operations_error"] = counted["error"]
        rows.append(row)
    return rows


def _work_of(kernel: str) -> str:
    """The kernel whose operations a row of `kernel` does."""
    return "step_kernel" if kernel in _STEPPING or " steps" in kernel else kernel


def _median(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The first entry that is no measurement as it is; else every number's median (of an even count the lower)."""
    failed = next((entry for entry in entries if "error" in entry or "skipped" in entry), None)
    if failed is not None:
        return failed
    middle = (len(entries) - 1) // 2
    return {
        key: sorted(entry[key] for entry in entries)[middle] if isinstance(value, float) else value
        for key, value in entries[0].items()
    }


def _judge(found: dict[str, Any], operations: dict[str, float] | None, rates: dict[str, float]) -> dict[str, Any]:
    """What a measured kernel reached of what the device can do."""
    moved, policy, rate = found["bytes_per_step"], found.get("policy_flops_per_step", 0), found["steps_per_second"]
    own_copy = found.get("copy_bytes_per_second", rates.get("copy_bytes_per_second"))
    bound = floor(moved, operations, policy, {**rates, "copy_bytes_per_second": own_copy})
    judged: dict[str, Any] = {
        "operations_per_step": operations,
        "gigabytes_per_second": moved * rate / 1e9,
        "copy_bytes_per_second": own_copy,
        "copy_share": moved * rate / own_copy,
        "floor": bound,
        "fraction": rate * bound["seconds"],
        "rates": rates,
    }
    if "registers" in found:
        judged["card_copy_share"] = moved * rate / rates["copy_bytes_per_second"]
    if policy:
        judged["sgemm_share"] = policy * rate / rates["sgemm_flops_per_second"]
    return judged


# --- tables ----------------------------------------------------------------------------------------------------------

_COMMON = (
    "environment",
    "kernel",
    "envs",
    "bytes",
    "flops",
    "steps/s",
    "GB/s",
    "of a copy",
    "of a sgemm",
    "bound",
    "reached",
)
_CUDA = ("of the card's copy", "registers", "local bytes", "occupancy")


def tables(rows: list[dict[str, Any]]) -> list[Any]:
    """A rich table of `run`'s rows."""
    head = rows[0]
    on_cuda = head["device"] != "cpu"
    where = head["device"] if on_cuda else f"{head['cores']} cores of {head['cpu']}, load {head['load']}"
    header = (*_COMMON, *_CUDA) if on_cuda else _COMMON
    lines = [cells(row, on_cuda) for row in rows if row["benchmark"] == "kernels"]
    drawn = [table(f"Kernels on {where}; bytes and flops per env-step", header, lines, right=(2, 3, 4, 5, 6, 7, 8, 10))]
    measured = [row for row in rows if "rates" in row]
    if measured:
        drawn.append(table("The device at its best, in the same processes", _BEST, _best(measured), right=(1, 2, 3, 4)))
    return drawn


_BEST = ("environment", "copy GB/s", "GFMA/s", "G divisions/s", "sgemm GF/s")


def _best(rows: list[dict[str, Any]]) -> list[list[str]]:
    """One line per environment."""
    lines = {}
    for row in rows:
        names = ("copy_bytes_per_second", "fma_per_second", "div_per_second", "sgemm_flops_per_second")
        lines.setdefault(row["env"], [row["env"], *(f"{row['rates'][name] / 1e9:.0f}" for name in names)])
    return list(lines.values())


def cells(row: dict[str, Any], on_cuda: bool) -> list[str]:
    """A row as it is printed."""
    start = [row["env"], row["kernel"], str(row["num_envs"])]
    if "steps_per_second" not in row:
        why = f"skipped: {row['skipped']}" if "skipped" in row else row.get("error", "not measured")
        return [*start, *["-"] * 6, why, "-", *(["-"] * len(_CUDA) if on_cuda else [])]
    operations = row["operations_per_step"]
    policy = row.get("policy_flops_per_step", 0)
    count = f"{flops(operations or {}) + policy:.0f}" if operations is not None or policy else "?"
    shown = [
        *start,
        f"{row['bytes_per_step']:.0f}",
        count,
        quantity(row["steps_per_second"]),
        f"{row['gigabytes_per_second']:.3g}",
        f"{row['copy_share']:.0%}",
        f"{row['sgemm_share']:.0%}" if "sgemm_share" in row else "",
        row["floor"]["bound"],
        f"{row['fraction']:.0%}",
    ]
    if on_cuda:
        shown += [
            f"{row['card_copy_share']:.0%}",
            str(row["registers"]),
            str(row["local_bytes"]),
            f"{row['occupancy']:.0%}",
        ]
    return shown
