"""All epochs of a PPO update as one native call for the actor and one for the critic, which share nothing.

The two calls run side by side on two threads. Within a call everything is sequential: rows in chunks of ROWS, chunks in
order, so the weights do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import torch

from gpuenvs.runtime.disk_cache import cached
from gpuenvs.runtime.generated import define
from gpuenvs.runtime.memory import make_store
from gpuenvs.runtime.threads import Team
from gpuenvs.scalar import f32, i32
from learners.distributed import Group
from learners.native.elementary import square_sum
from learners.native.heads import (
    STRICT,
    make_add_sums,
    make_log_probs,
    make_policy_gradient,
    make_value_gradient,
    row_sums,
)
from learners.native.network import ROWS, Plan, Source, plans
from learners.native.vector import transpose
from learners.optim import BETA1, BETA2

# What a kernel is told as numbers.
KNOBS = ("learning_rate", "clip_coef", "ent_coef", "scale", "max_grad_norm", "clip_value", "kl_limit", "adam_eps")
# Columns of a kernel's table, one row a minibatch. The actor's figures are those of `PPO._epochs`.
ACTOR_FIGURES = ("policy_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm", "active")
CRITIC_FIGURES = ("value_loss", "", "", "", "grad_norm", "active")


@numba.njit(**STRICT)
def _adam(weights, grad, m, v, clip, step_size, correction, eps):
    """`FlatAdam.step` on packed vectors."""
    for k in range(weights.size):
        g = grad[k] * clip
        m_k = m[k] + f32(1 - BETA1) * (g - m[k])
        v_k = v[k] + f32(1 - BETA2) * (g * g - v[k])
        m[k] = m_k
        v[k] = v_k
        weights[k] -= step_size * m_k / (np.sqrt(v_k * correction) + eps)


@cached
@numba.njit(**STRICT)
def pack(packed, flat, packed_index, flat_index):
    """packed[packed_index] = flat[flat_index]"""
    for k in range(flat_index.size):
        packed[packed_index[k]] = flat[flat_index[k]]


@cached
@numba.njit(**STRICT)
def _unpack(packed, flat, packed_index, flat_index):
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
    return numba.njit(**STRICT)(define("chunks", "\n".join(lines), names, "learners.native"))


class _Kernels(NamedTuple):
    """All epochs in one call, and the same in parts for processes that exchange something in between."""

    epochs: Any  # (state, grad, turned, work, features, action, old_a, old_b, order, bounds, knobs, table, steps)
    begin: Any  # (state, turned, work)
    gradient: Any  # (state, grad, turned, work, features, action, old_a, old_b, order, bounds, batch, knobs, figures)
    take_step: Any  # (state, grad, turned, knobs, figures, steps) -> bool


def _make_kernels(plan: Plan, critic: bool) -> _Kernels:
    """The kernels of one network.

    state is (3, size): packed weights and Adam's two moments. See `FusedEpochs.run` for the rest.
    """
    source = Source(plan)
    chunks = _make_chunks(plan, source, critic)
    lines = ["def turn(weights, turned):", *(f"    {line}" for line in source.turn() or ["pass"])]
    turn = numba.njit(**STRICT)(define("turn", "\n".join(lines), {"_transpose": transpose}, "learners.native"))
    one = plan.workspace["one"]

    @numba.njit(**STRICT)
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

    @numba.njit(**STRICT)
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
        step_size = f32(knobs[0] / (1.0 - BETA1 ** steps[0]))
        correction = f32(1.0 / (1.0 - BETA2 ** steps[0]))
        _adam(state[0], grad, state[1], state[2], clip, step_size, correction, f32(knobs[7]))
        turn(state[0].ctypes.data, turned.ctypes.data)
        return True

    @numba.njit(**STRICT)
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

    return _Kernels(cached(epochs), cached(begin), cached(gradient), cached(take_step))


class _Net:
    """Kernels and buffers of one network, and the optimiser whose vectors it works on."""

    def __init__(self, plan: Plan, optimizer: Any, critic: bool) -> None:
        self.plan, self.optimizer = plan, optimizer
        self.kernels = _make_kernels(plan, critic)
        self._state = np.zeros((3, plan.size), np.float32)
        self._steps = np.zeros(2)
        self.grad = np.zeros(plan.size, np.float32)
        self._turned = np.zeros(plan.turned_size, np.float32)
        self._work = np.zeros(plan.workspace_size, np.float32)

    def load(self) -> None:
        """Take weights, moments and counters over from the optimiser."""
        for packed, flat in zip(self._state, self._vectors(), strict=True):
            pack(packed, flat, self.plan.packed, self.plan.flat)
        self._steps[:] = float(self.optimizer.steps), float(self.optimizer.skipped)

    def store(self) -> None:
        """Give them back."""
        for packed, flat in zip(self._state, self._vectors(), strict=True):
            _unpack(packed, flat, self.plan.packed, self.plan.flat)
        self.optimizer.steps.fill_(self._steps[0])
        self.optimizer.skipped.fill_(self._steps[1])

    def _vectors(self) -> list[np.ndarray]:
        return [tensor.numpy() for tensor in (self.optimizer.param, self.optimizer.m, self.optimizer.v)]

    def run(self, *arguments: Any, knobs: np.ndarray, table: np.ndarray) -> None:
        """All epochs; `arguments` are features to bounds."""
        self.load()
        buffers = (self._state, self.grad, self._turned, self._work)
        self.kernels.epochs(*buffers, *arguments, knobs, table, self._steps)
        self.store()

    def begin(self) -> None:
        self.kernels.begin(self._state, self._turned, self._work)

    def gradient(self, *arguments: Any, batch: int, knobs: np.ndarray, figures: np.ndarray) -> None:
        """The gradient of one minibatch into `grad`."""
        buffers = (self._state, self.grad, self._turned, self._work)
        self.kernels.gradient(*buffers, *arguments, batch, knobs, figures)

    def take_step(self, knobs: np.ndarray, figures: np.ndarray) -> bool:
        """The step along `grad`; False beyond the KL limit."""
        return bool(self.kernels.take_step(self._state, self.grad, self._turned, knobs, figures, self._steps))


class FusedEpochs:
    """The native twin of `PPO._epochs` for one policy on the CPU.

    Args:
        policy: its weights are read and written in place.
        actor_optimizer, critic_optimizer: `FlatAdam` of its two halves; moments and counters are kept up to date.
        threads: 1, or 2 to work on actor and critic at the same time; the result is the same.
        group: the processes that train together; gradients and figures of each minibatch are averaged over them.
    """

    def __init__(
        self, policy: Any, actor_optimizer: Any, critic_optimizer: Any, threads: int, group: Group | None = None
    ) -> None:
        both = plans(policy)
        self._nets = (_Net(both["actor"], actor_optimizer, False), _Net(both["critic"], critic_optimizer, True))
        self._team = Team(min(threads, 2))
        self._group = group

    def run(
        self,
        batch: Any,
        order: np.ndarray,
        bounds: np.ndarray,
        actor_knobs: dict[str, float],
        critic_knobs: dict[str, float],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Make the steps of every minibatch; the tables of ACTOR_FIGURES and CRITIC_FIGURES, one row a minibatch.

        Args:
            batch: `learners.rollout.Batch` on the CPU.
            order: int64 row numbers of all minibatches, one after the other.
            bounds: int64; minibatch b is order[bounds[b] : bounds[b + 1]].
            actor_knobs, critic_knobs: a number for each of KNOBS; `scale` multiplies the whole loss.
        """
        features, log_prob, value, advantage, target = (
            np.ascontiguousarray(t.numpy())
            for t in (batch.features, batch.log_prob, batch.value, batch.advantage, batch.target)
        )
        action = np.ascontiguousarray(batch.action.numpy())
        rows = [(features, action, *old, order, bounds) for old in ((log_prob, advantage), (target, value))]
        knobs = [np.array([given[name] for name in KNOBS]) for given in (actor_knobs, critic_knobs)]
        tables = (np.zeros((len(bounds) - 1, 6)), np.zeros((len(bounds) - 1, 6)))
        if self._group is not None:
            self._run_together(self._group, rows, knobs, tables)
            return tables

        def work(net: int) -> None:
            self._nets[net].run(*rows[net], knobs=knobs[net], table=tables[net])

        if self._team.count == 2 and self._nets[1].kernels.epochs.signatures:
            self._team.run(work)
        else:  # the first call compiles: one after the other, numba compiles one function at a time anyway
            work(0)
            work(1)
        return tables

    def _run_together(self, group: Group, rows: list[Any], knobs: list[np.ndarray], tables: Any) -> None:
        """`run` with an exchange between the gradients and the steps of each minibatch."""
        actor, critic = self._nets
        for net in self._nets:
            net.load()
            net.begin()
        active = True
        for batch in range(len(tables[0])):
            figures = [table[batch] for table in tables]
            if active:
                actor.gradient(*rows[0], batch=batch, knobs=knobs[0], figures=figures[0])
            critic.gradient(*rows[1], batch=batch, knobs=knobs[1], figures=figures[1])
            own = [actor.grad, critic.grad, np.concatenate((figures[0][:4], figures[1][:1])).astype(np.float32)]
            actor.grad[:], critic.grad[:], means = (mean.numpy() for mean in group.mean(*map(torch.from_numpy, own)))
            figures[0][:4], figures[1][0] = means[:4], means[4]
            active = active and actor.take_step(knobs[0], figures[0])
            critic.take_step(knobs[1], figures[1])
            if group.verify_steps:
                for net in self._nets:
                    net.store()
                group.verify_step([net.optimizer for net in self._nets])
        for net in self._nets:
            net.store()
