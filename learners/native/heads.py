"""Action heads and losses over a chunk of rows: log-probs, PPO's gradient with respect to the network's outputs.

The formulas are those of `learners.distributions` and `learners.functional`, differentiated by hand. A row is a SIMD lane;
the number of outputs is written out. Log-probs come from one compiled function that the collector and the update share, so
the ratio of a policy to itself is exactly 1.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from gpuenvs.runtime.generated import define
from gpuenvs.runtime.memory import make_load, make_store
from gpuenvs.scalar import f32, i32, log
from learners.native.elementary import exp
from learners.native.network import ROWS

STRICT: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "nsz"}}
INNER = {**STRICT, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
INLINED = {**STRICT, "inline": "always"}
_SUMS: dict[str, Any] = {**INNER, "fastmath": {"contract", "nsz", "reassoc"}}
# Arrays of one chunk, each with an alias scope of its own.
_ARRAYS = ("z", "dz", "log_prob", "entropy", "row_a", "row_b", "stats", "log_std", "log_std_grad")


def _names() -> dict[str, Any]:
    names: dict[str, Any] = {
        "_exp": exp,
        "_log": log,
        "_f32": f32,
        "_i32": i32,
        "_HALF_LOG_2PI": f32(0.5 * math.log(2 * math.pi)),
    }
    names |= {"_0": f32(0), "_1": f32(1), "_HALF": f32(0.5)}
    for k, array in enumerate(_ARRAYS):
        names[f"_ld_{array}"] = make_load(k, np.dtype(np.float32))
        names[f"_st_{array}"] = make_store(k, np.dtype(np.float32))
    for name, dtype in (("int", np.int32), ("real", np.float32)):
        names[f"_ld_action_{name}"] = make_load(len(_ARRAYS), np.dtype(dtype))
        names[f"_st_action_{name}"] = make_store(len(_ARRAYS), np.dtype(dtype))
    return names


def _build(
    name: str,
    arguments: str,
    before: list[str],
    row: list[str],
    options: dict[str, Any],
    after: list[str] | None = None,
) -> Any:
    """The compiled function: lines before, for each row r, and after the loop over rows."""
    lines = [f"def {name}({arguments}):", *(f"    {line}" for line in before), "    for r in range(rows):"]
    lines += [f"        {line}" for line in row]
    lines += [f"    {line}" for line in after or []]
    return numba.njit(**options)(define(name, "\n".join(lines), _names(), "learners.native"))


def _at(k: int) -> str:
    return "r" if k == 0 else f"{k * ROWS} + r"


def make_log_probs(outputs: int, continuous: bool) -> Any:
    """`log_probs(z, action, log_prob, entropy, log_std, rows)` on addresses.

    Discrete: z[k * ROWS + row] becomes the log-softmax; action is int32[row]. Continuous: z holds the means and stays,
    action is float32[k * ROWS + row].
    """
    ks = range(outputs)
    before: list[str] = []
    if continuous:
        before = [f"s_{k} = _ld_log_std(log_std, {k})" for k in ks]
        before += [f"inv_{k} = _exp(-s_{k})" for k in ks]
        row = [f"u_{k} = (_ld_action_real(action, {_at(k)}) - _ld_z(z, {_at(k)})) * inv_{k}" for k in ks]
        row.append("total = " + " + ".join(f"(-_HALF * (u_{k} * u_{k}) - s_{k} - _HALF_LOG_2PI)" for k in ks))
        row.append("_st_log_prob(log_prob, r, total)")
        row.append("_st_entropy(entropy, r, " + " + ".join(f"(s_{k} + (_HALF + _HALF_LOG_2PI))" for k in ks) + ")")
    else:
        row = [f"z_{k} = _ld_z(z, {_at(k)})" for k in ks]
        row.append("top = z_0")
        row += [f"top = max(top, z_{k})" for k in ks if k]
        row += [f"e_{k} = _exp(z_{k} - top)" for k in ks]
        row.append("total = " + " + ".join(f"e_{k}" for k in ks))
        row += ["inv = _1 / total", "shift = top + _log(total)", "a = _ld_action_int(action, r)"]
        row += [f"l_{k} = z_{k} - shift" for k in ks]
        row.append("chosen = l_0")
        row += [f"chosen = l_{k} if a == {k} else chosen" for k in ks if k]
        row += [f"_st_z(z, {_at(k)}, l_{k})" for k in ks]
        row.append("_st_log_prob(log_prob, r, chosen)")
        row.append("_st_entropy(entropy, r, -(" + " + ".join(f"(e_{k} * inv) * l_{k}" for k in ks) + "))")
    return _build("log_probs", "z, action, log_prob, entropy, log_std, rows", before, row, INNER)


def make_policy_gradient(outputs: int, continuous: bool) -> Any:
    """`policy_gradient(z, action, log_prob, entropy, row_a, row_b, dz, stats, log_std, log_std_grad, clip, ent, scale,
    rows)`.

    row_a holds the behaviour log-probs and row_b the advantages; dz gets the gradient of
    `scale * (sum of -min(ratio A, clipped ratio A) - ent * entropy)`. stats[j * ROWS + row]: the surrogate loss, entropy,
    KL (r - 1 - log r) and 1 where the ratio is outside of the clip range. `log_probs` must have run.
    """
    ks = range(outputs)
    before = ["low = _1 - clip", "high = _1 + clip", "ent_scale = ent * scale"]
    row = [
        "lp = _ld_log_prob(log_prob, r)",
        "h = _ld_entropy(entropy, r)",
        "log_ratio = lp - _ld_row_a(row_a, r)",
        "ratio = _exp(log_ratio)",
        "adv = _ld_row_b(row_b, r)",
        "free = ratio * adv",
        "held = min(max(ratio, low), high) * adv",
        "g = -(free if free <= held else _0) * scale",
        "_st_stats(stats, r, -min(free, held))",
        f"_st_stats(stats, {ROWS} + r, h)",
        f"_st_stats(stats, {2 * ROWS} + r, (ratio - _1) - log_ratio)",
        f"_st_stats(stats, {3 * ROWS} + r, _1 if abs(ratio - _1) > clip else _0)",
    ]
    if continuous:
        before += [f"inv_{k} = _exp(-_ld_log_std(log_std, {k}))" for k in ks]
        before += [f"sum_{k} = _0" for k in ks]
        row += [f"u_{k} = (_ld_action_real(action, {_at(k)}) - _ld_z(z, {_at(k)})) * inv_{k}" for k in ks]
        row += [f"_st_dz(dz, {_at(k)}, g * u_{k} * inv_{k})" for k in ks]
        row += [f"sum_{k} += g * (u_{k} * u_{k} - _1) - ent_scale" for k in ks]
    else:
        row.append("a = _ld_action_int(action, r)")
        for k in ks:
            row += [
                f"l = _ld_z(z, {_at(k)})",
                "p = _exp(l)",
                f"_st_dz(dz, {_at(k)}, g * ((_1 if a == {k} else _0) - p) + ent_scale * (p * (l + h)))",
            ]
    arguments = "z, action, log_prob, entropy, row_a, row_b, dz, stats, log_std, log_std_grad, clip, ent, scale, rows"
    if not continuous:
        return _build("policy_gradient", arguments, before, row, INNER)
    after = [f"_st_log_std_grad(log_std_grad, {k}, _f32(_ld_log_std_grad(log_std_grad, {k}) + sum_{k}))" for k in ks]
    return _build("policy_gradient", arguments, before, row, _SUMS, after)


def make_value_gradient() -> Any:
    """`value_gradient(z, row_a, row_b, dz, stats, clip_range, scale, rows)`.

    row_a holds the targets, row_b the old values; dz gets the gradient of `scale * sum of half the squared error`, clipped
    as in `functional.value_loss`; stats[row] that loss.
    """
    row = [
        "v = _ld_z(z, r)",
        "target = _ld_row_a(row_a, r)",
        "old = _ld_row_b(row_b, r)",
        "error = v - target",
        "move = v - old",
        "held = min(max(move, -clip_range), clip_range)",
        "held_error = old + held - target",
        "use_held = (clip_range > _0) & (held_error * held_error > error * error)",
        "held_slope = held_error if held == move else _0",
        "_st_dz(dz, r, (held_slope if use_held else error) * scale)",
        "loss = held_error * held_error if use_held else error * error",
        "_st_stats(stats, r, _HALF * loss)",
    ]
    return _build("value_gradient", "z, row_a, row_b, dz, stats, clip_range, scale, rows", [], row, INNER)


def make_add_sums(stride: int = ROWS) -> Any:
    """`add_sums(values, totals, rows, count)`: totals[k] += sum over rows of values[k * stride + row]."""
    load, store = make_load(0, np.dtype(np.float32)), make_store(1, np.dtype(np.float32))
    load_total = make_load(1, np.dtype(np.float32))

    @numba.njit(**_SUMS)
    def add_sums(values, totals, rows, count):
        for k in range(count):
            total = f32(0.0)
            for r in range(rows):
                total += load(values, k * stride + r)
            store(totals, k, f32(load_total(totals, k) + total))

    return add_sums


_load_stat = make_load(0, np.dtype(np.float32))


@numba.njit(**_SUMS)
def row_sums(values, totals, rows, count):
    """totals[k] += sum over rows of values[k * ROWS + row]; totals is a float64 array."""
    for k in range(count):
        total = f32(0.0)
        for r in range(rows):
            total += _load_stat(values, k * ROWS + r)
        totals[k] += total
