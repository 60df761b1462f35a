"""Rows far beyond 2**31 elements are found, and a row does not depend on how many others there are."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import pytest

import gpuenvs
from gpuenvs.runtime import cuda_source, traced
from gpuenvs.runtime.buffers import SAME_STEP, make_layout, numpy_dtype
from gpuenvs.runtime.cpu import TAIL
from tests.gpuenvs.sampling import random_actions
from tests.ptx.backend import interpreted, program
from tests.ptx.machine import Program
from tests.ptx.memory import Fault, Memory
from tests.ptx.snippet import text

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the CUDA compiler wheels are for Linux")

MOST = 2**31 - 1  # what `num_envs` may be
BLOCK = 128
SEED = 2**40 + 3
LIMIT = 50
TOLERANCE = 1e-5


def expected_rows(env_id: str, first: int, rows: int, action: np.ndarray) -> dict[str, np.ndarray]:
    """What a small batch on the CPU that begins with row `first` has after a reset and a step."""
    with gpuenvs.make(env_id, rows, device="cpu", env_offset=first, seed=SEED, max_episode_steps=LIMIT) as env:
        env.reset(seed=SEED)
        env.arrays["elapsed"][:, ::3] = LIMIT - 1
        env.step(action)
        return {name: array.copy() for name, array in env.arrays.items()}


class Huge:
    """The arrays of a batch of `n` rows, of which only what is touched exists, and launches over some of its blocks."""

    def __init__(self, env_id: str, n: int) -> None:
        self.spec, self.n = gpuenvs.get(env_id), n
        self.layout = make_layout(self.spec, SAME_STEP)
        self.memory = Memory()
        self.real = np.dtype(np.float32)
        self.totals = np.zeros(len(cuda_source.TOTALS), np.int32)
        kept = self.spec.params
        reals, integers = (np.zeros(max(1, len(self.layout.param_fields))) for _ in range(2))
        for field, buffer, row, _ in self.layout.param_fields:
            (reals if buffer == "param_real" else integers)[row] = getattr(kept, field)
        self.params = {"param_real": reals.astype(self.real), "param_int": integers.astype(np.int32)}
        self.settings = {"seed_lo": SEED & 0xFFFFFFFF, "seed_hi": SEED >> 32, "env_offset": 0, "limit": LIMIT}
        self.dtypes = {b.name: numpy_dtype(b, self.real) for b in self.layout.buffers}
        self._place()

    def _place(self) -> None:
        """Fill `where`: buffer name -> (allocation, its first row there)."""
        raise NotImplementedError

    def put(self, name: str, row: int, column: int, value: Any) -> None:
        buffer, first = self.where[name]
        buffer.poke((first + row) * self.n + column, self.dtypes[name].type(value))

    def look(self, name: str, row: int, column: int) -> Any:
        buffer, first = self.where[name]
        return buffer.peek((first + row) * self.n + column, self.dtypes[name])

    where: dict[str, tuple[Any, int]]


class HugeClassic(Huge):
    """Of a classic environment: arrays grouped by dtype, arguments as numba-cuda passes them."""

    def _place(self) -> None:
        places = cuda_source.group_rows(self.layout, self.real)
        rows = dict.fromkeys(cuda_source.GROUPS, 0)
        for buffer in self.layout.buffers:
            if buffer.name != "action":
                rows[places[buffer.name][0]] += buffer.rows
        dtypes = {name: np.dtype(kind or self.real) for name, kind in cuda_source.GROUPS.items()}
        self.groups = {g: self.memory.reserve(g, max(1, rows[g]) * self.n * dtypes[g].itemsize) for g in rows}
        action = self.memory.reserve("action", self.spec.action_dim * self.n * self.dtypes["action"].itemsize)
        self.where = {name: (self.groups[group], first) for name, (group, first) in places.items()}
        self.where["action"] = (action, 0)
        arguments = [self._array(self.groups[g].base, (max(1, rows[g]), self.n), dtypes[g].itemsize) for g in rows]
        settings = np.array([self.settings[name] for name in cuda_source.SETTINGS], np.uint32)
        for array in (*self.params.values(), settings, self.totals):
            arguments.append(self._array(self.memory.add("table", array), array.shape, array.itemsize))
        self.fixed = [value for argument in arguments for value in argument]
        self.action = self._array(action.base, (self.spec.action_dim, self.n), self.dtypes["action"].itemsize)

    @staticmethod
    def _array(address: int, shape: tuple[int, ...], itemsize: int) -> list[int]:
        strides = [itemsize] if len(shape) == 1 else [shape[1] * itemsize, itemsize]
        return [0, 0, int(np.prod(shape)), itemsize, address, *shape, *strides]

    def step(self, blocks: list[int]) -> None:
        kernel = program(self.layout, "float32", "step_kernel")
        kernel.launch(self.memory, -(-self.n // BLOCK), BLOCK, [*self.action, *self.fixed], only_blocks=blocks)

    def begin(self, rows: np.ndarray) -> None:
        kernel = program(self.layout, "float32", "begin_kernel")
        listed = self._array(self.memory.add("rows", rows), rows.shape, 8)
        kernel.launch(self.memory, -(-rows.size // BLOCK), BLOCK, [*listed, *self.fixed])


class HugeTraced(Huge):
    """Of a MuJoCo task: one allocation per buffer, found through a table of addresses."""

    def _place(self) -> None:
        self.where, table = {}, []
        for buffer in self.layout.buffers:
            size = buffer.rows * self.n * self.dtypes[buffer.name].itemsize
            allocation = self.memory.reserve(buffer.name, size)
            self.where[buffer.name] = (allocation, 0)
            table.append(allocation.base if size else 0)
        tail = {**self.settings, "num_envs": self.n, "step_function": 0}
        tail |= {name: self.memory.add(name, array) for name, array in self.params.items()}
        assert len(traced.slots(self.layout)) == len(TAIL)
        self.table = self.memory.add("table", np.array([*table, *(tail[name] for name in TAIL)], np.int64))
        self.total = self.memory.add("totals", self.totals)

    def _launch(self, name: str, count: int, rows: int, blocks: list[int] | None) -> None:
        arguments = [count, self.where["action"][0].base, self.table, rows, self.total]
        kernel = program(self.layout, "float32", name)
        kernel.launch(self.memory, -(-count // BLOCK), BLOCK, arguments, only_blocks=blocks)

    def step(self, blocks: list[int]) -> None:
        self._launch("step_kernel", self.n, 0, blocks)

    def begin(self, rows: np.ndarray) -> None:
        self._launch("begin_kernel", rows.size, self.memory.add("rows", rows), None)


@pytest.mark.parametrize(
    ("env_id", "n"),
    [("CartPole-v1", MOST), ("Pendulum-v1", 2**28 + 77), ("InvertedPendulum-v5", MOST), ("Hopper-v5", 2**29 + 5)],
)
def test_elements_beyond_2_to_the_31(env_id, n):
    """The first, a middle and the last block of a batch that needs up to a terabyte."""
    huge = (HugeTraced if gpuenvs.get(env_id).traced else HugeClassic)(env_id, n)
    last = -(-n // BLOCK) - 1
    blocks = [0, last // 2, last]
    rows = {block: np.arange(block * BLOCK, min((block + 1) * BLOCK, n)) for block in blocks}
    rng = np.random.default_rng(3)
    actions = {block: random_actions(huge.spec, rng, rows[block].size) for block in blocks}
    for block in blocks:
        for k, i in enumerate(rows[block].tolist()):
            huge.put("episode", 0, i, 0)
            for j, value in enumerate(np.atleast_1d(actions[block][k])):
                huge.put("action", j, i, value)
    huge.begin(np.concatenate(list(rows.values())))
    for block in blocks:
        for i in rows[block][::3].tolist():
            huge.put("elapsed", 0, i, LIMIT - 1)
    huge.step(blocks)
    assert max(buffer.size for buffer, _ in huge.where.values()) > 2**33  # bytes of one allocation
    for block in blocks:
        action = actions[block] if huge.spec.discrete else actions[block].astype(np.float32)
        expected = expected_rows(env_id, int(rows[block][0]), rows[block].size, action)
        assert not expected["terminated"].all() and expected["truncated"].any()
        for name in ("state_real", "obs", "reward", "terminated", "truncated", "elapsed", "episode"):
            for j, row in enumerate(expected[name]):
                found = [huge.look(name, j, i) for i in rows[block].tolist()]
                assert np.allclose(found, row, rtol=TOLERANCE, atol=TOLERANCE), f"{name} row {j} of block {block}"
    # Nothing else was touched: the rows of three blocks, and no byte more.
    touched = {name: buffer.touched() for name, (buffer, _) in huge.where.items()}
    count = sum(r.size for r in rows.values())
    assert touched["action"] == count * huge.spec.action_dim * huge.dtypes["action"].itemsize
    if huge.spec.traced:
        assert touched["obs"] == count * huge.spec.obs_dim * 4
        assert touched["final_obs"] == expected_final(huge, rows) * huge.spec.obs_dim * 4


def test_an_index_cut_to_32_bits_is_found_out():
    """Element 2**31 + k of an array, first as it should be, then with the offset computed in 32 bits."""
    good = "cvt.u64.u32 %d40, %r0; add.s64 %d41, %d40, 2147483648; shl.b64 %d42, %d41, 2;"
    bad = "add.s32 %r1, %r0, -2147483648; shl.b32 %r2, %r1, 2; cvt.u64.u32 %d42, %r2;"
    for index, fine in ((good, True), (bad, False)):
        memory, out = Memory(), np.zeros(4, np.uint64)
        huge = memory.reserve("huge", 2**34)
        for k in range(4):
            huge.poke(2**31 + k, np.uint32(10 + k))
        body = f"{index} add.s64 %d43, %d10, %d42; ld.global.u32 %r5, [%d43]; cvt.u64.u32 %d44, %r5;"
        body += "st.global.u64 [%d2], %d44;"
        kernel, arguments = Program(text(body)), [huge.base, memory.add("out", out)]
        if fine:
            kernel.launch(memory, 1, 4, arguments)
            assert out.tolist() == [10, 11, 12, 13]
        else:
            with pytest.raises(Fault, match="uninitialised read"):
                kernel.launch(memory, 1, 4, arguments)


def expected_final(huge: Huge, rows: dict[int, np.ndarray]) -> int:
    """How many rows ended."""
    ended = [huge.look("ended", 0, i) for block in rows.values() for i in block.tolist()]
    return sum(bool(flag) for flag in ended)


@functools.cache
def played(env_id: str, n: int) -> dict[str, np.ndarray]:
    """Every array after a reset and two steps, the second of which ends episodes."""
    spec = gpuenvs.get(env_id)
    rng = np.random.default_rng(8)
    actions = [random_actions(spec, rng, 300 if spec.traced else 65_537)[:n] for _ in range(2)]
    with interpreted(), gpuenvs.make(env_id, n, device="cuda:0", max_episode_steps=2) as env:
        env.reset(seed=SEED)
        for action in actions:
            env.step(action if spec.discrete else action.astype(np.float32))
        return {name: array.copy() for name, array in env.arrays.items() if name != "action"}


@pytest.mark.parametrize(
    ("env_id", "most", "sizes"),
    [("CartPole-v1", 65_537, (1, 2, 31, 127, 128, 129, 1000, 4096, 65_536)), ("HalfCheetah-v5", 300, (1, 33, 129))],
)
def test_a_row_is_the_same_in_every_batch(env_id, most, sizes):
    whole = played(env_id, most)
    assert len(np.unique(whole["obs"][0])) > most // 2
    for n in sizes:
        part = played(env_id, n)
        for name, array in part.items():
            assert np.array_equal(array, whole[name][:, :n], equal_nan=True), f"{name} with {n} rows"
