"""Streams, events and copies between devices: the few things that moving a horizon needs, behind one small interface.

`Runtime` says what they are, `CudaRuntime` is torch.cuda. Everything that orders work of two devices goes through a runtime,
so that tests can hand in one that records each access to each buffer and proves the order (`tests/protocol`).

The rules are CUDA's. Work of one stream runs in order. An event stands for all work of a stream before `record`; a stream
that has been told to `wait` for it runs nothing later before that. Neither call makes the host wait; only `finish` does.

`CudaRuntime` is not yet run on hardware.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from gpuenvs.errors import DeviceError

HOST = torch.device("cpu")


class Runtime(Protocol):
    """What transfers need of the machine. Devices are `torch.device("cuda", index)` or `HOST`."""

    def device_count(self) -> int:
        """CUDA devices there are."""
        ...

    def reaches(self, device: torch.device, owner: torch.device) -> bool:
        """Whether kernels and copies of `device` can access the memory of `owner` over a direct link."""
        ...

    def open_link(self, device: torch.device, owner: torch.device) -> None:
        """Let kernels of `device` access the memory of `owner`. Only where `reaches` says it can."""
        ...

    def free_bytes(self, device: torch.device) -> int:
        """Memory of `device` that is free now."""
        ...

    def stream(self, device: torch.device) -> Any:
        """A new stream, which waits for no other."""
        ...

    def current_stream(self, device: torch.device) -> Any:
        """The stream that this thread's work on `device` goes to."""
        ...

    def use(self, stream: Any) -> AbstractContextManager[None]:
        """Work inside the `with` block that is done on the stream's device goes to it."""
        ...

    def event(self, device: torch.device, timed: bool = False) -> Any:
        """A new event of `device`; waiting for one that was never recorded waits for nothing."""
        ...

    def record(self, event: Any, stream: Any) -> None:
        """`event` now stands for everything given to `stream` so far."""
        ...

    def wait(self, stream: Any, event: Any) -> None:
        """What is given to `stream` from now on runs after what `event` stands for now."""
        ...

    def finish(self, event: Any) -> None:
        """The host waits until what `event` stands for has run."""
        ...

    def done(self, event: Any) -> bool:
        """Whether it has. Waits for nothing."""
        ...

    def seconds(self, begin: Any, end: Any) -> float:
        """Time between two timed events of one device that are both done."""
        ...

    def buffer(self, nbytes: int, device: torch.device) -> Tensor:
        """(nbytes,) uint8 zeros; on `HOST` pinned, so that copies to and from a device run beside the host."""
        ...

    def view_from(self, device: torch.device, buffer: Tensor) -> Tensor:
        """The same memory as a tensor of `device`, whose kernels then read and write it over an open link."""
        ...

    def copy(self, destination: Tensor, source: Tensor, streams: Sequence[Any]) -> None:
        """Give a copy of one contiguous buffer into another to `streams`: one of the source's device and, between two
        devices, one of the destination's. It runs on the first. Memory of the host must be pinned."""
        ...


class CudaRuntime:
    """`Runtime` of this machine's CUDA devices; makes nothing and needs no device before it is asked for one."""

    def device_count(self) -> int:
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def reaches(self, device: torch.device, owner: torch.device) -> bool:
        return device == owner or torch.cuda.can_device_access_peer(device, owner)

    def open_link(self, device: torch.device, owner: torch.device) -> None:
        if device == owner:
            return
        import cupy

        with cupy.cuda.Device(device.index):
            try:
                cupy.cuda.runtime.deviceEnablePeerAccess(owner.index)
            except cupy.cuda.runtime.CUDARuntimeError as error:
                if "AlreadyEnabled" not in str(error):  # torch opens links by itself when it copies
                    raise DeviceError(
                        f"{device} cannot reach {owner} directly ({error}); use --transfer staged"
                    ) from error

    def free_bytes(self, device: torch.device) -> int:
        return torch.cuda.mem_get_info(device)[0]

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        return torch.cuda.Stream(device)

    def current_stream(self, device: torch.device) -> torch.cuda.Stream:
        return torch.cuda.current_stream(device)

    @contextlib.contextmanager
    def use(self, stream: torch.cuda.Stream) -> Iterator[None]:
        with torch.cuda.device(stream.device), torch.cuda.stream(stream):
            yield

    def event(self, device: torch.device, timed: bool = False) -> torch.cuda.Event:
        with torch.cuda.device(device):
            return torch.cuda.Event(enable_timing=timed)

    def record(self, event: torch.cuda.Event, stream: torch.cuda.Stream) -> None:
        event.record(stream)

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        stream.wait_event(event)

    def finish(self, event: torch.cuda.Event) -> None:
        event.synchronize()

    def done(self, event: torch.cuda.Event) -> bool:
        return event.query()

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return begin.elapsed_time(end) / 1e3

    def buffer(self, nbytes: int, device: torch.device) -> Tensor:
        if device.type == "cpu":
            return torch.zeros(nbytes, dtype=torch.uint8).pin_memory()
        return torch.zeros(nbytes, dtype=torch.uint8, device=device)

    def view_from(self, device: torch.device, buffer: Tensor) -> Tensor:
        if buffer.device == device:
            return buffer
        import cupy

        # The array says that it is of `device`; its address is the owner's, which an open link makes valid there.
        memory = cupy.cuda.UnownedMemory(buffer.data_ptr(), buffer.nbytes, buffer, device.index)
        with cupy.cuda.Device(device.index):
            array = cupy.ndarray(buffer.shape, cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
            return torch.from_dlpack(array)

    def copy(self, destination: Tensor, source: Tensor, streams: Sequence[torch.cuda.Stream]) -> None:
        # Between two devices torch makes the current streams of both wait for one another; these have nothing else to do.
        with contextlib.ExitStack() as stack:
            for stream in reversed(streams):
                stack.enter_context(self.use(stream))
            destination.copy_(source, non_blocking=True)


def gibibytes(nbytes: int) -> str:
    """`1.5 GiB`, or `12 MiB` where that reads better."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{max(1, round(nbytes / 2**20))} MiB"


def cuda(index: int) -> torch.device:
    """CUDA device number `index`."""
    return torch.device("cuda", index)
