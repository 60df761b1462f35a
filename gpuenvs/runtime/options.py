"""Checks of what a caller asks of a batch: device, dtype, whole numbers. One clear line when it cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuenvs.errors import ConfigError, DeviceError


def resolve_device(device: str) -> str:
    """`"cpu"` or `"cuda:N"` for a device string.

    Raises:
        DeviceError: no such device, or CUDA is not usable; the message says why and what to do.
    """
    name = str(device)
    if name == "cpu":
        return name
    if name == "auto":
        from gpuenvs.runtime.cuda import cuda_problem

        return "cuda:0" if cuda_problem(0) is None else "cpu"
    kind, _, index = name.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        raise DeviceError(f"unknown device {name!r}; use auto, cpu, cuda or cuda:N")
    from gpuenvs.runtime.cuda import cuda_problem

    problem = cuda_problem(int(index or 0))
    if problem is not None:
        raise DeviceError(f"device {name!r} cannot be used: {problem}")
    return f"cuda:{int(index or 0)}"


def real_dtype(dtype: Any) -> np.dtype:
    try:
        real = np.dtype(dtype)
    except TypeError:
        real = None
    if real not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ConfigError(f"dtype must be float32 or float64, got {dtype!r}")
    return real  # type: ignore[return-value]


def whole(name: str, value: Any, low: int, high: int) -> int:
    """`value` as an int within [low, high], or a ConfigError that names the option."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= int(value) <= high:
        raise ConfigError(f"{name} must be a whole number in {low}..{high}, got {value!r}")
    return int(value)


def chosen_rows(rows: Any, num_envs: int) -> np.ndarray:
    """Row numbers (int64) of a list of them, a bool mask of shape (num_envs,), or None for all. Raises `ConfigError`."""
    if rows is None:
        return np.arange(num_envs)
    chosen = np.asarray(rows)
    if chosen.dtype == np.bool_:
        if chosen.shape != (num_envs,):
            raise ConfigError(f"a mask of rows must have shape ({num_envs},), got {chosen.shape}")
        return np.flatnonzero(chosen)
    chosen = np.atleast_1d(chosen)
    if chosen.dtype.kind not in "iu" or chosen.ndim != 1:
        raise ConfigError(f"rows must be whole numbers or a bool mask, got {rows!r}")
    if chosen.size and (chosen.min() < 0 or chosen.max() >= num_envs):
        raise ConfigError(f"rows must be in 0..{num_envs - 1}, got {rows!r}")
    return chosen.astype(np.int64)
