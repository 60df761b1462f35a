"""The parts of an asynchronous training: threads that each do one thing again and again, whenever their turn has come.

What a part waits for is a condition on shared counters, checked under one lock when another part has finished something.
Nobody polls: a part that waits sleeps on the lock.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

END_SECONDS = 4.0  # what work under way may take before its thread is left behind at the end


@dataclass
class Part:
    """One thread's job.

    Args:
        name: for people, and of the thread.
        ready: whether its turn has come. Called under the lock, as `begin` and `end` are.
        begin: what `work` gets; notes in the shared counters what is about to be done.
        work: the job itself, outside of the lock.
        end: takes what `work` returned into the shared counters.
        enter: called by the thread first.
    """

    name: str
    ready: Callable[[], bool]
    begin: Callable[[], Any]
    work: Callable[[Any], Any]
    end: Callable[[Any], None]
    enter: Callable[[], None] | None = None
    working: bool = field(default=False, init=False)
    waiting: bool = field(default=False, init=False)
    seconds: float = field(default=0.0, init=False)  # at work
    since: float = field(default=0.0, init=False)  # when the work under way began


class Parts:
    """Runs parts until `close`. The first error of any of them ends all and is raised by `wait` and `paused`."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self.lock = threading.Lock()
        self._news = threading.Condition(self.lock)
        self._turns = {part.name: threading.Condition(self.lock) for part in parts}
        self._error: BaseException | None = None
        self._closing = self._paused = False
        self._until: Callable[[], bool] | None = None  # what the main thread waits for
        self._measured = time.perf_counter()
        self._threads = [
            threading.Thread(target=self._run, args=(part,), name=f"gpurl-{part.name}", daemon=True) for part in parts
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, part: Part) -> None:
        turn = self._turns[part.name]
        try:
            if part.enter is not None:
                part.enter()
            while True:
                with self.lock:
                    part.waiting = True
                    while not (self._stopped() or (not self._paused and part.ready())):
                        turn.wait()
                    part.waiting = False
                    if self._stopped():
                        return
                    part.working, part.since = True, time.perf_counter()
                    given = part.begin()
                result = part.work(given)
                with self.lock:
                    self._rest(part)
                    part.end(result)
                    self._wake()
        except BaseException as error:
            with self.lock:
                part.working = part.waiting = False
                self._error = self._error or error
                self._wake_all()

    def _stopped(self) -> bool:
        return self._closing or self._error is not None

    @staticmethod
    def _rest(part: Part) -> None:
        part.working = False
        part.seconds += time.perf_counter() - part.since

    def _wake(self) -> None:
        """After something has changed: those whose turn has come, and whoever waits for news."""
        for part in self.parts:
            if part.waiting and not self._paused and part.ready():
                self._turns[part.name].notify()
        if self._until is not None and self._until():
            self._news.notify_all()

    def _wake_all(self) -> None:
        for turn in self._turns.values():
            turn.notify_all()
        self._news.notify_all()

    def wait(self, until: Callable[[], bool], seconds: float | None = None) -> None:
        """Sleep until `until()` is true or the time is up; raises what a part raised. `until` is called under the lock."""
        with self.lock:
            self._wake()
            self._wait(until, seconds)
            self._raise()

    def _wait(self, until: Callable[[], bool], seconds: float | None = None) -> None:
        self._until = until
        self._news.wait_for(lambda: self._error is not None or until(), seconds)
        self._until = None

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is under way within; every part goes on afterwards where it was."""
        with self.lock:
            self._paused = True
            self._wait(lambda: not any(part.working for part in self.parts))
        try:
            with self.lock:
                self._raise()
            yield
        finally:
            with self.lock:
                self._paused = False
                self._wake()

    def busy(self) -> dict[str, float]:
        """Which share of the time since the last call each part was at work."""
        with self.lock:
            now = time.perf_counter()
            wall = max(now - self._measured, 1e-9)
            found = {}
            for part in self.parts:
                if part.working:
                    part.seconds += now - part.since
                    part.since = now
                found[f"{part.name}_busy"] = min(1.0, part.seconds / wall)
                part.seconds = 0.0
            self._measured = now
        return found

    def close(self) -> None:
        """End all threads; work under way is waited for a moment."""
        with self.lock:
            self._closing = True
            self._wake_all()
        deadline = time.monotonic() + END_SECONDS
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
