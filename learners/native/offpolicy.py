"""Updates of SAC and TD3 as native calls: several of critics and actor at once, or of one of them, on any number of threads.

Floor: with networks of P weights each, a row takes 2 P operations for every pass through one of them and 4 P for every full
backward pass. An update of the critics makes five passes forward (actor, two targets, two critics) and two backward, one of
SAC's actor three forward, one backward and two half ones; TD3's asks one critic only (`flops`).
`python -m benchmarks.update_engine` measures against what the machine's own matrix product makes of as many operations.

Weights, moments and targets stay packed in the order that the kernels read; `pull` takes them over from the algorithm's
tensors, `push_actor` and `push_critics` give them back. `learners.native.offpolicy_update` holds the compiled side.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuenvs.errors import ConfigError
from gpuenvs.rng import split_seed
from gpuenvs.runtime.cpu import aligned_zeros
from gpuenvs.runtime.threads import Team, allowed_cores
from learners.distributed import local_size
from learners.native.barrier import make_counter
from learners.native.epochs import pack, unpack
from learners.native.network import Plan, obs_statistics
from learners.native.offpolicy_kernels import make_turn
from learners.native.offpolicy_update import ACTOR, ALPHA, COUNTERS, CRITICS, REPORT, SUMS, make_updates
from learners.native.vector import LANES
from learners.rates import scaled_rate, total_updates

# Below so many operations an update is too short for a second thread to pay.
PARALLEL_FLOPS = 1e7
# Rows that go through a network together. The second-level cache holds their activations beside the weights of one critic.
CHUNK = 128
# A call makes so many updates at most, and so many that they are over in some tens of milliseconds: a training that is
# paused or ends waits for it.
MOST_UPDATES, BURST_FLOPS = 8, 5e9


def misfit(algo: Any) -> str | None:
    """Why these kernels cannot stand in for the updates of this SAC or TD3, in words; None if they can."""
    c = algo.config
    if algo.device.type != "cpu" or algo.actor_device.type != "cpu":
        return "the native engine works on the CPU"
    if c.compile != "off":
        return f"compile={c.compile} is for PyTorch's operations"
    if c.layer_norm:
        return "there is no native layer_norm"
    if c.atoms > 1:
        return "there are no native distributional critics"
    if not c.hidden_sizes or any(h % LANES for h in c.hidden_sizes):
        return f"hidden_sizes must be multiples of the SIMD width {LANES} (16 always fits)"
    return None


def engine(algo: Any, cls: Any) -> Any:
    """An engine of class `cls` for the algorithm on this process's cores, where one fits and is wanted, or None.

    Raises:
        ConfigError: it was asked for and does not fit; one line that says why.
    """
    if algo.config.engine == "torch":
        return None
    problem = misfit(algo)
    if problem is None:
        return cls(algo, max(1, allowed_cores() // local_size()))
    if algo.config.engine == "fused":
        raise ConfigError(f"engine=fused: {problem}; use engine=auto or torch")
    return None


def flops(squashed: bool, obs_dim: int, actions: int, hidden_sizes: tuple[int, ...], batch: int) -> tuple[int, int]:
    """Floating-point operations of (an update of the critics, one of the actor), counting the matrix products alone; of SAC
    if `squashed`, else of TD3."""

    def products(*sizes: int) -> int:
        return sum(2 * a * b for a, b in itertools.pairwise(sizes))

    actor = products(obs_dim, *hidden_sizes, (2 if squashed else 1) * actions)
    critic = products(obs_dim + actions, *hidden_sizes, 1)
    first_actor, first_critic = 2 * obs_dim * hidden_sizes[0], 2 * (obs_dim + actions) * hidden_sizes[0]
    # A backward pass makes the gradient of every weight and, but for the first layer, that of its input.
    critics = actor + 4 * critic + 2 * (2 * critic - first_critic)
    to_action = critic - first_critic + 2 * actions * hidden_sizes[0]
    asked = 2 if squashed else 1
    return batch * critics, batch * (asked * (critic + to_action) + 3 * actor - first_actor)


class _Nets:
    """Packed weights and moments of `count` networks of one plan, (count, plan.size) each, and their places in the
    algorithm's flat tensors."""

    def __init__(self, plan: Plan, count: int) -> None:
        self.plan = plan
        self._places = [stacked_index(plan, count, j) if count > 1 else plan.flat for j in range(count)]
        self.weights, self.m, self.v = _zeros(3, count, plan.size)
        self.turned = _zeros(count, plan.turned_size)

    def pull(self, into: np.ndarray, flat: Tensor) -> None:
        for row, places in zip(into, self._places):
            pack(row, flat.numpy(), self.plan.packed, places)

    def push(self, packed: np.ndarray, flat: Tensor) -> None:
        for row, places in zip(packed, self._places):
            unpack(row, flat.numpy(), self.plan.packed, places)

    def pull_from(self, optimizer: Any) -> None:
        """Weights and moments, from an optimiser's tensors."""
        for packed, flat in zip((self.weights, self.m, self.v), _vectors(optimizer)):
            self.pull(packed, flat)

    def push_to(self, optimizer: Any) -> None:
        """Weights and moments, into an optimiser's tensors."""
        for packed, flat in zip((self.weights, self.m, self.v), _vectors(optimizer)):
            self.push(packed, flat)


