"""Actor threads: wait for environments that have stepped, store what happened, decide, send them on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from learners.host.horizon import Horizon
from learners.host.inference import Inference, split, use_one_thread

Span = tuple[float, float]  # time.perf_counter() at begin and end


class Actors:
    """Fills horizons in the order in which they are opened, each environment at its own pace.

    An environment that has finished a horizon goes on into the next one if that is open, and rests otherwise. A row belongs
    to the thread that `pool.ready` gave it to until it is sent on; everything that threads share is under one lock.

    Args:
        pool: a started pool; see `learners.host.collector`.
        inference: how actions are computed.
        count: threads.
        lockstep: no environment begins a step before all have finished the one before.
    """

    def __init__(self, pool: Any, inference: Inference, count: int, lockstep: bool) -> None:
        n = pool.num_envs
        self._pool, self._inference, self._lockstep = pool, inference, lockstep
        self._lock = threading.Condition()
        self._open: dict[int, Horizon] = {}
        self._opened = 0
        self._oldest = 0
        self._horizon_of = np.full(n, -1)
        self._time = np.zeros(n, np.int64)
        self._resting = np.ones(n, bool)  # finished the newest horizon
        self._held = np.zeros(n, bool)  # lockstep: has finished its step
        self._waiting = np.zeros(n, bool)  # to be acted on by whichever thread comes first
        self._size = inference.group or 1
        self._share = -(-n // (self._size * count))  # groups of one thread when all are waiting
        self._error: BaseException | None = None
        self._ending = self._closed = False
        self._idle = [0.0] * count
        self._spans: deque[Span] = deque(maxlen=1024)  # nobody may ask
        self._busy_since = 0.0
        self._threads: list[threading.Thread] = []

    # --- the schedule's side ----------------------------------------------------------------------------------------

    def open(self, horizon: Horizon) -> None:
        """Let every environment go on into `horizon` when it has finished the ones before; does not block."""
        with self._lock:
            self._check()
            if not self._threads:
                self._start()
            if not self._missing():
                self._busy_since = time.perf_counter()
            self._open[self._opened] = horizon
            self._opened += 1
            rows = np.flatnonzero(self._resting)
            self._resting[:] = False
            self._enter(rows)
            self._wake(self._offer(rows))

    def wait(self) -> Horizon:
        """The oldest open horizon when it is complete; it is open no more.

        Raises the first error of an actor or of the pool, RuntimeError when nothing is open.
        """
        with self._lock:
            self._check()
            if self._oldest == self._opened:
                raise RuntimeError("no horizon is open")
            horizon = self._open[self._oldest]
            self._until(lambda: not horizon.missing)
            del self._open[self._oldest]
            self._oldest += 1
            return horizon

    def settle(self) -> None:
        """Wait until every open horizon is complete: then all environments rest. Raises what `wait` raises."""
        with self._lock:
            self._until(lambda: not self._missing())

    def rest(self) -> None:
        """Settle and end the threads, so that nobody waits in the pool; `open` starts them again."""
        self.settle()
        self._end()
        with self._lock:
            self._check()
            self._ending = False

    def forget(self) -> None:
        """Drop complete horizons nobody waited for."""
        with self._lock:
            self._open.clear()
            self._oldest = self._opened

    def complete(self) -> int:
        """How many open horizons are complete."""
        with self._lock:
            return sum(not horizon.missing for horizon in self._open.values())

    @property
    def idle_seconds(self) -> float:
        """How long threads have waited for environments, summed over them."""
        return sum(self._idle)

    def spans(self) -> list[Span]:
        """When an open horizon was incomplete, since the last call, in order and without overlap."""
        with self._lock:
            if self._missing():
                self._pause()
            spans = list(self._spans)
            self._spans.clear()
            return spans

    def close(self) -> None:
        """End the threads for good. What they were filling stays incomplete."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self._end()

    # --- under the lock ---------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise RuntimeError("the collector is closed")

    def _until(self, done: Any) -> None:
        self._check()
        while not done():
            self._lock.wait()
            self._check()

    def _missing(self) -> bool:
        """Whether an open horizon is incomplete."""
        return self._opened > self._oldest and self._open[self._opened - 1].missing > 0

    def _pause(self) -> None:
        """A span ends, and another begins if something is open."""
        now = time.perf_counter()
        self._spans.append((self._busy_since, now))
        self._busy_since = now

    def _enter(self, rows: np.ndarray) -> None:
        """Rows begin the horizon after the one they were in."""
        self._horizon_of[rows] += 1
        self._time[rows] = 0

    def _offer(self, rows: np.ndarray) -> int:
        """Rows can be acted on, by any thread; in lockstep only when all can. Returns how many shares there are now."""
        if self._lockstep:
            self._held[rows] = True
            if not self._held.all():
                return 0
            self._held[:] = False
            rows = np.arange(len(self._held))
        self._waiting[rows] = True
        waiting = np.unique(np.flatnonzero(self._waiting) // self._size)
        return -(-len(waiting) // self._share)

    def _take(self) -> np.ndarray:
        """One thread's share of the rows that wait."""
        rows = np.flatnonzero(self._waiting)
        of = rows // self._size
        rows = rows[np.isin(of, np.unique(of)[: self._share])]
        self._waiting[rows] = False
        return rows

    def _wake(self, threads: int) -> None:
        if threads > 0:
            self._pool.wake(threads)

    # --- the threads' side ------------------------------------------------------------------------------------------

    def _run(self, number: int) -> None:
        try:
            use_one_thread()
            scratch = self._inference.scratch()
            while True:
                since = time.perf_counter()
                rows = self._pool.ready()
                self._idle[number] += time.perf_counter() - since
                if self._ending:
                    return
                self._act(scratch, self._next(rows))
        except BaseException as error:  # whatever it is, the schedule's thread raises it
            with self._lock:
                self._error = self._error or error
                self._lock.notify_all()
            self._wake_all()

    def _parts(self, rows: np.ndarray) -> Iterator[tuple[Horizon, np.ndarray]]:
        """`rows` by the horizon they are in."""
        for number, part in split(rows, self._horizon_of[rows]):
            yield self._open[number], part

    def _groups(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """`rows` by the call of the inference they go into."""
        size = self._inference.group
        if not size:
            yield rows
            return
        for _, group in split(rows, rows // size):
            yield group

    def _next(self, rows: np.ndarray) -> np.ndarray:
        """Store what the step of `rows` returned; the rows this thread is to act on now."""
        ended = []
        for horizon, part in self._parts(rows):
            horizon.store(self._pool, part, self._time[part])
            self._time[part] += 1
            last = part[self._time[part] == horizon.num_steps]
            if len(last):
                horizon.obs[horizon.num_steps, last] = self._pool.obs[last]
                ended.append((horizon, last))
        with self._lock:
            for horizon, last in ended:
                horizon.missing -= len(last)
                newest = self._horizon_of[last] == self._opened - 1
                self._resting[last[newest]] = True
                self._enter(last[~newest])
                if not horizon.missing:
                    if not self._missing():
                        self._pause()
                    self._lock.notify_all()
            rows = rows[~self._resting[rows]]
            if self._lockstep:
                self._wake(self._offer(rows) - 1)
                return self._take()
            return np.concatenate((rows, self._take())) if self._waiting.any() else rows

    def _act(self, scratch: Any, rows: np.ndarray) -> None:
        inference, pool = self._inference, self._pool
        for horizon, part in self._parts(rows):
            weights, version = horizon.weights()
            for group in self._groups(part):
                times = self._time[group]
                inference.act(scratch, weights, horizon, group, times)
                horizon.version[times, group] = version
                if not self._lockstep:
                    pool.step(group)
        if self._lockstep and len(rows):
            pool.step(rows)

    # --- beginning and end ------------------------------------------------------------------------------------------

    def _start(self) -> None:
        count = len(self._idle)
        self._threads = [
            threading.Thread(target=self._run, args=(k,), name=f"gpurl-actor-{k}", daemon=True) for k in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _end(self) -> None:
        """End the threads and wait for them."""
        self._wake_all()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _wake_all(self) -> None:
        self._ending = True
        with contextlib.suppress(Exception):  # the pool may be what failed: then nobody waits in it
            self._pool.wake(len(self._threads))
