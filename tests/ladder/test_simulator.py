"""Ladder step 1: the CUDA kernels in numba's simulator do what the compiled CPU kernels do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from gpuenvs import rng
from tests.gpuenvs.classic import CLASSIC
from tests.ladder.rollout import TRACED, differences, draw_scenario, play, traced_variants, variants

ROOT = Path(__file__).parents[2]
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
# Physics with contacts: hundreds of operations deep, and fused differently by each compiler.
TRACED_TOLERANCE = {"float32": 1e-3, "float64": 1e-9}


@pytest.fixture(scope="module")
def scenarios():
    return {env_id: draw_scenario(env_id) for env_id in (*CLASSIC, *TRACED)}


@pytest.fixture(scope="module")
def simulated(scenarios, tmp_path_factory):
    """Everything the simulator computed, from one process for the whole module."""
    folder = tmp_path_factory.mktemp("simulator")
    given = {f"{env_id}|{name}": value for env_id, s in scenarios.items() for name, value in s.items()}
    np.savez(folder / "scenarios.npz", **given)
    command = [sys.executable, "-W", "ignore", "-m", "tests.ladder.simulated"]
    done = subprocess.run(
        [*command, str(folder / "scenarios.npz"), str(folder / "results.npz")],
        cwd=ROOT,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(folder / "results.npz") as results:
        return dict(results)


@pytest.mark.parametrize("variant", variants(), ids="-".join)
def test_rollout_agrees(variant, scenarios, simulated):
    env_id, real, mode = variant
    prefix = "|".join(variant) + "|"
    found = {k.removeprefix(prefix): v for k, v in simulated.items() if k.startswith(prefix)}
    expected = play("cpu", env_id, real, mode, scenarios[env_id], follow=found)
    problems = differences(found, expected, TOLERANCE[real])
    assert not problems, "\n".join(problems)
    assert expected["step1/totals"][3] >= 1  # the NaN was seen and counted
    assert any(v.any() for k, v in expected.items() if k.endswith("/truncated"))


@pytest.mark.parametrize("variant", traced_variants(), ids="-".join)
def test_traced_rollout_agrees(variant, scenarios, simulated):
    """Each row alone, as a CUDA thread runs it, does what it does among the lanes of a CPU vector."""
    env_id, real, mode = variant
    prefix = "|".join(variant) + "|"
    found = {k.removeprefix(prefix): v for k, v in simulated.items() if k.startswith(prefix)}
    expected = play("cpu", env_id, real, mode, scenarios[env_id], follow=found)
    problems = differences(found, expected, TRACED_TOLERANCE[real])
    assert not problems, "\n".join(problems)
    assert expected["step1/totals"][3] >= 1  # the NaN was seen and counted


@numba.njit
def numbers_on_cpu(coordinates, bits, singles, doubles):
    for i in range(coordinates.shape[0]):
        c = coordinates[i]
        source = rng.Rng(c[0], c[1], c[2], c[3])
        bits[i] = rng.bits32(source, c[4])
        singles[i, 0] = rng.uniform(source, c[4], np.float32(-1), np.float32(1))
        singles[i, 1] = rng.normal(source, c[4], np.float32(0), np.float32(1))
        doubles[i, 0] = rng.uniform(source, c[4], np.float64(-1), np.float64(1))
        doubles[i, 1] = rng.normal(source, c[4], np.float64(0), np.float64(1))


def test_random_numbers_agree(simulated):
    from tests.ladder.simulated import COORDINATES

    n = len(COORDINATES)
    bits, singles, doubles = np.zeros(n, np.uint32), np.zeros((n, 2), np.float32), np.zeros((n, 2))
    numbers_on_cpu(COORDINATES, bits, singles, doubles)
    assert np.array_equal(bits, simulated["bits"])
    assert np.array_equal(singles[:, 0], simulated["singles"][:, 0])  # uniform: scaling by powers of two is exact
    assert np.array_equal(doubles[:, 0], simulated["doubles"][:, 0])
    np.testing.assert_allclose(singles[:, 1], simulated["singles"][:, 1], rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(doubles[:, 1], simulated["doubles"][:, 1], rtol=2e-15, atol=2e-15)


def test_differences_are_found():
    a = {"x": np.float32([1.0, 2.0]), "n": np.int32([1, 2])}
    assert differences(a, a, 1e-6) == []
    assert differences({**a, "x": np.float32([1.0, 2.1])}, a, 1e-6)
    assert differences({**a, "n": np.int32([1, 3])}, a, 1e-6)
    assert differences({"x": a["x"]}, a, 1e-6)