class _Room:
    """Threads, and what they write while they make an update: for one of the halves with `split`, else for both."""

    def __init__(self, threads: int, batch: int, actions: int, actor: Plan, critic: Plan) -> None:
        self.threads = count = _even(min(threads, -(-batch // LANES)))
        # A thread that is alone does what two would do, one part after the other.
        parts = max(2, count)
        self.cuts = np.array(_cut(batch, parts))
        self.team = Team(count)
        self.counter = make_counter()
        self.index, self.noise = np.zeros(batch, np.int64), _zeros(1, batch, actions)
        self.tiles = _zeros(count, 4, CHUNK)
        wide = critic.obs_dim
        self.batch = (_zeros(batch * wide), _zeros(batch * wide), _zeros(batch), _zeros(batch), _zeros(batch))
        self.values = _zeros(2, batch)
        self.actor_grads, self.grads = _zeros(parts, actor.size), _zeros(parts // 2, 2, critic.size)
        self.work, self.work0, self.work1 = (_zeros(count, plan.workspace_size) for plan in (actor, critic, critic))
        for plan, work in ((actor, self.work), (critic, self.work0), (critic, self.work1)):
            work[:, plan.workspace["one"]] = 1.0
        self.sums, self.report = np.zeros((parts, SUMS)), np.zeros(len(REPORT))
        self.counters, self.alphas = np.zeros(len(COUNTERS), np.int64), _zeros(len(ALPHA))
        self.arrays = (
            self.cuts, self.counter, self.index, self.noise, self.tiles, self.batch, self.values, self.grads,
            self.actor_grads, self.work, self.work0, self.work1, self.sums,
        )  # fmt: skip


class _Fused:
    """The native twin of an algorithm's `_critic_step` and `_actor_step`, sampling included.

    With `algo.split` both may run at the same time on two threads: each has its own share of the cores and reads copies of
    what the other writes.

    Args:
        algo: whose tensors it takes over.
        threads: most threads of all. Not their timing but, from more than two on, their number changes the result, by
            rounding.
    """

    squashed: bool

    def __init__(self, algo: Any, threads: int) -> None:
        self._algo = algo
        c, policy = algo.config, algo.policy
        d, k = policy.obs_dim, policy.num_outputs
        self._actor_plan = Plan((d, *c.hidden_sizes, 2 * k if self.squashed else k), c.activation, rows=CHUNK)
        self._critic_plan = Plan((d + k, *c.hidden_sizes, 1), c.activation, rows=CHUNK)
        self.flops = flops(self.squashed, d, k, c.hidden_sizes, c.batch_size)
        self.burst = int(min(max(BURST_FLOPS // sum(self.flops), 1), MOST_UPDATES))
        self.set_threads(threads)
        self._actor, self._critics = _Nets(self._actor_plan, 1), _Nets(self._critic_plan, 2)
        self._targets = _zeros(2, self._critic_plan.size)
        self._target_actor = _zeros(self._actor_plan.size if not self.squashed else 0)
        split = algo.split
        self._actor_read = _zeros(self._actor_plan.size) if split else self._actor.weights[0]
        self._read = _zeros(2, self._critic_plan.size) if split else self._critics.weights
        self._turned_read = _zeros(2, self._critic_plan.turned_size) if split else self._critics.turned
        self._zero = _zeros(max(LANES, k))
        self._updates = make_updates(self._actor_plan, self._critic_plan, k, self.squashed)
        self._turn_actor, self._turn_critic = make_turn(self._actor_plan), make_turn(self._critic_plan)
        self._dirty = {"actor": False, "critic": False}
        self.pull()

    def set_threads(self, threads: int) -> None:
        """Use at most so many threads from now on; with `split` they are shared out, one to each half at least."""
        wanted = threads if sum(self.flops) >= PARALLEL_FLOPS else 1
        shares = [-(-wanted // 2), max(1, wanted // 2)] if self._algo.split else [wanted]
        batch, actions = self._algo.config.batch_size, self._algo.policy.num_outputs
        rooms = [_Room(share, batch, actions, self._actor_plan, self._critic_plan) for share in shares]
        self._rooms = {CRITICS: rooms[0], ACTOR: rooms[-1], CRITICS | ACTOR: rooms[0]}
        self.threads = sum(room.threads for room in rooms)

    # --- tensors and packed vectors ------------------------------------------------------------------------------------

    def pull(self) -> None:
        """Take everything over from the algorithm's tensors."""
        algo = self._algo
        self._actor.pull_from(algo.actor_optimizer)
        self._critics.pull_from(algo.critic_optimizer)
        self._critics.pull(self._targets, algo.targets.flat)
        for weights, turned in zip(self._critics.weights, self._critics.turned):
            self._turn_critic(weights, turned)
        self._turn_actor(self._actor.weights[0], self._actor.turned[0])
        if algo.split:
            self._actor.pull(self._actor_read[None], algo._actor_read.flat)
            self._critics.pull(self._read, algo._critics_read.flat)
            self.critics_taken()
        self._dirty = {"actor": False, "critic": False}

    def push_actor(self) -> None:
        """The actor and its moments into the algorithm's tensors."""
        if self._dirty["actor"]:
            self._dirty["actor"] = False
            self._actor.push_to(self._algo.actor_optimizer)

    def push_critics(self) -> None:
        """The critics, their moments and targets into the algorithm's tensors."""
        if self._dirty["critic"]:
            self._dirty["critic"] = False
            self._critics.push_to(self._algo.critic_optimizer)
            self._critics.push(self._targets, self._algo.targets.flat)

    def push_read(self) -> None:
        """With `split`: what each half reads of the other into the algorithm's tensors."""
        if self._algo.split:
            self._actor.push(self._actor_read[None], self._algo._actor_read.flat)
            self._critics.push(self._read, self._algo._critics_read.flat)

    # With `split`: the packed vectors that one half sends and where the other reads them.

    @property
    def actor_sent(self) -> Tensor:
        return torch.from_numpy(self._actor.weights[0])

    @property
    def actor_read(self) -> Tensor:
        return torch.from_numpy(self._actor_read)

    @property
    def critics_sent(self) -> Tensor:
        return torch.from_numpy(self._critics.weights)

    @property
    def critics_read(self) -> Tensor:
        return torch.from_numpy(self._read)

    def critics_taken(self) -> None:
        """After new critics were written to `critics_read`."""
        for weights, turned in zip(self._read, self._turned_read):
            self._turn_critic(weights, turned)

    # --- updates -------------------------------------------------------------------------------------------------------

    def update(self, replay: Any, committed: int, count: int, parts: int) -> dict[str, float]:
        """`count` updates of the critics, the actor or both, on rows of the replay as it is at `committed` steps; figures of
        the last one. Counters of the algorithm and its optimisers go on."""
        algo, c, room = self._algo, self._algo.config, self._rooms[parts]
        self._load(room)
        sizes = np.array([
            c.n_step, committed, replay.steps - replay.spare * replay.horizon, replay.steps, replay.num_envs, c.policy_delay,
            getattr(algo, "learns_alpha", False),
        ], np.int64)  # fmt: skip
        if not 0 < min(sizes[2], committed) * replay.num_envs < 2**32:
            raise ValueError(f"cannot draw from {min(sizes[2], committed) * replay.num_envs} transitions")
        total = total_updates(c)
        knobs = np.array([
            c.gamma, 1.0 / c.batch_size, getattr(c, "target_noise", 0.0), getattr(c, "target_clip", 0.0), c.tau,
            scaled_rate(c.learning_rate, c.batch_size, c.lr_scaling), c.max_grad_norm, c.adam_eps,
            getattr(algo, "target_entropy", 0.0), (1.0 - c.lr_end) / total if total else 0.0, c.lr_end,
        ])  # fmt: skip
        norms = np.stack([obs_statistics(algo._actor_read), obs_statistics(algo.policy)])
        data = replay.data.numpy().reshape(-1, replay.data.shape[-1])
        task = (data, split_seed(algo.seed), knobs, sizes, norms, self._zero)
        net, nets = self._actor, self._critics
        actor = (net.weights[0], net.m[0], net.v[0], net.turned[0], self._actor_read, self._target_actor)
        critics = (nets.weights, nets.m, nets.v, nets.turned, self._read, self._turned_read, self._targets)
        room.counter[:] = 0

        def work(thread: int, repeats: int = count) -> None:
            self._updates(
                thread, room.threads, repeats, parts, room.arrays, task, actor, critics, room.counters, room.alphas,
                room.report,
            )  # fmt: skip

        if room.threads > 1 and not self._updates.signatures:
            work(0, 0)  # the first call compiles
        room.team.run(work)
        self._store(room, parts)
        return self._figures(room.report, parts)

    def _load(self, room: _Room) -> None:
        """Counters of the algorithm and its optimisers."""
        algo = self._algo
        found = (algo.critic_optimizer, algo.actor_optimizer)
        room.counters[:2] = algo.version, algo.actor_version
        room.counters[2:6] = [int(n) for optimizer in found for n in (optimizer.steps, optimizer.skipped)]

    def _store(self, room: _Room, parts: int) -> None:
        algo, counters = self._algo, room.counters.tolist()
        if parts & CRITICS:
            algo.version = counters[0]
            _count(algo.critic_optimizer, *counters[2:4])
            self._dirty["critic"] = True
        if parts & ACTOR:
            algo.actor_version = counters[1]
            _count(algo.actor_optimizer, *counters[4:6])
            self._dirty["actor"] = True

    def _figures(self, report: np.ndarray, parts: int) -> dict[str, float]:
        batch = self._algo.config.batch_size
        told: dict[str, float] = dict(zip(REPORT, report.tolist()))
        found: dict[str, float] = {}
        if parts & CRITICS:
            found = {
                "critic_loss": 0.5 * told["errors"] / batch,
                "q_value": 0.5 * told["values"] / batch,
                "critic_grad_norm": told["critic_norm"],
            }
        return found | (self._of_actor(told) if parts & ACTOR and told["acted"] else {})

    def _of_actor(self, told: dict[str, float]) -> dict[str, float]:
        """Figures of the actor's last step."""
        return {
            "actor_loss": told["actor_values"] / self._algo.config.batch_size,
            "actor_grad_norm": told["actor_norm"],
        }


class FusedSAC(_Fused):
    """The native twin of `SAC._critic_step` and `SAC._actor_step`; see `_Fused`."""

    squashed = True

    def _load(self, room: _Room) -> None:
        super()._load(room)
        algo = self._algo
        room.counters[6:] = int(algo.alpha_optimizer.steps), int(algo.alpha_optimizer.skipped)
        room.alphas[:] = [x.item() for x in (*_vectors(algo.alpha_optimizer), algo._alpha_read)]

    def _store(self, room: _Room, parts: int) -> None:
        super()._store(room, parts)
        if parts & ACTOR and self._algo.learns_alpha:
            _count(self._algo.alpha_optimizer, *room.counters[6:].tolist())
            for tensor, value in zip(_vectors(self._algo.alpha_optimizer), room.alphas.tolist()):
                tensor.fill_(value)

    def _of_actor(self, told: dict[str, float]) -> dict[str, float]:
        alpha, log_prob = told["alpha"], told["log_probs"] / self._algo.config.batch_size
        found = super()._of_actor(told)
        return {**found, "actor_loss": found["actor_loss"] + alpha * log_prob, "entropy": -log_prob, "ent_coef": alpha}


class FusedTD3(_Fused):
    """The native twin of `TD3._critic_step` and `TD3._actor_step`; see `_Fused`."""

    squashed = False

    def pull(self) -> None:
        """Take everything over from the algorithm's tensors."""
        super().pull()
        self._actor.pull(self._target_actor[None], self._algo.target_policy.flat)

    def push_critics(self) -> None:
        """The critics, their moments and all targets into the algorithm's tensors."""
        if self._dirty["critic"]:
            self._actor.push(self._target_actor[None], self._algo.target_policy.flat)
        super().push_critics()


def stacked_index(plan: Plan, count: int, which: int) -> np.ndarray:
    """`plan.flat` of network number `which` in the flat buffer of a `learners.stacked.StackedMLP` of `count` of them."""
    places, base = [], 0
    for fan_in, fan_out in itertools.pairwise(plan.sizes):
        for size in (fan_out * fan_in, fan_out):
            places.append(base + which * size + np.arange(size))
            base += count * size
    return np.concatenate(places)[plan.flat]


def _zeros(*shape: int) -> np.ndarray:
    """float32 zeros that begin at a cache line: a vector that straddles two takes twice as long to load."""
    return aligned_zeros(shape, np.dtype(np.float32))


def _even(threads: int) -> int:
    """One thread, or pairs of threads."""
    return 1 if threads < 2 else threads // 2 * 2


def _cut(batch: int, parts: int) -> list[int]:
    """Where each part's rows begin and end: multiples of LANES."""
    groups = -(-batch // LANES)
    return [min(batch, LANES * (groups * part // parts)) for part in range(parts)] + [batch]


def _vectors(optimizer: Any) -> list[Tensor]:
    return [optimizer.param, optimizer.m, optimizer.v]


def _count(optimizer: Any, steps: int, skipped: int) -> None:
    optimizer.steps.fill_(steps)
    optimizer.skipped.fill_(skipped)
