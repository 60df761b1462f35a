"""Immutable copies that one thread leaves for another: the newest wins, on any device."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch
from torch import Tensor


class Handover:
    """Tensors from one part of a training to another, possibly on another device.

    `send` copies to the receiver's device; what was sent before and not taken is dropped. A copy is never written again.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._newest: list[Tensor] | None = None

    @torch.no_grad()
    def send(self, tensors: Iterable[Tensor]) -> int:
        """Leave copies; returns their bytes. Complete on the device when it returns."""
        copies = [tensor.to(self._device, copy=True) for tensor in tensors]
        for device in {copy.device for copy in copies if copy.device.type == "cuda"}:
            torch.cuda.current_stream(device).synchronize()
        with self._lock:
            self._newest = copies
        return sum(copy.nbytes for copy in copies)

    @torch.no_grad()
    def take(self, into: Iterable[Tensor]) -> bool:
        """Copy what was left last into `into`; False if nothing was since the last time."""
        with self._lock:
            newest, self._newest = self._newest, None
        if newest is None:
            return False
        for target, source in zip(into, newest, strict=True):
            target.copy_(source)
        return True
