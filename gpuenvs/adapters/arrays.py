"""Arrays between host memory and a batch's device."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuenvs.runtime.vector_env import BatchEnv


def host(array: Any) -> np.ndarray:
    """The array in host memory: itself, or a copy of a cupy array, for which this waits."""
    return array if isinstance(array, np.ndarray) else array.get()


def to_device(batch: BatchEnv, array: np.ndarray) -> Any:
    """A host array where the batch takes actions from."""
    if batch.device == "cpu":
        return array
    with batch.backend.on_device():
        return batch.backend.array_module.asarray(array)
