"""Checks of the code itself: what it holds, how large it is, which dtypes it computes with, what it reads from outside."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuenvs import contract
from gpuenvs.checks import offline
from gpuenvs.checks.report import FAIL, NOTE, OK, SKIP, Finding
from gpuenvs.checks.subject import REAL
from gpuenvs.contract import FUNCTIONS, leaks, rules, typed
from gpuenvs.contract.faults import plain, short
from gpuenvs.contract.messages import is_machinery
from gpuenvs.runtime.buffers import SAME_STEP
from gpuenvs.spec import INT, EnvSpec, field_kinds

_UNSAFE = {"nnan", "ninf", "reassoc", "fast"}


def functions(spec: EnvSpec) -> Iterator[Finding]:
    """They hold the contract and compile; the other checks need that."""
    if spec.traced:
        yield from _traced_functions(spec)
        return
    found = contract.faults(spec, REAL)
    for fault in found:
        yield Finding("functions", FAIL, fault.place, fault.what)
    if not found:
        yield Finding("functions", OK, "reset, step and observe hold the contract and compile")


def _traced_functions(spec: EnvSpec) -> Iterator[Finding]:
    from gpuenvs.errors import GpurlError
    from gpuenvs.runtime import traced
    from gpuenvs.runtime.buffers import make_layout

    action = "int32" if spec.discrete else REAL
    try:
        for kernel in traced.KERNELS:
            traced.record_kernel(make_layout(spec, SAME_STEP), REAL, kernel, action)
    except GpurlError as error:
        yield Finding(
            "functions", FAIL, str(error).removeprefix(f"{spec.id}: "), "see gpuenvs.trace for what can be used"
        )
        return
    yield Finding("functions", OK, "reset, step and observe are traced into programs")


def sizes(spec: EnvSpec) -> Iterator[Finding]:
    """Sizes and dtypes of what goes in and comes out."""
    state = list(field_kinds(spec.state).values())
    reals, integers = len(state) - state.count(INT), state.count(INT)
    actions = f"{spec.action_space.n} discrete actions" if spec.discrete else f"{spec.action_dim} action values"  # type: ignore[union-attr]
    parts = [f"state {reals} float32 + {integers} int32", f"observation {spec.obs_dim} float32", actions]
    parts += [f"{len(spec.metrics)} metrics"] if spec.metrics else []
    problems = list(_size_problems(spec))
    for found, advice in problems:
        yield Finding("sizes and dtypes", NOTE, found, advice)
    if not problems:
        yield Finding("sizes and dtypes", OK, ", ".join(parts))


def _size_problems(spec: EnvSpec) -> Iterator[tuple[str, str]]:
    if spec.discrete:
        return
    space: Any = spec.action_space
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        yield "action_space has infinite bounds", "bound it, and clip actions in step: learners scale by the bounds"
    if space.dtype.kind != "f":
        yield f"action_space is a Box of {space.dtype}", "use Discrete, or a Box with dtype=np.float32"


def leaked(spec: EnvSpec) -> Iterator[Finding]:
    """float64 and 64-bit integers in the float32 code, on both targets."""
    if spec.traced:
        yield Finding(
            "float64/int64 leaks", SKIP, "a traced program has one real dtype and 32-bit integers by construction"
        )
        return
    found: dict[tuple[str, int], leaks.Leak] = {}
    for name in FUNCTIONS:
        annotation = typed.compiled(spec, name, REAL).type_annotation
        for leak in leaks.find_leaks(getattr(spec, name).py_func, annotation):
            found.setdefault((leak.filename, leak.line), leak)
    problem = offline.problem()
    if problem is None:
        try:
            typed_kernels = [
                offline.typed_kernel(spec, REAL, SAME_STEP, name) for name in ("step_kernel", "observe_kernel")
            ]
        except Exception:  # of numba-cuda, of several kinds
            problem, typed_kernels = "its kernels do not compile, see CUDA below", []
        for leak in itertools.chain.from_iterable(leaks.find_leaks(*kernel) for kernel in typed_kernels):
            if not leak.filename.startswith("<gpuenvs"):
                found.setdefault((leak.filename, leak.line), leak)
    for leak in found.values():
        where = f"{leak.function.rsplit('.', 1)[-1]} ({short(leak.filename)}, line {leak.line})"
        source = f": `{leak.source}`" if leak.source else ""
        yield Finding("float64/int64 leaks", FAIL, f"{where} computes {leak.what}{source}", _leak_advice(leak))
    if not found:
        where = "on the CPU and on CUDA" if problem is None else f"on the CPU (CUDA not looked at: {problem})"
        yield Finding("float64/int64 leaks", OK, f"none {where}")


def _leak_advice(leak: leaks.Leak) -> str:
    if "float64" in leak.what:
        return "write constants as f32(0.5) or lit(0.1, x), cast integers with f32(n), use gpuenvs' sin, sqrt, ..."
    return "cast each sum and product of integers back at once: i32(n + i32(1))"


def hidden_state(spec: EnvSpec) -> Iterator[Finding]:
    """What functions read from outside of themselves, and how they are compiled."""
    name = "hidden state"
    if spec.traced:
        yield Finding(name, SKIP, "a traced program is fixed when it is recorded: it reads nothing later")
        return
    found = [finding for function in FUNCTIONS for finding in _outside(spec, function)]
    found = list({(f.status, f.found): f for f in found}.values())
    yield from found
    if not found:
        yield Finding(name, OK, "functions read their arguments and constants alone")


def _outside(spec: EnvSpec, role: str) -> Iterator[Finding]:
    """An array from outside; defaults that are kept between calls; compile options that break promises."""
    name, dispatcher = "hidden state", getattr(spec, role)
    for function in rules.reachable(dispatcher):
        code = plain(function).__code__  # type: ignore[attr-defined]
        if is_machinery(code.co_filename):
            continue
        for label, line, value in rules.outside(function):
            where = f"{code.co_name} ({short(code.co_filename)}, line {line})"
            if isinstance(value, np.ndarray):
                advice = "keep it constant, and every index within it; or make it a tuple"
                found = f"{where} reads the array {label}: a later change has no effect, and no index is checked"
                yield Finding(name, NOTE, found, advice)
            options = getattr(value, "targetoptions", None)
            if options is not None:
                yield from _options(label, options)
    yield from _options(role, dispatcher.targetoptions)


def _options(label: str, options: dict[str, Any]) -> Iterator[Finding]:
    fast = options.get("fastmath", False)
    if fast is True or (isinstance(fast, set | frozenset) and fast & _UNSAFE):
        found = f"{label} is compiled with fastmath={fast!r}, which lets NaN checks be deleted"
        yield Finding("hidden state", FAIL, found, "decorate it with gpuenvs.njit, without options")
    elif not options.get("forceinline") and options.get("inline", "never") != "always":
        found = (
            f"{label} is not compiled with gpuenvs.njit: it may stay a call, which stops loops from being vectorised"
        )
        yield Finding("hidden state", NOTE, found, "decorate it with gpuenvs.njit instead of numba's")
