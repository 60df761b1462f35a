"""Ladder step 2: the typed code of every float32 kernel is free of float64 and of 64-bit integer arithmetic."""

from __future__ import annotations

import inspect
import os
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from numba import types

import gpuenvs
from gpuenvs.checks.offline import typed_kernel
from gpuenvs.contract.leaks import Leak, find_leaks, functions
from gpuenvs.runtime.buffers import AUTORESET_MODES, NEXT_STEP, SAME_STEP, make_layout
from gpuenvs.runtime.cpu import _Source as Source
from gpuenvs.scalar import f32, i32, lit, njit, sin
from gpuenvs.spec import EnvSpec
from tests.gpuenvs.classic import CLASSIC


def cpu_kernel(spec: EnvSpec, name: str, autoreset: str) -> tuple[Any, Any]:
    """(Python function, type annotation) of a CPU kernel, compiled here: machine code from a cache has no types."""
    real, action = np.dtype(np.float32), np.dtype(np.int32 if spec.discrete else np.float32)
    with mock.patch.dict(os.environ, GPURL_CACHE="0"):
        kernel = Source(make_layout(spec, autoreset), real, action).compile(name)
    number, table = types.int64, types.int64[::1]
    arguments = {"step_kernel": (number, number, table, table), "check_kernel": (number, number, number)}
    kernel.compile(arguments.get(name, (table, table, table)))
    return kernel.py_func, next(iter(kernel.overloads.values())).type_annotation


def cuda_kernel(spec: EnvSpec, name: str, autoreset: str) -> tuple[Any, Any]:
    """(Python function, type annotation) as numba-cuda types the kernel."""
    return typed_kernel(spec, "float32", autoreset, name)


def report(leaks: list[Leak]) -> str:
    return "\n".join(["", *map(str, leaks)])


@pytest.mark.parametrize("autoreset", AUTORESET_MODES)
@pytest.mark.parametrize("env_id", CLASSIC)
def test_cpu_step_does_not_leak(env_id: str, autoreset: str):
    leaks = find_leaks(*cpu_kernel(gpuenvs.get(env_id), "step_kernel", autoreset))
    assert not leaks, report(leaks)


@pytest.mark.parametrize("name", ["begin_kernel", "observe_kernel", "check_kernel"])
@pytest.mark.parametrize("env_id", CLASSIC)
def test_other_cpu_kernels_do_not_leak(env_id: str, name: str):
    leaks = find_leaks(*cpu_kernel(gpuenvs.get(env_id), name, SAME_STEP))
    assert not leaks, report(leaks)


@pytest.mark.parametrize("autoreset", AUTORESET_MODES)
@pytest.mark.parametrize("env_id", CLASSIC)
def test_cuda_step_does_not_leak(env_id: str, autoreset: str):
    leaks = find_leaks(*cuda_kernel(gpuenvs.get(env_id), "step_kernel", autoreset))
    assert not leaks, report(leaks)


@pytest.mark.parametrize("name", ["begin_kernel", "observe_kernel"])
@pytest.mark.parametrize("env_id", CLASSIC)
def test_cuda_begin_and_observe_do_not_leak(env_id: str, name: str):
    leaks = find_leaks(*cuda_kernel(gpuenvs.get(env_id), name, SAME_STEP))
    assert not leaks, report(leaks)


@pytest.mark.parametrize("env_id", CLASSIC)
def test_the_walk_reaches_the_environment_and_its_helpers(env_id: str):
    spec = gpuenvs.get(env_id)
    own = {f"{f.py_func.__module__}.{f.py_func.__qualname__}" for f in (spec.reset, spec.step, spec.observe)}
    on_cpu = functions(*cpu_kernel(spec, "step_kernel", SAME_STEP))
    on_cuda = functions(*cuda_kernel(spec, "step_kernel", SAME_STEP))
    for reached in (on_cpu, on_cuda):
        assert own <= reached
        assert {"gpuenvs.rng.philox4x32", "gpuenvs.rng._mulhilo", "gpuenvs.rng._uniform32"} <= reached


# --- planted leaks -----------------------------------------------------------------------------------------------------


class State(NamedTuple):
    x: float
    n: int


class Params(NamedTuple):
    gain: float = 1.0


@njit
def reset(rng, params):
    return State(f32(0.0), i32(0))


@njit
def observe(state, params):
    return (state.x,)


@njit
def clean(state, action, params):
    x = sin(state.x) * lit(0.1, state.x) + f32(0.3) * params.gain
    n = i32(state.n + i32(1))
    return State(x, n), x, x > f32(2.5)


@njit
def bare_literal(state, action, params):
    x = state.x + 0.1 * params.gain  # PLANTED
    return State(f32(x), state.n), state.x, False


@njit
def literal_in_comparison(state, action, params):
    ended = state.x > 2.4  # PLANTED
    return State(state.x, state.n), state.x, ended


@njit
def integer_times_real(state, action, params):
    x = f32(state.n * state.x)  # PLANTED
    return State(x, state.n), state.x, False


@njit
def widened_integer(state, action, params):
    n = state.n + i32(1)  # PLANTED
    return State(state.x, n * i32(2)), state.x, False


@njit
def joined_by_a_branch(state, action, params):
    x = state.x
    if state.n > i32(3):
        x = 0.0  # PLANTED
    return State(f32(x), state.n), state.x, False


@njit
def scale(x):
    return x * 0.5  # PLANTED


@njit
def leak_in_a_helper(state, action, params):
    return State(f32(scale(state.x)), state.n), state.x, False


PLANTED = [
    bare_literal,
    literal_in_comparison,
    integer_times_real,
    widened_integer,
    joined_by_a_branch,
    leak_in_a_helper,
]


def planted_spec(step: Any) -> EnvSpec:
    from gymnasium.spaces import Box, Discrete

    box = Box(-np.inf, np.inf, (1,), np.float32)
    return EnvSpec("Planted-v0", State, Params(), reset, step, observe, box, Discrete(2))


def planted_line(function: Any) -> int:
    """Line number of the mark in a function of this file."""
    lines, first = inspect.getsourcelines(function.py_func)
    return first + next(k for k, line in enumerate(lines) if "# PLANTED" in line)


def leaks_of(step: Any, target: str) -> list[Leak]:
    """What is found in a step function alone (CPU) or in the whole kernel around it (CUDA)."""
    if target == "cuda":
        return find_leaks(*cuda_kernel(planted_spec(step), "step_kernel", NEXT_STEP))
    step(State(f32(0.5), i32(1)), i32(0), Params(f32(1.0)))
    return find_leaks(step.py_func, next(iter(step.overloads.values())).type_annotation)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("step", PLANTED, ids=lambda f: f.py_func.__name__)
def test_planted_leak_is_reported_with_its_line(step: Any, target: str):
    leaks = leaks_of(step, target)
    line = planted_line(scale if step is leak_in_a_helper else step)
    assert [leak for leak in leaks if leak.line == line and leak.filename == __file__], report(leaks)
    assert any("PLANTED" in leak.source for leak in leaks)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_clean_step_is_not_reported(target: str):
    leaks = leaks_of(clean, target)
    assert not leaks, report(leaks)


def test_a_leak_in_a_cpu_kernel_is_found_through_the_kernel():
    leaks = find_leaks(*cpu_kernel(planted_spec(bare_literal), "step_kernel", NEXT_STEP))
    assert planted_line(bare_literal) in [leak.line for leak in leaks]
