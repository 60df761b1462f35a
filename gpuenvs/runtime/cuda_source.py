"""Source text of the CUDA kernels of one layout: one environment per thread, everything in one launch.

The lines of one row come from `transition`. A thread keeps what it has read or written in local variables:
each buffer element is read at most once, before the first write (so that the reads overlap), and a later
read of an element that was written costs nothing.

Arrays are grouped by dtype (`GROUPS`), so a launch passes nine arguments however many buffers an environment
has. Whatever may change between launches (seed, time limit, params) lives in device arrays too: a launch
recorded in a CUDA graph stays valid after `reset(seed=...)`.

This module needs neither CUDA nor numba-cuda; the tests compile what it returns without a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuenvs.runtime import transition
from gpuenvs.runtime.buffers import Buffer, Layout, numpy_dtype
from gpuenvs.runtime.generated import define
from gpuenvs.runtime.transition import Target

KERNELS = ("step_kernel", "begin_kernel", "observe_kernel")

# Kernel argument -> dtype of the buffers it holds. `reals` has the working dtype.
GROUPS = {"reals": None, "ints": np.int32, "words": np.uint32, "flags": np.bool_}
ARGUMENTS = (*GROUPS, "param_real", "param_int", "settings", "totals")
# Elements of `settings` (uint32) and of `totals` (int32, added to by kernels, drained by the host).
SETTINGS = ("seed_lo", "seed_hi", "env_offset", "limit")
TOTALS = ("bad_states", "bad_rewards", "wrong_actions")


def group_rows(layout: Layout, real: np.dtype) -> dict[str, tuple[str, int]]:
    """Buffer name -> (group, its first row there). The action buffer is an argument of its own."""
    used = dict.fromkeys(GROUPS, 0)
    placed = {}
    for buffer in layout.buffers:
        if buffer.name != "action":
            group = _group(buffer, real)
            placed[buffer.name] = (group, used[group])
            used[group] += buffer.rows
    return placed


def _group(buffer: Buffer, real: np.dtype) -> str:
    dtype = numpy_dtype(buffer, real)
    return next((g for g, kind in GROUPS.items() if kind is not None and dtype == kind), "reals")


class _Row:
    """The buffers as one thread sees them: local variables, plus the loads that fill them first."""

    def __init__(self, layout: Layout, real: np.dtype) -> None:
        self._places = group_rows(layout, real)
        self._known: set[str] = set()
        self.loads: list[str] = []
        self.target = Target(self._load, self._store)

    def element(self, name: str, row: int) -> str:
        if name == "action":
            return f"actions[{row}, i]"
        group, first = self._places[name]
        return f"{group}[{first + row}, i]"

    def _load(self, name: str, row: int, column: str) -> str:
        variable = f"_{name}_{row}"
        if variable not in self._known:
            self._known.add(variable)
            self.loads.append(f"{variable} = {self.element(name, row)}")
        return variable

    def _store(self, name: str, row: int, column: str, value: str) -> str:
        variable = f"_{name}_{row}"
        self._known.add(variable)
        return f"{variable} = {self.element(name, row)} = {value}"


def _shared_param(buffer: str, row: int) -> str:
    return f"{buffer}[{row}]"


def _indent(lines: list[str], depth: int) -> list[str]:
    return ["    " * depth + line for line in lines]


def _kernel(name: str, first: list[str], guard: str, body: list[str]) -> str:
    arguments = {"step_kernel": "actions"}.get(name, "rows")
    lines = [f"def {name}({arguments}, {', '.join(ARGUMENTS)}):", *_indent(first, 1), f"    if {guard}:"]
    return "\n".join([*lines, *_indent(body, 2)]) + "\n"


_SEED = [
    "_seed_lo = settings[0]",
    "_seed_hi = settings[1]",
    "_env_offset = settings[2]",
]


def _begin(layout: Layout, row: _Row) -> tuple[list[str], list[str]]:
    """(compute the first state of `episode`, store it)."""
    reals, integers = transition.fresh_values(layout)
    compute = _SEED + transition.restart_lines(layout, row.target, _shared_param)
    return compute, transition.place_lines(layout, row.target, reals + integers)


def step_source(layout: Layout, real: np.dtype) -> str:
    """`step_kernel(actions, ...)`: step row i, count what went wrong, begin its next episode if it is due."""
    row = _Row(layout, real)
    advance = transition.advance_lines(layout, row.target, _shared_param)
    counted = {"bad_states": "bad_state", "bad_rewards": "bad_reward"}
    if layout.spec.discrete:
        action = row.target.load("action", 0, "i")
        advance.append(f"wrong = ({action} < 0) | ({action} >= _choices)")
        counted["wrong_actions"] = "wrong"
    for total, flag in counted.items():
        advance += [f"if {flag}:", f"    cuda.atomic.add(totals, {TOTALS.index(total)}, _ONE)"]
    restart = transition.needs_restart(layout)
    if restart:
        compute, place = _begin(layout, row)
        leave = transition.leave_lines(layout, row.target)
        advance.append(f"if {restart}:")
        # The episode number is read only here: few rows end, and it would be one more array to stream.
        begin = [f"episode = _u32({row.element('episode', 0)} + _ONE_U)", *compute, *leave, *place]
        advance += _indent(begin, 1)
    body = ["_limit = _i32(settings[3])", *row.loads, *advance]
    return _kernel("step_kernel", ["i = cuda.grid(1)"], "i < reals.shape[1]", body)


def begin_source(layout: Layout, real: np.dtype) -> str:
    """`begin_kernel(rows, ...)`: begin episode `episode[i]` of each row listed."""
    row = _Row(layout, real)
    compute, place = _begin(layout, row)
    body = ["i = rows[k]", f"episode = {row.element('episode', 0)}", *row.loads, *compute, *place]
    return _kernel("begin_kernel", ["k = cuda.grid(1)"], "k < rows.shape[0]", body)


def observe_source(layout: Layout, real: np.dtype) -> str:
    """`observe_kernel(rows, ...)`: refresh obs of rows whose state was injected."""
    row = _Row(layout, real)
    load, store = row.target.load, row.target.store
    body = transition.param_lines(layout, row.target, _shared_param)
    body.append(f"state = _State({', '.join(load(b, r, 'i') for _, b, r in layout.state_fields)})")
    body += transition.observation_lines(layout, "o", "state", "params")
    body += [store("obs", k, "i", f"_real(o_{k})") for k in range(layout.spec.obs_dim)]
    return _kernel("observe_kernel", ["k = cuda.grid(1)"], "k < rows.shape[0]", ["i = rows[k]", *row.loads, *body])


_SOURCES = {"step_kernel": step_source, "begin_kernel": begin_source, "observe_kernel": observe_source}


def python_kernel(layout: Layout, real: np.dtype, name: str, cuda: Any) -> Callable[..., None]:
    """The kernel as a plain Python function, for `cuda.jit`.

    Args:
        layout, real: what to compile for.
        name: one of `KERNELS`.
        cuda: the `numba.cuda` module, which the kernel refers to by that name.
    """
    text = _SOURCES[name](layout, np.dtype(real))
    names = transition.namespace(layout, np.dtype(real))
    choices = int(layout.spec.action_space.n) if layout.spec.discrete else 0  # type: ignore[union-attr]
    names.update({"cuda": cuda, "_choices": np.int32(choices)})
    return define(name, text, names, f"gpuenvs {layout.spec.id} {layout.autoreset} {np.dtype(real).name} cuda")
