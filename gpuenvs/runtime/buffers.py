"""Every array of a batch environment in one table.

All arrays are (rows, num_envs), row-major: one field of all environments lies together, so that a vector load (CPU) or
a warp (CUDA) reads neighbours. They are allocated once and never move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuenvs.ranges import Range
from gpuenvs.spec import INT, EnvSpec, field_kinds

SAME_STEP, NEXT_STEP, DISABLED = "same_step", "next_step", "disabled"
AUTORESET_MODES = (SAME_STEP, NEXT_STEP, DISABLED)

_ENDS = ("low", "high")
REAL_DTYPE = "real"  # stands for the env's working dtype, float32 or float64


@dataclass(frozen=True)
class Buffer:
    """One array: its name, number of rows, dtype (`"real"` or a numpy dtype name) and whether a step may write it."""

    name: str
    rows: int
    dtype: str
    written: bool = True


@dataclass(frozen=True)
class Layout:
    """Which array holds what for one spec, autoreset mode and set of per-env params.

    Of `per_env_params` those in `drawn` are drawn anew where an episode begins, between two numbers among the shared ones.
    """

    spec: EnvSpec
    autoreset: str
    per_env_params: tuple[str, ...]
    drawn: tuple[tuple[str, str], ...]  # (field, "env" or "episode")
    totals: bool  # sums of the metrics?
    state_fields: tuple[tuple[str, str, int], ...]  # (field, buffer, row)
    param_fields: tuple[tuple[str, str, int, bool], ...]  # (field, buffer, row, one value per env?)
    shared_numbers: tuple[tuple[str, str, int], ...]  # (field, or field.low and field.high of a drawn one; buffer; row)
    buffers: tuple[Buffer, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells layouts of one spec apart."""
        return self.autoreset, self.per_env_params, self.drawn, self.totals

    def index(self, name: str) -> int:
        """Position of a buffer in the table: its slot in the address table and its alias scope."""
        return next(k for k, buffer in enumerate(self.buffers) if buffer.name == name)


def _place(cls: type, real: str, integer: str) -> tuple[tuple[str, str, int], ...]:
    """(field, buffer, row) of each field of a NamedTuple class: reals and ints are counted apart."""
    rows = {real: 0, integer: 0}
    placed = []
    for name, kind in field_kinds(cls).items():
        buffer = integer if kind == INT else real
        placed.append((name, buffer, rows[buffer]))
        rows[buffer] += 1
    return tuple(placed)


def make_layout(
    spec: EnvSpec,
    autoreset: str,
    per_env_params: tuple[str, ...] = (),
    drawn: tuple[tuple[str, str], ...] = (),
    totals: bool = False,
) -> Layout:
    """The buffer table of one environment; the fields of `Layout` say what the arguments are."""
    state = _place(spec.state, "state_real", "state_int")
    shared = _place(type(spec.params), "param_real", "param_int")

    def count(fields: tuple, buffer: str) -> int:
        return sum(1 for entry in fields if entry[1] == buffer)

    params, numbers = [], []
    rows = {name: count(shared, name) for name in ("param_real", "param_int")} | {
        "param_real_env": 0,
        "param_int_env": 0,
    }
    for name, buffer, row in shared:
        if name not in per_env_params:
            params.append((name, buffer, row, False))
            numbers.append((name, buffer, row))
            continue
        own = f"{buffer}_env"
        params.append((name, own, rows[own], True))
        rows[own] += 1
        if name in dict(drawn):
            numbers += [(f"{name}.low", buffer, row), (f"{name}.high", buffer, rows[buffer])]
            rows[buffer] += 1

    action_dtype = "action" if spec.discrete else REAL_DTYPE
    buffers = [
        Buffer("state_real", count(state, "state_real"), REAL_DTYPE),
        Buffer("state_int", count(state, "state_int"), "int32"),
        Buffer("elapsed", 1, "int32"),  # steps in this episode
        Buffer("episode", 1, "uint32"),  # episodes begun since reset(seed): the counter of the random generator
        Buffer("running_return", 1, REAL_DTYPE),
        Buffer("ended", 1, "bool"),  # ended in this step; under NEXT_STEP the row is reset by the next one
        Buffer("action", spec.action_dim, action_dtype, written=False),
        Buffer("obs", spec.obs_dim, REAL_DTYPE),
        Buffer("reward", 1, REAL_DTYPE),
        Buffer("terminated", 1, "bool"),
        Buffer("truncated", 1, "bool"),
        Buffer("nonfinite", 1, "bool"),
        Buffer("metrics", len(spec.metrics), REAL_DTYPE),
        Buffer("param_real_env", rows["param_real_env"], REAL_DTYPE, written=bool(drawn)),
        Buffer("param_int_env", rows["param_int_env"], "int32", written=bool(drawn)),
    ]
    if totals and spec.metrics:
        buffers.append(Buffer("metric_totals", len(spec.metrics) + 1, REAL_DTYPE))  # the last row counts the steps
    if autoreset == SAME_STEP:
        buffers += [
            Buffer("final_obs", spec.obs_dim, REAL_DTYPE),
            Buffer("episode_return", 1, REAL_DTYPE),
            Buffer("episode_length", 1, "int32"),
        ]
    return Layout(
        spec,
        autoreset,
        tuple(per_env_params),
        tuple(drawn),
        totals and bool(spec.metrics),
        state,
        tuple(params),
        tuple(numbers),
        tuple(buffers),
    )


def shared_values(layout: Layout, params: Any, ranges: Mapping[str, Range]) -> list[tuple[str, int, float]]:
    """(buffer, row, number) of what all environments share: params, and the bounds of those that are drawn."""
    values = {**params._asdict(), **{f"{name}.{end}": getattr(r, end) for name, r in ranges.items() for end in _ENDS}}
    return [(buffer, row, values[name]) for name, buffer, row in layout.shared_numbers]


def shared_size(layout: Layout) -> int:
    """Length of the arrays that hold those numbers."""
    return max(1, len(layout.param_fields) + len(layout.drawn))


def numpy_dtype(buffer: Buffer, real: np.dtype) -> np.dtype:
    """The numpy dtype of a buffer's values, given the working dtype; integer actions are int32."""
    return np.dtype(real if buffer.dtype == REAL_DTYPE else "int32" if buffer.dtype == "action" else buffer.dtype)


def bytes_per_step(layout: Layout, real: np.dtype) -> int:
    """Bytes that one env-step must move at the least: what `advance` reads and what it writes, resets left out.

    The floor that the benchmarks divide by.
    """
    both = {"state_real", "state_int", "elapsed", "running_return", "metric_totals"}
    skipped = {"episode", "final_obs", "episode_return", "episode_length"}
    if layout.autoreset != NEXT_STEP:
        skipped.add("ended")
    total = 0
    for buffer in layout.buffers:
        if buffer.name not in skipped:
            total += buffer.rows * numpy_dtype(buffer, real).itemsize * (2 if buffer.name in both else 1)
    return total
