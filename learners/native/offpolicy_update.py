"""Whole updates of SAC and TD3 in one call, by threads that share the rows of a batch and the weights of an optimiser's step.

    thread 0 | half of the rows: draw, actor | target 0 | critic 0: gradient | step | half of the rows: actor ...
    thread 1 | the other half                | target 1 | critic 1: gradient | step | the other half ...
                                             ^          ^ all meet           ^      ^ (`learners.native.barrier`)

What decides the result, rows of a thread and the order of sums, depends on the number of threads alone. Counters and the
entropy coefficient are kept by every thread for itself, from the same sums.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from gpuenvs.rng import fill_kernel, fill_plane
from gpuenvs.runtime.disk_cache import cached
from gpuenvs.scalar import f32
from learners.draws import INDEX_STREAM, NORMAL_STREAM, fill_indices
from learners.native import offpolicy_kernels as kernels
from learners.native.adam import make_adam
from learners.native.barrier import meet
from learners.native.elementary import square_sum
from learners.native.heads import INNER, STRICT
from learners.native.network import Plan
from learners.native.vector import LANES
from learners.optim import BETA1, BETA2

# What an update is told as numbers.
KNOBS = (
    "gamma", "scale", "target_noise", "target_clip", "tau", "learning_rate", "max_grad_norm", "eps", "target_entropy",
    "lr_fall", "lr_end",
)  # fmt: skip
# Counters that go on from call to call, and numbers that hold for one call.
COUNTERS = (
    "version", "actor_version", "critic_steps", "critic_skipped", "actor_steps", "actor_skipped", "alpha_steps",
    "alpha_skipped",
)  # fmt: skip
SIZES = ("n_step", "committed", "visible", "steps", "num_envs", "policy_delay", "learns_alpha")
# log_alpha, its moments m and v, and the log_alpha that the critics read.
ALPHA = ("value", "m", "v", "read")
# What a thread adds up, and what a call reports, of its last update.
SUMS = 8
REPORT = ("errors", "values", "critic_norm", "actor_values", "log_probs", "actor_norm", "alpha", "acted")
CRITICS, ACTOR = 1, 2  # bits of `parts`
_INDEX_PLANE = fill_plane(INDEX_STREAM)
_NEXT_PLANE, _OWN_PLANE = fill_plane(NORMAL_STREAM), fill_plane(NORMAL_STREAM + 1)
_NORMALS = fill_kernel("normal", "float32")
_INDICES = fill_indices
_adam = make_adam(BETA1, BETA2, clear=True)


@numba.njit(**INNER)
def _share(size, thread, threads):
    """Where a thread's part of a packed vector begins and ends."""
    groups = size // LANES
    return groups * thread // threads * LANES, groups * (thread + 1) // threads * LANES


@numba.njit(**INNER)
def _gather_squares(grads, first, last):
    """Add the gradients of all threads up in the first one's, for these elements; their sum of squares."""
    for other in range(1, grads.shape[0]):
        kernels.move_over(grads[0, first:last], grads[other, first:last])
    return square_sum(grads[0, first:last])


@numba.njit(**INNER)
def _rate_at(knobs, update):
    """`learners.off_policy.rate_at`"""
    return knobs[5] * max(1.0 - knobs[9] * update, knobs[10])


@numba.njit(**INNER)
def _rates(norm, knobs, update, steps):
    """(factor of the gradient, step size, correction of the second moment) of Adam's step number `steps`."""
    clip = min(1.0, knobs[6] / (norm + 1e-6)) if knobs[6] > 0.0 else 1.0
    return f32(clip), f32(_rate_at(knobs, update) / (1 - BETA1 ** float(steps))), f32(1 / (1 - BETA2 ** float(steps)))


@numba.njit(**INNER)
def _draw(first, last, update, words, sizes, index):
    """Rows first..last of update number `update`, as `learners.draws.indices` gives them."""
    visible = min(sizes[2], sizes[1])
    oldest = (sizes[1] - visible) % sizes[3] * sizes[4]
    _INDICES(index[first:last], first, words[0], words[1], update, _INDEX_PLANE, oldest, visible * sizes[4],
             sizes[3] * sizes[4])  # fmt: skip


