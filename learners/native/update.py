"""All epochs of a PPO update as one native call for the actor and one for the critic, which share nothing.

The two calls run side by side on two threads. Within a call everything is sequential: rows in chunks of ROWS, chunks in
order, so the weights do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gpuenvs.runtime.threads import Team
from learners.distributed import Group
from learners.native import ahead
from learners.native.epochs import KNOBS, make_buffers, make_kernels, pack, unpack
from learners.native.network import Plan, plans
from learners.optim import BETA1, BETA2

# Columns of a kernel's table, one row a minibatch. The actor's figures are those of `PPO._epochs`.
ACTOR_FIGURES = ("policy_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm", "active")
CRITIC_FIGURES = ("value_loss", "", "", "", "grad_norm", "active")


class _Net:
    """Kernels and buffers of one network, and the optimiser whose vectors it works on."""

    def __init__(self, plan: Plan, optimizer: Any, critic: bool) -> None:
        self.plan, self.optimizer = plan, optimizer
        self.kernels = make_kernels(plan, critic, (BETA1, BETA2))
        self._state, self.grad, self._turned, self._work = make_buffers(plan)
        self._steps = np.zeros(2)

    def load(self) -> None:
        """Take weights, moments and counters over from the optimiser."""
        for packed, flat in zip(self._state, self._vectors(), strict=True):
            pack(packed, flat, self.plan.packed, self.plan.flat)
        self._steps[:] = float(self.optimizer.steps), float(self.optimizer.skipped)

    def store(self) -> None:
        """Give them back."""
        for packed, flat in zip(self._state, self._vectors(), strict=True):
            unpack(packed, flat, self.plan.packed, self.plan.flat)
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
        self._ahead: ahead.Ahead | None = None

    def compile_ahead(self) -> None:
        """Have the kernels of `run` compiled by another process until they are needed; see `learners.native.ahead`."""
        if self._group is not None:
            return
        discrete, jobs = not self._nets[0].plan.log_std, []
        for net, critic in zip(self._nets, (False, True), strict=True):
            plan = net.plan
            job = ahead.Job(plan.sizes, plan.activation, plan.log_std, critic, (BETA1, BETA2), discrete)
            jobs.append((job, net.kernels))
        self._ahead = ahead.start(jobs)

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

        if self._ahead is not None:
            self._ahead.wait()
            self._ahead = None
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
