"""A few threads that each step their own range of rows."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A hand-over to another thread costs about 20 us; splitting pays when one thread would need several times that.
SPLIT_SECONDS = 100e-6
# Ranges begin at multiples of this many rows, so that no two threads write one cache line.
ROW_MULTIPLE = 64


def allowed_cores() -> int:
    """Cores that this process may use: its affinity mask, and a cgroup's CPU quota when there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = _cgroup_quota()
    return max(1, cores if quota is None else min(cores, int(quota)))


def _cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores' worth of time that the process's control group may use (version 2, then 1); None: no limit is set."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota, period = (int((root / "cpu" / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return None if quota < 0 else quota / period
    return None


class Team:
    """A fixed number of threads, the caller's included, that run one function together.

    The others wait on a lock between calls and use no core then. They are started by the first call, and again after a
    fork, which threads do not survive.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pid = os.getpid()
        self._workers: list[_Worker] = []

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """`work(0)` ... `work(count - 1)` at the same time; the results in that order, or the first error."""
        if self.count == 1:
            return [work(0)]
        self._start()
        for worker in self._workers:
            worker.give(work)
        results: list[Any] = []
        error: BaseException | None = None
        try:
            results.append(work(0))
        except BaseException as caught:
            error = caught
        for worker in self._workers:
            result, failed = worker.take()
            error = error or failed
            results.append(result)
        if error is not None:
            raise error
        return results

    def _start(self) -> None:
        if self._pid != os.getpid():
            self._workers, self._pid = [], os.getpid()
        if not self._workers:
            self._workers = [_Worker(k) for k in range(1, self.count)]
            # A team that is dropped without close() must not leave its threads waiting for ever.
            self._end = weakref.finalize(self, _end_all, self._workers, self._pid)

    def close(self) -> None:
        """End the threads; a later run starts them again."""
        if self._workers:
            self._end()
        self._workers = []


def _end_all(workers: list[_Worker], pid: int) -> None:
    if pid == os.getpid():
        for worker in workers:
            worker.end()
        # A thread that still runs when the interpreter shuts down is killed in the middle of whatever C++ it is in.
        for worker in workers:
            worker.thread.join(timeout=5)


class RowThreads:
    """Runs a function over ranges of rows on up to `limit` threads, the caller's included.

    Whether a second thread pays is measured on the first calls; it changes the time only, never the result.
    """

    def __init__(self, limit: int, rows: int) -> None:
        self.limit = max(1, min(limit, rows // ROW_MULTIPLE or 1))
        self._rows = rows
        self._team = Team(self.limit)
        self.cuts = cut_rows(rows, self.limit)
        self._calls = 0
        self._best = float("inf")
        self.count = self.limit if self.limit == 1 else 0  # 0: not decided yet

    def run(self, work: Callable[[int, int, int], Any]) -> list[Any]:
        """`work(thread, start, stop)` for ranges that cover all rows once; the results in order of the ranges."""
        if self.count == 0:
            return [self._measure(work)]
        if self.count == 1:
            return [work(0, 0, self._rows)]
        cuts = self.cuts
        return self._team.run(lambda thread: work(thread, cuts[thread], cuts[thread + 1]))

    def _measure(self, work: Callable[[int, int, int], Any]) -> Any:
        """One call on the caller's thread, timed; decides after the fifth (the first ones compile and warm caches)."""
        began = time.perf_counter()
        result = work(0, 0, self._rows)
        self._calls += 1
        if self._calls > 2:
            self._best = min(self._best, time.perf_counter() - began)
        if self._calls >= 5:
            self.count = self.limit if self._best > SPLIT_SECONDS else 1
        return result

    def close(self) -> None:
        """End the threads; a later run starts them again."""
        self._team.close()


def cut_rows(rows: int, parts: int) -> list[int]:
    """`parts + 1` row numbers from 0 to `rows` that cut them about evenly, at multiples of ROW_MULTIPLE."""
    step = -(-rows // parts)
    step = -(-step // ROW_MULTIPLE) * ROW_MULTIPLE
    return [min(k * step, rows) for k in range(parts)] + [rows]


class _Worker:
    """One thread that waits on a lock (no spinning) for something to do."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._job: Callable[[int], Any] | None = None
        self._result: tuple[Any, BaseException | None] = (None, None)
        self._go, self._done = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._done.acquire()
        self.thread = threading.Thread(target=self._loop, name=f"gpuenvs-rows-{number}", daemon=True)
        self.thread.start()

    def _loop(self) -> None:
        while True:
            self._go.acquire()
            job = self._job
            if job is None:
                return
            try:
                self._result = (job(self._number), None)
            except BaseException as caught:
                self._result = (None, caught)
            self._done.release()

    def give(self, job: Callable[[int], Any]) -> None:
        self._job = job
        self._go.release()

    def take(self) -> tuple[Any, BaseException | None]:
        self._done.acquire()
        return self._result

    def end(self) -> None:
        self._job = None
        self._go.release()
