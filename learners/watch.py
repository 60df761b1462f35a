"""Ends a data-parallel training everywhere when it ends in one process, whatever the others are waiting for.

A collective of NCCL that waits for a process that is gone waits for good, and one of gloo notices only a closed
connection. So each process has a thread that tells the launcher's key-value store once a second that it lives, and looks
there whether another one has failed or fallen silent. Then the main thread has a few seconds to end on its own.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

from gpuenvs.errors import GpurlError, ProcessError

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 60.0  # a process not heard of for so long is taken for dead
GRACE_SECONDS = 5.0  # between a failure elsewhere and the hard end of this process
_LEFT = b"left"


class Watch(threading.Thread):
    """The thread of process `rank` of `size`; `store` is a torch.distributed store that nobody else here uses.

    Attributes:
        failure: one line about a process that failed, None as long as none has.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        super().__init__(name="gpurl-watch", daemon=True)
        self.failure: str | None = None
        self._store, self._rank, self._size = store, rank, size
        self._others = [0] if rank else list(range(1, size))  # process 0 listens to all and speaks for them
        self._heard: dict[int, tuple[bytes, int]] = {}  # rank -> its last sign and how many beats ago it came
        self._beats = 0
        self._found, self._ended = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self.beat()

    def beat(self) -> None:
        """Say that this process lives."""
        self._beats += 1
        self._store.set(f"beat/{self._rank}", str(self._beats))

    def run(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                with self._lock:
                    self.beat()
                    problem = self._look()
            except RuntimeError:
                problem = "the connection to process 0 is lost"
            if problem:
                self._end(problem)
                return

    def _look(self) -> str | None:
        """What is wrong, in one line."""
        if self._store.check(["failure"]):
            return self._store.get("failure").decode()
        signs = self._store.multi_get([f"beat/{other}" for other in self._others])
        for other, sign in zip(self._others, signs, strict=True):
            last, age = self._heard.get(other, (b"", 0))
            age = 0 if sign != last or sign == _LEFT else age + 1
            self._heard[other] = (sign, age)
            if age * BEAT_SECONDS >= SILENCE_SECONDS:
                return self._post(f"process {other} of {self._size} was not heard of for {SILENCE_SECONDS:.0f} s")
        return None

    def _post(self, problem: str) -> str:
        self._store.set("failure", problem)
        return problem

    def _end(self, problem: str) -> None:
        """Let the main thread know; end the process if it cannot."""
        self.failure = problem
        self._found.set()
        self._say(f"beat/{self._rank}", _LEFT.decode())
        if self._ended.wait(GRACE_SECONDS):
            return
        if not self._rank:
            os.write(2, f"\nerror: {problem}\n".encode())
        os._exit(1)

    def wait_for_failure(self, seconds: float) -> str | None:
        """What failed elsewhere, as soon as this thread has seen it."""
        self._found.wait(seconds)
        return self.failure

    def fail(self, error: BaseException) -> None:
        """Tell all others that this process ends by `error`, and stop watching.

        Process 0 waits until they have heard it: the store may end with it.
        """
        self._ended.set()
        if isinstance(error, ProcessError):  # told already, by the process that failed
            return
        text = " ".join(str(error).split())[:300]
        if not isinstance(error, GpurlError) or not text:
            text = f"{type(error).__name__}: {text}"
        self._say("failure", f"process {self._rank} of {self._size} failed: {text}")
        deadline = time.monotonic() + 3 * BEAT_SECONDS
        while not self._rank and time.monotonic() < deadline and not self._others_left():
            time.sleep(0.05)

    def _others_left(self) -> bool:
        try:
            return all(sign == _LEFT for sign in self._store.multi_get([f"beat/{other}" for other in self._others]))
        except RuntimeError:
            return True

    def leave(self) -> None:
        """Tell all others that this process is done, and stop watching."""
        self._ended.set()
        self._say(f"beat/{self._rank}", _LEFT.decode())

    def _say(self, key: str, text: str) -> None:
        """One last entry; the store may be gone already, for which nobody is to blame now."""
        if self._lock.acquire(timeout=GRACE_SECONDS):
            with contextlib.suppress(RuntimeError):
                self._store.set(key, text)
            self._lock.release()
