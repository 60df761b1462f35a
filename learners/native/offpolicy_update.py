"""Whole updates of SAC and TD3 in one call, by threads that share the rows of a batch and the weights of an optimiser's step.

    thread 0 | half of the rows: draw, actor | target 0 | critic 0: gradient | step | half of the rows: actor ...
    thread 1 | the other half                | target 1 | critic 1: gradient | step | the other half ...
                                             ^          ^ all meet           ^      ^ (`learners.native.barrier`)

What decides the result is how rows are dealt out and in which order sums are taken. A thread that is alone does what two
would do, part after part, so one and two threads make the same numbers to the last bit; more threads, others in the last
digits. Counters and the entropy coefficient are kept by every thread for itself, from the same sums.
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

# Places in `knobs` (float64), what an update is told as numbers,
(
    GAMMA, SCALE, TARGET_NOISE, TARGET_CLIP, TAU, LEARNING_RATE, MAX_GRAD_NORM, EPS, TARGET_ENTROPY, LR_FALL, LR_END,
) = range(11)  # fmt: skip
# in `sizes` (int64), numbers that hold for one call,
N_STEP, COMMITTED, VISIBLE, STEPS, NUM_ENVS, POLICY_DELAY, LEARNS_ALPHA = range(7)
# in `counters` (int64), which go on from call to call,
(
    VERSION, ACTOR_VERSION, CRITIC_STEPS, CRITIC_SKIPPED, ACTOR_STEPS, ACTOR_SKIPPED, ALPHA_STEPS, ALPHA_SKIPPED,
) = COUNTERS = range(8)  # fmt: skip
# in `alphas` (float32): log_alpha, its moments, and the log_alpha that the critics read.
VALUE, FIRST, SECOND, READ = ALPHA = range(4)
# Places in a part's sums: squared errors and values of a critic, or minus the values and log-probs of the actor; squares of
# its gradient. The SUMS numbers of a part have cache lines of their own.
ADDED, ALSO_ADDED, SQUARES, SUMS = 0, 1, 4, 16
# What a call reports of its last update.
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
    """Add the gradients of all parts up in the first one's, for these elements; their sum of squares."""
    for other in range(1, grads.shape[0]):
        kernels.move_over(grads[0, first:last], grads[other, first:last])
    return square_sum(grads[0, first:last])


@numba.njit(**INNER)
def _rate_at(knobs, update):
    """`learners.rates.rate_at`"""
    return knobs[LEARNING_RATE] * max(1.0 - knobs[LR_FALL] * update, knobs[LR_END])


@numba.njit(**INNER)
def _rates(norm, knobs, update, steps):
    """(factor of the gradient, step size, correction of the second moment) of Adam's step number `steps`."""
    clip = min(1.0, knobs[MAX_GRAD_NORM] / (norm + 1e-6)) if knobs[MAX_GRAD_NORM] > 0.0 else 1.0
    return f32(clip), f32(_rate_at(knobs, update) / (1 - BETA1 ** float(steps))), f32(1 / (1 - BETA2 ** float(steps)))


@numba.njit(**INNER)
def _draw(first, last, update, words, sizes, index):
    """Rows first..last of update number `update`, as `learners.draws.indices` gives them."""
    visible, steps, num_envs = min(sizes[VISIBLE], sizes[COMMITTED]), sizes[STEPS], sizes[NUM_ENVS]
    oldest = (sizes[COMMITTED] - visible) % steps * num_envs
    _INDICES(index[first:last], first, words[0], words[1], update, _INDEX_PLANE, oldest, visible * num_envs,
             steps * num_envs)  # fmt: skip


@numba.njit(**INNER)
def _noise(first, last, update, words, plane, noise, tile):
    """Rows first..last of the normal numbers of update number `update`, as `learners.draws.normals` gives them."""
    _NORMALS(noise[:, first:last], words[0], words[1], first, update, plane, tile[0], tile[1], tile[2], tile[3])


@numba.njit(**INNER)
def _alpha_step(alpha, steps, slope, learning_rate, eps):
    """`FlatAdam` on log_alpha, kept by each thread for itself."""
    alpha[FIRST] += f32(1 - BETA1) * (slope - alpha[FIRST])
    alpha[SECOND] += f32(1 - BETA2) * (slope * slope - alpha[SECOND])
    root = math.sqrt(alpha[SECOND] / f32(1 - BETA2 ** float(steps))) + eps
    alpha[VALUE] -= f32(learning_rate / (1 - BETA1 ** float(steps))) * alpha[FIRST] / root


@numba.njit(**INNER)
def _parts(thread, threads):
    """(first, the one behind the last) of the parts of the batch that are a thread's."""
    return (0, 2) if threads == 1 else (thread, thread + 1)


