"""Rows and elements by number: a row is the same in a batch of any size, and element numbers beyond 2**31 are right.

The PTX interpreter (tests/ptx) shows the second for CUDA kernels.
"""

from __future__ import annotations

import math
import mmap
import operator
import re
import sys
from typing import Any

import numpy as np
import pytest

import gpuenvs
from gpuenvs.runtime import cpu
from gpuenvs.runtime.buffers import SAME_STEP, Layout, make_layout
from gpuenvs.runtime.traced_cpu import TracedCpuBackend, kernel_text
from tests.gpuenvs.classic import CLASSIC
from tests.gpuenvs.sampling import random_actions

ROW_IDS = (*CLASSIC, "InvertedPendulum-v5")
SIZES = (1, 2, 15, 63, 64, 65, 511, 512, 513, 4097, 65_536)  # around vectors, threads' ranges and blocks
MOST = 65_537
STEPS = 12
LIMIT = 5  # so that every row begins twice


@pytest.fixture(scope="module")
def histories() -> dict[str, tuple[list[np.ndarray], list[dict[str, np.ndarray]]]]:
    """env id -> (actions of MOST rows, what each step of a batch of MOST rows returned), made when first asked for."""
    return {}


def play(env_id: str, num_envs: int, actions: list[np.ndarray], **options: Any) -> list[dict[str, np.ndarray]]:
    """Copies of everything that `reset` and each step return."""
    seen = []
    with gpuenvs.make(env_id, num_envs, device="cpu", max_episode_steps=LIMIT, **options) as env:
        env.reset(seed=12)
        for action in [None, *actions]:
            if action is not None:
                env.step(action[:num_envs])
            arrays = {"obs": env.obs, "reward": env.reward, "terminated": env.terminated, "truncated": env.truncated}
            seen.append({name: array.copy() for name, array in (arrays | env.info).items()})
    return seen


@pytest.mark.parametrize("num_envs", SIZES)
@pytest.mark.parametrize("env_id", ROW_IDS)
def test_row_i_is_the_same_in_a_batch_of_any_size(env_id: str, num_envs: int, histories: dict[str, Any]) -> None:
    if env_id not in histories:
        rng, spec = np.random.default_rng(3), gpuenvs.get(env_id)
        drawn = [random_actions(spec, rng, MOST) for _ in range(STEPS)]
        actions = drawn if spec.discrete else [a.astype(np.float32) for a in drawn]
        histories[env_id] = actions, play(env_id, MOST, actions)
    actions, expected = histories[env_id]
    for step, (found, whole) in enumerate(zip(play(env_id, num_envs, actions), expected, strict=True)):
        for name, value in found.items():
            np.testing.assert_array_equal(value, whole[name][:num_envs], err_msg=f"{name} of step {step}")


# --- beyond 2**31 elements -------------------------------------------------------------------------------------------

HUGE = (
    2**31 - 1
)  # rows of the largest batch: field 1 begins at element 2**31 - 1, field 2 beyond what int32 and uint32 hold
TAIL = 130  # of those rows, the last ones are stepped


def reserve(shape: tuple[int, ...], dtype: np.dtype, number: int = 0) -> np.ndarray:
    """Zeros of which only the pages that are touched take memory, however many there are."""
    count = math.prod(shape)
    size = max(1, count) * dtype.itemsize
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's number; Python names it since 3.13
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    except OSError as error:
        pytest.skip(f"{size / 2**30:.0f} GiB of addresses cannot be had here: {error}")
    return np.frombuffer(memory, dtype)[:count].reshape(shape)


def run(backend: Any, layout: Layout, first: int, count: int, offset: int) -> dict[str, np.ndarray]:
    """Begin rows first..first + count, step them twice, observe them; their part of each array."""
    spec = layout.spec
    rows = np.arange(first, first + count)
    backend.configure(77, offset, 1, spec.params)  # each step ends each row
    backend.begin(rows)
    rng = np.random.default_rng(5)
    for _ in range(2):
        drawn = random_actions(spec, rng, count).reshape(count, -1).T
        backend.arrays["action"][:, rows] = drawn
        kernel = backend.kernel("step_kernel")
        if isinstance(backend, TracedCpuBackend):
            counts = backend._scratch[0][0]
            kernel(first, first + count, backend._table.ctypes.data, None, counts.ctypes.data)
        else:
            kernel(first, first + count, backend._table, backend._scratch[0][0])
    backend.observe(rows)
    return {name: array[:, rows].copy() for name, array in backend.arrays.items()}


