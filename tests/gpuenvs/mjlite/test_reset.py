"""Starts of episodes against Gymnasium's: every coordinate's distribution, and what is observed of a fresh state."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp

import gpuenvs
from gpuenvs.spec import EnvSpec
from tests.gpuenvs.mjlite.reference import TASKS, error, gymnasium_env

COUNT = 10_000
# Two samples of one distribution differ more than this with a probability of 1e-6; there are about 300 coordinates in all.
SMALLEST_P = 1e-6

every_task = pytest.mark.parametrize("env_id", TASKS)


@cache
def our_starts(env_id: str, dtype: str) -> tuple[EnvSpec, np.ndarray, np.ndarray]:
    """(spec, states (COUNT, fields), observations)."""
    spec = gpuenvs.get(env_id)
    with gpuenvs.make(spec, COUNT, device="cpu", dtype=dtype, threads=1) as env:
        obs, _ = env.reset(seed=7)
        return spec, np.array(env.get_state(), np.float64).T, obs.copy()


@cache
def their_starts(env_id: str) -> np.ndarray:
    """(COUNT, nq + nv) positions and velocities."""
    env = gymnasium_env(env_id)
    env.reset(seed=11)
    forward, env.set_state = env.set_state, _only_store(env)  # the forward pass does not change the state
    rows = []
    for _ in range(COUNT):
        env.reset_model()
        rows.append(np.concatenate((env.data.qpos, env.data.qvel)))
    env.set_state = forward
    return np.array(rows)


def _only_store(env: Any) -> Any:
    def set_state(qpos: np.ndarray, qvel: np.ndarray) -> None:
        env.data.qpos[:], env.data.qvel[:] = qpos, qvel

    return set_state


def derived(env_id: str, states: np.ndarray) -> np.ndarray:
    """(n, k) numbers that joint distributions of coordinates show in: distances and angles of what is drawn in a disc or
    around one, products and sums of neighbours."""
    out = [states[:, :-1] * states[:, 1:], states[:, :-1] + states[:, 1:]]
    if env_id in ("Reacher-v5", "Pusher-v5"):
        half = 2 if env_id == "Reacher-v5" else 7
        x, y = states[:, half], states[:, half + 1]
        out.append(np.stack([np.hypot(x, y), np.arctan2(y, -x), x * x - y * y, np.abs(y) + x], axis=1))
    return np.concatenate(out, axis=1)


@every_task
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_coordinate_has_gymnasiums_distribution(env_id: str, dtype: str) -> None:
    """Kolmogorov-Smirnov on 10,000 starts each, of coordinates and of numbers that mix them; constants are equal."""
    _, mine, _ = our_starts(env_id, dtype)
    theirs = their_starts(env_id)
    mine = mine[:, : theirs.shape[1]]
    close = 1e-6 if dtype == "float32" else 1e-15
    for what, ours, reference in (
        ("coordinate", mine, theirs),
        ("mix", derived(env_id, mine), derived(env_id, theirs)),
    ):
        for k in range(reference.shape[1]):
            if np.ptp(reference[:, k]) < close:
                np.testing.assert_allclose(ours[:, k], reference[0, k], atol=close, err_msg=f"{what} {k}")
                continue
            p = ks_2samp(ours[:, k], reference[:, k]).pvalue
            assert p > SMALLEST_P, f"{what} {k}: p = {p:.1e}"


@every_task
def test_a_fresh_observation_is_gymnasiums(env_id: str) -> None:
    """Watched quantities too: those of mj_forward, contact forces 0."""
    spec, states, obs = our_starts(env_id, "float64")
    env = gymnasium_env(env_id)
    nq = env.model.nq
    for k in range(30):
        env.data.ctrl[:] = 0
        env.data.cfrc_ext[:] = 0
        env.set_state(states[k, :nq], states[k, nq : nq + env.model.nv])
        assert error(obs[k], env._get_obs()) < 1e-9
        assert error(states[k], np.array(spec.reference.from_reference(env))) < 1e-9  # type: ignore[union-attr]


def test_no_start_of_the_pusher_is_too_near_the_goal() -> None:
    _, states, _ = our_starts("Pusher-v5", "float64")
    y, x = states[:, 7], states[:, 8]
    assert np.hypot(x, y).min() > 0.17 - 1e-12
    assert y.min() >= -0.3 - 1e-12 and y.max() <= 0 and np.abs(x).max() <= 0.2 + 1e-12
