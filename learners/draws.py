"""What the updates of off-policy learners draw: numbers that are a function of (seed, update) alone."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from gpuenvs.rng import fill_normal, fill_plane, philox4x32, split_seed
from gpuenvs.runtime.disk_cache import cached
from gpuenvs.scalar import u32
from learners.collectors.streams import as_array, on_torch_stream

# Streams of the counter-based generator. Action noise uses lower ones with the same seed.
INDEX_STREAM = 1024
NORMAL_STREAM = 1025


@cached
@numba.njit(nogil=True)
def fill_indices(out, first, seed_lo, seed_hi, update, plane, oldest, rows, total):
    """Fill `out` with numbers `first` (even) and following of update `update`: (oldest + a uniform number below `rows`) %
    total; 64 random bits make each."""
    high_update, low_update = u32(update >> 32), u32(update)
    for i in range(0, len(out), 2):
        a, b, c, d = philox4x32(u32((first + i) >> 1), low_update, high_update, plane, seed_lo, seed_hi)
        out[i] = (oldest + _below(a, b, rows)) % total
        if i + 1 < len(out):
            out[i + 1] = (oldest + _below(c, d, rows)) % total


@numba.njit
def _below(high, low, rows):
    """floor(rows * u) of the number u in [0, 1) with these 64 bits after the point; rows below 2**32."""
    n = np.uint64(rows)
    carry = (np.uint64(low) * n) >> np.uint64(32)
    return np.int64((np.uint64(high) * n + carry) >> np.uint64(32))


def indices(committed: int, visible: int, num_envs: int, steps: int, seed: int, update: int, count: int) -> Tensor:
    """Flat numbers (count,) int64, slot * num_envs + env, of transitions drawn with replacement for update number `update`.

    Uniform over the newest `visible` of the `committed` steps of a `learners.replay.Replay` with `steps` slots (over all, if
    fewer are committed). A function of the arguments alone.

    Raises:
        ValueError: nothing is there to draw from, or too much.
    """
    visible = min(visible, committed)
    if not 0 < visible * num_envs < 2**32:
        raise ValueError(f"cannot draw from {visible * num_envs} transitions")
    out = np.empty(count, np.int64)
    oldest = (committed - visible) % steps * num_envs
    words = split_seed(seed)
    fill_indices(
        out, 0, *words, np.int64(update), fill_plane(INDEX_STREAM), oldest, visible * num_envs, steps * num_envs
    )
    return torch.from_numpy(out)


def normals(seed: int, update: int, stream: int, rows: int, width: int, device: str | torch.device = "cpu") -> Tensor:
    """Standard normal numbers (rows, width) f32 for update number `update`; `stream` (0, 1 ...) tells uses apart.

    Row i is the same however many rows are asked for. On CUDA they are made there, of the same random bits.
    """
    out, device = torch.empty((1, rows, width), device=device), torch.device(device)
    if device.type == "cpu":
        fill_normal(out.numpy(), seed, 0, update, NORMAL_STREAM + stream)
        return out[0]
    from gpuenvs.runtime.cuda_noise import fill_noise

    with on_torch_stream(device):
        fill_noise(as_array(out), "normal", seed, 0, update, NORMAL_STREAM + stream)
    return out[0]