@numba.njit(**INNER)
def _duty(thread, threads, cuts):
    """(first row, the one behind the last, group, groups, first critic, the one behind the last) of a thread's critics.

    Threads go two by two: one has the first critic, the other the second, on the rows of both, so that each critic stays in
    the caches of a core.
    """
    if threads == 1:
        return cuts[0], cuts[2], 0, 1, 0, 2
    group, net = thread // 2, thread % 2
    return cuts[2 * group], cuts[2 * group + 2], group, threads // 2, net, net + 1


def _make_critic_step(prepare: Any, ask: Any, learn: Any, turn: Any, size: int, squashed: bool) -> Any:
    """`critic_step(...)`: a thread's share of one update of the critics; returns `meetings`."""

    @numba.njit(**INNER)
    def critic_step(thread, threads, meetings, room, task, actor, critics, counters, alphas, told):
        cuts, counter, index, noise, tiles, batch, values, grads, _, work, work0, work1, sums = room
        data, words, knobs, sizes, norms, _ = task
        _, _, _, _, actor_read, target_actor = actor
        weights, m, v, turned, _, _, targets = critics
        from_part, to_part = _parts(thread, threads)
        start, stop = cuts[from_part], cuts[to_part]
        begin, end, group, groups, first, last = _duty(thread, threads, cuts)
        low, high = _share(size, group, groups)
        # --- what both critics learn from
        _draw(start, stop, counters[VERSION], words, sizes, index)
        _noise(start, stop, counters[VERSION], words, _NEXT_PLANE, noise, tiles[thread])
        given = np.array([knobs[GAMMA], sizes[N_STEP], sizes[COMMITTED], math.exp(np.float64(alphas[READ])), knobs[SCALE],
                          knobs[TARGET_NOISE], knobs[TARGET_CLIP]])  # fmt: skip
        prepare(start, stop, index, data, sizes[STEPS], sizes[NUM_ENVS], noise, norms[0], given,
                actor_read if squashed else target_actor, batch, work[thread])  # fmt: skip
        meetings = meet(counter, threads, meetings)
        for net in range(first, last):
            ask(begin, end, targets[net], batch, values[net], work1[thread])
        meetings = meet(counter, threads, meetings)
        # --- gradient
        for net in range(first, last):
            mine = sums[2 * group + net]
            mine[:] = 0.0
            learn(begin, end, given, weights[net], turned[net], batch, values, grads[group, net], work0[thread], mine)
        if groups > 1:
            meetings = meet(counter, threads, meetings)
        # --- norm
        for net in range(first, last):
            sums[2 * group + net, SQUARES] = _gather_squares(grads[:, net], low, high)
        meetings = meet(counter, threads, meetings)
        # --- step
        norm = math.sqrt(sums[:, SQUARES].sum())
        told[0], told[1], told[2] = sums[:, ADDED].sum(), sums[:, ALSO_ADDED].sum(), norm
        counters[VERSION] += 1
        finite, update = math.isfinite(norm), counters[VERSION] - 1
        counters[CRITIC_STEPS if finite else CRITIC_SKIPPED] += 1
        clip, step_size, correction = _rates(norm, knobs, update, max(counters[CRITIC_STEPS], 1))
        for net in range(first, last):
            if finite:
                _adam(weights[net, low:high], grads[0, net, low:high], m[net, low:high], v[net, low:high], clip, step_size,
                      correction, f32(knobs[EPS]))  # fmt: skip
            else:
                grads[0, net, low:high] = f32(0.0)
        if squashed or counters[VERSION] % sizes[POLICY_DELAY] == 0:
            for net in range(first, last):
                kernels.follow(targets[net, low:high], weights[net, low:high], f32(knobs[TAU]))
            if not squashed:
                part0, part1 = _share(actor_read.size, thread, threads)
                kernels.follow(target_actor[part0:part1], actor_read[part0:part1], f32(knobs[TAU]))
        if groups > 1:
            meetings = meet(counter, threads, meetings)
        # --- copies for the way back
        if group == 0:
            for net in range(first, last):
                turn(weights[net].ctypes.data, turned[net].ctypes.data)
        return meet(counter, threads, meetings)

    return critic_step


