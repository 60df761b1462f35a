"""Checks across backends: plain Python, the CPU's machine code, CUDA's simulator, and the machine code for CUDA devices."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np

import gpuenvs
from gpuenvs.checks import offline
from gpuenvs.checks.plain import PlainRow
from gpuenvs.checks.ptxas import assemble
from gpuenvs.checks.report import FAIL, NOTE, OK, SKIP, Finding
from gpuenvs.checks.rollout import differences, play
from gpuenvs.checks.simulated import SimulatorError, simulate
from gpuenvs.checks.subject import REAL, Samples, Subject, row_of, shown
from gpuenvs.contract import FUNCTIONS, rules
from gpuenvs.contract.faults import head, short
from gpuenvs.contract.messages import is_machinery
from gpuenvs.rng import Rng, split_seed
from gpuenvs.runtime import traced, traced_python
from gpuenvs.runtime.buffers import SAME_STEP, shared_size, shared_values
from gpuenvs.runtime.cuda import cuda_problem
from gpuenvs.spec import EnvSpec

ARCHITECTURE = "sm_90"
_TOLERANCE, _TRACED_TOLERANCE = 1e-3, 2e-2  # one step in float32; products and sums are fused differently
_FEW = 0.01  # share of rows that may lie on the other side of a comparison
_ROWS, _TRACED_ROWS, _RESETS = 256, 6, 16
_DEVICE_ROWS = 256
_DIFFERENT = "look for integers that overflow, and for a variable without a value"


def plain_python(subject: Subject) -> Iterator[Finding]:
    """Single steps in plain Python against the CPU's machine code; indexes and hidden state show here, too."""
    if subject.spec.traced:
        yield from _traced_python(subject)
        return
    samples = _chosen(subject, subject.samples, _ROWS)
    row = PlainRow(subject.spec, REAL)
    try:
        yield from _resets(subject, row)
        yield from _steps(subject, row, samples)
    except Exception as error:
        subject.raises = True
        yield _raised(error)


def _chosen(subject: Subject, samples: Samples, most: int) -> Samples:
    """Some of the samples, those among them that ended an episode first."""
    rng = subject.rng(6)
    order = rng.permutation(len(samples.rewards))
    order = order[np.argsort(~samples.terminated[order], kind="stable")]
    half = min(most // 4, int(np.count_nonzero(samples.terminated)))
    chosen = np.concatenate([order[:half], order[len(order) - (most - half) :]])

    def take(values: Any) -> Any:
        return type(values)(*(v[chosen] for v in values)) if isinstance(values, tuple) else values[chosen]

    return Samples(**{name: take(getattr(samples, name)) for name in Samples.__dataclass_fields__})


def _raised(error: Exception) -> Finding:
    """An exception of the user's code in plain Python."""
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if not is_machinery(frame.filename):
            place = f"{frame.name} ({short(frame.filename)}, line {frame.lineno}) "
    text = " ".join(str(error).split()) or "no message"
    if isinstance(error, IndexError):
        found = f"{place}uses an index outside of its tuple or array ({text})"
        return Finding("indexing", FAIL, found, "limit the index with min and max, or make the tuple longer")
    if isinstance(error, UnboundLocalError):
        return Finding("plain Python", FAIL, f"{place}raises {text}", "give the variable a value on every path")
    return Finding(
        "plain Python", FAIL, f"{place}raises {type(error).__name__}: {text}", "it must run in plain Python, too"
    )


def _resets(subject: Subject, row: PlainRow) -> Iterator[Finding]:
    spec = subject.spec
    with subject.make(_RESETS) as env:
        obs, _ = env.reset(seed=subject.seed)
        expected, obs, params = env.get_state(), obs.copy(), env.get_params()
    low, high = split_seed(subject.seed)
    found, seen = [], []
    for k in range(_RESETS):
        with np.errstate(over="ignore"):
            rng = Rng(low, high, np.uint32(k), np.uint32(0))  # type: ignore[arg-type]
            numbers = row.numbers(type(spec.params), row_of(params, k))
            state, seen_obs = row.reset(rng, numbers)
        found.append(state)
        seen.append(seen_obs)
    wrong = _apart(np.array(found, np.float64), np.array(expected, np.float64).T, _TOLERANCE)
    wrong |= _apart(np.array(seen, np.float64), obs, _TOLERANCE)
    if wrong.mean() > _FEW:
        what = f"{wrong.sum()} of {_RESETS} resets differ between plain Python and machine code"
        yield Finding("backend agreement", FAIL, what, _DIFFERENT)


def _steps(subject: Subject, row: PlainRow, samples: Samples) -> Iterator[Finding]:
    spec, outputs, again = subject.spec, [], 0
    count = len(samples.rewards)
    for k in range(count):
        given = (
            row.numbers(spec.state, row_of(samples.states, k)),
            samples.actions[k],
            row.numbers(type(spec.params), row_of(samples.params, k)),
        )
        out, repeated = row.step(*given), row.step(*given)
        again += not _same(out, repeated)
        outputs.append(out)
    if again:
        found = f"{again} of {count} steps differ when the same step is done twice in plain Python"
        yield Finding("hidden state", FAIL, found, "functions must not keep anything between calls")
    parts = {
        "state": (np.array([out[0] for out in outputs], np.float64), np.array(samples.after, np.float64).T),
        "reward": (np.array([[out[1]] for out in outputs], np.float64), samples.rewards[:, None]),
        "observation": (np.array([out[4] for out in outputs], np.float64), samples.obs),
        "terminated": (np.array([[out[2]] for out in outputs], np.float64), samples.terminated[:, None]),
    }
    finite = np.isfinite(parts["state"][0]).all(axis=1)  # the runtime ends others and keeps their last finite state
    wrong = dict.fromkeys(parts, np.zeros(count, bool))
    for name, (mine, theirs) in parts.items():
        relevant = finite & ~samples.ended if name == "state" else finite
        wrong[name] = _apart(mine, np.asarray(theirs, np.float64), _TOLERANCE) & relevant
    bad = {name: flags for name, flags in wrong.items() if flags.mean() > _FEW}
    for name, flags in bad.items():
        k = int(np.flatnonzero(flags)[0])
        mine, theirs = (shown(values[k].tolist()) for values in parts[name])
        state, action = shown(row_of(samples.states, k)), shown(samples.actions[k].tolist())
        found = f"{name} differs in {flags.sum()} of {count} steps: {mine} in plain Python, {theirs} compiled"
        found = f"{found}, from {state}, action {action}"
        yield Finding("backend agreement", FAIL, found, _DIFFERENT)
    if not bad:
        yield Finding(
            "backend agreement", OK, f"plain Python and machine code agree on {count} steps and {_RESETS} resets"
        )
    yield _indexes(subject)


def _indexes(subject: Subject) -> Finding:
    spec = subject.spec
    found = [fault for name in FUNCTIONS for fault in rules.variable_indexes(spec, name)]
    lines = ", ".join(dict.fromkeys(fault.place for fault in found))
    return Finding("indexing", OK, f"within bounds in plain Python: {lines}" if found else "by constants alone")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other) or (one != one and other != other)


