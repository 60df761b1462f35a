"""Random numbers as a pure function of (seed, env, episode, draw): the same bits on every target.

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
ten rounds of multiply and exchange turn a 64-bit key and a 128-bit counter into four 32-bit words. Nothing
is stored between draws, so a row's numbers depend neither on the batch it sits in nor on what was drawn
before.

==========  ==============================  =====================================
use         key (2 words)                   counter (4 words)
==========  ==============================  =====================================
env reset   seed_lo, seed_hi                env, episode, draw // 4, plane
array fill  low and high word of `seed`     env, step, k // 4, 2**31 + 8 * stream + plane
==========  ==============================  =====================================

The word used is number `draw % 4` (or `k % 4`). Planes keep the words of different kinds of number apart: 0
and 1 are the high and low words of uniform numbers, 2 and 4 those of the first and 3 and 5 those of the
second uniform number in a normal one, 6 and 7 those of Gumbel numbers. float32 numbers use the high words
alone, so they are the float64 ones cut short. Draws from 2**30 on are those of ranged params.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from gpuenvs.runtime.disk_cache import cached
from gpuenvs.scalar import cos, f32, f64, is_f32, lit, log, njit, sqrt, typed, u32

__all__ = [
    "Rng", "bits32", "fill_gumbel", "fill_normal", "fill_uniform", "normal", "philox4x32", "split_seed",
    "uniform",
]  # fmt: skip


class Rng(NamedTuple):
    """Where a row's random numbers come from; four uint32."""

    seed_lo: int
    seed_hi: int
    env: int
    episode: int


def split_seed(seed: int) -> tuple[np.uint32, np.uint32]:
    """The low and high 32 bits of a seed in [0, 2**64); ValueError outside of it."""
    if not 0 <= int(seed) < 2**64:
        raise ValueError(f"a seed must be in [0, 2**64), got {seed}")
    return u32(int(seed) & 0xFFFFFFFF), u32(int(seed) >> 32)


# --- Philox -----------------------------------------------------------------------------------------------
# numba widens the result of every uint32 operation to uint64, so each is cast back at once. `_mulhilo` and
# `_add` are the only places where 64-bit arithmetic is meant.


@njit
def _mulhilo(a, b):
    """High and low word of the 64-bit product of two uint32."""
    product = np.uint64(a) * np.uint64(b)
    return u32(product >> np.uint64(32)), u32(product & np.uint64(0xFFFFFFFF))


@njit
def _add(a, b):
    """(a + b) mod 2**32; by way of uint64, for numpy warns when a uint32 scalar wraps."""
    return u32((np.uint64(a) + np.uint64(b)) & np.uint64(0xFFFFFFFF))


@njit
def _round(c0, c1, c2, c3, k0, k1):
    high0, low0 = _mulhilo(u32(0xD2511F53), c0)
    high1, low1 = _mulhilo(u32(0xCD9E8D57), c2)
    return u32(u32(high1 ^ c1) ^ k0), low1, u32(u32(high0 ^ c3) ^ k1), low0


@njit
def philox4x32(c0, c1, c2, c3, k0, k1):
    """Ten rounds of Philox4x32: four uint32 from a counter of four and a key of two uint32."""
    # Written out, not looped: a loop with a constant trip count is unrolled late and keeps the row loop
    # from vectorising.
    w0, w1 = u32(0x9E3779B9), u32(0xBB67AE85)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
    k0, k1 = _add(k0, w0), _add(k1, w1)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
    k0, k1 = _add(k0, w0), _add(k1, w1)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
    k0, k1 = _add(k0, w0), _add(k1, w1)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
    k0, k1 = _add(k0, w0), _add(k1, w1)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
    k0, k1 = _add(k0, w0), _add(k1, w1)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
    k0, k1 = _add(k0, w0), _add(k1, w1)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
    k0, k1 = _add(k0, w0), _add(k1, w1)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
    k0, k1 = _add(k0, w0), _add(k1, w1)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
    k0, k1 = _add(k0, w0), _add(k1, w1)
    return _round(c0, c1, c2, c3, k0, k1)


