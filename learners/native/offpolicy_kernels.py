"""The numba side of `learners.native.offpolicy`: gather, targets, forward and backward passes of SAC and TD3 over rows of
a batch.

Rows go through a network in chunks of `Plan.rows`, whose activations stay in the second-level cache. The formulas are those
of `learners.sac`, `learners.td3` and `learners.actors`, differentiated by hand.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from gpuenvs.runtime.disk_cache import cached
from gpuenvs.runtime.generated import define
from gpuenvs.runtime.memory import make_load, make_store
from gpuenvs.scalar import f32, log
from learners.actors import LOG_STD_MAX, LOG_STD_MIN
from learners.native.elementary import exp, tanh
from learners.native.heads import INLINED, INNER, STRICT, make_add_sums
from learners.native.network import Plan, Source
from learners.native.vector import make_dots, transpose

# What `prepare` leaves for all threads: observation and action, now and after the steps that count, (B, obs_dim + actions),
# row after row; (B,) reward, discount and log-prob of the following action.
BATCH = ("cx", "fx", "reward", "discount", "log_prob")
_REAL = np.dtype(np.float32)


class CriticSource(Source):
    """A critic's passes, and the way back to the action it was given."""

    def deltas(self) -> list[str]:
        """From dz to the gradients of the hidden layers, without those of the weights: `backward` cut short."""
        sizes, plan = self.plan.sizes, self.plan
        last = len(sizes) - 2
        top, weight = self._hidden(last - 1, "h"), self._weight("weights", last, "weight")
        name, target = self._matmul(sizes[-2], "zero", f"{plan.activation}_grad"), self._hidden(last - 1, "d")
        dz = f"{self.work('dz')}, 1, {plan.rows}"
        lines = [f"{name}({dz}, {weight}, {sizes[-2]}, {target}, {sizes[-2]}, {top}, rows, {sizes[-1]})"]
        for layer in range(last - 1, 0, -1):
            size, width = sizes[layer + 1], sizes[layer]
            name = self._matmul(width, "zero", f"{plan.activation}_grad")
            source, target, output = (
                self._hidden(layer, "d"),
                self._hidden(layer - 1, "d"),
                self._hidden(layer - 1, "h"),
            )
            weight = f"({self.prefix}turned + {4 * plan.turned[layer]})"
            lines.append(f"{name}({source}, {size}, 1, {weight}, {width}, {target}, {width}, {output}, rows, {size})")
        return lines

    def action_gradient(self, actions: int, zero: str, out: str) -> list[str]:
        """d z / d action [k * plan.rows + row] at the address `out`, after `deltas`; `zero` is the address of zeros."""
        width = self.plan.sizes[1]
        first = self.plan.offsets[0, "weight"] + (self.plan.obs_dim - actions) * width
        self.names[f"_dots_{width}"] = make_dots(width)
        weight = f"({self.prefix}weights + {4 * first})"
        return [
            f"_dots_{width}({self._hidden(0, 'd')}, {width}, {weight}, {zero}, {out}, {self.plan.rows}, rows, {actions})"
        ]


def _function(head: str, lines: list[str], names: dict[str, Any], options: dict[str, Any]) -> Any:
    text = "\n".join([head, *(f"    {line}" for line in lines or ["pass"])])
    name = head.removeprefix("def ").partition("(")[0]
    return numba.njit(**options)(define(name, text, names, "learners.native"))


@numba.njit(**INNER)
def _log_jacobian(u):
    """log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u))."""
    magnitude = abs(u)
    return f32(2.0) * (f32(math.log(2.0)) - magnitude - log(f32(1.0) + exp(f32(-2.0) * magnitude)))


def _draw_lines(plan: Plan, source: Source, k: int, keep: bool) -> list[str]:
    """From z (means, raw log-stds) and noise to actions in work("action") and log-probs in work("log_prob").

    With `keep`, z becomes (std * noise, d log_std / d raw) for the gradient.
    """
    z, action, log_prob = source.work("z"), source.work("action"), source.work("log_prob")
    lines = ["for r in range(rows):", "    total = _0"]
    for j in range(k):
        at = f"{j * plan.rows} + r"
        raw = f"{(k + j) * plan.rows} + r"
        lines += [
            f"    t = _tanh(_ld_z({z}, {raw}))",
            "    s = _LOW + _HALF_SPAN * (t + _1)",
            f"    n = _ld_noise(noise, (first + r) * {k} + {j})",
            "    push = _exp(s) * n",
            f"    u = _ld_z({z}, {at}) + push",
            "    total += -_HALF * n * n - s - _HALF_LOG_2PI - _log_jacobian(u)",
            f"    _st_action({action}, {at}, _tanh(u))",
        ]
        if keep:
            lines += [f"    _st_z({z}, {at}, push)", f"    _st_z({z}, {raw}, _HALF_SPAN * (_1 - t * t))"]
    return [*lines, f"    _st_log_prob({log_prob}, r, total)"]


