"""Accuracy of the elementary functions, and the random numbers that are made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuenvs import rng as numba_rng
from gpuenvs import trace as T
from gpuenvs.rng import Rng
from gpuenvs.trace import random
from tests.gpuenvs.trace.running import HOW, REALS, Run

RNG = np.random.default_rng(11)
N = 4000
LONG = np.longdouble


def spread(low: float, high: float, real: str) -> np.ndarray:
    """Numbers of either size between 10**low and 10**high, rounded to the dtype."""
    return (10.0 ** RNG.uniform(low, high, N)).astype(real)


def signed(values: np.ndarray) -> np.ndarray:
    return values * RNG.choice(np.array([-1, 1], values.dtype), values.shape)


def worst(found: np.ndarray, expected: np.ndarray, relative: bool) -> float:
    """Largest error, in units of the dtype's epsilon."""
    scale = np.maximum(np.abs(expected), np.finfo(found.dtype).tiny) if relative else np.maximum(1, np.abs(expected))
    return float(np.max(np.abs(found - expected) / scale)) / float(np.finfo(found.dtype).eps)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("real", REALS)
def test_sincos(real: str, how: str):
    run = Run(lambda x: list(T.sincos(x)), "r", real)
    x = np.concatenate([signed(spread(-8, 3, real)), np.array([0.0, np.pi, -np.pi / 2], real)])[
        -400 if how == "one" else 0 :
    ]
    sine, cosine = run(how, x)
    assert worst(sine, np.sin(x.astype(LONG)), relative=False) < 1.5
    assert worst(cosine, np.cos(x.astype(LONG)), relative=False) < 1.5
    small = np.abs(x) < 1.0
    assert worst(sine[small], np.sin(x[small].astype(LONG)), relative=True) < 2.0


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("real", REALS)
def test_log(real: str, how: str):
    run = Run(lambda x: [T.log(x)], "r", real)
    x = np.concatenate([spread(-30, 30, real), (1 + signed(spread(-6, -1, real))).astype(real)])[
        -400 if how == "one" else 0 :
    ]
    (found,) = run(how, x)
    assert worst(found, np.log(x.astype(LONG)), relative=True) < (4.0 if real == "float32" else 2.0)
    (edge,) = run(how, np.array([0.0, np.inf, -1.0, np.nan], real))
    assert edge[0] == -np.inf
    assert edge[1] == np.inf
    assert np.isnan(edge[2:]).all()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("real", REALS)
def test_exp(real: str, how: str):
    run, most = Run(lambda x: [T.exp(x)], "r", real), 87.0 if real == "float32" else 708.0
    x = np.concatenate([signed(spread(-6, 1, real)), RNG.uniform(-most, most, N).astype(real)])[
        -400 if how == "one" else 0 :
    ]
    (found,) = run(how, x)
    assert worst(found, np.exp(x.astype(LONG)), relative=True) < 2.5
    (edge,) = run(how, np.array([-np.inf, np.inf, 1e4, -1e4, np.nan, 0.0], real))
    assert edge[:4].tolist() == [0.0, np.inf, np.inf, 0.0]
    assert np.isnan(edge[4])
    assert edge[5] == 1.0


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("real", REALS)
def test_tanh(real: str, how: str):
    run = Run(lambda x: [T.tanh(x)], "r", real)
    x = signed(spread(-6, 3, real))[-400 if how == "one" else 0 :]
    (found,) = run(how, x)
    assert worst(found, np.tanh(x.astype(LONG)), relative=False) < 4.0
    (edge,) = run(how, np.array([-np.inf, np.inf, np.nan], real))
    assert edge[:2].tolist() == [-1.0, 1.0]
    assert np.isnan(edge[2])


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("real", REALS)
def test_atan2(real: str, how: str):
    run = Run(lambda y, x: [T.atan2(y, x)], "rr", real)
    y, x = signed(spread(-3, 3, real)), signed(spread(-3, 3, real))
    if how == "one":
        y, x = y[:400], x[:400]
    (found,) = run(how, y, x)
    assert worst(found, np.arctan2(y.astype(LONG), x.astype(LONG)), relative=False) < 4.0
    quarters = run(how, np.array([0.0, 0.0, 1.0, -1.0, 0.0], real), np.array([1.0, -1.0, 0.0, 0.0, 0.0], real))[0]
    np.testing.assert_allclose(quarters, [0.0, np.pi, np.pi / 2, -np.pi / 2, 0.0], atol=1e-7)


# --- random numbers --------------------------------------------------------------------------------------------------

DRAWS = 9


def sources(n: int) -> list[np.ndarray]:
    """seed_lo, seed_hi, env, episode."""
    words = RNG.integers(0, 2**32, (4, n), dtype=np.uint32)
    words[:, :3] = [[0, 1, 0xFFFFFFFF]] * 4
    return list(words)


@pytest.mark.parametrize("how", HOW)
def test_the_bits_are_those_of_the_generator(how: str):
    run = Run(lambda *words: [random._word(Rng(*words), draw, 0) for draw in range(DRAWS)], "uuuu", "float32")
    given = sources(40)
    found = run(how, *given)
    for i, words in enumerate(zip(*given)):
        expected = [numba_rng.bits32(Rng(*words), np.uint32(d)) for d in range(DRAWS)]
        assert [int(f[i]) for f in found] == [int(e) for e in expected]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("real", REALS)
def test_numbers_are_those_of_the_generator(real: str, how: str):
    def function(*words: Any) -> list[Any]:
        source = Rng(*words)
        pairs = [(random.uniform(source, d, -2.0, 2.0), random.normal(source, d, 0.0, 1.0)) for d in range(DRAWS)]
        return [number for pair in pairs for number in pair]

    run, kind, given = Run(function, "uuuu", real), np.dtype(real).type, sources(40)
    found = run(how, *given)
    epsilon = float(np.finfo(real).eps)
    for i, words in enumerate(zip(*given)):
        source = Rng(*words)
        for d in range(DRAWS):
            draw = np.uint32(d)
            assert found[2 * d][i] == numba_rng.uniform(source, draw, kind(-2), kind(2))
            expected = numba_rng.normal(source, draw, kind(0), kind(1))
            assert abs(float(found[2 * d + 1][i]) - float(expected)) <= 8 * epsilon * max(1.0, abs(float(expected)))
