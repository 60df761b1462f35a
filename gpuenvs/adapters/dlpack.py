"""A batch whose arrays are another library's tensors, by DLPack: torch, JAX, cupy, numpy, or what else has a `from_dlpack`.

    import torch
    from gpuenvs.adapters.dlpack import TensorEnv

    env = TensorEnv(gpuenvs.make("Pendulum-v1", 4096), torch.from_dlpack)
    obs = env.reset(seed=0)
    while True:
        obs, reward, terminated, truncated = env.step(policy(obs))

What is copied in a step:

- Outputs: nothing. The tensors are the batch's own memory, made once, and the next step overwrites them. They stay valid
  when the batch is gone.
- Outputs for JAX (`copy=True`): each once, 4 d + 6 bytes a row with d observations in float32. JAX's arrays may not change,
  and its work on them runs on after the call, so it must not be given memory that the next step overwrites.
- Actions: nothing where all rows' values of one action lie together: integers, one action, or `a.T` of a contiguous
  (k, num_envs) tensor. Otherwise they are transposed into the batch's own buffer, 4 k bytes a row.

On CUDA the batch works on cupy's current stream. Torch and JAX wait for it when they take a tensor, which here happens once
for torch: keep both on the default stream, or make torch's current stream cupy's
(`with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuenvs.errors import ActionError
from gpuenvs.runtime.cpu import aligned_zeros
from gpuenvs.runtime.vector_env import BatchEnv

# DLPack's numbers of device types, as far as arrays of a batch and actions for it come from them.
_DEVICES = {1: "the CPU", 2: "CUDA", 3: "pinned host memory", 13: "managed CUDA memory"}


class TensorEnv:
    """A BatchEnv in terms of another library's tensors.

    Args:
        batch: what to step; close it when done.
        from_dlpack: makes a tensor of an array that speaks DLPack: `torch.from_dlpack`, `jax.dlpack.from_dlpack`, ...
        copy: give out copies; needed for JAX, see above.

    Attributes:
        batch: the BatchEnv.
        obs, reward, terminated, truncated: of the last step: (num_envs, obs_dim) of the working dtype, (num_envs,) of the
            same, and (num_envs,) bool twice. `obs` is feature-major: its transpose is contiguous (not in a copy).
        info: the entries of the batch's info as tensors, such as `final_obs`, `episode_return` and the spec's metrics.
    """

    def __init__(self, batch: BatchEnv, from_dlpack: Callable[..., Any], *, copy: bool = False) -> None:
        self.batch, self.copy = batch, copy
        self._from_dlpack = from_dlpack
        self._device = tuple(batch.reward.__dlpack_device__())
        self._take()

    def _take(self) -> None:
        batch = self.batch
        self.obs, self.reward = self._tensor(batch.obs), self._tensor(batch.reward)
        self.terminated, self.truncated = self._tensor(batch.terminated), self._tensor(batch.truncated)
        self.info = {name: self._tensor(array) for name, array in batch.info.items()}

    def _tensor(self, array: Any) -> Any:
        if not self.copy:
            return self._from_dlpack(array)
        if not isinstance(array, np.ndarray):
            with self.batch.backend.on_device():
                return self._from_dlpack(self.batch.backend.array_module.array(array, order="C"))
        own = aligned_zeros(array.shape, array.dtype)  # at such an address JAX does not copy it once more
        own[...] = array
        return self._from_dlpack(own)

    def reset(self, seed: int | None = None, *, rows: Any = None) -> Any:
        """Begin a new episode in every row, or in `rows` only; returns obs. Arguments as `BatchEnv.reset` has them."""
        self.batch.reset(seed, rows=rows)
        if self.copy:
            self._take()
        return self.obs

    def step(self, action: Any) -> tuple[Any, Any, Any, Any]:
        """Step every row; (obs, reward, terminated, truncated).

        Args:
            action: on the batch's device; (num_envs,) int32 or int64 for a Discrete action space, (num_envs, k) of the
                working dtype for a Box.

        Raises:
            ActionError: another device, dtype or shape, a tensor that requires gradients, or an integer out of range.
        """
        self._check_device(action)
        array = self.batch._action.as_array(action)
        self._check_dtype(array.dtype)
        self.batch.step(array)
        if self.copy:
            self._take()
        return self.obs, self.reward, self.terminated, self.truncated

    def _check_device(self, action: Any) -> None:
        spec = self.batch.spec
        if not hasattr(action, "__dlpack_device__"):
            raise ActionError(f"{spec.id}: action must be a tensor that speaks DLPack, got {type(action).__name__}")
        try:
            device = tuple(int(number) for number in action.__dlpack_device__())
        except (BufferError, RuntimeError, ValueError) as error:
            raise ActionError(f"{spec.id}: action is not a tensor that DLPack can pass on: {error}") from error
        if device != self._device:
            kind = _DEVICES.get(device[0], f"device type {device[0]}")
            where = kind if device[0] == 1 else f"{kind} (device {device[1]})"
            raise ActionError(f"{spec.id}: action is on {where}, the environments are on {self.batch.device}; move it")

    def _check_dtype(self, dtype: np.dtype) -> None:
        allowed = ("int32", "int64") if self.batch.spec.discrete else (self.batch.dtype.name,)
        if dtype.name not in allowed:
            raise ActionError(f"{self.batch.spec.id}: action must be {' or '.join(allowed)}, got {dtype.name}; cast it")

    def close(self) -> None:
        """Stop the batch's threads; tensors stay valid."""
        self.batch.close()
