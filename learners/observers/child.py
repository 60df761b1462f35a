"""The observer's side: `run(job)` is all of an observer's main.

A thread takes in what the training sends, the newest of each kind, and ends the process when the training has gone. An error
of the job goes to the training, which it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from learners.observers.wire import WEIGHTS, receive

_PR_SET_PDEATHSIG = 1
_NICE = 5  # cores that are short belong to the training


class Training:
    """What an observer sees of its training.

    Attributes:
        plan: the first message.
    """

    def __init__(self, orders: int, results: int) -> None:
        self._orders, self._results = orders, results
        first = receive(orders)
        if first is None:
            os._exit(1)
        self.plan: dict[str, Any] = first[0]
        self._slots: dict[str, tuple[dict[str, Any], bytes]] = {}
        self._news = threading.Condition()
        self._writing = threading.Lock()

    def listen(self) -> None:
        """Take in messages from now on."""
        threading.Thread(target=self._take_in, name="gpurl-orders", daemon=True).start()

    def _take_in(self) -> None:
        while (message := receive(self._orders)) is not None:
            with self._news:
                self._slots[message[0]["kind"]] = message
                self._news.notify()
        os._exit(1)

    def ask(self) -> None:
        """Ask for the newest weights."""
        self.send({"wants": WEIGHTS})

    def post(self, kind: str) -> None:
        """Have `next` return a message of this kind; for other threads of this process."""
        with self._news:
            self._slots[kind] = {"kind": kind}, b""
            self._news.notify()

    def next(self, seconds: float | None = None) -> tuple[dict[str, Any], bytes] | None:
        """Wait for the next message: JSON, and bytes for safetensors. None if the time is up before one is there."""
        with self._news:
            if not self._news.wait_for(lambda: self._slots, seconds):
                return None
            return self._slots.pop(next(iter(self._slots)))

    def send(self, document: dict[str, Any]) -> None:
        """One line for the training."""
        data = memoryview(json.dumps(document).encode() + b"\n")
        with self._writing:
            while data:
                data = data[os.write(self._results, data) :]


def run(job: Callable[[Training], None]) -> None:
    """Do the job until it returns; called by the child's main thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    training = Training(*(int(argument) for argument in sys.argv[1:3]))
    _end_with_parent(training.plan)
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    sys.path[:] = training.plan["path"]
    training.listen()
    try:
        job(training)
    except BaseException as error:
        text = " ".join(str(error).split()) or "no message"
        line = f"{type(error).__name__}: {text[:300]}"
        with contextlib.suppress(OSError):
            training.send({"error": line, "traceback": traceback.format_exc()})
        sys.stderr.flush()
        os._exit(1)  # threads and libraries of the job have no say in this
    sys.stderr.flush()
    os._exit(0)


def _end_with_parent(plan: dict[str, Any]) -> None:
    """SIGKILL for this process when the thread that started it ends (Linux; elsewhere the closed pipe has to do)."""
    if plan["bound"] and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != plan["parent"]:  # it has ended already
        os._exit(1)
