"""The CPU backend: generated loops that LLVM vectorises, run without the GIL by a few threads of our own.

numba's parallel layers are not used at all: workqueue aborts when two Python threads enter it, omp dies after fork, and
neither can be told which cores to leave to the learner. A kernel here is a plain nogil function over a range of rows;
rows are independent, so the result cannot depend on how they are cut.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numba
import numpy as np

from gpuenvs import contract
from gpuenvs.runtime import transition
from gpuenvs.runtime.buffers import Layout, numpy_dtype, shared_size, shared_values
from gpuenvs.runtime.disk_cache import cached
from gpuenvs.runtime.generated import define
from gpuenvs.runtime.memory import make_load, make_store
from gpuenvs.runtime.threads import RowThreads
from gpuenvs.runtime.transition import Target

# Rows of one block: advanced by one vectorised loop, then searched for ended rows. 512 rows of a classic-control env are
# about 40 kB, within the first-level cache.
BLOCK = 512

# Slots of the int64 table that every kernel gets, after one address per buffer.
# `step_function` is the machine code of a traced environment's step (see `traced_cpu`), else 0.
TAIL = ("num_envs", "seed_lo", "seed_hi", "env_offset", "limit", "param_real", "param_int", "step_function")
# Scratch arrays of one thread: ended rows' numbers, their new episode numbers, their fresh states, and one flag a row.
SCRATCH = ("rows", "episodes", "fresh_real", "fresh_int", "flags")


def _indent(lines: list[str], depth: int) -> list[str]:
    return ["    " * depth + line for line in lines]


class _Source:
    """Source text of the CPU kernels of one layout, and the names it needs."""

    def __init__(self, layout: Layout, real: np.dtype, action_dtype: np.dtype) -> None:
        self.layout = layout
        self.names = transition.namespace(layout, real)
        self.addresses: set[str] = set()
        for k, buffer in enumerate(layout.buffers):
            dtype = action_dtype if buffer.name == "action" else numpy_dtype(buffer, real)
            self.names[f"_load_{buffer.name}"] = make_load(k, dtype)
            self.names[f"_store_{buffer.name}"] = make_store(k, dtype)
        scopes = len(layout.buffers)
        kinds = {
            "rows": np.int32,
            "episodes": np.uint32,
            "fresh_real": real,
            "fresh_int": np.int32,
            "flags": np.bool_,
        }
        for k, name in enumerate(SCRATCH):
            self.names[f"_load_{name}"] = make_load(scopes + k, np.dtype(kinds[name]))
            self.names[f"_store_{name}"] = make_store(scopes + k, np.dtype(kinds[name]))
        shared = scopes + len(SCRATCH)
        self.names["_load_param_real"] = make_load(shared, np.dtype(real))
        self.names["_load_param_int"] = make_load(shared + 1, np.dtype(np.int32))
        self.names["_load_eight_flags"] = make_load(scopes + SCRATCH.index("flags"), np.dtype(np.int64))
        self.target = Target(self._load, self._store)

    @staticmethod
    def _at(row: int, column: str) -> str:
        return column if row == 0 else f"_n + {column}" if row == 1 else f"{row} * _n + {column}"

    def _load(self, name: str, row: int, column: str) -> str:
        return f"_load_{name}(_at_{name}, {self._at(row, column)})"

    def _store(self, name: str, row: int, column: str, value: str) -> str:
        return f"_store_{name}(_at_{name}, {self._at(row, column)}, {value})"

    @staticmethod
    def _shared_param(buffer: str, row: int) -> str:
        return f"_{buffer}_{row}"

    def _prologue(self) -> list[str]:
        buffers = self.layout.buffers
        lines = [f"_at_{buffer.name} = table[{k}]" for k, buffer in enumerate(buffers)]
        tail = {name: f"table[{len(buffers) + k}]" for k, name in enumerate(TAIL)}
        lines += [
            f"_n = {tail['num_envs']}",
            f"_seed_lo = _u32({tail['seed_lo']})",
            f"_seed_hi = _u32({tail['seed_hi']})",
            f"_env_offset = {tail['env_offset']}",
            f"_limit = _i32({tail['limit']})",
        ]
        lines += [f"_at_{name} = scratch[{k}]" for k, name in enumerate(SCRATCH)]
        for _, buffer, row in self.layout.shared_numbers:
            lines.append(f"_{buffer}_{row} = _load_{buffer}({tail[buffer]}, {row})")
        return lines

    def _begin_rows(self, leave: bool) -> list[str]:
        """Begin new episodes in the `count` rows listed in scratch: compute all (vectorised), then place each."""
        real, integer = transition.fresh_values(self.layout)
        columns = [("fresh_real", k, v) for k, v in enumerate(real)] + [
            ("fresh_int", k, v) for k, v in enumerate(integer)
        ]
        compute = ["i = _load_rows(_at_rows, j)", "episode = _load_episodes(_at_episodes, j)"]
        compute += transition.restart_lines(self.layout, self.target, self._shared_param)
        compute += [f"_store_{n}(_at_{n}, {k} * _BLOCK + j, {value[2]})" for n, k, value in columns]
        place = ["i = _load_rows(_at_rows, j)", "episode = _load_episodes(_at_episodes, j)"]
        if leave:
            place += transition.leave_lines(self.layout, self.target)
        stored = [(b, row, f"_load_{n}(_at_{n}, {k} * _BLOCK + j)") for n, k, (b, row, _) in columns]
        place += transition.place_lines(self.layout, self.target, stored)
        # Whole vectors only: the list is filled up with its first row, whose fresh state is computed again and not used.
        fill = [
            "whole = (count + 15) & ~15",
            "for j in range(count, whole):",
            "    _store_rows(_at_rows, j, _load_rows(_at_rows, 0))",
            "    _store_episodes(_at_episodes, j, _load_episodes(_at_episodes, 0))",
        ]
        return [*fill, "for j in range(whole):", *_indent(compute, 1), "for j in range(count):", *_indent(place, 1)]

    def step_kernel(self) -> str:
        """`step_kernel(start, stop, table, scratch) -> (ended rows, bad states, bad rewards)` over rows start..stop."""
        restart = transition.needs_restart(self.layout)
        advance = transition.advance_lines(self.layout, self.target, self._shared_param)
        counted = {"bad_states": "bad_state", "bad_rewards": "bad_reward", "ended": "done"}
        if restart:
            advance.append(f"_store_flags(_at_flags, i - block, {restart})")
            counted["restarts"] = restart
        # Recast after each addition: numba adds two int32 as int64, which halves the lanes of the loop.
        advance += [f"{total} = _i32({total} + _i32({flag}))" for total, flag in counted.items()]
        body = [
            "restarts = _ZERO_I",
            "for i in range(block, end):",
            *_indent(advance, 1),
        ]
        if restart:
            body += [
                "if restarts > _ZERO_I:",
                "    count = 0",
                "    for word in range((end - block + 7) >> 3):",
                "        flags = _load_eight_flags(_at_flags, word)",
                "        if flags != 0:",
                "            for byte in range(8):",
                "                i = block + 8 * word + byte",
                "                if (i < end) and (flags >> (8 * byte)) & 255 != 0:",
                "                    _store_rows(_at_rows, count, _i32(i))",
                f"                    _store_episodes(_at_episodes, count, _u32({self._load('episode', 0, 'i')} + _ONE_U))",
                "                    count += 1",
                *_indent(self._begin_rows(leave=True), 1),
            ]
        lines = [
            "def step_kernel(start, stop, table, scratch):",
            *_indent(self._prologue(), 1),
            "    bad_states = _ZERO_I",
            "    bad_rewards = _ZERO_I",
            "    ended = _ZERO_I",
            "    for block in range(start, stop, _BLOCK):",
            "        end = min(block + _BLOCK, stop)",
            *_indent(body, 2),
            "    return ended, bad_states, bad_rewards",
        ]
        return "\n".join(lines) + "\n"

    def begin_kernel(self) -> str:
        """`begin_kernel(rows, table, scratch)`: begin episode `episode[i]` in each of the rows given."""
        body = [
            "count = 0",
            "for k in range(first, min(first + _BLOCK, rows.size)):",
            "    _store_rows(_at_rows, count, _i32(rows[k]))",
            f"    _store_episodes(_at_episodes, count, {self._load('episode', 0, 'rows[k]')})",
            "    count += 1",
            *self._begin_rows(leave=False),
        ]
        lines = [
            "def begin_kernel(rows, table, scratch):",
            *_indent(self._prologue(), 1),
            "    for first in range(0, rows.size, _BLOCK):",
            *_indent(body, 2),
        ]
        return "\n".join(lines) + "\n"

    def observe_kernel(self) -> str:
        """`observe_kernel(rows, table, scratch)`: refresh obs of rows whose state was injected."""
        layout, load = self.layout, self.target.load
        body = transition.param_lines(layout, self.target, self._shared_param)
        body.append(f"state = _State({', '.join(load(b, r, 'i') for _, b, r in layout.state_fields)})")
        body += transition.observation_lines(layout, "o", "state", "params")
        body += [self.target.store("obs", k, "i", f"_real(o_{k})") for k in range(layout.spec.obs_dim)]
        lines = [
            "def observe_kernel(rows, table, scratch):",
            *_indent(self._prologue(), 1),
            "    for k in range(rows.size):",
            "        i = rows[k]",
            *_indent(body, 2),
        ]
        return "\n".join(lines) + "\n"

    def check_kernel(self) -> str:
        """`check_kernel(n, address, choices) -> rows whose integer action is not in 0..choices - 1`."""
        lines = [
            "def check_kernel(n, address, choices):",
            "    wrong = _ZERO_I",
            "    for i in range(n):",
            "        action = _load_action(address, i)",
            "        wrong = _i32(wrong + _i32((action < 0) | (action >= choices)))",
            "    return wrong",
        ]
        return "\n".join(lines) + "\n"

    def compile(self, name: str) -> Any:
        """The numba dispatcher of one of the kernels above."""
        text = getattr(self, name)()
        names = {**self.names, "_BLOCK": BLOCK}
        function = define(name, text, names, f"gpuenvs {self.layout.spec.id}")
        kernel: Any = numba.njit(nogil=True, error_model="numpy", fastmath={"contract", "nsz"})(function)
        kernel.gpurl_source = text
        return cached(kernel)


class CpuBackend:
    """Arrays and kernels of one batch on the CPU.

    Args:
        layout: the buffer table.
        real: working dtype.
        num_envs: rows.
        threads: most threads a step may use.
    """

    array_module = np

    def __init__(self, layout: Layout, real: np.dtype, num_envs: int, threads: int) -> None:
        self.layout, self.real, self.num_envs = layout, np.dtype(real), num_envs
        self.arrays: dict[str, np.ndarray] = {}
        for k, buffer in enumerate(layout.buffers):
            self.arrays[buffer.name] = aligned_zeros((buffer.rows, num_envs), numpy_dtype(buffer, self.real), k)
        self._params_real = np.zeros(shared_size(layout), self.real)
        self._params_int = np.zeros(shared_size(layout), np.int32)
        self._table = np.zeros(len(layout.buffers) + len(TAIL), np.int64)
        for k, buffer in enumerate(layout.buffers):
            self._table[k] = self.arrays[buffer.name].ctypes.data
        self._set("num_envs", num_envs)
        self._set("param_real", self._params_real.ctypes.data)
        self._set("param_int", self._params_int.ctypes.data)
        self._action_slot = layout.index("action")
        self._threads = RowThreads(threads, num_envs)
        self._scratch = [self._make_scratch() for _ in range(threads)]
        self._action_dtype = self.arrays["action"].dtype
        self._kernels: dict[tuple[str, np.dtype], Callable[..., Any]] = {}

    def _make_scratch(self) -> tuple[np.ndarray, list[np.ndarray]]:
        layout = self.layout
        real, integer = transition.fresh_values(layout)
        arrays = [
            aligned_zeros((BLOCK,), np.dtype(np.int32)),
            aligned_zeros((BLOCK,), np.dtype(np.uint32)),
            aligned_zeros((max(1, len(real)) * BLOCK,), self.real),
            aligned_zeros((max(1, len(integer)) * BLOCK,), np.dtype(np.int32)),
            aligned_zeros((BLOCK,), np.dtype(np.bool_)),
        ]
        return np.array([a.ctypes.data for a in arrays], np.int64), arrays

    def _set(self, name: str, value: int) -> None:
        self._table[len(self.layout.buffers) + TAIL.index(name)] = value

    def configure(self, seed: int, env_offset: int, limit: int, params: Any, ranges: Mapping[str, Any] = {}) -> None:
        """Set the 64-bit seed, the number of the first env, the time limit, the shared params and the ranges of others."""
        self._set("seed_lo", seed & 0xFFFFFFFF)
        self._set("seed_hi", (seed >> 32) & 0xFFFFFFFF)
        self._set("env_offset", env_offset)
        self._set("limit", limit)
        for buffer, row, value in shared_values(self.layout, params, ranges):
            (self._params_real if buffer == "param_real" else self._params_int)[row] = value

    def on_device(self) -> Any:
        """A context in which this batch's device is the current one."""
        return contextlib.nullcontext()

    def kernel(self, name: str, action_dtype: np.dtype | None = None) -> Any:
        """The compiled kernel, made when first asked for; steps are compiled per dtype of integer actions."""
        dtype = action_dtype or self._action_dtype
        found = self._kernels.get((name, dtype))
        if found is None:
            found = self._kernels[name, dtype] = _compiled(self.layout, self.real.name, name, dtype.name)
        return found

    def step(self, action: np.ndarray) -> tuple[int, int, int]:
        """Step every row with `action` (rows of the action buffer, contiguous); (ended rows, bad states, bad rewards)."""
        kernel = self.kernel("step_kernel", action.dtype)
        self._table[self._action_slot] = action.ctypes.data
        table, scratch = self._table, self._scratch
        try:
            if self._threads.count == 1:
                return kernel(0, self.num_envs, table, scratch[0][0])
            parts = self._threads.run(lambda t, start, stop: kernel(start, stop, table, scratch[t][0]))
        except IndexError as error:
            raise contract.index_error(self.layout.spec) from error
        ended, states, rewards = (sum(column) for column in zip(*parts, strict=True))
        return ended, states, rewards

    def native_step(self) -> tuple[Any, int]:
        """The compiled step kernel, for callers that are compiled themselves, and the table slot of the action's address.

        Integer actions must be int64 there. See `step_kernel` for the arguments and `native_table` for the last two.
        """
        dtype = np.dtype(np.int64) if self.layout.spec.discrete else self._action_dtype
        return self.kernel("step_kernel", dtype), self._action_slot

    def native_table(self, thread: int) -> tuple[np.ndarray, np.ndarray]:
        """(a copy of the address table, the scratch table) for one thread of a native caller."""
        while len(self._scratch) <= thread:
            self._scratch.append(self._make_scratch())
        return self._table.copy(), self._scratch[thread][0]

    def wrong_actions(self, action: np.ndarray, choices: int) -> int:
        """Number of integer actions outside of 0..choices - 1."""
        return self.kernel("check_kernel", action.dtype)(action.size, action.ctypes.data, choices)

    def begin(self, rows: np.ndarray) -> None:
        """Begin episode `episode[i]` in these rows."""
        self.kernel("begin_kernel")(np.ascontiguousarray(rows, np.int64), self._table, self._scratch[0][0])

    def observe(self, rows: np.ndarray) -> None:
        """Refresh obs of these rows from their state."""
        self.kernel("observe_kernel")(np.ascontiguousarray(rows, np.int64), self._table, self._scratch[0][0])

    def close(self) -> None:
        """Stop the threads."""
        self._threads.close()


