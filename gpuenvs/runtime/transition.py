"""One environment step with time limit and autoreset, written once as source lines for every env and backend.

The truth table (`terminated`, `truncated` after a step):

| state ended | limit reached | terminated | truncated |
|---|---|---|---|
| no | no | 0 | 0 |
| yes | no | 1 | 0 |
| no | yes | 0 | 1 |
| yes | yes | 1 | 1 (the target does not bootstrap) |

A step from or into a state that is NaN or infinite ends its row: `terminated`, reward and metrics 0, and the observation is
the one of the last finite state. Nothing of it reaches the next episode or another row.

Three stages, each a list of source lines over a row number `i`:

- `advance_lines`: one step of row i; its outputs; `ended`.
- `restart_lines`: the first state of the next episode of row i, as `fresh` and `fresh_obs`; nothing is stored.
- `place_lines`: store `fresh` into row i, after saving what the ended episode leaves behind.

CUDA runs all three per thread. The CPU backend runs `advance` as a vectorised loop, gathers the few rows that ended, and
runs the other two over that short list.

The lines speak of buffers through a `Target`, which knows how to load and store on one backend. Names with a leading
underscore are provided by `namespace` or by the kernel's prologue. There is no `if` and no `not` in them: the same lines are
also traced (`gpuenvs.runtime.traced`), and a traced value has no truth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuenvs.rng import Rng, uniform
from gpuenvs.runtime.buffers import DISABLED, NEXT_STEP, SAME_STEP, Layout
from gpuenvs.scalar import floor, njit, select
from gpuenvs.spec import INT, field_kinds

f32 = np.float32

# The number of the first draw that gives a param its value. Environments number theirs from 0.
PARAM_DRAWS = 2**30


@dataclass(frozen=True)
class Target:
    """How one backend reads and writes buffers.

    Args:
        load: (buffer name, row, column expression) -> expression.
        store: (buffer name, row, column expression, value expression) -> statement.
    """

    load: Callable[[str, int, str], str]
    store: Callable[[str, int, str, str], str]


@njit
def negate(condition):
    """`not condition`."""
    return not condition


@njit
def finite(x):
    """True when x is neither NaN nor infinite: x * 0 is NaN for both. One multiplication, vectorises."""
    return x * f32(0.0) == f32(0.0)


def namespace(layout: Layout, real: np.dtype) -> dict[str, Any]:
    """Globals that the generated lines use."""
    spec = layout.spec
    return {
        "_State": spec.state,
        "_Params": type(spec.params),
        "_Rng": Rng,
        "_reset": spec.reset,
        "_step": spec.step,
        "_observe": spec.observe,
        "_finite": finite,
        "_select": select,
        "_uniform": uniform,
        "_floor": floor,
        "_not": negate,
        "_bool": bool,
        "_real": np.dtype(real).type,
        "_i32": np.int32,
        "_u32": np.uint32,
        "_ONE": np.int32(1),
        "_ONE_U": np.uint32(1),
        "_ZERO": np.dtype(real).type(0),
        "_ZERO_I": np.int32(0),
    }


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)},)"


def _state_values(layout: Layout, variable: str) -> list[str]:
    """`variable.field` of every field, cast to the dtype of its buffer."""
    return [
        f"{'_i32' if buffer == 'state_int' else '_real'}({variable}.{field})"
        for field, buffer, _ in layout.state_fields
    ]


def observation_lines(layout: Layout, variable: str, state: str, params: str) -> list[str]:
    """Unpack observe()'s tuple into `variable_0 ...`; numba rejects a tuple of another length."""
    names = [f"{variable}_{k}" for k in range(layout.spec.obs_dim)]
    return [f"{_tuple(names)} = _observe({state}, {params})"]


def param_lines(layout: Layout, target: Target, shared: Callable[[str, int], str]) -> list[str]:
    """`params = ...`, each field from its shared value or from row i of its per-env array."""
    values = [
        target.load(buffer, row, "i") if own else shared(buffer, row) for _, buffer, row, own in layout.param_fields
    ]
    return [f"params = _Params({', '.join(values)})"]


