"""Row programs of traced environments: the lines of `transition` recorded once, for any printer.

A traced environment's functions work on `gpuenvs.trace` values, so loads, physics, time limit, reward and autoreset of a row
become one program. `transition` stays the only place that says what a step is.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import numpy as np

from gpuenvs.contract.located import traced_error
from gpuenvs.rng import Rng
from gpuenvs.runtime import disk_cache, transition
from gpuenvs.runtime.buffers import Layout, numpy_dtype
from gpuenvs.runtime.cpu import TAIL
from gpuenvs.runtime.transition import Target
from gpuenvs.spec import EnvSpec
from gpuenvs.trace import ops, random
from gpuenvs.trace.elementary import precision
from gpuenvs.trace.graph import Program, Value, apply, as_value, convert, record, record_if, statement

# What a step counts, in this order.
COUNTED = ("done", "bad_state", "bad_reward", "wrong_action")
KERNELS = ("step_kernel", "begin_kernel", "observe_kernel")

_lock = threading.Lock()


def slots(layout: Layout) -> dict[str, int]:
    """Where the address table holds what follows the buffers' addresses."""
    return {name: len(layout.buffers) + k for k, name in enumerate(TAIL)}


def record_kernel(layout: Layout, real: str, kernel: str, action_dtype: str) -> Program:
    """The program of one of `KERNELS`, with the address table of `gpuenvs.runtime.cpu`."""
    return Recorder(layout, np.dtype(real), slots(layout), np.dtype(action_dtype)).record(kernel)


def cache_entry(layout: Layout, *what: object) -> Path | None:
    """Where a kernel's machine code is kept, or None if it cannot be; `what` it is beside the layout."""
    spec = layout.spec
    code = spec.key or _code(spec)
    if not code:
        return None
    fields = (layout.state_fields, layout.param_fields, [(b.name, b.rows, b.dtype) for b in layout.buffers])
    drawn = (layout.drawn, layout.shared_numbers)
    sizes = (spec.obs_dim, spec.action_dim, spec.discrete, spec.metrics, layout.autoreset)
    return disk_cache.traced_entry((code, fields, drawn, sizes, *what))


def _code(spec: EnvSpec) -> bytes:
    """What a spec without a key of its own computes; empty where it uses something that cannot be hashed."""
    with contextlib.suppress(disk_cache.Unknown):
        return disk_cache.fingerprint((spec.reset, spec.step, spec.observe)).encode()
    return b""