@njit
def _word(rng, draw, plane):
    """Word `draw % 4` of block `draw // 4` in one plane."""
    d = u32(draw)
    a, b, c, e = philox4x32(rng.env, rng.episode, u32(d >> u32(2)), u32(plane), rng.seed_lo, rng.seed_hi)
    index = u32(d & u32(3))
    low = b if index == u32(1) else a
    high = e if index == u32(3) else c
    return high if index >= u32(2) else low


# --- numbers from words -----------------------------------------------------------------------------------


@njit
def _unit32(high):
    """[0, 1) on a grid of 2**-24."""
    return f32(u32(high >> u32(8))) * f32(2.0**-24)


@njit
def _unit64(high, low):
    """[0, 1) on a grid of 2**-53; cut down to 24 bits it is `_unit32(high)`."""
    return f64(high) * 2.0**-32 + f64(u32(low >> u32(11))) * 2.0**-53


@njit
def _positive32(high):
    """(0, 1], finer towards 0, for logarithms: the largest normal number is then 6.8 and not 5.9."""
    return f32(high) * f32(2.0**-32) + f32(2.0**-33)


@njit
def _positive64(high, low):
    """(0, 1], the float64 counterpart of `_positive32`."""
    return f64(high) * 2.0**-32 + (f64(low) + 0.5) * 2.0**-64


@njit
def _box_muller(u, v):
    """Standard normal number from u in (0, 1] and v in [0, 1)."""
    return sqrt(lit(-2, u) * log(u)) * cos(lit(6.283185307179586, u) * v)


@njit
def _uniform32(rng, draw, low, high):
    return low + (high - low) * _unit32(_word(rng, draw, 0))


@njit
def _uniform64(rng, draw, low, high):
    return low + (high - low) * _unit64(_word(rng, draw, 0), _word(rng, draw, 1))


@njit
def _normal32(rng, draw, mean, std):
    return mean + std * _box_muller(_positive32(_word(rng, draw, 2)), _unit32(_word(rng, draw, 3)))


@njit
def _normal64(rng, draw, mean, std):
    u = _positive64(_word(rng, draw, 2), _word(rng, draw, 4))
    return mean + std * _box_muller(u, _unit64(_word(rng, draw, 3), _word(rng, draw, 5)))


def _choose_uniform(rng, draw, low, high):
    if str(low) == "float32":
        return lambda rng, draw, low, high: _uniform32(rng, draw, low, high)
    return lambda rng, draw, low, high: _uniform64(rng, draw, low, high)


@njit
def bits32(rng, draw):
    """32 random bits (uint32) number `draw` (an integer >= 0) of the row's episode.

    `uniform` with the same `draw` is made of these bits.
    """
    return _word(rng, draw, 0)


@typed(_choose_uniform)
def uniform(rng, draw, low, high):
    """Uniform number in [low, high), number `draw` (an integer >= 0) of the row's episode.

    In the dtype of `low` and `high`: 24 random bits in float32, 53 in float64, of which the float32 number
    is the truncation. Rounding in low + (high - low) * u may reach `high`.
    """
    single = is_f32(low)
    return _uniform32(rng, draw, low, high) if single else _uniform64(rng, draw, low, high)


def _choose_normal(rng, draw, mean, std):
    if str(mean) == "float32":
        return lambda rng, draw, mean, std: _normal32(rng, draw, mean, std)
    return lambda rng, draw, mean, std: _normal64(rng, draw, mean, std)


@typed(_choose_normal)
def normal(rng, draw, mean, std):
    """Normal number (Box and Muller 1958), number `draw` of the episode; independent of `uniform`'s."""
    single = is_f32(mean)
    return _normal32(rng, draw, mean, std) if single else _normal64(rng, draw, mean, std)


# --- arrays of noise for learners -------------------------------------------------------------------------


@njit
def _four_uniform32(c0, c1, c2, c3, k0, k1):
    a, b, c, d = philox4x32(c0, c1, c2, c3, k0, k1)
    return _unit32(a), _unit32(b), _unit32(c), _unit32(d)


@njit
def _four_uniform64(c0, c1, c2, c3, k0, k1):
    a, b, c, d = philox4x32(c0, c1, c2, c3, k0, k1)
    e, f, g, h = philox4x32(c0, c1, c2, _add(c3, u32(1)), k0, k1)
    return _unit64(a, e), _unit64(b, f), _unit64(c, g), _unit64(d, h)