def draw_lines(layout: Layout, target: Target, shared: Callable[[str, int], str]) -> list[str]:
    """`params = ...` of a new episode of row i, whose `rng` is known: what is drawn is drawn, as `drawn_FIELD`."""
    if not layout.drawn:
        return param_lines(layout, target, shared)
    when, bounds = dict(layout.drawn), {name: shared(buffer, row) for name, buffer, row in layout.shared_numbers}
    lines, values = ["first_rng = _Rng(_seed_lo, _seed_hi, _u32(_env_offset + i), _u32(_ZERO_I))"], []
    for k, (field, buffer, row, own) in enumerate(layout.param_fields):
        if field not in when:
            values.append(target.load(buffer, row, "i") if own else shared(buffer, row))
            continue
        rng = "rng" if when[field] == "episode" else "first_rng"
        low, high, draw = bounds[f"{field}.low"], bounds[f"{field}.high"], PARAM_DRAWS + k
        if buffer == "param_int_env":
            # The product alone is rounded, and the same with or without fused multiply-add: equal on all backends.
            lines += [
                f"width = _i32({high} - {low})",
                f"above = _i32(_floor(_uniform({rng}, {draw}, _real(_ZERO_I), _real(_i32(width + _ONE)))))",
                f"drawn_{field} = _i32({low} + _select(above > width, width, above))",
            ]
        else:
            lines.append(f"drawn_{field} = _real(_uniform({rng}, {draw}, {low}, {high}))")
        values.append(f"drawn_{field}")
    return [*lines, f"params = _Params({', '.join(values)})"]


def advance_lines(layout: Layout, target: Target, shared: Callable[[str, int], str]) -> list[str]:
    """One step of row i. Sets `done`, `bad_state`, `bad_reward` and, under NEXT_STEP, `was_ended` (all bool)."""
    spec, load, store = layout.spec, target.load, target.store
    real_fields = [f for f, kind in field_kinds(spec.state).items() if kind != INT]
    lines = param_lines(layout, target, shared)
    lines.append(f"state = _State({', '.join(load(b, r, 'i') for _, b, r in layout.state_fields)})")
    if spec.discrete:
        lines.append(f"action = _i32({load('action', 0, 'i')})")
    else:
        lines.append(f"action = {_tuple([load('action', k, 'i') for k in range(spec.action_dim)])}")
    lines.append(f"moved, reward_raw, ended_raw{', extra' if spec.metrics else ''} = _step(state, action, params)")
    # The state before the step counts too: an environment's own clip can make a number of an infinity that was put in.
    checks = [f"_finite({variable}.{f})" for variable in ("state", "moved") for f in real_fields]
    lines.append(f"moved_ok = {' & '.join(checks) or 'True'}")
    # Keep the last finite state where the new one is not.
    lines += [f"kept_{f} = _select(moved_ok, moved.{f}, state.{f})" for f in spec.state._fields]  # type: ignore[attr-defined]
    kept = [f"{'_i32' if buffer == 'state_int' else '_real'}(kept_{field})" for field, buffer, _ in layout.state_fields]
    lines += [
        f"kept = _State({', '.join(kept)})",
        "reward = _select(moved_ok, _real(reward_raw), _ZERO)",
        f"elapsed = _i32({load('elapsed', 0, 'i')} + _ONE)",
        "terminated = _bool(ended_raw) | _not(moved_ok)",
        "truncated = elapsed >= _limit",
        "bad_state = _not(moved_ok)",
        "bad_reward = _not(_finite(reward))",
    ]
    if layout.autoreset == NEXT_STEP:
        # A row that ended in the step before is reset by this one: whatever was computed for it does not count.
        lines += [
            f"was_ended = {load('ended', 0, 'i')}",
            "terminated = terminated & _not(was_ended)",
            "truncated = truncated & _not(was_ended)",
            "bad_state = bad_state & _not(was_ended)",
            "bad_reward = bad_reward & _not(was_ended)",
            "reward = _select(was_ended, _ZERO, reward)",
        ]
    lines.append("done = terminated | truncated")
    lines += observation_lines(layout, "o", "kept", "params")
    for (_, buffer, row), value in zip(layout.state_fields, _state_values(layout, "kept"), strict=True):
        lines.append(store(buffer, row, "i", value))
    # Only a state injected as NaN still gives NaN here. Under SAME_STEP a new episode's observation replaces it; in the
    # other modes it would be what the caller takes for final_obs.
    guarded = "_real(o_{k})" if layout.autoreset == SAME_STEP else "_select(_finite(o_{k}), _real(o_{k}), _ZERO)"
    lines += [store("obs", k, "i", guarded.format(k=k)) for k in range(spec.obs_dim)]
    lines += [
        store("elapsed", 0, "i", "elapsed"),
        store("running_return", 0, "i", f"_real({load('running_return', 0, 'i')} + reward)"),
        store("reward", 0, "i", "reward"),
        store("terminated", 0, "i", "terminated"),
        store("truncated", 0, "i", "truncated"),
        store("nonfinite", 0, "i", "bad_state"),
        store("ended", 0, "i", "done"),
    ]
    for k in range(len(spec.metrics)):
        value = f"_select(moved_ok, _real(extra[{k}]), _ZERO)"
        if layout.autoreset == NEXT_STEP:
            value = f"_select(was_ended, _ZERO, {value})"
        lines += [f"metric_{k} = {value}", store("metrics", k, "i", f"metric_{k}")]
    if layout.totals:
        counted = "_select(was_ended, _ZERO, _real(_ONE))" if layout.autoreset == NEXT_STEP else "_real(_ONE)"
        for k, value in enumerate([*(f"metric_{k}" for k in range(len(spec.metrics))), counted]):
            lines.append(store("metric_totals", k, "i", f"_real({load('metric_totals', k, 'i')} + {value})"))
    return lines


