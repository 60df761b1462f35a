"""Scalar helpers: accuracy, dtypes, special values, and that loops over them vectorise."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from gpuenvs import scalar
from gpuenvs.scalar import clip, cos, floor, isfinite, lit, log, njit, select, sin, sincos, sqrt, wrap_angle

ROOT = Path(__file__).parents[2]
DTYPES = (np.float32, np.float64)
LOOP = {"error_model": "numpy", "fastmath": {"contract", "nsz"}}


def over(function):
    """The function as a compiled loop over an array."""

    @numba.njit(**LOOP)
    def loop(x, out):
        for i in range(x.shape[0]):
            out[i] = function(x[i])

    def apply(x):
        out = np.empty_like(x)
        loop(x, out)
        return out

    apply.loop = loop  # type: ignore[attr-defined]
    return apply


def exact(function, x):
    """`function` of the exact values of `x`, in extended precision where numpy has it."""
    return function(x.astype(np.longdouble))


LONG = np.finfo(np.longdouble).eps < 1e-18
needs_long_double = pytest.mark.skipif(not LONG, reason="longdouble is no wider than float64 here")


@needs_long_double
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sine_and_cosine_are_accurate(name, dtype):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-1e4, 1e4, 40_000), rng.uniform(-7, 7, 40_000), np.linspace(-7, 7, 1001)])
    x = x.astype(dtype)
    error = np.abs(over(getattr(scalar, name))(x) - exact(getattr(np, name), x))
    assert error.max() < {np.float32: 1e-7, np.float64: 2e-16}[dtype]


@needs_long_double
@pytest.mark.parametrize("dtype", DTYPES)
def test_small_angles_keep_relative_accuracy(dtype):
    x = np.geomspace(1e-30, 0.78, 2001).astype(dtype)
    s = over(sin)(x)
    assert (np.abs(s - exact(np.sin, x)) / s).max() < 2 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_sine_is_odd_and_cosine_even(dtype):
    x = np.linspace(0.01, 50, 5001).astype(dtype)
    np.testing.assert_allclose(over(sin)(-x), -over(sin)(x), rtol=0, atol=2 * np.finfo(dtype).eps)
    np.testing.assert_allclose(over(cos)(-x), over(cos)(x), rtol=0, atol=2 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_are_not_finite_give_nan(dtype):
    x = np.array([np.nan, np.inf, -np.inf], dtype)
    for function in (sin, cos, wrap_angle):
        assert np.isnan(over(function)(x)).all()


@needs_long_double
@pytest.mark.parametrize("dtype", DTYPES)
def test_log_is_accurate(dtype):
    info = np.finfo(dtype)
    x = np.concatenate([np.geomspace(info.tiny, info.max / 2, 20_001), np.linspace(0.9, 1.1, 20_001)]).astype(dtype)
    want = exact(np.log, x)
    assert (np.abs(over(log)(x) - want) / np.spacing(np.abs(want.astype(dtype)))).max() < 1.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_of_special_values(dtype):
    smallest = np.nextafter(dtype(0), dtype(1))
    x = np.array([0, -1, np.inf, -np.inf, np.nan, 1, smallest], dtype)
    want = [-np.inf, np.nan, np.inf, np.nan, np.nan, 0, math.log(smallest)]
    np.testing.assert_allclose(over(log)(x), np.array(want), rtol=1e-6)


def test_wrap_angle_is_gymnasiums_in_float64():
    x = np.random.default_rng(0).uniform(-100, 100, 100_000)
    np.testing.assert_allclose(over(wrap_angle)(x), ((x + np.pi) % (2 * np.pi)) - np.pi, rtol=0, atol=1e-14)


@needs_long_double
def test_wrap_angle_in_float32_wraps_by_two_pi_itself():
    """Not by float32's 2 pi, which is off by 1.7e-7 in every turn."""
    x = np.random.default_rng(0).uniform(-1000, 1000, 100_000).astype(np.float32)
    turn = 8 * np.arctan(np.longdouble(1))
    want = exact(lambda v: v - turn * np.floor((v + turn / 2) / turn), x)
    error = np.abs(over(wrap_angle)(x) - want)
    assert np.minimum(error, np.abs(error - turn)).max() < 5e-7


