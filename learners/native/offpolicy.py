"""Updates of SAC and TD3 as native calls: one for the critics, one for the actor, on any number of threads.

Floor: with networks of P weights each, a row takes 2 P operations for every pass through one of them and 4 P for every full
backward pass. An update of the critics makes five passes forward (actor, two targets, two critics) and two backward, one of
SAC's actor three forward, one backward and two half ones; TD3's asks one critic only (`flops`).
`python -m benchmarks.update_engine` measures against what the machine's own matrix product makes of as many operations.

Weights, moments and targets stay packed in the order that the kernels read; `pull` takes them over from the algorithm's
tensors, `push_actor` and `push_critics` give them back.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from torch import Tensor

from gpuenvs.errors import ConfigError
from gpuenvs.runtime.cpu import aligned_zeros
from gpuenvs.runtime.threads import Team, allowed_cores
from learners.distributed import local_size
from learners.native import offpolicy_kernels as kernels
from learners.native.epochs import pack, unpack
from learners.native.network import ROWS, Plan, obs_statistics
from learners.native.vector import LANES
from learners.optim import BETA1, BETA2

# Below so many operations an update is too short for a second thread to pay.
PARALLEL_FLOPS = 2e8


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


class _Net:
    """Packed weights, moments and gradient of one network, and its place in the algorithm's flat tensors."""

    def __init__(self, plan: Plan, index: np.ndarray, threads: int, target: bool) -> None:
        self.plan, self._index = plan, index
        self.weights, self.m, self.v = _zeros(3, plan.size)
        self.target = _zeros(plan.size if target else 0)
        self.grads = [_zeros(plan.size) for _ in range(threads)]
        self.turned = _zeros(plan.turned_size)

    def pull(self, into: np.ndarray, flat: Tensor) -> None:
        pack(into, flat.numpy(), self.plan.packed, self._index)

    def push(self, packed: np.ndarray, flat: Tensor) -> None:
        unpack(packed, flat.numpy(), self.plan.packed, self._index)

    def pull_from(self, optimizer: Any) -> None:
        """Weights and moments, from an optimiser's tensors."""
        for vector, flat in zip((self.weights, self.m, self.v), _vectors(optimizer)):
            self.pull(vector, flat)

    def push_to(self, optimizer: Any) -> None:
        """Weights and moments, into an optimiser's tensors."""
        for vector, flat in zip((self.weights, self.m, self.v), _vectors(optimizer)):
            self.push(vector, flat)