def _smooth_lines(plan: Plan, source: Source, k: int) -> list[str]:
    """From z and noise to TD3's smoothed actions in work("action"); log-probs are zero."""
    lines = ["deviation, limit = _f32(knobs[5]), _f32(knobs[6])", "for r in range(rows):"]
    for j in range(k):
        at = f"{j * plan.rows} + r"
        lines += [
            f"    n = min(max(deviation * _ld_noise(noise, (first + r) * {k} + {j}), -limit), limit)",
            f"    _st_action({source.work('action')}, {at}, min(max(_tanh(_ld_z({source.work('z')}, {at})) + n, -_1), _1))",
        ]
    return [*lines, f"    _st_log_prob({source.work('log_prob')}, r, _0)"]


def _tanh_lines(plan: Plan, source: Source, k: int) -> list[str]:
    """From z to actions in work("action"), without noise."""
    lines = ["for r in range(rows):"]
    for j in range(k):
        at = f"{j * plan.rows} + r"
        lines.append(f"    _st_action({source.work('action')}, {at}, _tanh(_ld_z({source.work('z')}, {at})))")
    return [*lines, f"    _st_log_prob({source.work('log_prob')}, r, _0)"]


def _names() -> dict[str, Any]:
    names: dict[str, Any] = {
        "_0": f32(0), "_1": f32(1), "_2": f32(2), "_HALF": f32(0.5), "_LOW": f32(LOG_STD_MIN), "_f32": f32,
        "_HALF_SPAN": f32(0.5 * (LOG_STD_MAX - LOG_STD_MIN)), "_HALF_LOG_2PI": f32(0.5 * math.log(2 * math.pi)),
        "_exp": exp, "_tanh": tanh, "_log_jacobian": _log_jacobian,
    }  # fmt: skip
    for scope, name in enumerate(("z", "noise", "action", "log_prob", "x", "q0", "q1", "dz", "out", "grad_a")):
        names[f"_ld_{name}"], names[f"_st_{name}"] = make_load(scope, _REAL), make_store(scope, _REAL)
    return names


