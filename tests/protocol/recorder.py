"""A recording fake of CUDA for machines without one: torch, torch.cuda and cupy as far as placement and transfer use them.

Inside `with Recorder(...)` tensors can be made on `cuda:N`. Their numbers are computed on the CPU, at once; they say that
they are on their device, and every operation is recorded as an access of the stream it would have run on. The rules are
those of CUDA and of PyTorch:

* an operation runs on the current stream of its tensors' device;
* a copy between devices runs on the source's current stream, between two waits that tie the two current streams together;
* copies from and to pinned memory run beside the host if they are `non_blocking`, all others make the host wait;
* reading a number (`item`, a data-dependent shape) makes the host wait for the stream;
* freed memory of a device belongs to the stream that it was allocated on; pinned memory is kept until copies are over;
* environments launch on cupy's current stream, whatever torch's is.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import weakref
from typing import Any
from unittest import mock

import numpy as np
import torch

from tests.protocol.clocks import HOST, Buffer, Checker, Moment
from tests.protocol.fake_cupy import FakeArray, fake_cupy, fake_noise
from tests.protocol.modes import Functions, Operations


class FakeStream:
    """`torch.cuda.Stream`; number 0 is a device's default stream."""

    def __init__(self, device: Any = None, number: int | None = None) -> None:
        recorder = Recorder.active()
        index = recorder.device_index(device)
        self.device = torch.device("cuda", index)
        self.cuda_stream = recorder.next_stream() if number is None else number
        self.name = f"cuda:{index} stream {self.cuda_stream}"
        if number is None:
            recorder.streams[self.cuda_stream] = self
            recorder.checker.begin(self.name)

    def wait_event(self, event: FakeEvent) -> None:
        Recorder.active().checker.wait(self.name, event.moment)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeStream) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


