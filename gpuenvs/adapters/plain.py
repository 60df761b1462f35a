"""A batch whose functions run as plain Python, one row after another: `print`, breakpoints and tracebacks work in them.

Some ten thousand times slower than the compiled batch and step for step the same: the lines are those of
`gpuenvs.runtime.transition`. Float results may differ in the last bits (compiled code fuses multiplications and additions).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuenvs.checks.plain import plain_spec
from gpuenvs.runtime import transition
from gpuenvs.runtime.buffers import Layout, numpy_dtype, shared_values
from gpuenvs.runtime.generated import define
from gpuenvs.runtime.transition import Target
from gpuenvs.runtime.vector_env import BatchEnv
from gpuenvs.trace.elementary import precision


class PlainBatch(BatchEnv):
    """A BatchEnv on the CPU that compiles nothing. Arguments as BatchEnv has them; there is one thread."""

    def __init__(self, spec: Any, num_envs: int, **options: Any) -> None:
        super().__init__(spec, num_envs, **{**options, "device": "cpu", "threads": 1})

    def _make_backend(self) -> PlainBackend:
        return PlainBackend(self._layout, self.dtype, self.num_envs)


class PlainBackend:
    """What `gpuenvs.runtime.cpu.CpuBackend` is, in Python."""

    array_module = np

    def __init__(self, layout: Layout, real: np.dtype, num_envs: int) -> None:
        self.layout, self.real, self.num_envs = layout, np.dtype(real), num_envs
        self.arrays = {b.name: np.zeros((b.rows, num_envs), numpy_dtype(b, self.real)) for b in layout.buffers}
        names = transition.namespace(dataclasses.replace(layout, spec=plain_spec(layout.spec)), self.real)
        self._names = {name: getattr(value, "py_func", value) for name, value in names.items()}
        self._names.update({f"_{name}": array for name, array in self.arrays.items()})
        self._rows = {name: self._define(name, body) for name, body in _bodies(layout).items()}

    def _define(self, name: str, body: list[str]) -> Any:
        text = "\n    ".join([f"def {name}(i):", *body]) + "\n"
        return define(name, text, self._names, f"gpuenvs {self.layout.spec.id} plain")

    def configure(self, seed: int, env_offset: int, limit: int, params: Any, ranges: Mapping[str, Any] = {}) -> None:
        """Set the 64-bit seed, the number of the first env, the time limit, the shared params and the ranges of others."""
        settings = {
            "_seed_lo": np.uint32(seed & 0xFFFFFFFF),
            "_seed_hi": np.uint32(seed >> 32),
            "_env_offset": env_offset,
            "_limit": np.int32(limit),
        }
        for buffer, row, value in shared_values(self.layout, params, ranges):
            settings[_shared(buffer, row)] = (self.real.type if buffer == "param_real" else np.int32)(value)
        for function in self._rows.values():
            function.__globals__.update(settings)

    def on_device(self) -> Any:
        """A context in which this batch's device is the current one."""
        return contextlib.nullcontext()

    def step(self, action: np.ndarray) -> tuple[int, int, int]:
        """Step every row; (ended rows, bad states, bad rewards)."""
        self.arrays["action"][:] = action
        counts = self._each("step_row", range(self.num_envs))
        ended, states, rewards = (sum(map(int, column)) for column in zip(*counts, strict=True))
        return ended, states, rewards

    def begin(self, rows: np.ndarray) -> None:
        """Begin episode `episode[i]` in these rows."""
        self._each("begin_row", rows)

    def observe(self, rows: np.ndarray) -> None:
        """Refresh obs of these rows from their state."""
        self._each("observe_row", rows)

    def _each(self, name: str, rows: Any) -> list[Any]:
        # A number that overflows or a division by zero is infinite or NaN, as it is in compiled code.
        with np.errstate(all="ignore"), precision(self.real.name):
            return [self._rows[name](i) for i in rows]

    def wrong_actions(self, action: np.ndarray, choices: int) -> int:
        """Number of integer actions outside of 0..choices - 1."""
        return int(((action < 0) | (action >= choices)).sum())

    def close(self) -> None:
        """There is nothing to stop."""


def _shared(buffer: str, row: int) -> str:
    return f"_{buffer}_{row}"


def _bodies(layout: Layout) -> dict[str, list[str]]:
    """Name -> lines of the functions of one row `i`."""
    target = Target(
        load=lambda name, row, column: f"_{name}[{row}, {column}]",
        store=lambda name, row, column, value: f"_{name}[{row}, {column}] = {value}",
    )
    reals, integers = transition.fresh_values(layout)
    fresh = transition.restart_lines(layout, target, _shared)
    place = transition.place_lines(layout, target, reals + integers)
    step = transition.advance_lines(layout, target, _shared)
    restart = transition.needs_restart(layout)
    if restart:
        again = [f"episode = _u32({target.load('episode', 0, 'i')} + _ONE_U)", *fresh]
        again += [*transition.leave_lines(layout, target), *place]
        step += [f"if {restart}:", *(f"    {line}" for line in again)]
    state = ", ".join(target.load(buffer, row, "i") for _, buffer, row in layout.state_fields)
    observe = [
        *transition.param_lines(layout, target, _shared),
        *transition.observation_lines(layout, "o", f"_State({state})", "params"),
        *(target.store("obs", k, "i", f"_real(o_{k})") for k in range(layout.spec.obs_dim)),
    ]
    return {
        "step_row": [*step, "return done, bad_state, bad_reward"],
        "begin_row": [f"episode = {target.load('episode', 0, 'i')}", *fresh, *place],
        "observe_row": observe,
    }
