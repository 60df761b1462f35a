"""A batch environment that claims to be on a GPU: gpuenvs' own on the CPU, each step recorded as one launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import gpuenvs
from tests.protocol.recorder import Recorder


class FakeCudaEnv:
    """`gpuenvs.make(env_id, num_envs)` on `cuda:<index>` of the recorder's machine."""

    autoreset = "same_step"

    def __init__(self, recorder: Recorder, env_id: str, num_envs: int, index: int, seed: int = 0) -> None:
        self._recorder, self._index = recorder, index
        self._env = env = gpuenvs.make(env_id, num_envs, device="cpu", seed=seed, threads=1)
        self.device = f"cuda:{index}"
        for name, array in env.arrays.items():
            if array.nbytes:
                recorder.adopt(array, index, f"env {name}")
        names = ("spec", "num_envs", "seed", "env_offset", "dtype", "threads", "single_observation_space")
        for name in (*names, "single_action_space", "obs", "reward", "terminated", "truncated", "info"):
            setattr(self, name, getattr(env, name))

    def _launch(self, what: str, reads: list[torch.Tensor]) -> None:
        arrays = [
            torch.from_numpy(array) for name, array in self._env.arrays.items() if array.nbytes and name != "action"
        ]
        self._recorder.kernel(what, self._recorder.cupy_streams[self._index].name, [*reads, *arrays], arrays)

    def reset(self, seed: int | None = None) -> None:
        self._launch("env reset", [])
        self._env.reset(seed=seed)

    def step(self, action: torch.Tensor) -> None:
        self._launch("env step", [action])
        self._env.step(_memory(action))

    def snapshot(self) -> dict[str, Any]:
        self._read()
        return self._env.snapshot()

    def restore(self, snapshot: dict[str, Any]) -> None:
        self._launch("env restore", [])
        self._env.restore(snapshot)

    @property
    def nonfinite_states(self) -> int:
        self._read()
        return self._env.nonfinite_states

    def _read(self) -> None:
        self._launch("env read", [])
        self._recorder.host_wait(self._recorder.cupy_streams[self._index].name, "the environment's counters")

    def close(self) -> None:
        self._env.close()


def _memory(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's numbers, past the recorder: the launch has said already that it reads them."""
    import ctypes

    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    kind = {torch.int64: np.int64, torch.float32: np.float32}[tensor.dtype]
    raw = (ctypes.c_uint8 * (span * tensor.element_size())).from_address(tensor.data_ptr())
    strides = tuple(stride * tensor.element_size() for stride in tensor.stride())
    return np.lib.stride_tricks.as_strided(np.frombuffer(raw, kind), tuple(tensor.shape), strides)