def restart_lines(layout: Layout, target: Target, shared: Callable[[str, int], str]) -> list[str]:
    """First state of episode `episode` (a uint32 variable set by the caller) of row i: `fresh`, `fresh_o_0 ...`."""
    lines = [
        "rng = _Rng(_seed_lo, _seed_hi, _u32(_env_offset + i), episode)",
        *draw_lines(layout, target, shared),
        "fresh = _reset(rng, params)",
        f"fresh = _State({', '.join(_state_values(layout, 'fresh'))})",
    ]
    return lines + observation_lines(layout, "fresh_o", "fresh", "params")


def fresh_values(layout: Layout) -> tuple[list[tuple[str, int, str]], list[tuple[str, int, str]]]:
    """What `restart_lines` computed, as (buffer, row, expression): the reals, then the integers."""
    drawn = dict(layout.drawn)
    values = [
        (buffer, row, value)
        for (_, buffer, row), value in zip(layout.state_fields, _state_values(layout, "fresh"), strict=True)
    ]
    reals = [v for v in values if v[0] == "state_real"]
    reals += [("obs", k, f"_real(fresh_o_{k})") for k in range(layout.spec.obs_dim)]
    integers = [v for v in values if v[0] == "state_int"]
    for field, buffer, row, _ in layout.param_fields:
        if field in drawn:
            (reals if buffer == "param_real_env" else integers).append((buffer, row, f"drawn_{field}"))
    return reals, integers


def leave_lines(layout: Layout, target: Target) -> list[str]:
    """Under SAME_STEP: save what the ended episode of row i leaves behind, before `place_lines` overwrites it."""
    if layout.autoreset != SAME_STEP:
        return []
    load, store = target.load, target.store
    lines = []
    for k in range(layout.spec.obs_dim):
        # Only a state injected as NaN can still be NaN here; it must not reach V(final_obs).
        lines.append(f"last = {load('obs', k, 'i')}")
        lines.append(store("final_obs", k, "i", "_select(_finite(last), last, _ZERO)"))
    lines.append(store("episode_return", 0, "i", load("running_return", 0, "i")))
    lines.append(store("episode_length", 0, "i", load("elapsed", 0, "i")))
    return lines


def place_lines(layout: Layout, target: Target, values: list[tuple[str, int, str]]) -> list[str]:
    """Begin the new episode of row i: state and observation from `values`, counters at zero."""
    lines = [target.store(buffer, row, "i", value) for buffer, row, value in values]
    lines += [
        target.store("episode", 0, "i", "episode"),
        target.store("elapsed", 0, "i", "_ZERO_I"),
        target.store("running_return", 0, "i", "_ZERO"),
    ]
    return lines


def needs_restart(layout: Layout) -> str | None:
    """The variable of `advance_lines` that says whether row i begins a new episode in this step; None: never."""
    return {SAME_STEP: "done", NEXT_STEP: "was_ended", DISABLED: None}[layout.autoreset]