class FakeEvent:
    """`torch.cuda.Event`. `query` says what the recorder's `events_done` says."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.moment, self.timed, self._stamp = Moment(), enable_timing, 0
        self.device = Recorder.active().current_device

    def record(self, stream: FakeStream) -> None:
        recorder = Recorder.active()
        if stream.device.index != self.device:
            recorder.checker.refuse(f"an event of cuda:{self.device} is recorded in {stream.name}")
        recorder.checker.record(self.moment, stream.name)
        self._stamp = recorder.stamp()

    def synchronize(self) -> None:
        recorder = Recorder.active()
        recorder.host_waits.append("an event")
        recorder.checker.wait(HOST, self.moment)

    def query(self) -> bool:
        return Recorder.active().events_done

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.timed and end.timed and self.device == end.device
        return float(end._stamp - self._stamp)


class Recorder:
    """The machine and everything that is recorded on it.

    Args:
        gpus: how many devices there are.
        linked: whether they have peer access.

    Attributes:
        checker: what is ordered, and what is wrong.
        host_waits: what made the host wait, in words.
        copies: (from, to, bytes) of every copy between two places, None being the host.
        events_done: what `query` of every event answers.
    """

    _active: Recorder | None = None

    def __init__(self, gpus: int = 2, linked: bool = True) -> None:
        self.gpus, self.linked = gpus, linked
        self.checker = Checker()
        self.host_waits: list[str] = []
        self.copies: list[tuple[int | None, int | None, int]] = []
        self.events_done = False
        self.current_device = 0
        self.streams: dict[int, FakeStream] = {}
        self.open_links: set[tuple[int, int]] = set()
        self._numbers = 0
        self._stamps = 0
        self._labels: dict[int, tuple[Buffer, int | None, int]] = {}  # storage -> buffer, device it claims, address
        self._outside: list[tuple[int, int, Buffer]] = []  # memory that torch did not allocate
        self._forced: list[int | None] = []
        self._keep: list[Any] = []
        self._stack = contextlib.ExitStack()

    @staticmethod
    def active() -> Recorder:
        assert Recorder._active is not None
        return Recorder._active

    def __enter__(self) -> Recorder:
        assert Recorder._active is None
        Recorder._active = self
        self.torch_streams = {k: FakeStream(k, 0) for k in range(self.gpus)}
        self.cupy_streams = dict(self.torch_streams)
        fakes = {
            "is_available": lambda: True,
            "device_count": lambda: self.gpus,
            "can_device_access_peer": lambda a, b: self.linked,
            "mem_get_info": lambda device=None: (2**33, 2**34),
            "Stream": FakeStream,
            "Event": FakeEvent,
            "current_stream": lambda device=None: self.torch_streams[self.device_index(device)],
            "current_device": lambda: self.current_device,
            "stream": self._on_stream,
            "device": self._on_device,
        }
        for name, fake in fakes.items():
            self._stack.enter_context(mock.patch.object(torch.cuda, name, fake))
        from_dlpack = torch.from_dlpack
        self._stack.enter_context(
            mock.patch.object(
                torch, "from_dlpack", lambda a: self._import(a) if isinstance(a, FakeArray) else from_dlpack(a)
            )
        )
        modules = {"cupy": fake_cupy(self), "gpuenvs.runtime.cuda_noise": fake_noise(self)}
        for name, module in modules.items():  # not patch.dict, which would forget what is imported meanwhile
            before = sys.modules.get(name)
            sys.modules[name] = module
            self._stack.callback(_put_back, name, before)
        self._stack.enter_context(Functions(self))
        self._stack.enter_context(Operations(self))
        return self

    def __exit__(self, *error: Any) -> None:
        Recorder._active = None
        self._stack.close()
        self._labels.clear()

    # --- names ------------------------------------------------------------------------------------------------------

    def device_index(self, device: Any) -> int:
        if device is None:
            return self.current_device
        if isinstance(device, int):
            return device
        index = torch.device(device).index
        return self.current_device if index is None else index

    def next_stream(self) -> int:
        self._numbers += 1
        return self._numbers

    def stamp(self) -> int:
        self._stamps += 1
        return self._stamps

    @contextlib.contextmanager
    def _on_device(self, device: Any) -> Any:
        before, self.current_device = self.current_device, self.device_index(device)
        try:
            yield
        finally:
            self.current_device = before

    @contextlib.contextmanager
    def _on_stream(self, stream: FakeStream) -> Any:
        index = stream.device.index
        before, self.torch_streams[index] = self.torch_streams[index], stream
        try:
            with self._on_device(index):
                yield
        finally:
            self.torch_streams[index] = before

    # --- memory -----------------------------------------------------------------------------------------------------

    def adopt(self, array: np.ndarray, device: int, name: str) -> None:
        """An array of an environment that claims to be on `device`."""
        begin = array.__array_interface__["data"][0]
        self._outside.append((begin, begin + array.nbytes, Buffer(name, device, owner=f"cuda:{device} stream 0")))
        self._keep.append(array)

    def look_up(self, tensor: torch.Tensor) -> tuple[Buffer, int | None, int]:
        """(buffer, the device the tensor claims, address of the buffer's first byte)."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._labels:
            self._labels[key] = self._meet(storage)
            weakref.finalize(storage, self._freed, key)
        return self._labels[key]

    def _meet(self, storage: Any) -> tuple[Buffer, int | None, int]:
        begin = storage.data_ptr()
        for first, last, buffer in self._outside:
            if first <= begin < last:
                return buffer, buffer.device, first
        device = self._forced[-1] if self._forced else None
        owner = HOST if device is None else self.torch_streams[device].name
        name = f"{'host' if device is None else f'cuda:{device}'} memory {len(self._labels)} ({storage.nbytes()} bytes)"
        return Buffer(name, device, owner=owner), device, begin

    def _freed(self, key: int) -> None:
        if Recorder._active is self:
            buffer, claimed, _ = self._labels.pop(key)
            # torch keeps pinned memory until the copies that it made from it are over.
            if (
                claimed == buffer.device
                and not buffer.pinned
                and all(buffer is not outside for _, _, outside in self._outside)
            ):
                self.checker.free(buffer)

    @contextlib.contextmanager
    def making(self, device: int | None) -> Any:
        """Storages met for the first time are of this device."""
        self._forced.append(device)
        try:
            yield
        finally:
            self._forced.pop()

    def label(self, tensor: torch.Tensor) -> int | None:
        return self.look_up(tensor)[1]

    def _import(self, array: FakeArray) -> torch.Tensor:
        """`torch.from_dlpack` of a cupy array: the same memory, of the device that the array claims."""
        view = np.frombuffer((ctypes.c_uint8 * array.nbytes).from_address(array.pointer), np.uint8)
        tensor = torch.from_numpy(view)
        buffer, _, begin = self.look_up(array.owner)
        storage = tensor.untyped_storage()
        self._labels[storage._cdata] = buffer, array.device, begin
        self._keep += [array.owner, tensor]
        return tensor

    # --- work -------------------------------------------------------------------------------------------------------

    def actor(self, device: int | None) -> str:
        return HOST if device is None else self.torch_streams[device].name

    def touch(self, actor: str, tensor: torch.Tensor, write: bool, what: str) -> None:
        """The actor's present piece of work reads or writes a tensor."""
        if tensor.numel() == 0 or tensor.device.type == "meta":
            return
        buffer, _, begin = self.look_up(tensor)
        lo = tensor.data_ptr() - begin
        span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        own = None if actor == HOST else int(actor.split(":")[1].split()[0])
        there = buffer.device == own or buffer.pinned or (own, buffer.device) in self.open_links
        if not there and tensor.dim() and not what.startswith("copy"):
            where = "host memory" if buffer.device is None else f"memory of cuda:{buffer.device}"
            self.checker.refuse(
                f"wrong device: {what} on {actor} {'writes' if write else 'reads'} {where} ({buffer.name})"
            )
        self.checker.access(actor, buffer, lo, lo + span * tensor.element_size(), write, what)

    def kernel(self, what: str, stream: str, reads: list[torch.Tensor], writes: list[torch.Tensor]) -> None:
        """One launch. A number in host memory is read by the host, which hands it on as an argument."""
        numbers = [t for t in reads if stream != HOST and not t.dim() and self.label(t) is None and what != "copy"]
        for tensor in numbers:
            self.checker.begin(HOST)
            self.touch(HOST, tensor, False, what)
        self.checker.begin(stream)
        for tensor in reads:
            if all(tensor is not number for number in numbers):
                self.touch(stream, tensor, False, what)
        for tensor in writes:
            self.touch(stream, tensor, True, what)

    def host_wait(self, stream: str, why: str) -> None:
        self.host_waits.append(why)
        self.checker.wait(HOST, Moment(dict(self.checker.clock(stream))))

    def copy(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
        """Records `target.copy_(source)`."""
        to, origin = self.label(target), self.label(source)
        if to == origin:
            self.kernel("copy", self.actor(to), [source], [target])
            return
        self.copies.append((origin, to, target.nbytes))
        if to is not None and origin is not None:
            stream, other = self.actor(origin), self.actor(to)
            self._tie(other, stream)
            self.kernel("copy between devices", stream, [source], [target])
            self._tie(stream, other)
            return
        stream = self.actor(to if origin is None else origin)
        host = source if origin is None else target
        self.kernel("copy from the host" if origin is None else "copy to the host", stream, [source], [target])
        if not (non_blocking and self.look_up(host)[0].pinned):
            self.host_wait(stream, "a copy of pageable memory" if non_blocking else "a blocking copy")

    def _tie(self, first: str, second: str) -> None:
        self.checker.begin(first)
        moment = Moment()
        self.checker.record(moment, first)
        self.checker.wait(second, moment)


def _put_back(name: str, module: Any) -> None:
    if module is None:
        del sys.modules[name]
    else:
        sys.modules[name] = module