@pytest.mark.parametrize("dtype", DTYPES)
def test_wrap_angle_stays_in_its_half_open_interval(dtype):
    pi = dtype(np.pi)
    edges = [pi, -pi, np.nextafter(pi, dtype(0)), np.nextafter(pi, dtype(9)), np.nextafter(-pi, dtype(-9)), 3 * pi]
    wrapped = over(wrap_angle)(np.array([*edges, *-np.array(edges), 0], dtype))
    assert (wrapped >= -pi).all()
    assert (wrapped < pi).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_simple_helpers(dtype):
    x = np.array([-2.5, -0.5, 0.0, 0.5, 2.0, 3.5], dtype)
    assert np.array_equal(over(floor)(x), np.floor(x))
    assert np.array_equal(over(sqrt)(np.abs(x)), np.sqrt(np.abs(x)))
    low, high = dtype(-1), dtype(2)
    assert np.array_equal(over(njit(lambda v: clip(v, low, high)))(x), np.clip(x, low, high))
    assert np.array_equal(over(njit(lambda v: select(v > low, v, high)))(x), np.where(x > low, x, high))
    assert np.isnan(over(njit(lambda v: clip(v, low, high)))(np.array([np.nan], dtype))).all()
    big = np.finfo(dtype).max
    special = np.array([np.nan, np.inf, -np.inf, big, -big, 0], dtype)
    assert np.array_equal(over(isfinite)(special), [0, 0, 0, 1, 1, 1])


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32])
def test_lit_has_the_dtype_of_its_model(kind):
    constant = njit(lambda like: lit(3.7, like))
    assert constant(kind(1)) == kind(3.7)
    assert constant.nopython_signatures[0].return_type == numba.from_dtype(np.dtype(kind))
    plain = lit(3.7, kind(1))
    assert type(plain) is kind
    assert plain == kind(3.7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [sin, cos, log, sqrt, floor, wrap_angle], ids=lambda f: f.__name__)
def test_result_has_the_dtype_of_the_argument(function, dtype):
    kept = njit(lambda x: function(x))
    kept(dtype(0.5))
    assert kept.nopython_signatures[0].return_type == numba.from_dtype(np.dtype(dtype))


@pytest.mark.parametrize("function", [sin, cos, log, sqrt, floor, wrap_angle], ids=lambda f: f.__name__)
def test_float32_loops_vectorise_without_calls(function):
    apply = over(function)
    apply(np.ones(4, np.float32))
    code = next(iter(apply.loop.inspect_asm().values()))
    packed = [line for line in code.splitlines() if re.search(r"\b[yz]mm\d", line)]
    if not packed:
        pytest.skip("this processor has no vectors wider than 128 bits")
    # Packed arithmetic, no scalar rounding, and no library function by name anywhere.
    assert any(re.search(r"v(fmadd|fmsub|fnmadd|mul|sqrt|rndscale|round)\w*ps", line) for line in packed)
    assert not re.search(r"\b(sinf?|cosf?|sincosf?|logf?|floorf?)\b", code)


def test_fast_math_flags_do_not_reach_the_device():
    """numba-cuda copies a CPU function's options; its `fastmath` would mean approximate division there."""
    function = njit(lambda x: x)
    assert function.targetoptions["fastmath"] == {"contract", "nsz"}
    assert "fastmath" not in function.targetoptions.copy()


def test_njit_takes_options():
    function = njit(forceinline=False)(lambda x: x + 1)
    assert function(1) == 2
    assert function.targetoptions["forceinline"] is False


PLAIN = """
import numpy as np
from gpuenvs import scalar
for kind, eps in ((np.float32, 1e-6), (np.float64, 1e-14)):
    for x in (0.3, -2.0, 9.0, 1234.5):
        s, c = scalar.sincos(kind(x))
        assert type(s) is type(c) is kind, type(s)
        assert abs(s - np.sin(float(kind(x)))) < eps and abs(c - np.cos(float(kind(x)))) < eps
        for f in (scalar.sin, scalar.cos, scalar.wrap_angle, scalar.floor):
            assert type(f(kind(x))) is kind, f
        assert type(scalar.log(kind(abs(x)))) is type(scalar.sqrt(kind(abs(x)))) is kind
        assert abs(scalar.log(kind(abs(x))) - np.log(abs(float(kind(x))))) < 8 * eps
    assert not scalar.isfinite(kind(np.inf)) and scalar.isfinite(kind(1))
    assert type(scalar.clip(kind(3), kind(0), kind(1))) is kind
"""


def test_everything_runs_as_plain_python():
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    subprocess.run([sys.executable, "-c", PLAIN], cwd=ROOT, env=environment, check=True)


WITHOUT_NUMBA_CUDA = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("numba_cuda") or name.startswith("numba.cuda"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
import numpy as np
import gpuenvs, gpuenvs.scalar, gpuenvs.rng
with gpuenvs.make("CartPole-v1", 2, device="cpu") as env:
    env.reset()
assert not any(name.startswith("numba_cuda") for name in sys.modules)
"""


def test_cpu_needs_no_numba_cuda():
    subprocess.run([sys.executable, "-c", WITHOUT_NUMBA_CUDA], cwd=ROOT, check=True)


def test_sincos_is_both():
    both = njit(lambda x: sincos(x))
    assert both(np.float64(0.7)) == pytest.approx((math.sin(0.7), math.cos(0.7)), rel=1e-15)