class _Fused:
    """The native twin of an algorithm's `_critic_step` and `_actor_step`, sampling included.

    With `algo.split` both may run at the same time on two threads: each reads copies of what the other writes, which
    `pull_critics_read` and `pull_actor_read` renew.

    Args:
        algo: whose tensors it takes over.
        threads: most threads of an update; the result depends on their number by rounding, not on their timing.
    """

    squashed: bool

    def __init__(self, algo: Any, threads: int) -> None:
        self._algo = algo
        c, policy = algo.config, algo.policy
        d, k = policy.obs_dim, policy.num_outputs
        actor_plan = Plan((d, *c.hidden_sizes, 2 * k if self.squashed else k), c.activation)
        critic_plan = Plan((d + k, *c.hidden_sizes, 1), c.activation)
        self.flops = flops(self.squashed, d, k, c.hidden_sizes, c.batch_size)
        wanted = threads if self.flops[0] >= PARALLEL_FLOPS else 1
        self._cuts = _cut(c.batch_size, wanted)
        self.threads = count = len(self._cuts) - 1
        self._teams = {"critic": Team(count), "actor": Team(count)}
        self._actor = _Net(actor_plan, actor_plan.flat, count, False)
        self._critics = [_Net(critic_plan, stacked_index(critic_plan, 2, j), count, True) for j in range(2)]
        split = algo.split
        self._actor_read = _zeros(actor_plan.size) if split else self._actor.weights
        self._critics_read = [_zeros(critic_plan.size) if split else net.weights for net in self._critics]
        self._turned_read = [_zeros(critic_plan.turned_size) if split else net.turned for net in self._critics]
        self._work = {
            part: [[_zeros(plan.workspace_size) for plan in (actor_plan, critic_plan, critic_plan)]
                   for _ in range(count)] for part in ("critic", "actor")
        }  # fmt: skip
        for works in self._work.values():
            for plan, work in (
                (p, w) for three in works for p, w in zip((actor_plan, critic_plan, critic_plan), three)
            ):
                work[plan.workspace["one"]] = 1.0
        self._zero = _zeros(max(LANES, k))
        self._critic_chunks, self._actor_chunks = kernels.make_chunks(actor_plan, critic_plan, k, self.squashed)
        self._turn_actor, self._turn_critic = kernels.make_turn(actor_plan), kernels.make_turn(critic_plan)
        self._no_target = np.zeros(0, np.float32)
        self._dirty = {"actor": False, "critic": False}
        self.pull()

    # --- tensors and packed vectors ------------------------------------------------------------------------------------

    def pull(self) -> None:
        """Take everything over from the algorithm's tensors."""
        algo = self._algo
        self._actor.pull_from(algo.actor_optimizer)
        for net in self._critics:
            net.pull_from(algo.critic_optimizer)
            net.pull(net.target, algo.targets.flat)
            self._turn_critic(net.weights, net.turned)
        self._turn_actor(self._actor.weights, self._actor.turned)
        self.pull_actor_read()
        self.pull_critics_read()
        self._dirty = {"actor": False, "critic": False}

    def pull_actor_read(self) -> None:
        """With `split`: the actor that the critics' updates read."""
        if self._algo.split:
            self._actor.pull(self._actor_read, self._algo._actor_read.flat)

    def pull_critics_read(self) -> None:
        """With `split`: the critics that the actor's updates read."""
        if self._algo.split:
            for net, read, turned in zip(self._critics, self._critics_read, self._turned_read):
                net.pull(read, self._algo._critics_read.flat)
                self._turn_critic(read, turned)

    def push_actor(self) -> None:
        """The actor and its moments into the algorithm's tensors."""
        if self._dirty["actor"]:
            self._dirty["actor"] = False
            self._actor.push_to(self._algo.actor_optimizer)

    def push_critics(self) -> None:
        """The critics, their moments and targets into the algorithm's tensors."""
        if self._dirty["critic"]:
            self._dirty["critic"] = False
            for net in self._critics:
                net.push_to(self._algo.critic_optimizer)
                net.push(net.target, self._algo.targets.flat)

    # --- updates -------------------------------------------------------------------------------------------------------

    def _critic(self, replay: Any, index: Tensor, noise: Tensor, committed: int, actor: np.ndarray, knobs: list[float],
                tau: float) -> dict[str, float]:  # fmt: skip
        """The step of the critics and of their targets, which follow by `tau`; `actor` holds the weights that choose the next
        actions, `knobs` the last of `kernels.KNOBS`."""
        algo, c = self._algo, self._algo.config
        batch = len(index)
        alpha, *more = knobs
        numbers = np.array([c.gamma, c.n_step, committed, alpha, 1.0 / batch, *more])
        rows, noise_rows, norm = index.numpy(), noise.numpy(), obs_statistics(algo._actor_read)
        data = replay.data.numpy().reshape(-1, replay.data.shape[-1])
        one, two = self._critics
        sums = np.zeros((self.threads, kernels.CRITIC_SUMS))

        def work(thread: int) -> None:
            self._critic_chunks(
                self._cuts[thread], self._cuts[thread + 1], rows, data, replay.steps, replay.num_envs, noise_rows, norm,
                numbers, actor, one.weights, two.weights, one.target, two.target, one.turned, two.turned,
                one.grads[thread], two.grads[thread], *self._work["critic"][thread], sums[thread],
            )  # fmt: skip

        self._run("critic", work, self._critic_chunks)
        norm_value = self._step(self._critics, algo.critic_optimizer, tau, self._turn_critic)
        self._dirty["critic"] = True
        errors, values = sums.sum(0)
        found = {"critic_loss": 0.5 * errors / batch, "q_value": 0.5 * values / batch}
        return found | {"critic_grad_norm": norm_value}

    def _ascend(self, replay: Any, index: Tensor, noise: Tensor, alpha: float) -> tuple[float, float, float]:
        """The step of the actor: (minus the mean value, mean log-prob, norm of the gradient)."""
        algo, batch = self._algo, len(index)
        numbers = np.array([0.0, 0.0, 0.0, alpha, 1.0 / batch, 0.0, 0.0])
        rows, noise_rows, norm = index.numpy(), noise.numpy(), obs_statistics(algo.policy)
        data = replay.data.numpy().reshape(-1, replay.data.shape[-1])
        net = self._actor
        sums = np.zeros((self.threads, kernels.ACTOR_SUMS))

        def work(thread: int) -> None:
            self._actor_chunks(
                self._cuts[thread], self._cuts[thread + 1], rows, data, noise_rows, norm, numbers, net.weights,
                *self._critics_read, net.turned, *self._turned_read, net.grads[thread], *self._work["actor"][thread],
                self._zero, sums[thread],
            )  # fmt: skip

        self._run("actor", work, self._actor_chunks)
        norm_value = self._step([net], algo.actor_optimizer, 0.0, self._turn_actor)
        self._dirty["actor"] = True
        values, log_probs = sums.sum(0) / batch
        return values, log_probs, norm_value

    def _run(self, part: str, work: Any, kernel: Any) -> None:
        team = self._teams[part]
        if team.count == 1 or kernel.signatures:
            team.run(work)
        else:  # the first call compiles
            for thread in range(team.count):
                work(thread)

    def _step(self, nets: list[_Net], optimizer: Any, tau: float, turn: Any) -> float:
        """`FlatAdam.step` of all nets together, which share its counters; the norm of their gradient."""
        c = self._algo.config
        for net in nets:
            for other in net.grads[1:]:
                kernels.add_up(net.grads[0], other)
                other.fill(0.0)
        norm = float(np.sqrt(sum(kernels.norm_of(net.grads[0]) for net in nets)))
        if not np.isfinite(norm):
            optimizer.skipped += 1
            for net in nets:
                net.grads[0].fill(0.0)
                kernels.follow(net.target, net.weights, np.float32(tau))
            return norm
        optimizer.steps += 1
        steps = float(optimizer.steps)
        clip = min(1.0, c.max_grad_norm / (norm + 1e-6)) if c.max_grad_norm > 0 else 1.0
        step_size = np.float32(self._algo.learning_rate / (1 - BETA1**steps))
        correction = np.float32(1 / (1 - BETA2**steps))
        for net in nets:
            target = net.target if net.target.size else self._no_target
            kernels.adam_step(net.weights, net.grads[0], net.m, net.v, target, np.float32(clip), step_size, correction,
                              np.float32(c.adam_eps), np.float32(tau))  # fmt: skip
            turn(net.weights, net.turned)
        return norm