@pytest.mark.skipif(sys.platform != "linux", reason="needs memory that is only reserved")
@pytest.mark.parametrize("env_id", [*CLASSIC, "InvertedPendulum-v5"])
def test_kernels_index_beyond_two_to_the_31(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rows of 2**31 - 1 equal a small batch that begins at their number; nothing else is written."""
    layout, real = make_layout(gpuenvs.get(env_id), SAME_STEP), np.dtype(np.float32)
    kind = TracedCpuBackend if layout.spec.traced else cpu.CpuBackend
    small = kind(layout, real, TAIL, 1)
    first = HUGE - TAIL
    expected = run(small, layout, 0, TAIL, first)
    monkeypatch.setattr(cpu, "aligned_zeros", reserve)
    huge = kind(layout, real, HUGE, 1)
    assert max(array.size for array in huge.arrays.values()) > 2**31
    found = run(huge, layout, first, TAIL, 0)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert np.any(expected["obs"])
    # An element number that wrapped around would have been written somewhere near the beginning of an array.
    for name, array in huge.arrays.items():
        flat = array.reshape(-1)
        for start in (0, HUGE - 4096, 2**31 % max(1, array.size)):
            part = flat[start : start + 2048]
            inside = np.arange(start, start + len(part)) % HUGE >= first
            assert not part[~inside].any(), f"{name} at {start}"


@pytest.mark.parametrize("kernel", ["step_kernel", "begin_kernel", "observe_kernel"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_generated_kernels_compute_addresses_in_64_bits(
    env_id: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As numba typed them: the number of rows, with which fields are multiplied, every start and every index."""
    monkeypatch.setenv("GPURL_CACHE", "0")  # machine code from disk comes without types
    layout, real = make_layout(gpuenvs.get(env_id), SAME_STEP), np.dtype(np.float32)
    backend = cpu.CpuBackend(layout, real, 4, 1)
    dispatcher = cpu._Source(layout, real, backend._action_dtype).compile(kernel)
    rest = backend._table, backend._scratch[0][0]
    dispatcher(*((0, 0) if kernel == "step_kernel" else (np.zeros(0, np.int64),)), *rest)
    (compiled,) = dispatcher.overloads.values()
    types, calls = compiled.type_annotation.typemap, compiled.type_annotation.calltypes
    of = {name: str(kind) for name, kind in types.items()}
    assert {kind for name, kind in of.items() if re.fullmatch(r"_n(\.\d+)?", name)} == {"int64"}
    accesses = [str(call) for call in calls.values() if call is not None and re.match(r"\(int64, int\d+", str(call))]
    products = [call for node, call in calls.items() if getattr(node, "op", "") == "binop" and " * " in _text(node)]
    assert len(accesses) > 5
    for call in products:
        if all(str(kind).startswith(("int", "Literal")) for kind in call.args):
            assert str(call.return_type) == "int64", call


def _text(node: Any) -> str:
    return f"{node.lhs} {'*' if node.fn is operator.mul else '?'} {node.rhs}"


@pytest.mark.parametrize("kernel", ["step_kernel", "begin_kernel", "observe_kernel"])
def test_traced_kernels_compute_addresses_in_64_bits(kernel: str) -> None:
    layout = make_layout(gpuenvs.get("InvertedPendulum-v5"), SAME_STEP)
    text = kernel_text(layout, "float32", kernel, "float32")
    accesses = re.findall(r"= getelementptr [^\n]*", text)
    assert len(accesses) > 15
    for line in accesses:
        indices = re.findall(r", (i\d+) [^,]+", line)
        assert indices and set(indices) <= {"i64"}, line
    products = re.findall(r"= mul nsw (i\d+) %slot\d+, \d+", text)  # rows times the number of a field
    assert products and set(products) == {"i64"}