_compile_lock = threading.Lock()
_cache: dict[tuple[Any, ...], Any] = {}


def _compiled(layout: Layout, real: str, name: str, action_dtype: str) -> Any:
    """Kernels are shared by all batches of one layout in the process. Specs are compared by identity."""
    key = (id(layout.spec), *layout.key, real, name, action_dtype)
    with _compile_lock:
        if key not in _cache:
            contract.verify(layout.spec, real)
            _cache[key] = (_Source(layout, np.dtype(real), np.dtype(action_dtype)).compile(name), layout.spec)
        return _cache[key][0]


# Large arrays each begin at a page, and the same row of all of them then belongs into the same few places of the first-level
# cache: what is fetched for one array drives out what was fetched for another before it is used. At 65,536 environments the
# quadrotor of examples/ ran at half of its speed at 65,600. So each buffer of a batch begins five lines of 64 bytes later in
# its page than the one before; the page has 64.
_PAGE, _STAGGER = 4096, 5 * 64


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype, number: int = 0) -> np.ndarray:
    """Zeros at an address that is a multiple of 64, as vector loads like it and DLPack consumers expect.

    Arrays that are used together have a `number` each: those of a page and more lie apart in the cache.
    """
    size = int(np.prod(shape)) * dtype.itemsize
    step, ahead = (_PAGE, number * _STAGGER) if size >= _PAGE else (64, 0)
    raw = np.zeros(size + step, np.uint8)
    offset = (ahead - raw.ctypes.data) % step
    return raw[offset : offset + size].view(dtype).reshape(shape)
