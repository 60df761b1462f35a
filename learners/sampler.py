"""Who collects while the learner learns: horizons are opened, collected in that order, and waited for.

| sampler | collects | for |
|---|---|---|
| `ThreadSampler` | on a thread of its own, which sleeps on a lock between horizons | environments on the CPU |
| `InlineSampler` | before `open` returns | CUDA, whose work runs on while the host goes on; schedules without overlap |
| `learners.host.collector.HostCollector` | in executor processes and actor threads | host environments |
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from learners.networks import Policy
from learners.rollout import Rollout

# (policy, version) to collect with, asked for when a horizon begins.
Latest = Callable[[], tuple[Policy, int]]
Span = tuple[float, float]  # time.perf_counter() at begin and end
END_SECONDS = 4.0  # what a horizon under way may take before its thread is left behind at the end


class Sampler(Protocol):
    """What schedules need of a collector that works beside them."""

    def open(self, policy: Policy, rollout: Rollout, version: int, latest: Latest | None = None) -> None:
        """Have a horizon collected into `rollout` after those opened before, under `policy` or what `latest` returns."""
        ...

    def wait(self) -> Rollout:
        """Until the oldest open horizon is complete; raises what collecting it raised."""
        ...

    def spans(self) -> list[Span]:
        """When something was collected, since the last call."""
        ...

    def complete(self) -> int:
        """How many horizons are complete that nobody has waited for."""
        ...

    def close(self) -> None:
        """End whatever is under way."""
        ...


class _Job(NamedTuple):
    policy: Policy
    rollout: Rollout
    version: int
    latest: Latest | None


class InlineSampler:
    """Collects at once, on the caller's thread."""

    def __init__(self, collector: Any) -> None:
        self._collector = collector
        self._complete: deque[Rollout] = deque()
        self._spans: list[Span] = []

    def open(self, policy: Policy, rollout: Rollout, version: int, latest: Latest | None = None) -> None:
        began = time.perf_counter()
        if latest is not None:
            policy, version = latest()
        self._complete.append(self._collector.collect(policy, rollout, version))
        self._spans.append((began, time.perf_counter()))

    def wait(self) -> Rollout:
        return self._complete.popleft()

    def spans(self) -> list[Span]:
        spans, self._spans = self._spans, []
        return spans

    def complete(self) -> int:
        return len(self._complete)

    def close(self) -> None:
        pass


class ThreadSampler:
    """Collects on one thread, one horizon after the other. The first error ends it and is raised by every later `wait`.

    `begin` is called by that thread first.
    """

    def __init__(self, collector: Any, begin: Callable[[], None] | None = None) -> None:
        self._collector, self._begin = collector, begin
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._complete: queue.SimpleQueue[Rollout | BaseException] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._spans: deque[Span] = deque()
        self._thread = threading.Thread(target=self._work, name="gpurl-sampler", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        if self._begin is not None:
            self._begin()
        while (job := self._jobs.get()) is not None:
            began = time.perf_counter()
            try:
                policy, version = job.latest() if job.latest else (job.policy, job.version)
                result: Rollout | BaseException = self._collector.collect(policy, job.rollout, version)
            except BaseException as error:
                result = error
            self._spans.append((began, time.perf_counter()))
            self._complete.put(result)
            if isinstance(result, BaseException):
                return

    def open(self, policy: Policy, rollout: Rollout, version: int, latest: Latest | None = None) -> None:
        self._jobs.put(_Job(policy, rollout, version, latest))

    def wait(self) -> Rollout:
        result = self._error or self._complete.get()
        if isinstance(result, BaseException):
            self._error = result
            raise result
        return result

    def spans(self) -> list[Span]:
        return [self._spans.popleft() for _ in range(len(self._spans))]

    def complete(self) -> int:
        return self._complete.qsize()

    def close(self) -> None:
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join(timeout=END_SECONDS)


class Activity:
    """How busy sampler and learner were, and how much of it at the same time, as shares of the time that passed."""

    def __init__(self) -> None:
        self._since = time.perf_counter()
        self._learner: deque[Span] = deque(maxlen=64)

    def learned(self, began: float) -> None:
        """The learner worked from `began` until now."""
        self._learner.append((began, time.perf_counter()))

    def metrics(self, spans: list[Span]) -> dict[str, float]:
        """Of the time since the last call. `spans` are the sampler's horizons that were completed in it, each counted whole:
        averages over many calls are exact, one call's may be off by the part of a horizon that belongs to its neighbours.
        """
        now = time.perf_counter()
        wall = max(now - self._since, 1e-9)
        both = sum(max(0.0, min(b, d) - max(a, c)) for a, b in spans for c, d in self._learner)
        sampling = sum(b - a for a, b in spans)
        learning = sum(b - a for a, b in self._learner if a >= self._since)
        self._since = now
        return {
            "overlap": both / wall,
            "sampler_idle": max(0.0, 1.0 - sampling / wall),
            "learner_idle": max(0.0, 1.0 - learning / wall),
        }


def make_sampler(collector: Any, overlap: bool, begin: Callable[[], None] | None = None) -> Sampler:
    """Who collects for a schedule; `begin` is for `ThreadSampler`."""
    if not overlap:
        return InlineSampler(collector)
    return collector if hasattr(collector, "open") else ThreadSampler(collector, begin)
