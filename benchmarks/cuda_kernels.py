"""The CUDA kernels of the MuJoCo tasks, seen from a machine without a GPU: what compiling takes, what the kernels take, and
how fast an H200 can run them at the very most.

    python -m benchmarks.cuda_kernels                     # float32, all tasks
    python -m benchmarks.cuda_kernels Ant-v5 --dtype float64
    python -m benchmarks.cuda_kernels --write             # into docs/cuda-kernels.md

The ceiling is predicted, not measured. 32 environments, a warp, are stepped in states that random actions lead to, with the
kernel's program printed as Python. A region of the program counts as often as the row that goes through it most: the warp
goes there at least as often, since it waits for its slowest row. Three bounds follow, and the lowest is the ceiling:

- compute: an operation costs the issue slots of `SLOTS`, of which a multiprocessor has 128 per cycle (32 threads in each of
  its four parts);
- memory: what an env-step must read and write in the batch's arrays, at the card's bandwidth;
- local: what the program keeps in local memory arrays, and what did not fit into registers (its share of the executed
  operations is taken to be its share of the instructions), at the bandwidth of the cache that holds it for all threads
  that run at a time.

Rows that part ways and waiting for results cost extra on a real device.
"""

from __future__ import annotations

import resource
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

import gpuenvs
from benchmarks.report import markdown, quantity
from gpuenvs.checks.ptxas import Usage, assemble, toolchain
from gpuenvs.registry import BUILTIN
from gpuenvs.runtime import traced_python
from gpuenvs.runtime.buffers import SAME_STEP, bytes_per_step, make_layout
from gpuenvs.runtime.traced_cuda import kernel_text
from gpuenvs.trace.cuda import compile_ptx
from gpuenvs.trace.graph import COMPARISONS, Region, Value
from gpuenvs.trace.python import PythonPrinter, load

RESULT = Path(__file__).resolve().parent.parent / "docs" / "cuda-kernels.md"
WARP, WARM_STEPS, SAMPLES, APART = 32, 24, 4, 9

# NVIDIA H200 SXM: multiprocessors, boost clock (Hz), memory bandwidth (bytes/s), from its data sheet.
PROCESSORS, CLOCK, BANDWIDTH = 132, 1.98e9, 4.8e12
SLOTS_PER_CYCLE = 128
REGISTERS, MOST_THREADS = 65_536, 2048  # of a multiprocessor
# Bytes of local memory per multiprocessor that a cache holds, and the bandwidth of that cache on the whole card: first level
# (128 bytes per cycle and multiprocessor), second level (as benchmarks of the H100 report it), device memory.
CACHES = ((200e3, PROCESSORS * CLOCK * 128), (50e6 / PROCESSORS, 5.5e12), (np.inf, BANDWIDTH))
# Issue slots of one operation. float64 units are half as many as float32 ones (CUDA C++ Programming Guide, table of
# throughputs, compute capability 9.0); a division or square root that is rounded correctly is a sequence of about that
# length; memory instructions issue at a quarter of the rate.
SLOTS = {
    "float32": {
        "real": 1.0,
        "div": 10.0,
        "sqrt": 9.0,
        "choose": 1.0,
        "round": 2.0,
        "integer": 1.0,
        "memory": 4.0,
        "local": 4.0,
    },
    "float64": {
        "real": 2.0,
        "div": 30.0,
        "sqrt": 30.0,
        "choose": 2.0,
        "round": 4.0,
        "integer": 1.0,
        "memory": 8.0,
        "local": 8.0,
    },
}  # fmt: skip
_KINDS = {
    "add": "add", "sub": "add", "mul": "mul", "div": "div", "sqrt": "sqrt", "select": "choose", "finite": "choose",
    "floor": "round", "convert": "round", "get": "memory", "put": "memory", "load": "local", "store": "local",
    "table": "memory", "shared": "memory", **dict.fromkeys(COMPARISONS, "choose"),
}  # fmt: skip
_FREE = {"neg", "abs", "not", "any", "active", "env", "setting", "result", "loop", "do_while", "if", "const", "count"}


