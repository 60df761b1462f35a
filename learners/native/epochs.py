"""The kernels of an update of one network: all epochs in one call, or minibatch by minibatch. See `learners.native.update`.

Nothing here imports torch: `learners.native.ahead` compiles these kernels in a process of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from gpuenvs.runtime.disk_cache import cached
from gpuenvs.runtime.generated import define
from gpuenvs.runtime.memory import make_store
from gpuenvs.scalar import f32, i32
from learners.native.adam import make_adam
from learners.native.elementary import square_sum
from learners.native.heads import (
    INLINED,
    STRICT,
    make_add_sums,
    make_log_probs,
    make_policy_gradient,
    make_value_gradient,
    row_sums,
)
from learners.native.network import ROWS, Plan, Source
from learners.native.vector import transpose

# What a kernel is told as numbers.
KNOBS = ("learning_rate", "clip_coef", "ent_coef", "scale", "max_grad_norm", "clip_value", "kl_limit", "adam_eps")


@cached
@numba.njit(**STRICT)
def pack(packed, flat, packed_index, flat_index):
    """packed[packed_index] = flat[flat_index]"""
    for k in range(flat_index.size):
        packed[packed_index[k]] = flat[flat_index[k]]


@cached
@numba.njit(**STRICT)
def unpack(packed, flat, packed_index, flat_index):
    """flat[flat_index] = packed[packed_index]"""
    for k in range(flat_index.size):
        flat[flat_index[k]] = packed[packed_index[k]]


def _chunks_source(plan: Plan, source: Source, critic: bool) -> list[str]:
    """`chunks(first, stop, order, weights, turned, grad, work, features, action, old_a, old_b, knobs, scale, sums)`.

    Adds the gradient of rows order[first:stop] to `grad` and their figures to `sums`. Names of arrays are addresses but for
    order, features, action, old_a, old_b, knobs and sums.
    """
    work = source.work
    z, dz, row_a, row_b, stats = (work(name) for name in ("z", "dz", "row_a", "row_b", "stats"))
    gather = [
        "i = order[first + r]",
        f"for k in range({plan.obs_dim}):",
        f"    _st_x({work('x')}, r * {plan.obs_dim} + k, features[i, k])",
        f"_st_a({row_a}, r, old_a[i])",
        f"_st_b({row_b}, r, old_b[i])",
    ]
    if critic:
        gradient = [f"_value_gradient({z}, {row_a}, {row_b}, {dz}, {stats}, _f32(knobs[5]), scale, rows)"]
    else:
        if plan.log_std:
            gather.append(f"for k in range({plan.outputs}):")
            gather.append(f"    _st_action_real({work('action')}, k * {ROWS} + r, action[i, k])")
        else:
            gather.append(f"_st_action_int({work('action')}, r, _i32(action[i]))")
        action, log_prob, entropy = work("action"), work("log_prob"), work("entropy")
        log_std, log_std_grad = (
            f"({base} + {4 * plan.offsets['log_std',]})" if plan.log_std else "0" for base in ("weights", "grad")
        )
        gradient = [
            f"_log_probs({z}, {action}, {log_prob}, {entropy}, {log_std}, rows)",
            f"_policy_gradient({z}, {action}, {log_prob}, {entropy}, {row_a}, {row_b}, {dz}, {stats}, {log_std}, "
            f"{log_std_grad}, _f32(knobs[1]), _f32(knobs[2]), scale, rows)",
        ]
    body = ["rows = min(stop - first, _ROWS)", "for r in range(rows):", *(f"    {line}" for line in gather)]
    body += [*source.forward(), *gradient, *source.backward()]
    body += [f"_row_sums({stats}, sums, rows, {1 if critic else 4})", "first += rows"]
    head = "def chunks(first, stop, order, weights, turned, grad, work, features, action, old_a, old_b, knobs, scale, sums):"
    return [head, "    while first < stop:", *(f"        {line}" for line in body)]


def _make_chunks(plan: Plan, source: Source, critic: bool) -> Any:
    real = np.dtype(np.float32)
    lines = _chunks_source(plan, source, critic)
    names = {
        "_ROWS": ROWS, "_f32": f32, "_i32": i32, "_add_sums": make_add_sums(), "_row_sums": row_sums,
        "_st_x": make_store(0, real), "_st_a": make_store(1, real), "_st_b": make_store(2, real),
        "_st_action_real": make_store(3, real), "_st_action_int": make_store(3, np.dtype(np.int32)), **source.names,
    }  # fmt: skip
    if critic:
        names["_value_gradient"] = make_value_gradient()
    else:
        names["_log_probs"] = make_log_probs(plan.outputs, plan.log_std)
        names["_policy_gradient"] = make_policy_gradient(plan.outputs, plan.log_std)
    return numba.njit(**INLINED)(define("chunks", "\n".join(lines), names, "learners.native"))


class Kernels(NamedTuple):
    """All epochs in one call, and the same in parts for processes that exchange something in between."""

    epochs: Any  # (state, grad, turned, work, features, action, old_a, old_b, order, bounds, knobs, table, steps)
    begin: Any  # (state, turned, work)
    gradient: Any  # (state, grad, turned, work, features, action, old_a, old_b, order, bounds, batch, knobs, figures)
    take_step: Any  # (state, grad, turned, knobs, figures, steps) -> bool


def make_kernels(plan: Plan, critic: bool, betas: tuple[float, float]) -> Kernels:
    """The kernels of one network; `betas` are Adam's.

    They are one function each when compiled: a function of their own for every part would be optimised again and made into
    machine code in every other that calls it, which took twice as long.

    state is (3, size): packed weights and Adam's two moments. See `learners.native.update.FusedEpochs.run` for the rest.
    """
    source, (beta1, beta2) = Source(plan), betas
    adam = make_adam(beta1, beta2)
    chunks = _make_chunks(plan, source, critic)
    lines = ["def turn(weights, turned):", *(f"    {line}" for line in source.turn() or ["pass"])]
    turn = numba.njit(**INLINED)(define("turn", "\n".join(lines), {"_transpose": transpose}, "learners.native"))
    one = plan.workspace["one"]

    @numba.njit(**INLINED)
    def gradient(state, grad, turned, work, features, action, old_a, old_b, order, bounds, batch, knobs, figures):
        """Gradient and figures of minibatch `batch`, means over its rows."""
        first, stop = bounds[batch], bounds[batch + 1]
        figures[:] = 0.0
        grad[:] = f32(0.0)
        scale = f32(knobs[3] / (stop - first))
        chunks(first, stop, order, state[0].ctypes.data, turned.ctypes.data, grad.ctypes.data, work.ctypes.data,
               features, action, old_a, old_b, knobs, scale, figures)  # fmt: skip
        for j in range(4):
            figures[j] /= stop - first

    @numba.njit(**INLINED)
    def take_step(state, grad, turned, knobs, figures, steps):
        """Adam's step along `grad`; False, and no step, where the KL is beyond its limit."""
        norm = np.sqrt(square_sum(grad))
        figures[4] = norm
        if figures[2] > knobs[6]:
            return False
        figures[5] = 1.0
        if norm - norm != 0.0:
            steps[1] += 1.0
            return True
        steps[0] += 1.0
        clip = f32(min(1.0, knobs[4] / (norm + 1e-6))) if knobs[4] > 0.0 else f32(1.0)
        step_size = f32(knobs[0] / (1.0 - beta1 ** steps[0]))
        correction = f32(1.0 / (1.0 - beta2 ** steps[0]))
        adam(state[0], grad, state[1], state[2], clip, step_size, correction, f32(knobs[7]))
        turn(state[0].ctypes.data, turned.ctypes.data)
        return True

    @numba.njit(**INLINED)
    def begin(state, turned, work):
        """What `gradient` expects at the start."""
        work[one] = f32(1.0)
        turn(state[0].ctypes.data, turned.ctypes.data)

    @numba.njit(**STRICT)
    def epochs(state, grad, turned, work, features, action, old_a, old_b, order, bounds, knobs, table, steps):
        begin(state, turned, work)
        for batch in range(bounds.size - 1):
            figures = table[batch]
            gradient(state, grad, turned, work, features, action, old_a, old_b, order, bounds, batch, knobs, figures)
            if not take_step(state, grad, turned, knobs, figures, steps):
                break

    return Kernels(cached(epochs), cached(begin), cached(gradient), cached(take_step))


def make_buffers(plan: Plan) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What the kernels work on: state, grad, turned and work."""
    grad, turned, work = (np.zeros(k, np.float32) for k in (plan.size, plan.turned_size, plan.workspace_size))
    return np.zeros((3, plan.size), np.float32), grad, turned, work


def no_minibatch(plan: Plan, discrete: bool) -> tuple[np.ndarray, ...]:
    """Arguments of `epochs` for no minibatch at all: the types are those of every call with discrete actions or others."""
    features, action = np.zeros((0, plan.obs_dim), np.float32), np.zeros(0, np.int64)
    if not discrete:
        action = np.zeros((0, 0), np.float32)
    old_a, old_b, order, bounds = *np.zeros((2, 0), np.float32), np.zeros(0, np.int64), np.zeros(1, np.int64)
    figures = np.zeros(len(KNOBS)), np.zeros((0, 6)), np.zeros(2)
    return *make_buffers(plan), features, action, old_a, old_b, order, bounds, *figures