class Recorder:
    """Records the programs of one layout.

    Args:
        layout: the buffer table.
        real: working dtype.
        settings: name -> slot of the address table, for `num_envs`, `seed_lo`, `seed_hi`, `env_offset`, `limit`,
            `param_real`, `param_int`.
        action_dtype: dtype of the action array.
    """

    def __init__(self, layout: Layout, real: np.dtype, settings: dict[str, int], action_dtype: np.dtype) -> None:
        self.layout, self.real, self._settings = layout, np.dtype(real), settings
        self._dtypes = {b.name: numpy_dtype(b, self.real).name for b in layout.buffers}
        self._dtypes["action"] = np.dtype(action_dtype).name
        self._slots = {b.name: k for k, b in enumerate(layout.buffers)}

    def record(self, kernel: str) -> Program:
        """The program of one of `KERNELS`."""
        with _lock, precision(self.real.name), record() as program:
            self._known: dict[tuple[str, int], Value] = {}
            self._mask = statement("active", "bool", ())
            self._row = statement("env", "u32", ())
            getattr(self, f"_{kernel}")()
        return program

    # --- what the lines of `transition` call ------------------------------------------------------------------------

    def _attr(self, name: str, row: int) -> tuple[int, int, str]:
        return self._slots[name], row, self._dtypes[name]

    def _get(self, name: str, row: int) -> Value:
        """Element `row` of a buffer: what was stored last, else what is loaded (once)."""
        found = self._known.get((name, row))
        if found is None:
            dtype = self._dtypes[name]
            kind = {"bool": "bool", "int32": "i32", "int64": "i32", "uint32": "u32"}.get(dtype, "real")
            found = self._known[name, row] = statement("get", kind, (), self._attr(name, row))
        return found

    def _put(self, name: str, row: int, value: Any) -> None:
        kind = {"bool": "bool", "int32": "i32", "uint32": "u32"}.get(self._dtypes[name], "real")
        value = as_value(value, kind)
        self._known[name, row] = value
        statement("put", "none", (value, self._mask), self._attr(name, row))

    def _shared(self, buffer: str, row: int) -> Value:
        real = buffer == "param_real"
        dtype = self.real.name if real else "int32"
        return statement("shared", "real" if real else "i32", (), (self._settings[buffer], row, dtype))

    def _setting(self, name: str, kind: str) -> Value:
        return statement("setting", kind, (), self._settings[name])

    def _namespace(self) -> dict[str, Any]:
        names = transition.namespace(self.layout, self.real)
        spec = self.layout.spec
        names.update(
            _get=self._get, _put=self._put, _shared=self._shared, _select=ops.where, _not=ops.logical_not,
            _finite=ops.finite, _bool=lambda x: as_value(x, "bool"), _real=lambda x: _cast(x, "real"),
            _i32=lambda x: _cast(x, "i32"), _u32=lambda x: _cast(x, "u32"), _ZERO=0.0, _Rng=Rng, i=self._row,
            _reset=spec.reset, _step=spec.step, _observe=spec.observe, _ONE=1, _ONE_U=1, _ZERO_I=0, _uniform=random.uniform,
            _floor=ops.floor,
        )  # fmt: skip
        return names

    def _target(self) -> Target:
        return Target(
            load=lambda name, row, column: f"_get({name!r}, {row})",
            store=lambda name, row, column, value: f"_put({name!r}, {row}, {value})",
        )

    @staticmethod
    def _shared_text(buffer: str, row: int) -> str:
        return f"_shared({buffer!r}, {row})"

    def _run(self, lines: list[str], names: dict[str, Any]) -> None:
        code = compile("\n".join(lines), f"<{self.layout.spec.id} row>", "exec")
        try:
            exec(code, names)
        except Exception as error:
            raise traced_error(self.layout.spec, error, lines) from error

    # --- the three programs ------------------------------------------------------------------------------------------

    def _step_kernel(self) -> None:
        names = self._namespace()
        names["_limit"] = self._setting("limit", "i32")
        self._run(transition.advance_lines(self.layout, self._target(), self._shared_text), names)
        if self.layout.spec.discrete:
            action, choices = self._get("action", 0), int(self.layout.spec.action_space.n)  # type: ignore[union-attr]
            names["wrong_action"] = (action < 0) | (action >= choices)
        for k, name in enumerate(COUNTED):
            if name not in names:
                continue
            statement("count", "none", (as_value(names[name], "bool") & self._mask,), k)
        due = transition.needs_restart(self.layout)
        if due is None:
            return
        ended = as_value(names[due], "bool") & self._mask
        record_if(apply("any", ended), lambda: self._restart(names, ended), [])

    def _restart(self, names: dict[str, Any], ended: Value) -> list[Value]:
        """Begin the next episode in the rows that ended; the others are not touched."""
        self._mask = ended
        names["episode"] = self._get("episode", 0) + 1
        self._begin(names, leave=True)
        return []

    def _begin(self, names: dict[str, Any], leave: bool) -> None:
        layout, target = self.layout, self._target()
        for name in ("seed_lo", "seed_hi", "env_offset"):
            names[f"_{name}"] = self._setting(name, "u32")
        self._run(transition.restart_lines(layout, target, self._shared_text), names)
        if leave:
            self._run(transition.leave_lines(layout, target), names)
        reals, integers = transition.fresh_values(layout)
        self._run(transition.place_lines(layout, target, reals + integers), names)

    def _begin_kernel(self) -> None:
        names = self._namespace()
        names["episode"] = self._get("episode", 0)
        self._begin(names, leave=False)

    def _observe_kernel(self) -> None:
        names, layout, target = self._namespace(), self.layout, self._target()
        lines = transition.param_lines(layout, target, self._shared_text)
        fields = ", ".join(target.load(b, r, "i") for _, b, r in layout.state_fields)
        lines.append(f"state = _State({fields})")
        lines += transition.observation_lines(layout, "o", "state", "params")
        lines += [target.store("obs", k, "i", f"_real(o_{k})") for k in range(layout.spec.obs_dim)]
        self._run(lines, names)


def _cast(x: Any, kind: str) -> Any:
    return convert(x, kind) if isinstance(x, Value) else as_value(x, kind)
