"""Random numbers of off-policy updates: functions of (seed, update) alone, so that engines compare and runs resume."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from gpuenvs.rng import fill_normal, philox4x32, split_seed
from gpuenvs.runtime.disk_cache import cached
from gpuenvs.scalar import u32

# Streams of the counter-based generator beside those of action noise and evaluation; see `gpuenvs.rng`.
NEXT_ACTION, OWN_ACTION = 8, 9
_INDEX_PLANE = 2**31 + 8 * 10


@cached
@numba.njit(nogil=True, error_model="numpy")
def _fill_index(out, total, newest, num_envs, steps, update, seed_lo, seed_hi):
    """out[k] = slot * num_envs + env of a uniform draw from the `total` newest rows; `newest`: slot of the newest step."""
    for k in range(len(out)):
        high, low, _, _ = philox4x32(u32(k), u32(update), u32(update >> 32), u32(_INDEX_PLANE), seed_lo, seed_hi)
        drawn = ((np.uint64(high) << np.uint64(32)) | np.uint64(low)) % np.uint64(total)
        row = np.int64(drawn)
        slot = newest - row // num_envs
        if slot < 0:
            slot += steps
        out[k] = slot * num_envs + row % num_envs


def indices(
    committed: int, visible: int, num_envs: int, steps: int, seed: int, update: int, count: int,
    device: torch.device | None = None,
) -> Tensor:  # fmt: skip
    """(count,) int64 rows of a replay as `slot * num_envs + env`, uniform over the `visible` newest of `steps` ring slots.

    Sampling is with replacement. On a CPU the numbers depend on the arguments alone; on CUDA on the arguments and the device.

    Raises:
        ValueError: nothing is visible.
    """
    if visible < 1:
        raise ValueError("the replay is empty: nothing to sample from")
    total, newest = visible * num_envs, (committed - 1) % steps
    if device is None or device.type == "cpu":
        out = torch.empty(count, dtype=torch.int64)
        _fill_index(out.numpy(), total, newest, num_envs, steps, np.uint64(update), *split_seed(seed))
        return out
    row = torch.randint(total, (count,), generator=_generator(device, seed, update, 0), device=device)
    return (newest - row.div(num_envs, rounding_mode="floor")) % steps * num_envs + row % num_envs


def normals(seed: int, update: int, stream: int, rows: int, k: int, device: torch.device | None = None) -> Tensor:
    """(rows, k) standard normal numbers; `stream` is `NEXT_ACTION` or `OWN_ACTION`."""
    if device is None or device.type == "cpu":
        out = np.empty((1, rows, k), np.float32)
        fill_normal(out, seed, 0, update & 0xFFFFFFFF, stream)
        return torch.from_numpy(out[0])
    return torch.randn((rows, k), generator=_generator(device, seed, update, stream), device=device)


def _generator(device: torch.device, seed: int, update: int, stream: int) -> torch.Generator:
    mixed = np.random.SeedSequence([seed, update, stream]).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(mixed >> np.uint64(1)))