def _apart(found: np.ndarray, expected: np.ndarray, tolerance: float) -> np.ndarray:
    """Rows in which a number differs by more than `tolerance`, relative above 1 and absolute below."""
    with np.errstate(invalid="ignore", over="ignore"):
        scale = np.maximum(1.0, np.abs(expected))
        close = (np.abs(found - expected) <= tolerance * scale) | (found == expected)
        close |= np.isnan(found) & np.isnan(expected)
    return ~close.all(axis=1)


def _traced_python(subject: Subject) -> Iterator[Finding]:
    """The program of a step, printed as Python, row by row: what a CUDA thread does."""
    samples = _chosen(subject, subject.samples, _TRACED_ROWS)
    count = len(samples.rewards)
    with subject.make(count) as env:
        env.reset(seed=subject.seed)
        env.set_state(samples.states)
        mine = _stepped_in_python(subject, env, samples.actions)
        env.step(samples.actions)
        going = ~(env.terminated | env.truncated)
        wrong = []
        for name in ("obs", "reward", "terminated", "state_real", "state_int"):
            found, expected = (np.asarray(values[name], np.float64).T for values in (mine, env.arrays))
            if (_apart(found, expected, _TRACED_TOLERANCE) & going).any():
                wrong.append(name)
    if wrong:
        text = f"{', '.join(wrong)} of a step differ between the program as Python and as machine code"
        yield Finding("backend agreement", FAIL, text, "report it: both are made from one program")
    else:
        yield Finding("backend agreement", OK, f"the program as Python and as machine code agree on {count} steps")
    yield Finding("indexing", SKIP, "indexes of a traced program are constants or loop counters")


def _stepped_in_python(subject: Subject, env: Any, actions: np.ndarray) -> dict[str, np.ndarray]:
    """Copies of a batch's arrays after a step of every row."""
    layout = env.backend.layout
    arrays = {name: np.array(values) for name, values in env.arrays.items()}
    arrays["action"] = np.atleast_2d(actions.T).copy()
    arrays["param_real"] = np.zeros(shared_size(layout), REAL)
    arrays["param_int"] = np.zeros(shared_size(layout), np.int32)
    for buffer, row, value in shared_values(layout, env.params, subject.spec.ranges):
        arrays[buffer][row] = value
    settings = {"seed_lo": subject.seed & 0xFFFFFFFF, "seed_hi": subject.seed >> 32, "env_offset": 0}
    settings["limit"] = env.max_episode_steps or 2**31 - 1
    function = traced_python.function(layout, REAL, "step_kernel")
    with np.errstate(all="ignore"):
        for k in range(len(actions)):
            function(k, arrays, settings, [0] * len(traced.COUNTED))
    return arrays


