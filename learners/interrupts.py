"""Ctrl-C and SIGTERM during training: the first asks for a clean stop, the second leaves at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def exit_code(signum: int) -> int:
    """The shell's code for a process ended by a signal: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + signum


def leave_now(signum: int, message: str) -> None:
    """Write one line to stderr and end the process without any clean-up. Safe inside a signal handler.

    Nothing is lost by it: files of a run are renamed into place whole, and its lock is freed by the system.
    """
    os.write(2, f"\n{message}\n".encode())
    os._exit(exit_code(signum))


class StopRequest:
    """Context manager that turns the first signal into a flag.

    `signum` is 0 until a signal came; `notify(signum)` is called then, once. Outside the main thread, where
    Python allows no handlers, it only offers `request`.
    """

    def __init__(self, notify: Callable[[int], None] | None = None) -> None:
        self.signum = 0
        self._notify = notify
        self._old: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._old = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}

    def request(self, signum: int = signal.SIGINT) -> None:
        """Ask for a stop as if `signum` had come."""
        if not self.signum:
            self.signum = signum
            if self._notify is not None:
                self._notify(signum)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.signum:
            leave_now(signum, "stopped at once; the last checkpoint is whole")
        self.request(signum)
