"""How a horizon gets from the environments' device to the learner's, and new weights get back.

| kind | what moves | between |
|---|---|---|
| `alias` | nothing: both sides use the same memory and the same stream | one device |
| `peer` | one copy of the chunk on a stream of its own | two GPUs with a direct link |
| `staged` | one copy into pinned host memory, one out of it | two GPUs without one |
| `pinned` | one copy out of pinned host memory, where the collector has written | CPU to GPU |
| `remote` | nothing afterwards: the collector's kernels write rows into the learner's memory | two GPUs with a link |

Each kind but `alias` has `SLOTS` chunks on either side (or as many as the schedule wants), used in turn, so a schedule may
collect one horizon while another is learned from. For such a schedule `alias` has them too: the same memory on both sides,
with a stream each on a GPU and a thread each on the CPU (`learners.swap`). Whoever writes into a chunk waits, on the device,
for the event that says its last reader is done.

An iteration of any schedule is made of the same steps::

    rollout = transfer.begin()                 # the chunk to collect into
    with transfer.collecting():                # … on the environments' stream, under transfer.policy
        collector.collect(transfer.policy, rollout, version)
    transfer.send()
    with transfer.learning():
        algo.update(transfer.receive())        # the oldest horizon that was sent
    transfer.release()                         # the learner is done with it
    transfer.publish()                         # the weights as they stand, for a later begin()
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from learners.devices import HOST, Runtime
from learners.links import Link, Span, cut, finish
from learners.networks import Policy
from learners.rollout import Rollout
from learners.snapshots import load_fields, save_fields

TRANSFERS = ("alias", "peer", "staged", "pinned", "remote")
SLOTS = 2
MakeRollout = Callable[[Tensor], Rollout]


class Transfer(Protocol):
    """See the module's docstring. `policy` is the one to collect with; it lives on the environments' device."""

    kind: str
    policy: Policy

    def begin(self) -> Rollout: ...

    def collecting(self) -> AbstractContextManager[None]: ...

    def send(self) -> None: ...

    def receive(self) -> Rollout: ...

    def learning(self) -> AbstractContextManager[None]: ...

    def release(self) -> None: ...

    def publish(self) -> None: ...

    def reset(self) -> None:
        """Take the learner's weights over after they were loaded from a checkpoint; `drain` before loading them."""
        ...

    def statistics(self) -> AbstractContextManager[Rollout]:
        """The newest horizon, on whichever side reading it waits for less; valid until the next `begin`."""
        ...

    def drain(self) -> None:
        """The host waits for everything that is under way: then weights may be loaded and memory freed."""
        ...

    def pending(self) -> list[dict[str, Tensor]]:
        """Copies of the horizons that were sent and not received, oldest first."""
        ...

    def restore(self, horizons: list[dict[str, Tensor]]) -> None:
        """Begin anew with these sent; after `drain`, before `reset`."""
        ...

    def metrics(self) -> dict[str, float]:
        """Bytes per env step, and of copies GB/s and the share of their time that the learner did not wait for."""
        ...