def _make_actor_step(ascend: Any, turn: Any, size: int, squashed: bool) -> Any:
    """`actor_step(...)`: a thread's share of one update of the actor and of the entropy coefficient; returns `meetings`."""

    @numba.njit(**INNER)
    def actor_step(thread, threads, meetings, parts, room, task, actor, critics, counters, alphas, told):
        cuts, counter, index, noise, tiles, _, _, _, grads, work, work0, work1, sums = room
        data, words, knobs, sizes, norms, zero = task
        weights, m, v, turned, _, _ = actor
        _, _, _, _, read, turned_read, _ = critics
        first, last = _parts(thread, threads)
        start, stop, parted = cuts[first], cuts[last], cuts.size - 1
        low, high = _share(size, thread, threads)
        # --- gradient, on the rows of the critics' update that it follows
        update = (counters[ACTOR_VERSION] + 1) * sizes[POLICY_DELAY] - 1
        if not parts & CRITICS:
            _draw(start, stop, update, words, sizes, index)
        _noise(start, stop, update, words, _OWN_PLANE, noise, tiles[thread])
        alpha = math.exp(np.float64(alphas[VALUE]))
        given = np.array([0.0, 0.0, 0.0, alpha, knobs[SCALE], 0.0, 0.0])
        for part in range(first, last):
            sums[part] = 0.0
            ascend(cuts[part], cuts[part + 1], index, data, noise, norms[1], given, weights, read[0], read[1], turned,
                   turned_read[0], turned_read[1], grads[part], work[thread], work0[thread], work1[thread], zero,
                   sums[part])  # fmt: skip
        meetings = meet(counter, threads, meetings)
        # --- norm
        told[3], told[4], told[6], told[7] = sums[:, ADDED].sum(), sums[:, ALSO_ADDED].sum(), alpha, 1.0
        for part in range(first, last):
            sums[part, SQUARES] = _gather_squares(grads, *_share(size, part, parted))
        meetings = meet(counter, threads, meetings)
        # --- step
        told[5] = norm = math.sqrt(sums[:, SQUARES].sum())
        before = counters[ACTOR_VERSION] * sizes[POLICY_DELAY]
        counters[ACTOR_VERSION] += 1
        if math.isfinite(norm):
            counters[ACTOR_STEPS] += 1
            clip, step_size, correction = _rates(norm, knobs, before, counters[ACTOR_STEPS])
            _adam(weights[low:high], grads[0, low:high], m[low:high], v[low:high], clip, step_size, correction,
                  f32(knobs[EPS]))  # fmt: skip
        else:
            counters[ACTOR_SKIPPED] += 1
            grads[0, low:high] = f32(0.0)
        if squashed and sizes[LEARNS_ALPHA]:
            slope = -alpha * (told[4] * knobs[SCALE] + knobs[TARGET_ENTROPY])
            if math.isfinite(slope):
                counters[ALPHA_STEPS] += 1
                _alpha_step(alphas, counters[ALPHA_STEPS], f32(slope), _rate_at(knobs, before), f32(knobs[EPS]))
            else:
                counters[ALPHA_SKIPPED] += 1
        if parts & CRITICS:
            alphas[READ] = alphas[VALUE]
        meetings = meet(counter, threads, meetings)
        # --- copies for the way back
        if thread == threads - 1:
            turn(weights.ctypes.data, turned.ctypes.data)
        return meet(counter, threads, meetings)

    return actor_step


def make_updates(actor: Plan, critic: Plan, actions: int, squashed: bool) -> Any:
    """`updates(thread, threads, count, parts, room, task, actor, critics, counters, alphas, report)`: a thread's share of
    `count` updates of the critics, the actor or both (`parts`).

    In tuples, in this order:

    * room, what the threads write: cuts, counter, index, noise, tiles, batch, values, gradients of the critics and of the
      actor, work of an actor and of two critics, sums
    * task: data of the replay, words of the seed, knobs, sizes, norms of the target's and the actor's observations, zeros
    * actor: weights, m, v, turned; the weights that the critics read, those of TD3's target
    * critics: weights, m, v, turned; the weights that the actor reads and their turned copies; targets

    Args:
        actions: numbers of one action.
        squashed: SAC, else TD3; see `offpolicy_kernels.make_phases`.
    """
    prepare, ask, learn, ascend = kernels.make_phases(actor, critic, actions, squashed)
    turn_actor, turn_critic = kernels.turn_function(actor), kernels.turn_function(critic)
    critic_step = _make_critic_step(prepare, ask, learn, turn_critic, critic.size, squashed)
    actor_step = _make_actor_step(ascend, turn_actor, actor.size, squashed)
    reported = len(REPORT)

    @numba.njit(**STRICT)
    def updates(thread, threads, count, parts, room, task, actor, critics, counters, alphas, report):
        # Every thread keeps counters and entropy coefficient for itself.
        counted, alpha, told, meetings = counters.copy(), alphas.copy(), np.zeros(reported), 0
        delay = task[3][POLICY_DELAY]  # of its sizes
        for _ in range(count):
            if parts & CRITICS:
                meetings = critic_step(thread, threads, meetings, room, task, actor, critics, counted, alpha, told)
            follows = counted[VERSION] // delay > counted[ACTOR_VERSION]
            if parts & ACTOR and (follows or not parts & CRITICS):
                meetings = actor_step(
                    thread, threads, meetings, parts, room, task, actor, critics, counted, alpha, told
                )
        if thread == 0:
            counters[:], alphas[:], report[:] = counted, alpha, told

    return cached(updates)