@njit
def _four_normal32(c0, c1, c2, c3, k0, k1):
    a, b, c, d = philox4x32(c0, c1, c2, _add(c3, u32(2)), k0, k1)
    e, f, g, h = _four_uniform32(c0, c1, c2, _add(c3, u32(3)), k0, k1)
    return (
        _box_muller(_positive32(a), e),
        _box_muller(_positive32(b), f),
        _box_muller(_positive32(c), g),
        _box_muller(_positive32(d), h),
    )


@njit
def _four_normal64(c0, c1, c2, c3, k0, k1):
    a, b, c, d = philox4x32(c0, c1, c2, _add(c3, u32(2)), k0, k1)
    e, f, g, h = philox4x32(c0, c1, c2, _add(c3, u32(4)), k0, k1)
    p, q, r, s = philox4x32(c0, c1, c2, _add(c3, u32(3)), k0, k1)
    t, u, v, w = philox4x32(c0, c1, c2, _add(c3, u32(5)), k0, k1)
    return (
        _box_muller(_positive64(a, e), _unit64(p, t)),
        _box_muller(_positive64(b, f), _unit64(q, u)),
        _box_muller(_positive64(c, g), _unit64(r, v)),
        _box_muller(_positive64(d, h), _unit64(s, w)),
    )


@njit
def _gumbel32(high):
    # 23 bits and half a step more lie strictly between 0 and 1, so that neither logarithm is infinite.
    return -log(-log((f32(u32(high >> u32(9))) + f32(0.5)) * f32(2.0**-23)))


@njit
def _gumbel64(high, low):
    return -log(-log(f64(high) * 2.0**-32 + (f64(u32(low >> u32(12))) + 0.5) * 2.0**-52))


@njit
def _four_gumbel32(c0, c1, c2, c3, k0, k1):
    a, b, c, d = philox4x32(c0, c1, c2, _add(c3, u32(6)), k0, k1)
    return _gumbel32(a), _gumbel32(b), _gumbel32(c), _gumbel32(d)


@njit
def _four_gumbel64(c0, c1, c2, c3, k0, k1):
    a, b, c, d = philox4x32(c0, c1, c2, _add(c3, u32(6)), k0, k1)
    e, f, g, h = philox4x32(c0, c1, c2, _add(c3, u32(7)), k0, k1)
    return _gumbel64(a, e), _gumbel64(b, f), _gumbel64(c, g), _gumbel64(d, h)


@njit
def step_words(low, high, t):
    """Low and high word of the step number `t` (uint32) after the one of two words."""
    now = _add(low, t)
    return now, _add(high, u32(1)) if now < low else high


@njit
def four_normal32(seed_lo, seed_hi, env, step_lo, step_hi, block, plane):
    """Elements 4 * block ... 4 * block + 3 of what `fill_normal` puts into one row; everything uint32.

    `plane` is that of an array fill, 2**31 + 8 * stream.
    """
    return _four_normal32(env, step_lo, u32(block | u32(step_hi << u32(16))), plane, seed_lo, seed_hi)


@njit
def four_gumbel32(seed_lo, seed_hi, env, step_lo, step_hi, block, plane):
    """The same of `fill_gumbel`."""
    return _four_gumbel32(env, step_lo, u32(block | u32(step_hi << u32(16))), plane, seed_lo, seed_hi)


@njit
def four_uniform32(seed_lo, seed_hi, env, step_lo, step_hi, block, plane):
    """The same of `fill_uniform`."""
    return _four_uniform32(env, step_lo, u32(block | u32(step_hi << u32(16))), plane, seed_lo, seed_hi)


def fill_plane(stream: int) -> np.uint32:
    """The plane of array fills with this stream; ValueError outside of [0, 2**28)."""
    if not 0 <= stream < 2**28:
        raise ValueError(f"stream must be in [0, 2**28), got {stream}")
    return u32(2**31 + 8 * stream)


_TILE = 1024


