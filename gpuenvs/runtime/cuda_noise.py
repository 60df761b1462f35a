"""Noise for learners computed on a CUDA device: the random bits of `gpuenvs.rng.fill_normal` and `fill_gumbel`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuenvs import scalar
from gpuenvs.rng import fill_plane, four_gumbel32, four_normal32, split_seed, step_words
from gpuenvs.runtime.cuda import THREADS_PER_BLOCK, simulated
from gpuenvs.runtime.generated import define

_FOURS = {"normal": four_normal32, "gumbel": four_gumbel32}
_kernels: dict[str, Any] = {}


# A thread fills out[t, i] of (T, n, k).
_SOURCE = """
def noise_kernel(out, seed_lo, seed_hi, plane, step_lo, step_hi, env_offset):
    row = cuda.grid(1)
    envs, width = out.shape[1], out.shape[2]
    if row < out.shape[0] * envs:
        t, i = row // envs, row % envs
        now_lo, now_hi = _step_words(step_lo, step_hi, _u32(t))
        for first in range(0, width, 4):
            block = _u32(first >> 2)
            a, b, c, d = _four(seed_lo, seed_hi, _u32(env_offset + i), now_lo, now_hi, block, plane)
            out[t, i, first] = a
            if first + 1 < width:
                out[t, i, first + 1] = b
            if first + 2 < width:
                out[t, i, first + 2] = c
            if first + 3 < width:
                out[t, i, first + 3] = d
"""


def python_noise(kind: str, cuda: Any) -> Any:
    """The kernel as a plain Python function, for `cuda.jit`; `cuda` is the `numba.cuda` module."""
    names = {"cuda": cuda, "_four": _FOURS[kind], "_u32": np.uint32, "_step_words": step_words}
    return define("noise_kernel", _SOURCE, names, f"gpuenvs {kind} noise cuda")


def fill_noise(out: Any, kind: str, seed: int, env_offset: int, step: int, stream: int) -> None:
    """Fill a contiguous float32 array (T, n, k) on the current device and stream; returns at once.

    `kind` is "normal" or "gumbel"; the other arguments are those of `gpuenvs.rng.fill_normal`.
    """
    from numba import cuda

    if kind not in _kernels:
        scalar.register_cuda()
        _kernels[kind] = cuda.jit(python_noise(kind, cuda))
    rows = out.shape[0] * out.shape[1]
    words = (*split_seed(seed), fill_plane(stream), np.uint32(step & 0xFFFFFFFF), np.uint32(step >> 32))
    blocks = max(1, -(-rows // THREADS_PER_BLOCK))
    if simulated():
        _kernels[kind][blocks, THREADS_PER_BLOCK](out, *words, np.uint32(env_offset))
        return
    import cupy

    pointer = cupy.cuda.get_current_stream().ptr
    stream_used = cuda.external_stream(pointer) if pointer else cuda.legacy_default_stream()
    with cuda.gpus[out.device.id]:
        array = cuda.as_cuda_array(out, sync=False)
        _kernels[kind][blocks, THREADS_PER_BLOCK, stream_used](array, *words, np.uint32(env_offset))
