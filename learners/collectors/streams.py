"""Arrays and streams across the border between torch and the environments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_tensor(array: Any) -> Tensor:
    """A tensor that shares the memory of a numpy array or of anything that speaks DLPack."""
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array)
    return torch.from_dlpack(array)


def as_array(tensor: Tensor) -> Any:
    """A numpy or cupy array that shares the memory of a tensor."""
    if tensor.device.type == "cpu":
        return tensor.numpy()
    import cupy

    return cupy.from_dlpack(tensor)


@contextlib.contextmanager
def on_torch_stream(device: torch.device) -> Iterator[None]:
    """Environments launch on torch's current stream of `device` inside the `with` block; on a CPU nothing changes."""
    if device.type != "cuda":
        yield
        return
    import cupy

    pointer = torch.cuda.current_stream(device).cuda_stream
    index = torch.cuda.current_device() if device.index is None else device.index
    with torch.cuda.device(index), cupy.cuda.Device(index):
        stream = cupy.cuda.ExternalStream(pointer, index) if pointer else cupy.cuda.Stream.null
        with stream:
            yield