@numba.njit(**INNER)
def _noise(first, last, update, words, plane, noise, tile):
    """Rows first..last of the normal numbers of update number `update`, as `learners.draws.normals` gives them."""
    _NORMALS(noise[:, first:last], words[0], words[1], first, update, plane, tile[0], tile[1], tile[2], tile[3])


@numba.njit(**INNER)
def _alpha_step(alpha, steps, slope, learning_rate, eps):
    """`FlatAdam` on log_alpha, kept by each thread for itself."""
    alpha[1] += f32(1 - BETA1) * (slope - alpha[1])
    alpha[2] += f32(1 - BETA2) * (slope * slope - alpha[2])
    root = math.sqrt(alpha[2] / f32(1 - BETA2 ** float(steps))) + eps
    alpha[0] -= f32(learning_rate / (1 - BETA1 ** float(steps))) * alpha[1] / root


def make_updates(actor: Plan, critic: Plan, actions: int, squashed: bool) -> Any:
    """`updates(...)`: a thread's share of `count` updates, of the critics, the actor or both (`parts`).

    Args:
        actions: numbers of one action.
        squashed: SAC, else TD3; see `offpolicy_kernels.make_chunks`.
    """
    prepare, ask, learn, ascend = kernels.make_phases(actor, critic, actions, squashed)
    turn_actor, turn_critic = kernels.turn_function(actor), kernels.turn_function(critic)
    actor_size, critic_size, reported = actor.size, critic.size, len(REPORT)

    @numba.njit(**STRICT)
    def updates(thread, threads, count, parts, cuts, counter, data, words, knobs, sizes, counters, alphas, norms,
                index, noise, tiles, batch, values, actor_weights, actor_m, actor_v, actor_grads, actor_turned, actor_read,
                target_actor, weights, m, v, targets, grads, turned, read, turned_read, work, work0, work1, zero, sums,
                report):  # fmt: skip
        start, stop = cuts[thread], cuts[thread + 1]
        # Threads two by two: one has the first critic's rows, the other the second's, and both critics stay in the caches of
        # their cores.
        groups = max(1, threads // 2)
        group, first_net, last_net = thread // 2, thread % 2, thread % 2 + 1
        if threads == 1:
            group, first_net, last_net = 0, 0, 2
        begin, end = cuts[group * threads // groups], cuts[(group + 1) * threads // groups]
        low0, high0 = _share(critic_size, group, groups)
        low, high = _share(actor_size, thread, threads)
        version, actor_version, critic_steps, critic_skipped = counters[0], counters[1], counters[2], counters[3]
        actor_steps, actor_skipped, alpha_steps, alpha_skipped = counters[4], counters[5], counters[6], counters[7]
        tau, delay, eps = f32(knobs[4]), sizes[5], f32(knobs[7])
        meetings, alpha, mine, told = 0, alphas.copy(), sums[thread], np.zeros(reported)
        for _ in range(count):
            if parts & CRITICS:
                # --- critics: what both learn from
                _draw(start, stop, version, words, sizes, index)
                _noise(start, stop, version, words, _NEXT_PLANE, noise, tiles[thread])
                given = np.array(
                    [knobs[0], sizes[0], sizes[1], math.exp(np.float64(alpha[3])), knobs[1], knobs[2], knobs[3]]
                )
                prepare(start, stop, index, data, sizes[3], sizes[4], noise, norms[0], given,
                        actor_read if squashed else target_actor, batch, work[thread])  # fmt: skip
                meetings = meet(counter, threads, meetings)
                for net in range(first_net, last_net):
                    ask(begin, end, targets[net], batch, values[net], work1[thread])
                meetings = meet(counter, threads, meetings)
                # --- gradient
                mine[:] = 0.0
                for net in range(first_net, last_net):
                    learn(
                        begin,
                        end,
                        given,
                        weights[net],
                        turned[net],
                        batch,
                        values,
                        grads[group, net],
                        work0[thread],
                        mine,
                    )
                if groups > 1:
                    meetings = meet(counter, threads, meetings)
                # --- norm
                for net in range(first_net, last_net):
                    mine[4] += _gather_squares(grads[:, net], low0, high0)
                meetings = meet(counter, threads, meetings)
                # --- step
                told[0], told[1], norm = sums[:, 0].sum(), sums[:, 1].sum(), math.sqrt(sums[:, 4].sum())
                told[2] = norm
                version += 1
                due = squashed or version % delay == 0
                if math.isfinite(norm):
                    critic_steps += 1
                    clip, step_size, correction = _rates(norm, knobs, version - 1, critic_steps)
                    for net in range(first_net, last_net):
                        _adam(weights[net, low0:high0], grads[0, net, low0:high0], m[net, low0:high0],
                                          v[net, low0:high0], clip, step_size, correction, eps)  # fmt: skip
                else:
                    critic_skipped += 1
                    for net in range(first_net, last_net):
                        grads[0, net, low0:high0] = f32(0.0)
                if due:
                    for net in range(first_net, last_net):
                        kernels.follow(targets[net, low0:high0], weights[net, low0:high0], tau)
                    if not squashed:
                        kernels.follow(target_actor[low:high], actor_read[low:high], tau)
                if groups > 1:
                    meetings = meet(counter, threads, meetings)
                # --- copies for the way back
                if group == 0:
                    for net in range(first_net, last_net):
                        turn_critic(weights[net].ctypes.data, turned[net].ctypes.data)
                meetings = meet(counter, threads, meetings)
            if parts & ACTOR and (not parts & CRITICS or version // delay > actor_version):
                # --- actor: gradient, on the rows of the critics' update that it follows
                update = (actor_version + 1) * delay - 1
                if not parts & CRITICS:
                    _draw(start, stop, update, words, sizes, index)
                _noise(start, stop, update, words, _OWN_PLANE, noise, tiles[thread])
                mine[:] = 0.0
                alpha_now = math.exp(np.float64(alpha[0]))
                given = np.array([0.0, 0.0, 0.0, alpha_now, knobs[1], 0.0, 0.0])
                ascend(start, stop, index, data, noise, norms[1], given, actor_weights, read[0], read[1], actor_turned,
                             turned_read[0], turned_read[1], actor_grads[thread], work[thread], work0[thread],
                             work1[thread], zero, mine)  # fmt: skip
                meetings = meet(counter, threads, meetings)
                # --- norm
                told[3], told[4], told[6] = sums[:, 0].sum(), sums[:, 1].sum(), alpha_now
                mine[4] = _gather_squares(actor_grads, low, high)
                meetings = meet(counter, threads, meetings)
                # --- step
                norm = math.sqrt(sums[:, 4].sum())
                told[5], told[7] = norm, 1.0
                before = actor_version * delay
                actor_version += 1
                if math.isfinite(norm):
                    actor_steps += 1
                    clip, step_size, correction = _rates(norm, knobs, before, actor_steps)
                    _adam(actor_weights[low:high], actor_grads[0, low:high], actor_m[low:high],
                                      actor_v[low:high], clip, step_size, correction, eps)  # fmt: skip
                else:
                    actor_skipped += 1
                    actor_grads[0, low:high] = f32(0.0)
                if squashed and sizes[6]:
                    slope = -alpha_now * (told[4] * knobs[1] + knobs[8])
                    if math.isfinite(slope):
                        alpha_steps += 1
                        _alpha_step(alpha, alpha_steps, f32(slope), _rate_at(knobs, before), eps)
                    else:
                        alpha_skipped += 1
                if parts & CRITICS:
                    alpha[3] = alpha[0]
                meetings = meet(counter, threads, meetings)
                # --- copies for the way back
                if thread == threads - 1:
                    turn_actor(actor_weights.ctypes.data, actor_turned.ctypes.data)
                meetings = meet(counter, threads, meetings)
        if thread == 0:
            if parts & CRITICS:
                counters[0], counters[2], counters[3] = version, critic_steps, critic_skipped
            if parts & ACTOR:
                counters[1], counters[4], counters[5] = actor_version, actor_steps, actor_skipped
                counters[6], counters[7] = alpha_steps, alpha_skipped
                alphas[0], alphas[1], alphas[2] = alpha[0], alpha[1], alpha[2]
                if parts & CRITICS:
                    alphas[3] = alpha[3]
            report[:] = told

    return cached(updates)
