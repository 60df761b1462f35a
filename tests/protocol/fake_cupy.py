"""The few names of cupy that learners use, on the recorded machine."""

from __future__ import annotations

import contextlib
import ctypes
import types
from typing import Any

import numpy as np
import torch


class FakeArray:
    """A cupy array over memory that somebody else owns."""

    def __init__(self, shape: Any, dtype: Any, pointer: Any) -> None:
        memory = pointer.memory
        self.pointer, self.nbytes, self.owner, self.device = memory.pointer, memory.nbytes, memory.owner, memory.device


def fake_cupy(recorder: Any) -> Any:
    """The few names of cupy that learners use."""

    class ExternalStream:
        def __init__(self, pointer: int, device_id: int = -1) -> None:
            self._stream = recorder.streams[pointer]

        def __enter__(self) -> None:
            index = self._stream.device.index
            self._before, recorder.cupy_streams[index] = recorder.cupy_streams[index], self._stream

        def __exit__(self, *error: Any) -> None:
            recorder.cupy_streams[self._stream.device.index] = self._before

    def unowned(pointer: int, nbytes: int, owner: Any, device_id: int = -1) -> Any:
        return types.SimpleNamespace(pointer=pointer, nbytes=nbytes, owner=owner, device=device_id)

    def enable(owner: int) -> None:
        if not recorder.linked:
            raise RuntimeError("cudaErrorPeerAccessUnsupported")
        recorder.open_links.add((recorder.current_device, owner))

    cuda: Any = types.SimpleNamespace(
        Device=recorder._on_device,
        ExternalStream=ExternalStream,
        Stream=types.SimpleNamespace(null=contextlib.nullcontext()),
        UnownedMemory=unowned,
        MemoryPointer=lambda memory, offset: types.SimpleNamespace(memory=memory),
        runtime=types.SimpleNamespace(deviceEnablePeerAccess=enable, CUDARuntimeError=RuntimeError),
    )
    fake: Any = types.ModuleType("cupy")
    fake.cuda, fake.uint8, fake.ndarray = cuda, np.uint8, FakeArray
    fake.from_dlpack = lambda tensor: tensor
    return fake


def fake_noise(recorder: Any) -> Any:
    """`gpuenvs.runtime.cuda_noise`: one launch on cupy's current stream."""
    from gpuenvs.rng import fill_gumbel, fill_normal

    def fill_noise(array: torch.Tensor, kind: str, *key: int) -> None:
        label = recorder.label(array)
        assert label is not None
        recorder.kernel("noise", recorder.cupy_streams[label].name, [], [array])
        view = np.frombuffer((ctypes.c_uint8 * array.nbytes).from_address(array.data_ptr()), np.float32)
        (fill_normal if kind == "normal" else fill_gumbel)(view.reshape(array.shape), *key)

    fake: Any = types.ModuleType("gpuenvs.runtime.cuda_noise")
    fake.fill_noise = fill_noise
    return fake
