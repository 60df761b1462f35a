"""What a caller hands to `step`, as rows of the action buffer."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuenvs.errors import ActionError
from gpuenvs.spec import EnvSpec


class Action:
    """Takes the actions of one batch; a copy is made only where memory order or dtype require one.

    Args:
        spec, num_envs, dtype, device: of the batch.
        backend: what holds its arrays.
    """

    def __init__(self, spec: EnvSpec, backend: Any, num_envs: int, dtype: np.dtype, device: str) -> None:
        self._spec, self._backend, self._device = spec, backend, device
        self._xp = backend.array_module
        self._dtype = dtype
        self._shape = (num_envs,) if spec.discrete else (num_envs, spec.action_dim)

    def rows(self, action: Any) -> Any:
        """`action` as contiguous rows: (1, num_envs) integers of a Discrete space, (k, num_envs) reals of a Box.

        Raises:
            ActionError: wrong shape, dtype or device, or on the CPU an integer out of range.
        """
        array = self.as_array(action)
        if array.shape != self._shape:
            raise ActionError(f"{self._spec.id}: action must have shape {self._shape}, got {array.shape}")
        if self._spec.discrete:
            return self._choices(array)
        if array.dtype.kind != "f":
            raise ActionError(f"{self._spec.id}: action must be {self._dtype}, got {array.dtype}")
        rows = array.T
        if rows.flags.c_contiguous and rows.dtype == self._dtype:
            return rows
        own = self._backend.arrays["action"]
        own[:] = rows
        return own

    def as_array(self, value: Any) -> Any:
        """`value` as an array on the batch's device; no copy where it is one or speaks DLPack. Raises `ActionError`."""
        if isinstance(value, self._xp.ndarray):
            return value
        try:
            if hasattr(value, "__dlpack__"):
                return self._xp.from_dlpack(value)
            return self._xp.asarray(value)
        except (BufferError, RuntimeError, ValueError, TypeError) as error:
            raise ActionError(f"{self._spec.id}: action is not an array on {self._device}: {error}") from error

    def _choices(self, array: Any) -> Any:
        if array.dtype not in (np.int32, np.int64):
            if array.dtype.kind not in "iu":
                raise ActionError(f"{self._spec.id}: action must be int32 or int64, got {array.dtype}")
            array = array.astype(np.int64)
        rows = self._xp.ascontiguousarray(array).reshape(1, -1)
        choices = int(self._spec.action_space.n)  # type: ignore[union-attr]
        if self._backend.wrong_actions(rows, choices):
            wrong = rows[(rows < 0) | (rows >= choices)][0]
            raise ActionError(f"{self._spec.id}: action must be in 0..{choices - 1}, got {wrong}")
        return rows
