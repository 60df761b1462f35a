"""What a kernel must do at the least, and what limits it: bytes, policy arithmetic, occupancy. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gpuenvs.runtime.buffers import Layout, bytes_per_step, numpy_dtype

WARP = 32
_REGISTERS_TOGETHER = 256  # a warp's registers are given out in blocks of this many
_WARP_GROUPS = 4  # each with a quarter of a multiprocessor's registers and warps of its own
_ROW_NUMBER = 8  # bytes of an element of the list that begin and observe go over
# Fields of a rollout that every step writes, by name; the others only where an episode ends.
_STORED = ("obs", "action", "log_prob", "reward", "terminated", "truncated")


def kernel_bytes(layout: Layout, real: np.dtype, kernel: str) -> int:
    """Bytes that one row of `step_kernel`, `begin_kernel` or `observe_kernel` must move; resets inside a step left out."""
    if kernel == "step_kernel":
        return bytes_per_step(layout, np.dtype(real))
    size = {b.name: b.rows * numpy_dtype(b, np.dtype(real)).itemsize for b in layout.buffers}
    state = size["state_real"] + size["state_int"]
    if kernel == "observe_kernel":
        return _ROW_NUMBER + state + size["obs"]
    return _ROW_NUMBER + state + size["obs"] + 2 * size["episode"] + size["elapsed"] + size["running_return"]


def steps_bytes(layout: Layout, real: np.dtype, steps: int) -> float:
    """Bytes per env-step of a kernel that keeps its row in registers for `steps` steps."""
    read_and_written = {"state_real", "state_int", "elapsed", "running_return"}
    written = {"obs", "reward", "terminated", "truncated", "nonfinite", "metrics"}
    total = 0
    for buffer in layout.buffers:
        size = buffer.rows * numpy_dtype(buffer, np.dtype(real)).itemsize
        total += size * (2 * (buffer.name in read_and_written) + (buffer.name in written))
    return total / steps


def rollout_bytes(fields: Mapping[str, Any], num_steps: int, num_envs: int, more: Sequence[str] = ()) -> float:
    """Bytes per env-step that filling a rollout must write; `fields` as `Rollout.fields`, `more` of them every step too."""
    return sum(fields[name].nbytes for name in (*_STORED, *more)) / (num_steps * num_envs)


def policy_flops(*layer_sizes: Sequence[int]) -> int:
    """Additions and multiplications of one row's way through networks of these layer sizes, activations left out."""
    return sum(2 * a * b for sizes in layer_sizes for a, b in pairwise(sizes))


def flops(operations: Mapping[str, float]) -> float:
    """Additions and multiplications among counted operations."""
    return operations.get("add", 0) + operations.get("multiply", 0)


def floor(
    moved: float, operations: Mapping[str, float] | None, policy: float, rates: Mapping[str, float]
) -> dict[str, Any]:
    """The least time of an env-step and what it comes from.

    Args:
        moved: bytes.
        operations: counted operations of the environment; None: not counted, taken as none.
        policy: flops of networks.
        rates: `copy_bytes_per_second`, `fma_per_second`, `div_per_second`; with a policy `sgemm_flops_per_second`.

    Returns:
        `memory_steps_per_second`, `arithmetic_steps_per_second` (None where no arithmetic is known), `bound`, `seconds`.
    """
    counted = operations or {}
    memory = moved / rates["copy_bytes_per_second"]
    arithmetic = flops(counted) / (2 * rates["fma_per_second"]) + counted.get("divide", 0) / rates["div_per_second"]
    if policy:
        arithmetic += policy / rates["sgemm_flops_per_second"]
    return {
        "memory_steps_per_second": 1 / memory,
        "arithmetic_steps_per_second": 1 / arithmetic if arithmetic else None,
        "bound": "memory" if memory >= arithmetic else "arithmetic",
        "seconds": max(memory, arithmetic),
    }


def occupancy(registers: int, threads: int, shared_bytes: int, limits: Mapping[str, int]) -> float:
    """Share of a multiprocessor's warps that blocks of one kernel can fill.

    Args:
        registers: per thread.
        threads: per block.
        shared_bytes: per block.
        limits: of a multiprocessor: `registers`, `threads`, `blocks`, `shared_bytes`.

    (CUDA C++ Programming Guide, "Multiprocessor Level"; the units in which registers are given out are those of every
    architecture since sm_70.)
    """
    warps = -(-threads // WARP)
    per_warp = -(-max(1, registers) * WARP // _REGISTERS_TOGETHER) * _REGISTERS_TOGETHER
    by_registers = limits["registers"] // _WARP_GROUPS // per_warp * _WARP_GROUPS // warps
    by_shared = limits["shared_bytes"] // shared_bytes if shared_bytes else limits["blocks"]
    blocks = min(by_registers, by_shared, limits["threads"] // (warps * WARP), limits["blocks"])
    return blocks * warps * WARP / limits["threads"]
