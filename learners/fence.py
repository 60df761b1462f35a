"""Work of one thread on its own CUDA stream, complete on the device before others are told of it; nothing on the CPU."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch


class Fence:
    """Streams and events of an asynchronous training.

    Every thread has a stream of its own. When `work` ends, what was started within is complete on the device: the thread
    sleeps on an event meanwhile (no spinning), and whoever it tells may read on any stream.
    """

    def __init__(self, *devices: torch.device) -> None:
        self._devices = sorted({str(device) for device in devices if device.type == "cuda"})
        self._own = threading.local()

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Everything that is started within is complete afterwards."""
        if not self._devices:
            yield
            return
        if not hasattr(self._own, "streams"):
            self._own.streams = {name: torch.cuda.Stream(device=name) for name in self._devices}
            self._own.events = {name: torch.cuda.Event(blocking=True) for name in self._devices}
        with contextlib.ExitStack() as stack:
            for name in self._devices:
                stack.enter_context(torch.cuda.stream(self._own.streams[name]))
            yield
            for name in self._devices:
                self._own.events[name].record(self._own.streams[name])
        for name in self._devices:
            self._own.events[name].synchronize()