# --- CUDA ----------------------------------------------------------------------------------------------------------------


def simulator(subject: Subject) -> Iterator[Finding]:
    """The CUDA kernels in numba's simulator, and on a device if there is one, against the CPU."""
    name, spec = "CUDA simulator", subject.spec
    if spec.traced:
        yield Finding(name, SKIP, "it would run the same program as plain Python does")
    elif subject.raises:
        yield Finding(name, SKIP, "plain Python raises already")
    elif (reason := offline.missing()) is not None:
        yield Finding(name, SKIP, reason)
    else:
        scenario = _scenario(subject, 12, 5)
        try:
            found = simulate(spec, REAL, SAME_STEP, scenario)
        except SimulatorError as error:
            yield Finding(name, FAIL, str(error), "the kernels must run in NUMBA_ENABLE_CUDASIM=1, too")
        else:
            yield _agreement(name, subject, scenario, found)
    if cuda_problem(0) is None:
        scenario = _scenario(subject, _DEVICE_ROWS, 5)
        yield _agreement("CUDA device", subject, scenario, play("cuda:0", spec, REAL, SAME_STEP, scenario))


def _scenario(subject: Subject, rows: int, steps: int) -> dict[str, np.ndarray]:
    rng, samples = subject.rng(7), subject.samples
    picked = rng.integers(0, len(samples.rewards), rows)
    states = np.array([np.asarray(values, np.float64)[picked] for values in samples.states])
    return {"states": states, "actions": np.stack([subject.random_actions(rng, rows) for _ in range(steps)])}


def _agreement(name: str, subject: Subject, scenario: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> Finding:
    tolerance = _TRACED_TOLERANCE if subject.spec.traced else _TOLERANCE
    expected = play("cpu", subject.spec, REAL, SAME_STEP, scenario, follow=found)
    wrong = differences(found, expected, tolerance)
    if wrong:
        return Finding(name, FAIL, f"not what the CPU gives: {'; '.join(wrong[:3])}", "look for integers that overflow")
    steps, rows = scenario["actions"].shape[:2]
    return Finding(
        name, OK, f"all arrays agree with the CPU's over {steps} steps of {rows} rows, time limits and NaN included"
    )


def machine_code(subject: Subject) -> Iterator[Finding]:
    """The step kernel as machine code for a device: registers, local memory, float64 instructions."""
    name, spec, problem = f"CUDA {ARCHITECTURE}", subject.spec, offline.problem()
    if problem is not None:
        yield Finding(name, SKIP, problem)
        return
    try:
        usage = assemble(offline.kernel_ptx(spec, REAL, SAME_STEP, "step_kernel", ARCHITECTURE), ARCHITECTURE)
    except Exception as error:  # of numba-cuda, NVVM and ptxas
        yield _does_not_compile(name, spec, error)
        return
    spilled = usage.spill_stores + usage.spill_loads
    found = f"{usage.registers} registers, {usage.stack} bytes of stack, {spilled} bytes spilled"
    if usage.float64:
        yield Finding(
            name, FAIL, f"{usage.float64} float64 instructions in a float32 kernel", "see float64/int64 leaks"
        )
    elif usage.stack or spilled:
        yield Finding(name, NOTE, found, "works; what does not fit into registers lies in slower memory")
    else:
        yield Finding(name, OK, found)


def _does_not_compile(name: str, spec: EnvSpec, error: Exception) -> Finding:
    """With the lines of a numpy function that numba-cuda, other than numba, does not know: its error names no line."""
    unknown = error.args[0] if isinstance(error, KeyError) and error.args else None
    if not isinstance(unknown, np.ufunc):
        return Finding(
            name, FAIL, f"does not compile: {' '.join(str(error).split())[:300]}", "see what the message names"
        )
    places = {
        f"{head(called)[0]} ({short(head(called)[1])}, line {line})": None
        for role in FUNCTIONS
        for called in rules.reachable(getattr(spec, role))
        for _, line, value in rules.outside(called)
        if value is unknown
    }
    where, word = ", ".join(places) or "a function", unknown.__name__
    instead = f"gpuenvs.{word}" if word in gpuenvs.__all__ else f"math.{word}"
    return Finding(name, FAIL, f"{where} uses np.{word}, which CUDA kernels do not have", f"use {instead}")