def make_gather(obs_dim: int, actions: int, width: int) -> Any:
    """`gather(first, rows, index, data, steps, num_envs, norm, gamma, n_step, committed, x, cx, fx, reward,
    discount)`.

    Rows index[first:first + rows] of the records: normalised observations and actions into `cx` (rows, obs_dim + actions),
    normalised observations after up to n_step steps into `x` (rows, obs_dim) and `fx` (rows, obs_dim + actions), whose
    actions come later; discounted rewards and what the value of the following state counts. Arrays, all but `index` float32,
    written row after row as one-dimensional ones.
    """
    d, k = obs_dim, actions
    wide, at_next, at_reward = d + k, d + k, 2 * d + k

    @numba.njit(**INNER)
    def gather(first, rows, index, data, steps, num_envs, norm, gamma, n_step, committed, x, cx, fx, reward, discount):
        count = steps * num_envs
        low, high = f32(-norm[2, 0]), f32(norm[2, 0])
        for r in range(rows):
            i = index[first + r]
            for j in range(d):
                cx[r * wide + j] = min(max((data[i, j] - norm[0, j]) * norm[1, j], low), high)
            for j in range(k):
                cx[r * wide + d + j] = data[i, d + j]
            total, power, row = data[i, at_reward], gamma, i
            left = (committed - 1 - i // num_envs) % steps
            ended = data[i, at_reward + 1] + data[i, at_reward + 2] > f32(0.0)
            step = 1
            while step < n_step and not ended and step <= left:
                row = (i + step * num_envs) % count
                total += power * data[row, at_reward]
                power *= gamma
                ended = data[row, at_reward + 1] + data[row, at_reward + 2] > f32(0.0)
                step += 1
            reward[r] = total
            discount[r] = power * (f32(1.0) - data[row, at_reward + 1])
            for j in range(d):
                value = min(max((data[row, at_next + j] - norm[0, j]) * norm[1, j], low), high)
                x[r * d + j] = value
                fx[r * wide + j] = value

    return gather


def make_phases(actor: Plan, critic: Plan, actions: int, squashed: bool) -> tuple[Any, Any, Any, Any]:
    """(prepare, ask, learn, ascend), for compiled code to call; see their comments below.

    Args:
        actions: numbers of one action.
        squashed: SAC's squashed Gaussian, whose actor climbs the smaller of both values; else TD3's tanh, whose targets are
            smoothed by noise and whose actor climbs the first critic's value.
    """
    k, d = actions, actor.obs_dim
    names = _names()
    source, critic_source = Source(actor), CriticSource(critic)
    passes: dict[str, Any] = {}
    wide, chunk = d + k, actor.rows
    for name, one, lines in (
        ("actor_forward", source, source.forward()),
        ("actor_backward", source, source.backward()),
        ("critic_forward", critic_source, critic_source.forward()),
        ("critic_backward", critic_source, critic_source.backward()),
        ("critic_deltas", critic_source, critic_source.deltas() + critic_source.action_gradient(k, "zero", "out")),
    ):
        more = {**one.names, "_add_sums": make_add_sums(chunk)}
        passes[name] = _function(f"def {name}(rows, work, weights, turned, grad, zero, out):", lines, more, INLINED)
    every = names
    following = _draw_lines(actor, source, k, False) if squashed else _smooth_lines(actor, source, k)
    own = _draw_lines(actor, source, k, True) if squashed else _tanh_lines(actor, source, k)
    draw = _function("def draw(first, rows, work, noise, knobs):", following, every, INNER)
    draw_kept = _function("def draw_kept(first, rows, work, noise):", own, every, INNER)
    gather = make_gather(d, k, 2 * d + k + 3)
    action, log_prob = actor.workspace["action"], actor.workspace["log_prob"]
    z, dz = critic.workspace["z"], critic.workspace["dz"]
    actor_x, critic_x = actor.workspace["x"], critic.workspace["x"]
    actor_dz, actor_z = actor.workspace["dz"], actor.workspace["z"]
    actor_forward, actor_backward = passes["actor_forward"], passes["actor_backward"]
    critic_forward, critic_backward = passes["critic_forward"], passes["critic_backward"]
    critic_deltas = passes["critic_deltas"]

    @numba.njit(**INNER)
    def prepare(start, stop, index, data, steps, num_envs, noise, norm, knobs, weights, batch, work):
        # Inputs of both critics and their targets, of rows start..stop, into `batch`: see BATCH. knobs: gamma, n_step,
        # committed, alpha, scale, target_noise, target_clip.
        cx, fx, reward, discount, log_probs = batch
        for first in range(start, stop, chunk):
            rows = min(stop - first, chunk)
            gather(first, rows, index, data, steps, num_envs, norm, f32(knobs[0]), int(knobs[1]), int(knobs[2]),
                   work[actor_x:], cx[first * wide :], fx[first * wide :], reward[first:], discount[first:])  # fmt: skip
            actor_forward(rows, work.ctypes.data, weights.ctypes.data, 0, 0, 0, 0)
            draw(first, rows, work.ctypes.data, noise.ctypes.data, knobs)
            for r in range(rows):
                log_probs[first + r] = work[log_prob + r]
                for j in range(k):
                    fx[(first + r) * wide + d + j] = work[action + j * chunk + r]

    @numba.njit(**INNER)
    def ask(start, stop, target, batch, values, work):
        # What one target makes of the following states and actions of rows start..stop, into values.
        fx = batch[1]
        for first in range(start, stop, chunk):
            rows = min(stop - first, chunk)
            work[critic_x : critic_x + rows * wide] = fx[first * wide : (first + rows) * wide]
            critic_forward(rows, work.ctypes.data, target.ctypes.data, 0, 0, 0, 0)
            values[first : first + rows] = work[z : z + rows]

    @numba.njit(**INNER)
    def learn(start, stop, knobs, weights, turned, batch, values, grad, work, sums):
        # The gradient of one critic for rows start..stop is added to grad, squared errors and values to sums.
        cx, _, reward, discount, log_probs = batch
        alpha, scale = f32(knobs[3]), f32(knobs[4])
        for first in range(start, stop, chunk):
            rows = min(stop - first, chunk)
            work[critic_x : critic_x + rows * wide] = cx[first * wide : (first + rows) * wide]
            critic_forward(rows, work.ctypes.data, weights.ctypes.data, 0, 0, 0, 0)
            error_sum, value_sum = f32(0.0), f32(0.0)
            for r in range(rows):
                i = first + r
                least = min(values[0, i], values[1, i])
                value = work[z + r]
                error = value - (reward[i] + discount[i] * (least - alpha * log_probs[i]))
                error_sum += error * error
                value_sum += value
                work[dz + r] = error * scale
            sums[0] += error_sum
            sums[1] += value_sum
            critic_backward(rows, work.ctypes.data, weights.ctypes.data, turned.ctypes.data, grad.ctypes.data, 0, 0)

    @numba.njit(**INNER)
    def ascend(start, stop, index, data, noise, norm, knobs, actor_weights, weights0, weights1, actor_turned, turned0,
               turned1, grad, work, work0, work1, zero, sums):  # fmt: skip
        # The gradient of the actor for rows start..stop is added to grad, minus the smallest values and log-probs to sums.
        alpha, scale = f32(knobs[3]), f32(knobs[4])
        low, high = f32(-norm[2, 0]), f32(norm[2, 0])
        x, cx0 = work[actor_x:], work0[critic_x:]
        cx1 = work1[critic_x:]
        slope0, slope1 = np.empty(k * chunk, np.float32), np.empty(k * chunk, np.float32)
        first = start
        while first < stop:
            rows = min(stop - first, chunk)
            for r in range(rows):
                i = index[first + r]
                for j in range(d):
                    value = min(max((data[i, j] - norm[0, j]) * norm[1, j], low), high)
                    x[r * d + j] = value
                    cx0[r * wide + j] = value
                    cx1[r * wide + j] = value
            actor_forward(rows, work.ctypes.data, actor_weights.ctypes.data, 0, 0, 0, 0)
            draw_kept(first, rows, work.ctypes.data, noise.ctypes.data)
            for j in range(k):
                for r in range(rows):
                    value = work[action + j * chunk + r]
                    cx0[r * wide + d + j] = value
                    cx1[r * wide + d + j] = value
            critic_forward(rows, work0.ctypes.data, weights0.ctypes.data, 0, 0, 0, 0)
            value_sum, log_prob_sum = f32(0.0), f32(0.0)
            if squashed:
                critic_forward(rows, work1.ctypes.data, weights1.ctypes.data, 0, 0, 0, 0)
                for r in range(rows):
                    value0, value1 = work0[z + r], work1[z + r]
                    # Of equal values the first counts, as in torch's min.
                    work0[dz + r] = -scale if value0 <= value1 else f32(0.0)
                    work1[dz + r] = f32(0.0) if value0 <= value1 else -scale
                    value_sum -= min(value0, value1)
                    log_prob_sum += work[log_prob + r]
                critic_deltas(rows, work1.ctypes.data, weights1.ctypes.data, turned1.ctypes.data, 0, zero.ctypes.data,
                              slope1.ctypes.data)  # fmt: skip
            else:
                for r in range(rows):
                    work0[dz + r] = -scale
                    value_sum -= work0[z + r]
            sums[0] += value_sum
            sums[1] += log_prob_sum
            critic_deltas(rows, work0.ctypes.data, weights0.ctypes.data, turned0.ctypes.data, 0, zero.ctypes.data,
                          slope0.ctypes.data)  # fmt: skip
            for j in range(k):
                for r in range(rows):
                    at, raw = j * chunk + r, (k + j) * chunk + r
                    a = work[action + at]
                    if squashed:
                        du = (slope0[at] + slope1[at]) * (f32(1.0) - a * a) + alpha * scale * f32(2.0) * a
                        work[actor_dz + raw] = (du * work[actor_z + at] - alpha * scale) * work[actor_z + raw]
                    else:
                        du = slope0[at] * (f32(1.0) - a * a)
                    work[actor_dz + at] = du
            actor_backward(rows, work.ctypes.data, actor_weights.ctypes.data, actor_turned.ctypes.data, grad.ctypes.data,
                           0, 0)  # fmt: skip
            first += rows

    return prepare, ask, learn, ascend


def turn_function(plan: Plan) -> Any:
    """`turn(weights, turned)` of addresses: the transposed copies that a backward pass reads."""
    return _function("def turn(weights, turned):", Source(plan).turn(), {"_transpose": transpose}, INNER)


def make_turn(plan: Plan) -> Any:
    """`turn(weights, turned)` of arrays, to be called from Python."""
    turn = turn_function(plan)

    @numba.njit(**STRICT)
    def turn_all(weights, turned):
        turn(weights.ctypes.data, turned.ctypes.data)

    return cached(turn_all)


@numba.njit(**INNER)
def move_over(total, other):
    """total += other, which is zero afterwards."""
    for i in range(total.size):
        total[i] += other[i]
        other[i] = f32(0.0)


@numba.njit(**INNER)
def follow(target, weights, tau):
    """target += tau (weights - target)"""
    for i in range(target.size):
        target[i] += tau * (weights[i] - target[i])
