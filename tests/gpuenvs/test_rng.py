"""Random numbers: the published vectors of Philox, what they depend on, and their distributions."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from scipy import stats

from gpuenvs import rng
from gpuenvs.rng import Rng, bits32, fill_gumbel, fill_normal, fill_uniform, normal, philox4x32, split_seed, uniform

FILLS = {"uniform": fill_uniform, "normal": fill_normal, "gumbel": fill_gumbel}
U = np.uint32

# Known answers that the authors publish with Random123: (counter, key, output), all in hexadecimal.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [U(int(word, 16)) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_philox_gives_the_published_words(counter, key, output):
    assert list(philox4x32(*words(counter), *words(key))) == words(output)


@numba.njit
def draws(kind, sources, count):
    """`count` numbers of each source, as (sources, count) float64."""
    out = np.empty((sources.shape[0], count))
    for i in range(sources.shape[0]):
        source = Rng(sources[i, 0], sources[i, 1], sources[i, 2], sources[i, 3])
        for d in range(count):
            if kind == 0:
                out[i, d] = bits32(source, d)
            elif kind == 1:
                out[i, d] = uniform(source, d, np.float32(0), np.float32(1))
            elif kind == 2:
                out[i, d] = uniform(source, d, np.float64(0), np.float64(1))
            elif kind == 3:
                out[i, d] = normal(source, d, np.float32(0), np.float32(1))
            else:
                out[i, d] = normal(source, d, np.float64(0), np.float64(1))
    return out


BITS, SINGLE, DOUBLE, NORMAL_SINGLE, NORMAL_DOUBLE = range(5)


def sources(n, seed=1, episode=0):
    low, high = split_seed(seed)
    return np.stack([np.full(n, low), np.full(n, high), np.arange(n, dtype=U), np.full(n, U(episode))], axis=1)


def test_a_draw_is_word_of_its_block():
    source = sources(1, seed=(7 << 32) | 5)
    got = draws(BITS, source, 8)[0]
    want = [*philox4x32(U(0), U(0), U(0), U(0), U(5), U(7)), *philox4x32(U(0), U(0), U(1), U(0), U(5), U(7))]
    assert list(got) == [float(w) for w in want]


def test_every_coordinate_matters():
    base = sources(1)
    reference = draws(BITS, base, 8)
    for column in range(4):
        other = base.copy()
        other[0, column] += U(1)
        assert not (draws(BITS, other, 8) == reference).any()
    assert len(np.unique(reference)) == 8


def test_float32_is_float64_cut_short():
    single, double = draws(SINGLE, sources(500), 40), draws(DOUBLE, sources(500), 40)
    assert np.array_equal(single, np.floor(double * 2**24) * 2.0**-24)
    assert (double < 1).all()


def test_normals_agree_between_dtypes():
    single, double = draws(NORMAL_SINGLE, sources(500), 40), draws(NORMAL_DOUBLE, sources(500), 40)
    np.testing.assert_allclose(single, double, rtol=0, atol=1e-5)


def test_bounds_scale_uniform_numbers():
    @numba.njit
    def scaled(source):
        return uniform(source, 3, np.float64(-2), np.float64(6))

    source = Rng(U(1), U(0), U(4), U(2))
    plain = draws(DOUBLE, np.array([[1, 0, 4, 2]], U), 4)[0, 3]
    assert scaled(source) == -2 + 8 * plain
    assert uniform(source, 3, -2.0, 6.0) == scaled(source)  # plain Python


@pytest.mark.parametrize("kind", [SINGLE, DOUBLE])
def test_uniform_distribution(kind):
    x = draws(kind, sources(4000, seed=11), 25).ravel()
    assert stats.kstest(x, "uniform").pvalue > 1e-4
    assert ((x >= 0) & (x < 1)).all()


@pytest.mark.parametrize("kind", [NORMAL_SINGLE, NORMAL_DOUBLE])
def test_normal_distribution(kind):
    x = draws(kind, sources(4000, seed=12), 25).ravel()
    assert stats.kstest(x, "norm").pvalue > 1e-4
    assert np.isfinite(x).all()


def test_rows_episodes_and_kinds_are_uncorrelated():
    n = 20_000
    columns = [
        draws(DOUBLE, sources(n), 1).ravel(),
        draws(DOUBLE, sources(n), 2)[:, 1],
        draws(DOUBLE, sources(n, episode=1), 1).ravel(),
        np.roll(draws(DOUBLE, sources(n), 1).ravel(), 1),
        draws(NORMAL_DOUBLE, sources(n), 1).ravel(),
        fill_uniform(np.empty((1, n, 1)), seed=1).ravel(),
    ]
    correlation = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(correlation).max() < 5 / np.sqrt(n)


def test_split_seed():
    assert split_seed(0x123456789ABCDEF0) == (0x9ABCDEF0, 0x12345678)
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError, match="seed must be in"):
            split_seed(wrong)


# --- array fills -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", FILLS)
def test_fill_depends_on_coordinates_alone(kind, dtype):
    fill = FILLS[kind]
    whole = fill(np.empty((6, 1500, 6), dtype), seed=5, step=10, stream=3)
    part = fill(np.empty((2, 700, 6), dtype), seed=5, env_offset=600, step=13, stream=3)
    assert np.array_equal(part, whole[3:5, 600:1300])
    narrow = fill(np.empty((6, 1500, 2), dtype), seed=5, step=10, stream=3)
    assert np.array_equal(narrow, whole[:, :, :2])


@pytest.mark.parametrize("kind", FILLS)
def test_fill_reacts_to_every_argument(kind):
    fill = FILLS[kind]

    def numbers(**changed):
        return fill(np.empty((1, 8, 3)), **{"seed": 5, "env_offset": 0, "step": 0, "stream": 0, **changed})

    base = numbers()
    for changed in ({"seed": 6}, {"seed": 5 + 2**32}, {"env_offset": 100}, {"step": 1}, {"stream": 1}, {"step": 2**32}):
        assert not (numbers(**changed) == base).any(), changed


@pytest.mark.parametrize("kind", FILLS)
def test_fill_writes_through_any_strides(kind):
    fill = FILLS[kind]
    plain = fill(np.empty((3, 50, 5), np.float32), seed=1)
    transposed = np.zeros((5, 3, 100), np.float32)
    view = transposed[:, :, ::2].transpose(1, 2, 0)
    assert fill(view, seed=1) is view
    assert np.array_equal(view, plain)
    assert (transposed[:, :, 1::2] == 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("kind", "distribution"), [("uniform", "uniform"), ("normal", "norm"), ("gumbel", "gumbel_r")])
def test_fill_distribution(kind, distribution, dtype):
    x = FILLS[kind](np.empty((20, 1000, 5), dtype), seed=99).ravel()
    assert np.isfinite(x).all()
    assert stats.kstest(x.astype(np.float64), distribution).pvalue > 1e-4
    sixteenth = x.reshape(20, 1000, 5)
    assert np.abs(np.corrcoef(sixteenth.reshape(-1, 5).T) - np.eye(5)).max() < 0.05


@pytest.mark.parametrize("kind", FILLS)
def test_float32_fill_is_close_to_float64(kind):
    single = FILLS[kind](np.empty((4, 100, 4), np.float32), seed=3)
    double = FILLS[kind](np.empty((4, 100, 4)), seed=3)
    np.testing.assert_allclose(single, double, rtol=1e-4, atol=1e-5)


def test_gumbel_is_finite_at_the_ends_of_its_words():
    for word in (U(0), U(0xFFFFFFFF)):
        assert np.isfinite(rng._gumbel32(word))
        assert np.isfinite(rng._gumbel64(word, word))
        assert np.isfinite(rng._box_muller(rng._positive32(word), np.float32(0.25)))
        assert np.isfinite(rng._box_muller(rng._positive64(word, word), np.float64(0.25)))


def test_fill_of_nothing():
    for shape in ((0, 4, 2), (3, 0, 2), (3, 4, 0)):
        assert fill_uniform(np.empty(shape, np.float32), seed=0).shape == shape


@pytest.mark.parametrize(
    ("out", "options", "message"),
    [
        (np.empty((2, 2)), {}, "shape"),
        (np.empty((2, 2, 2), np.int32), {}, "float32 or float64"),
        (np.empty((2, 2, 2)), {"seed": -1}, "seed"),
        (np.empty((2, 2, 2)), {"step": -1}, "step"),
        (np.empty((2, 2, 2)), {"env_offset": 2**32 - 1}, "env"),
        (np.empty((2, 2, 2)), {"stream": 2**28}, "stream"),
    ],
)
def test_fill_rejects(out, options, message):
    with pytest.raises(ValueError, match=message):
        fill_uniform(out, **{"seed": 0, **options})
