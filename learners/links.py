"""Copies one way between two places, on streams of their own, ordered by events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from learners.devices import HOST, Runtime

Span = tuple[Any, Any]  # timed events of one device around a copy


class Link:
    """Copies one way between two places, on streams of its own.

    Args:
        runtime: what copies.
        source, destination: devices, or `HOST`.
        staged: copy into pinned host memory and out of it again.
        nbytes: most bytes of one `move`; only `staged` needs it.
        slots: moves that may be under way at once.
    """

    def __init__(
        self, runtime: Runtime, source: torch.device, destination: torch.device, staged: bool, nbytes: int, slots: int
    ) -> None:
        self._runtime = runtime
        ends = [device for device in (source, destination) if device != HOST]
        self._streams = [runtime.stream(device) for device in ends]
        if len(ends) == 2 and source == destination:
            self._streams = [self._streams[0]] * 2
        self._devices = ends
        self._staging = [runtime.buffer(nbytes, HOST) for _ in range(slots if staged else 0)]
        self._staged = [runtime.event(ends[0]) for _ in range(slots)]
        self._arrived = [
            runtime.event(ends[-1] if staged else ends[0]) for _ in range(slots)
        ]  # where the last copy runs

    def move(self, pairs: Iterable[tuple[Tensor, Tensor]], slot: int, after: Iterable[Any]) -> tuple[Any, list[Span]]:
        """Copy each (destination, source) once all events in `after` have happened.

        Both are contiguous; those in host memory are pinned. Returns the event of the arrival, which is recorded anew by
        the slot's next move, and a span for each copy of the whole.
        """
        runtime, pairs, after = self._runtime, list(pairs), list(after)
        for stream in self._streams:
            for event in after:
                runtime.wait(stream, event)
        if not self._staging:
            spans = [self._copy(pairs, self._streams, self._devices[0])]
            runtime.record(self._arrived[slot], self._streams[0])
            return self._arrived[slot], spans
        # The staging memory is free once the slot's last copy out of it has run.
        runtime.wait(self._streams[0], self._arrived[slot])
        buffers = cut(self._staging[slot], [source for _, source in pairs])
        first = self._copy([(b, s) for b, (_, s) in zip(buffers, pairs)], self._streams[:1], self._devices[0])
        runtime.record(self._staged[slot], self._streams[0])
        runtime.wait(self._streams[1], self._staged[slot])
        second = self._copy([(d, b) for b, (d, _) in zip(buffers, pairs)], self._streams[1:], self._devices[1])
        runtime.record(self._arrived[slot], self._streams[1])
        return self._arrived[slot], [first, second]

    def drain(self) -> None:
        """The host waits for all copies."""
        for stream, device in zip(self._streams, self._devices):
            finish(self._runtime, stream, device)

    def _copy(self, pairs: list[tuple[Tensor, Tensor]], streams: list[Any], device: torch.device) -> Span:
        runtime = self._runtime
        begin, end = (runtime.event(device, timed=True) for _ in range(2))
        runtime.record(begin, streams[0])
        for destination, source in pairs:
            runtime.copy(destination, source, streams)
        runtime.record(end, streams[0])
        return begin, end


def finish(runtime: Runtime, stream: Any, device: torch.device) -> None:
    event = runtime.event(device)
    runtime.record(event, stream)
    runtime.finish(event)


def cut(buffer: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Parts of a buffer of bytes, one after the other, as large as each of `like`."""
    parts, offset = [], 0
    for tensor in like:
        parts.append(buffer[offset : offset + tensor.nbytes])
        offset += tensor.nbytes
    return parts