def _fill_kernel(four):
    """Kernel that fills (T, n, k) from `four`: (counter, key) -> four numbers.

    Rows are done in tiles through four contiguous buffers: the loop that computes then vectorises whatever
    the strides of `out` are.
    """

    @numba.njit(nogil=True, error_model="numpy", fastmath={"contract", "nsz"})
    def kernel(out, k0, k1, env_offset, step, plane, b0, b1, b2, b3):
        steps, envs, width = out.shape
        tile = len(b0)
        for t in range(steps):
            now = step + t
            c1 = u32(now)
            for first in range(0, width, 4):
                # The third word's upper half carries on where 32 bits of step end.
                c2 = u32((first >> 2) | ((now >> 32) << 16))
                for start in range(0, envs, tile):
                    rows = min(tile, envs - start)
                    for i in range(rows):
                        b0[i], b1[i], b2[i], b3[i] = four(u32(env_offset + start + i), c1, c2, plane, k0, k1)
                    for j in range(min(4, width - first)):
                        source = b0 if j == 0 else (b1 if j == 1 else (b2 if j == 2 else b3))
                        for i in range(rows):
                            out[t, start + i, first + j] = source[i]

    return cached(kernel)


_FILLS = {
    ("uniform", "float32"): _fill_kernel(_four_uniform32),
    ("uniform", "float64"): _fill_kernel(_four_uniform64),
    ("normal", "float32"): _fill_kernel(_four_normal32),
    ("normal", "float64"): _fill_kernel(_four_normal64),
    ("gumbel", "float32"): _fill_kernel(_four_gumbel32),
    ("gumbel", "float64"): _fill_kernel(_four_gumbel64),
}


def fill_kernel(kind: str, dtype: str) -> Any:
    """`kernel(out, seed_lo, seed_hi, env_offset, step, plane, b0, b1, b2, b3)`, which fills arrays as `fill_uniform` and its
    like do, for compiled code to call. `plane` is `fill_plane(stream)`; the last four are equally long room for numbers."""
    return _FILLS[kind, dtype]


def _fill(kind: str, out: np.ndarray, seed: int, env_offset: int, step: int, stream: int) -> np.ndarray:
    if out.ndim != 3 or out.dtype.name not in ("float32", "float64"):
        raise ValueError(f"out must be float32 or float64 of shape (T, n, k), got {out.dtype} {out.shape}")
    if not (env_offset >= 0 and env_offset + out.shape[1] <= 2**32):
        raise ValueError(f"env numbers must be in [0, 2**32), got env_offset={env_offset} and n={out.shape[1]}")
    if not (step >= 0 and step + out.shape[0] <= 2**48):
        raise ValueError(f"steps must be in [0, 2**48), got step={step} and T={out.shape[0]}")
    plane = fill_plane(stream)
    low, high = split_seed(seed)
    buffers = np.empty((4, min(_TILE, max(out.shape[1], 1))), out.dtype)
    _FILLS[kind, out.dtype.name](out, low, high, env_offset, step, plane, *buffers)
    return out


def fill_uniform(out: np.ndarray, seed: int, env_offset: int = 0, step: int = 0, stream: int = 0) -> np.ndarray:
    """Fill `out` with uniform numbers in [0, 1) and return it.

    Args:
        out: float32 or float64, shape (T, n, k), any strides. `out[t, i, j]` is a function of
            (seed, env_offset + i, step + t, j, stream) alone, so a part of an array equals the same part of
            a larger one.
        seed: in [0, 2**64).
        env_offset: number of the first row's env.
        step: number of the first time step.
        stream: tells uses of one seed apart (action noise, target noise, ...); in [0, 2**28).

    Runs on the CPU without the GIL. Raises ValueError for a wrong shape, dtype or range.
    """
    return _fill("uniform", out, seed, env_offset, step, stream)


def fill_normal(out: np.ndarray, seed: int, env_offset: int = 0, step: int = 0, stream: int = 0) -> np.ndarray:
    """Fill `out` with standard normal numbers and return it; arguments as in `fill_uniform`."""
    return _fill("normal", out, seed, env_offset, step, stream)


def fill_gumbel(out: np.ndarray, seed: int, env_offset: int = 0, step: int = 0, stream: int = 0) -> np.ndarray:
    """Fill `out` with standard Gumbel numbers, -log(-log(u)), and return it; arguments as in `fill_uniform`.

    argmax_j(logits_j + gumbel_j) is then a sample of the categorical distribution with those logits.
    """
    return _fill("gumbel", out, seed, env_offset, step, stream)
