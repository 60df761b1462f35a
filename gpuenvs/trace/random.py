"""Random numbers inside traced functions: the same bits and the same arithmetic as `gpuenvs.rng`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuenvs.trace import elementary, ops
from gpuenvs.trace.graph import Value, apply, as_value, convert

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85


def _mulhilo(a: int, b: Any) -> tuple[Any, Any]:
    if isinstance(b, Value):
        return apply("mulhi", b, a), apply("mul", b, a)
    product = np.uint64(a) * np.asarray(b).astype(np.uint64)
    return (product >> np.uint64(32)).astype(np.uint32), (product & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def _add(a: Any, b: int) -> Any:
    if isinstance(a, Value):
        return a + b
    return ((np.asarray(a).astype(np.uint64) + np.uint64(b)) & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def philox4x32(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """Ten rounds of Philox4x32 on uint32 values; see `gpuenvs.rng`."""
    for turn in range(10):
        high0, low0 = _mulhilo(_M0, c0)
        high1, low1 = _mulhilo(_M1, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        if turn < 9:
            k0, k1 = _add(k0, _W0), _add(k1, _W1)
    return c0, c1, c2, c3


def _word(rng: Any, draw: int, plane: int) -> Any:
    if any(isinstance(x, Value) for x in rng):
        counter = [as_value(x, "u32") for x in (rng.env, rng.episode, draw // 4, plane)]
        key = [as_value(x, "u32") for x in (rng.seed_lo, rng.seed_hi)]
    else:
        counter = [np.asarray(x, np.uint32) for x in (rng.env, rng.episode, draw // 4, plane)]
        key = [np.asarray(x, np.uint32) for x in (rng.seed_lo, rng.seed_hi)]
    return philox4x32(*counter, *key)[draw % 4]


def _real(word: Any) -> Any:
    return convert(word, "real") if isinstance(word, Value) else np.asarray(word).astype(np.float64)


def _shifted(word: Any, bits: int) -> Any:
    return word >> bits if isinstance(word, Value) else np.asarray(word) >> np.uint32(bits)


def _unit(rng: Any, draw: int, planes: tuple[int, int]) -> Any:
    """[0, 1): 24 bits in float32, 53 in float64."""
    high = _word(rng, draw, planes[0])
    if elementary.working_dtype() == "float32":
        return _real(_shifted(high, 8)) * 2.0**-24
    return _real(high) * 2.0**-32 + _real(_shifted(_word(rng, draw, planes[1]), 11)) * 2.0**-53


def _positive(rng: Any, draw: int, planes: tuple[int, int]) -> Any:
    """(0, 1], finer towards 0, for logarithms."""
    high = _word(rng, draw, planes[0])
    if elementary.working_dtype() == "float32":
        return _real(high) * 2.0**-32 + 2.0**-33
    return _real(high) * 2.0**-32 + (_real(_word(rng, draw, planes[1])) + 0.5) * 2.0**-64


def uniform(rng: Any, draw: int, low: Any, high: Any) -> Any:
    """Uniform number in [low, high), number `draw` (a Python int >= 0) of the row's episode."""
    return low + (high - low) * _unit(rng, draw, (0, 1))


def normal(rng: Any, draw: int, mean: Any, std: Any) -> Any:
    """Normal number, number `draw` of the row's episode, by the Box-Muller transform."""
    u, v = _positive(rng, draw, (2, 4)), _unit(rng, draw, (3, 5))
    return mean + std * (ops.sqrt(ops.log(u) * -2.0) * ops.cos(v * 6.283185307179586))
