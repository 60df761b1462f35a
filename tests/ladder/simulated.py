"""The process that runs numba's CUDA simulator: play scenarios, draw random bits, write what came out.

    NUMBA_ENABLE_CUDASIM=1 NUMBA_DISABLE_JIT=1 python -m tests.ladder.simulated scenarios.npz results.npz

Both variables must be set before numba is imported, hence the process of its own.
"""

from __future__ import annotations

import sys

import numba
import numpy as np
from numba import cuda

from gpuenvs import rng
from tests.ladder.rollout import play, traced_variants, variants

# (seed_lo, seed_hi, env, episode, draw) of each random number compared.
COORDINATES = np.array(
    [
        [seed, seed ^ 0x5A5A5A5A, env, episode, draw]
        for seed in (0, 1, 0xFFFFFFFF)
        for env, episode in ((0, 0), (1, 0), (0, 1), (0xFFFFFFFF, 7))
        for draw in range(9)
    ],
    np.uint32,
)


@cuda.jit
def random_numbers(coordinates, bits, singles, doubles):
    """Bits, and two kinds of numbers in both dtypes, of each row of coordinates."""
    i = cuda.grid(1)
    if i < coordinates.shape[0]:
        c = coordinates[i]
        source = rng.Rng(c[0], c[1], c[2], c[3])
        bits[i] = rng.bits32(source, c[4])
        singles[i, 0] = rng.uniform(source, c[4], np.float32(-1), np.float32(1))
        singles[i, 1] = rng.normal(source, c[4], np.float32(0), np.float32(1))
        doubles[i, 0] = rng.uniform(source, c[4], np.float64(-1), np.float64(1))
        doubles[i, 1] = rng.normal(source, c[4], np.float64(0), np.float64(1))


def main(scenarios: str, results: str) -> None:
    assert numba.config.ENABLE_CUDASIM and numba.config.DISABLE_JIT  # type: ignore[attr-defined]
    given = np.load(scenarios)
    out = {}
    for env_id, real, mode in [*variants(), *traced_variants()]:
        scenario = {name: given[f"{env_id}|{name}"] for name in ("states", "actions")}
        for name, value in play("cuda:0", env_id, real, mode, scenario).items():
            out[f"{env_id}|{real}|{mode}|{name}"] = value
    n = len(COORDINATES)
    bits, singles, doubles = np.zeros(n, np.uint32), np.zeros((n, 2), np.float32), np.zeros((n, 2))
    random_numbers[n, 1](COORDINATES, bits, singles, doubles)
    np.savez(results, **out, bits=bits, singles=singles, doubles=doubles)


if __name__ == "__main__":
    main(*sys.argv[1:])