@dataclass(frozen=True)
class Work:
    """What a warp executes per control step at the least.

    Args:
        counts: operations by kind: fused (multiply-add), add, mul, div, sqrt, choose, round, integer, memory, local.
        slots: issue slots.
        bytes: that an env-step must move at the least.
    """

    counts: dict[str, float]
    slots: float
    bytes: int

    def ceilings(self, usage: Usage, itemsize: int) -> dict[str, float]:
        """Env-steps per second that each bound allows."""
        repeats = sum(self.counts.values()) / usage.instructions
        local = self.counts.get("local", 0.0) * itemsize + (usage.spill_stores + usage.spill_loads) * repeats
        threads = min(MOST_THREADS, REGISTERS // (-(-usage.registers // 8) * 8) // WARP * WARP)
        bandwidth = next(speed for size, speed in CACHES if usage.stack * threads <= size)
        return {
            "compute": PROCESSORS * CLOCK * SLOTS_PER_CYCLE / self.slots,
            "memory": BANDWIDTH / self.bytes,
            "local": bandwidth / local if local else np.inf,
        }


@dataclass(frozen=True)
class Compiled:
    """CPU seconds of the stages of compiling a step kernel, and what `ptxas` says of it."""

    trace: float
    nvvm: float
    ptxas: float
    usage: Usage

    @property
    def total(self) -> float:
        return self.trace + self.nvvm + self.ptxas


def region_counts(region: Region, printer: PythonPrinter) -> Counter[str]:
    """Operations of one turn of a region by kind, without the bodies inside it; a product used by one sum alone is fused."""
    items = [item for item in region.items if item in printer.live and item.op not in _FREE]
    users: dict[int, list[Value]] = {}
    for item in items:
        for argument in item.args:
            users.setdefault(argument.id, []).append(item)
    counts: Counter[str] = Counter()
    fused: set[int] = set()
    for item in items:
        kind = _KINDS.get(item.op, "integer")
        if item.kind not in ("real", "bool", "none") and kind not in ("memory", "local"):
            kind = "integer"
        sums = [user.id for user in users.get(item.id, ()) if user.op in ("add", "sub")]
        if kind == "mul" and len(users.get(item.id, ())) == len(sums) == 1 and sums[0] not in fused:
            fused.add(sums[0])
        else:
            counts[kind] += 1
    counts["fused"] += len(fused)
    counts["add"] -= len(fused)
    return counts


def count_work(env_id: str, real: str) -> Work:
    """Step a warp of environments and count."""
    layout = make_layout(gpuenvs.get(env_id), SAME_STEP)
    printer = traced_python.printer(layout, real, "step_kernel", visits=True)
    text = printer.text()
    visits, total = [0] * len(printer.regions), np.zeros(len(printer.regions), np.int64)
    step = load(text, "step_kernel", real, visits=visits)
    rng = np.random.default_rng(0)
    with gpuenvs.make(env_id, WARP, device="cpu", dtype=real) as env:
        env.reset(seed=1)
        space: Any = env.single_action_space
        for t in range(WARM_STEPS + SAMPLES * APART):
            action = rng.uniform(space.low, space.high, (WARP, *space.shape)).astype(real)
            if t >= WARM_STEPS and (t - WARM_STEPS) % APART == 0:
                arrays = {name: array.copy() for name, array in env.arrays.items()}
                arrays |= {
                    "action": action.T.copy(),
                    **{name: _params(env, name) for name in ("param_real", "param_int")},
                }
                settings = {"limit": 1000, "seed_lo": 1, "seed_hi": 0, "env_offset": 0}
                most = np.zeros_like(total)
                for i in range(WARP):
                    visits[:] = [0] * len(visits)
                    with np.errstate(all="ignore"):
                        step(i, arrays, settings, [0] * 8)
                    most = np.maximum(most, visits)
                total += most
            env.step(action)
    counts: dict[str, float] = {}
    for region, times in zip(printer.regions, total):
        for kind, count in region_counts(region, printer).items():
            counts[kind] = counts.get(kind, 0.0) + count * times / SAMPLES
    cost = SLOTS[real] | dict.fromkeys(("add", "mul", "fused"), SLOTS[real]["real"])
    return Work(
        counts, sum(cost[kind] * count for kind, count in counts.items()), bytes_per_step(layout, np.dtype(real))
    )


def _params(env: Any, buffer: str) -> np.ndarray:
    """The shared params of one buffer, in its order."""
    values = [getattr(env.params, field) for field, place, _, _ in env._layout.param_fields if place == buffer]
    return np.array(values or [0], env.dtype if buffer == "param_real" else np.int32)


def compile_step(env_id: str, real: str, arch: str) -> Compiled:
    """Trace and compile a step kernel."""
    layout = make_layout(gpuenvs.get(env_id), SAME_STEP)
    start = _seconds()
    text = kernel_text(layout, real, "step_kernel", real)
    traced = _seconds()
    ptx = compile_ptx(text, arch.replace("sm_", "compute_")).decode()
    compiled = _seconds()
    usage = assemble(ptx, arch)
    return Compiled(traced - start, compiled - traced, _seconds() - compiled, usage)


def _seconds() -> float:
    """CPU time of this process and of those it waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)


HEADER = (
    "task", "ops/step", "of which fused", "div, sqrt", "issue slots", "bytes/step", "predicted ceiling", "bound by",
    "compile CPU s", "registers", "stack B", "spilled B (st/ld)", "PTX", "machine code",
)  # fmt: skip


def row(env_id: str, real: str, arch: str) -> list[str]:
    """One line of the table."""
    work, made = count_work(env_id, real), compile_step(env_id, real, arch)
    usage = made.usage
    bound, ceiling = min(work.ceilings(usage, np.dtype(real).itemsize).items(), key=lambda pair: pair[1])
    return [
        env_id,
        quantity(sum(work.counts.values())),
        f"{work.counts['fused'] / sum(work.counts.values()):.0%}",
        quantity(work.counts.get("div", 0) + work.counts.get("sqrt", 0)),
        quantity(work.slots),
        str(work.bytes),
        f"{quantity(ceiling)} steps/s",
        bound,
        f"{made.total:.1f} ({made.trace:.1f} + {made.nvvm:.1f} + {made.ptxas:.1f})",
        str(usage.registers),
        str(usage.stack),
        f"{usage.spill_stores}/{usage.spill_loads}",
        str(usage.instructions),
        str(usage.machine_instructions),
    ]


def caption(real: str, arch: str) -> str:
    """What stands above the table."""
    tools = ", ".join(f"{name} {version}" for name, version in toolchain().items())
    return f"""# CUDA kernels of the MuJoCo tasks

A task's step, with physics, reward, time limit and autoreset, is one CUDA kernel; one thread steps one environment.
Compiled for {real} and {arch} with {tools}
on a machine without a GPU. `tests/ladder/budget.json` holds what the kernels take on other architectures, and the tests
compare with it.

The ceiling is **predicted, not measured**: no H200 has run these kernels yet. It is what the card's arithmetic, its memory
or the memory for what does not fit into registers (local) allows at the most; `benchmarks/cuda_kernels.py` says how it is
reckoned. Operations are those a thread executes per control step. Compile time is tracing + libNVVM + ptxas in seconds of
one core. PTX and machine code are static instructions. To make this page anew: `python -m benchmarks.cuda_kernels --write`

"""


@click.command()
@click.argument("env_ids", nargs=-1)
@click.option("--dtype", type=click.Choice(("float32", "float64")), default="float32", show_default=True)
@click.option("--arch", default="sm_90", show_default=True)
@click.option("--write", is_flag=True, help=f"write the table into {RESULT.name} instead of printing it")
def main(env_ids: tuple[str, ...], dtype: str, arch: str, write: bool) -> None:
    """Print what the CUDA kernels of traced environments take, and their predicted ceiling on an H200."""
    chosen = env_ids or tuple(e for e, entry in BUILTIN.items() if entry.module.startswith("gpuenvs.mjlite"))
    lines = []
    for env_id in chosen:
        click.echo(env_id, err=True)
        lines.append(row(env_id, dtype, arch))
    text = caption(dtype, arch) + markdown(HEADER, lines, right=tuple(range(1, len(HEADER))))
    if write:
        RESULT.write_text(text)
    else:
        click.echo(text)


if __name__ == "__main__":
    main()