class FusedSAC(_Fused):
    """The native twin of `SAC._critic_step` and `SAC._actor_step`; see `_Fused`."""

    squashed = True

    def __init__(self, algo: Any, threads: int) -> None:
        super().__init__(algo, threads)
        self._alpha = _Scalar(algo.alpha_optimizer)

    def critic(self, replay: Any, index: Tensor, noise: Tensor, committed: int) -> dict[str, float]:
        """The step of the critics and of their targets; see `ActorCritic.critic_update`."""
        algo = self._algo
        alpha = math.exp(algo._alpha_read.item())
        return self._critic(replay, index, noise, committed, self._actor_read, [alpha, 0.0, 0.0], algo.config.tau)

    def actor(self, replay: Any, index: Tensor, noise: Tensor) -> dict[str, float]:
        """The step of the actor and of the entropy coefficient; see `ActorCritic.actor_update`."""
        algo = self._algo
        alpha = math.exp(algo.log_alpha.item())
        values, log_probs, norm = self._ascend(replay, index, noise, alpha)
        if algo.learns_alpha:
            self._alpha.step(-alpha * (log_probs + algo.target_entropy), algo.learning_rate)
        found = {"actor_loss": alpha * log_probs + values, "entropy": -log_probs, "ent_coef": alpha}
        return found | {"actor_grad_norm": norm}


class FusedTD3(_Fused):
    """The native twin of `TD3._critic_step` and `TD3._actor_step`; see `_Fused`."""

    squashed = False

    def pull(self) -> None:
        """Take everything over from the algorithm's tensors."""
        super().pull()
        self._target_actor = _zeros(self._actor.plan.size)
        self._actor.pull(self._target_actor, self._algo.target_policy.flat)

    def push_critics(self) -> None:
        """The critics, their moments and all targets into the algorithm's tensors."""
        if self._dirty["critic"]:
            self._actor.push(self._target_actor, self._algo.target_policy.flat)
        super().push_critics()

    def critic(self, replay: Any, index: Tensor, noise: Tensor, committed: int) -> dict[str, float]:
        """The step of the critics and, when they are due, of all targets; see `ActorCritic.critic_update`."""
        c = self._algo.config
        tau = c.tau if (self._algo.version + 1) % c.policy_delay == 0 else 0.0
        knobs = [0.0, c.target_noise, c.target_clip]
        found = self._critic(replay, index, noise, committed, self._target_actor, knobs, tau)
        if tau:
            kernels.follow(self._target_actor, self._actor_read, np.float32(tau))
        return found

    def actor(self, replay: Any, index: Tensor, noise: Tensor) -> dict[str, float]:
        """The step of the actor; see `ActorCritic.actor_update`."""
        values, _, norm = self._ascend(replay, index, noise, 0.0)
        return {"actor_loss": values, "actor_grad_norm": norm}


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


def _cut(batch: int, threads: int) -> list[int]:
    """Where each thread's rows begin and end: whole chunks of ROWS."""
    chunks = -(-batch // ROWS)
    threads = max(1, min(threads, chunks))
    return [min(batch, ROWS * (chunks * t // threads)) for t in range(threads)] + [batch]


def _vectors(optimizer: Any) -> list[Tensor]:
    return [optimizer.param, optimizer.m, optimizer.v]


class _Scalar:
    """`FlatAdam` on one number, without a tensor operation."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._values = [tensor.numpy() for tensor in _vectors(optimizer)]

    def step(self, slope: float, learning_rate: float) -> None:
        """One step; none along a slope that is not finite."""
        if not np.isfinite(slope):
            self._optimizer.skipped += 1
            return
        self._optimizer.steps += 1
        steps = float(self._optimizer.steps)
        param, m, v = self._values
        m += np.float32(1 - BETA1) * (np.float32(slope) - m)
        v += np.float32(1 - BETA2) * (np.float32(slope) ** 2 - v)
        root = np.sqrt(v / np.float32(1 - BETA2**steps)) + np.float32(self._optimizer.eps)
        param -= np.float32(learning_rate / (1 - BETA1**steps)) * m / root