class Alias:
    """One device, one stream, one chunk: nothing is copied and nobody waits."""

    kind = "alias"

    def __init__(self, policy: Policy, rollout: Rollout) -> None:
        self.policy, self._rollout = policy, rollout

    def begin(self) -> Rollout:
        return self._rollout

    def collecting(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def send(self) -> None:
        pass

    def receive(self) -> Rollout:
        return self._rollout

    def learning(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def release(self) -> None:
        pass

    def publish(self) -> None:
        pass

    def reset(self) -> None:
        pass

    def statistics(self) -> AbstractContextManager[Rollout]:
        return contextlib.nullcontext(self._rollout)

    def drain(self) -> None:
        pass

    def pending(self) -> list[dict[str, Tensor]]:
        return []

    def restore(self, horizons: list[dict[str, Tensor]]) -> None:
        pass

    def metrics(self) -> dict[str, float]:
        return {"transfer_bytes_per_step": 0.0}


def make_transfer(
    kind: str, runtime: Runtime | None, env: Any, algo: Any, config: Any, slots: int = SLOTS, apart: bool = False
) -> Any:
    """One of `TRANSFERS` from `env` (a batch env) to `algo`, both of which are on their devices already.

    `apart`: collector and learner work at the same time, on `slots` storages. `alias` on a CPU needs no runtime, and without
    `apart` none at all.
    """
    spaces = env.single_observation_space, env.single_action_space
    size = config.num_steps, env.num_envs
    if kind == "alias" and not apart:
        return Alias(algo.policy, Rollout(*size, *spaces, algo.device))
    if kind == "alias" and algo.device == HOST:
        from learners.swap import Swap

        return Swap(algo.policy, lambda: Rollout(*size, *spaces, HOST), slots)
    assert runtime is not None

    def make_rollout(chunk: Tensor) -> Rollout:
        return Rollout(*size, *spaces, chunk=chunk)

    nbytes = Rollout.size(*size, *spaces)
    return Slots(kind, runtime, algo.policy, torch.device(env.device), make_rollout, nbytes, slots)


class _Weights:
    """The policy that collects: a copy of the learner's on the environments' device, refreshed in one `move`.

    The host refreshes what it uses itself: there the new weights land in pinned memory and are taken over by `arrive`.
    """

    def __init__(self, runtime: Runtime, policy: Policy, env_device: torch.device, staged: bool) -> None:
        self._runtime = runtime
        self.policy = policy.copy_on(env_device)
        self._sources = [_bytes(tensor) for tensor in policy.acting_tensors()]
        self._targets = [_bytes(tensor) for tensor in self.policy.acting_tensors()]
        nbytes = sum(tensor.nbytes for tensor in self._sources)
        self._link = Link(runtime, policy.device, env_device, staged, nbytes, 1)
        self._landing: list[Tensor] = []
        if env_device == HOST:
            self._landing = cut(runtime.buffer(nbytes, HOST), self._sources)
        self._event: Any = None
        self._under_way = False

    def send(self, after: Iterable[Any]) -> None:
        """Copy the learner's weights once `after` has happened: they are final, and the collector has read its own."""
        self._event, _ = self._link.move(zip(self._landing or self._targets, self._sources), 0, after)
        self._under_way = True

    def arrive(self, env_stream: Any) -> None:
        """Work of the environments' stream (None: of the host) from now on sees what was sent last."""
        if not self._under_way:
            return
        self._under_way = False
        if env_stream is not None:
            self._runtime.wait(env_stream, self._event)
            return
        self._runtime.finish(self._event)
        for target, landed in zip(self._targets, self._landing):
            target.copy_(landed)

    def drain(self) -> None:
        self._link.drain()

    def left(self, learner_stream: Any) -> None:
        """The learner changes its weights from now on: not before the copy has read them."""
        if self._event is not None:
            self._runtime.wait(learner_stream, self._event)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().view(-1).view(torch.uint8)


class _Meter:
    """What copies took and what of that the learner waited for, read from events that have happened; never waits."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._open: deque[tuple[int, list[Span], Span]] = deque()
        self._last: dict[str, float] = {}

    def add(self, nbytes: int, copies: list[Span], pause: Span) -> None:
        """A horizon's copies, and the learner's stream before and after it waited for them."""
        self._open.append((nbytes, copies, pause))

    def read(self) -> dict[str, float]:
        """GB/s and overlap of the newest horizon whose numbers are known; empty before there is one."""
        runtime = self._runtime
        while self._open and all(runtime.done(end) for _, end in (*self._open[0][1], self._open[0][2])):
            nbytes, copies, pause = self._open.popleft()
            copying = max(1e-9, sum(runtime.seconds(*span) for span in copies))
            waited = min(copying, runtime.seconds(*pause))
            self._last = {"transfer_gb_s": nbytes / copying / 1e9, "transfer_overlap": 1.0 - waited / copying}
        return self._last


class Slots:
    """The kinds with chunks on either side; see the module's docstring.

    Args:
        kind: `peer`, `staged`, `pinned` or `remote`; `alias` where both roles have one device.
        runtime: streams, events and copies.
        policy: the learner's.
        env_device: where the environments are; `HOST` for `pinned`.
        make_rollout: a rollout in a given chunk.
        nbytes: size of a chunk.
        slots: chunks on either side.
    """

    def __init__(
        self,
        kind: str,
        runtime: Runtime,
        policy: Policy,
        env_device: torch.device,
        make_rollout: MakeRollout,
        nbytes: int,
        slots: int = SLOTS,
    ) -> None:
        self.kind, self._runtime, self._slots = kind, runtime, slots
        self._in_place = kind in ("remote", "alias")  # the collector writes into the learner's own chunks
        learner_device = policy.device
        self._learner_device = learner_device
        self._env_stream = None if env_device == HOST else runtime.current_stream(env_device)
        shared = env_device == learner_device  # both roles on one card
        self._learner_stream = runtime.stream(learner_device) if shared else runtime.current_stream(learner_device)
        if kind == "remote":
            runtime.open_link(env_device, learner_device)
        chunks = [runtime.buffer(nbytes, learner_device) for _ in range(slots)]
        self._learner_side = [make_rollout(chunk) for chunk in chunks]
        if self._in_place:
            self._env_side = [make_rollout(runtime.view_from(env_device, chunk)) for chunk in chunks]
        else:
            self._env_side = [make_rollout(runtime.buffer(nbytes, env_device)) for _ in range(slots)]
        staged = kind == "staged"
        self._weights = _Weights(runtime, policy, env_device, staged)
        self.policy = self._weights.policy
        self._link = None if self._in_place else Link(runtime, env_device, learner_device, staged, nbytes, slots)
        self._collected = [runtime.event(learner_device if env_device == HOST else env_device) for _ in range(slots)]
        self._consumed = [runtime.event(learner_device) for _ in range(slots)]
        self._moved: list[Any] = [None] * slots
        self._updated = runtime.event(learner_device)
        self._begun = 0
        self._received = 0
        self._sent: deque[tuple[bool, list[Span]]] = deque()
        self._meter = _Meter(runtime)
        self._bytes_per_step = 0.0
        self._settled()

    # --- the environments' side -------------------------------------------------------------------------------------

    def begin(self) -> Rollout:
        slot = self._begun % self._slots
        # Its rows go into the learner's own chunk: it must have read the last horizon there. Otherwise the chunk is
        # free once the copy out of it has run.
        free = self._consumed[slot] if self._in_place else self._moved[slot]
        if free is not None:
            if self._env_stream is None:
                self._runtime.finish(free)
            else:
                self._runtime.wait(self._env_stream, free)
        self._weights.arrive(self._env_stream)
        return self._env_side[slot]

    def collecting(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if self._env_stream is None else self._runtime.use(self._env_stream)

    def send(self) -> None:
        slot = self._begun % self._slots
        self._begun += 1
        if self._env_stream is not None:
            self._runtime.record(self._collected[slot], self._env_stream)
        rollout = self._env_side[slot]
        nbytes = rollout.learner_bytes
        spans: list[Span] = []
        if self._link is not None:
            pair = (self._learner_side[slot].chunk[:nbytes], rollout.chunk[:nbytes])
            after = (self._collected[slot], self._consumed[slot])
            self._moved[slot], spans = self._link.move([pair], slot, after)
        self._bytes_per_step = 0.0 if self.kind == "alias" else nbytes / rollout.rows
        self._sent.append((rollout.has_value, spans))

    # --- the learner's side -----------------------------------------------------------------------------------------

    def receive(self) -> Rollout:
        runtime, slot = self._runtime, self._received % self._slots
        has_value, spans = self._sent.popleft()
        before, after = (runtime.event(self._learner_device, timed=True) for _ in range(2))
        runtime.record(before, self._learner_stream)
        runtime.wait(self._learner_stream, self._collected[slot] if self._link is None else self._moved[slot])
        runtime.record(after, self._learner_stream)
        self._weights.left(self._learner_stream)
        rollout = self._learner_side[slot]
        rollout.has_value = has_value
        if spans:
            self._meter.add(rollout.learner_bytes, spans, (before, after))
        return rollout

    def learning(self) -> AbstractContextManager[None]:
        return self._runtime.use(self._learner_stream)

    def release(self) -> None:
        runtime, consumed = self._runtime, self._consumed[self._received % self._slots]
        runtime.record(consumed, self._learner_stream)
        self._received += 1
        current = runtime.current_stream(self._learner_device)
        if current != self._learner_stream:  # checkpoints and metrics are read there
            runtime.wait(current, consumed)

    def publish(self) -> None:
        runtime = self._runtime
        runtime.record(self._updated, self._learner_stream)
        # The collector's last horizon still reads the weights that are about to be replaced.
        acted = [self._collected[(self._begun - 1) % self._slots]] if self._begun else []
        self._weights.send([self._updated, *acted])

    def reset(self) -> None:
        self._settled()
        self.publish()

    def drain(self) -> None:
        for link in (self._weights, *([] if self._link is None else [self._link])):
            link.drain()
        finish(self._runtime, self._learner_stream, self._learner_device)
        if self._env_stream is not None:
            finish(self._runtime, self._env_stream, self.policy.device)

    def _settled(self) -> None:
        """The learner's stream goes on after what this thread has done on its device: making or loading weights."""
        runtime = self._runtime
        runtime.record(self._updated, runtime.current_stream(self._learner_device))
        runtime.wait(self._learner_stream, self._updated)

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def pending(self) -> list[dict[str, Tensor]]:
        """The horizons that were sent and not received, oldest first."""
        runtime, horizons = self._runtime, []
        for k, (has_value, _) in enumerate(self._sent):
            slot = (self._received + k) % self._slots
            arrived = self._collected[slot] if self._link is None else self._moved[slot]
            runtime.wait(runtime.current_stream(self._learner_device), arrived)
            self._learner_side[slot].has_value = has_value
            horizons.append(save_fields(self._learner_side[slot]))
        return horizons

    def restore(self, horizons: list[dict[str, Tensor]]) -> None:
        """Begin anew with these sent; after `drain`, before `reset`."""
        self._begun = self._received = 0
        self._sent.clear()
        for slot, fields in enumerate(horizons):
            load_fields(self._learner_side[slot], fields)
            self._moved[slot] = self._collected[slot]  # which has happened long ago
            self._sent.append((self._learner_side[slot].has_value, []))
            self._begun += 1

    # --- reports ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def statistics(self) -> Any:
        slot = (self._begun - 1) % self._slots
        if self.kind == "remote" and not self._sent:  # the learner has waited for it, and has it nearer
            with self.learning():
                yield self._learner_side[slot]
        else:
            with self.collecting():
                yield self._env_side[slot]

    def metrics(self) -> dict[str, float]:
        return {"transfer_bytes_per_step": self._bytes_per_step, **self._meter.read()}
