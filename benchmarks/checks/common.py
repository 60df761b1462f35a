"""What several sections need: batches, policies and rollouts on any device, actions that depend on row and step alone."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

import gpuenvs
from gpuenvs.runtime.cuda import simulated


def wait(device: str) -> None:
    """Until `device` has done all that it was given."""
    if device != "cpu" and not simulated():
        import torch

        torch.cuda.synchronize(device)


def array_module(device: str) -> Any:
    """numpy or cupy."""
    if device == "cpu" or simulated():
        return np
    import cupy

    return cupy


def on_device(device: str) -> Any:
    """A block in which cupy allocates and launches on `device`."""
    if device == "cpu" or simulated():
        return contextlib.nullcontext()
    return array_module(device).cuda.Device(int(device[5:] or 0))


def actions(spec: Any, rows: np.ndarray, step: int, dtype: Any = np.float32) -> np.ndarray:
    """Host actions of the environments numbered `rows` at `step`: (n,) int32 or (n, k) of `dtype`."""
    noise = (rows[:, None] * 7919 + np.arange(spec.action_dim) * 15_485_863 + step * 104_729) % 1009
    if spec.discrete:
        return (noise[:, 0] % int(spec.action_space.n)).astype(np.int32)
    low, high = (np.broadcast_to(x, (spec.action_dim,)) for x in (spec.action_space.low, spec.action_space.high))
    return (low + (high - low) * (noise / 1008)).astype(dtype)


def make_policy(env: Any, device: str, seed: int = 0) -> Any:
    """The learners' default policy, 64-64, for a batch."""
    from learners.networks import Policy

    return Policy(env.single_observation_space, env.single_action_space, device=device, seed=seed)


def make_rollout(env: Any, num_steps: int, device: str) -> Any:
    """Storage of one horizon."""
    from learners.rollout import Rollout

    return Rollout(num_steps, env.num_envs, env.single_observation_space, env.single_action_space, device)


def schedule(env_id: str, device: str, settings: dict[str, Any], **options: Any) -> Any:
    """What `gpurl train` would run, ready to iterate. A rehearsal on the CPU learns as a GPU does: by PyTorch."""
    from learners.build import build, resolve

    if device == "cpu":
        settings = {"engine": "torch", "collector": "eager", **settings}
    overrides = [f"{name}={value}" for name, value in settings.items()]
    return build(resolve(env_id, device=device, overrides=overrides, **options))


def snapshot_differences(a: dict[str, np.ndarray], b: dict[str, np.ndarray], rows: slice = slice(None)) -> list[str]:
    """Names of the arrays that are not equal bit for bit; `rows` of b's are compared with all of a's."""
    wrong = []
    for name, value in a.items():
        other = b[name][:, rows] if value.ndim > 1 else b[name]  # params and totals are of the whole batch
        if name == "totals" and rows != slice(None):
            continue
        if not np.array_equal(value, other, equal_nan=value.dtype.kind == "f"):
            wrong.append(name)
    return wrong


def make(env_id: str, num_envs: int, device: str, **options: Any) -> Any:
    """`gpuenvs.make`."""
    return gpuenvs.make(env_id, num_envs, device=device, **options)
