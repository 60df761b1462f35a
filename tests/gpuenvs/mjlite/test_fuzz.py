"""Random small models, whole simulation steps against the C engine with its solver at full precision."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from gpuenvs.errors import ModelError
from gpuenvs.mjlite.forward import control_step
from gpuenvs.mjlite.model import load
from tests.gpuenvs.mjlite import harness
from tests.gpuenvs.mjlite.trees import random_tree

MODELS, CHUNK, STATES = 200, 20, 10


@pytest.mark.parametrize("first", range(0, MODELS, CHUNK))
def test_random_models_with_contacts_limits_and_friction(first: int) -> None:
    """Each model is within 1e-9 of one mj_step, or refused by name."""
    stepped, constrained = 0, 0
    for seed in range(first, first + CHUNK):
        rng = np.random.default_rng(seed)
        text = random_tree(rng, integrator=str(rng.choice(["Euler", "RK4"])), contacts=True)
        try:
            m = harness.exact(load(text).mj)
        except ModelError as refusal:
            assert "box" in str(refusal) and "is not supported" in str(refusal)
            continue
        qpos, qvel, ctrl = harness.states(m, STATES, seed=seed)
        expected = harness.each(
            m, qpos, qvel, ctrl, lambda d: {"qpos": d.qpos, "qvel": d.qvel, "nefc": d.nefc}, run=mujoco.mj_step
        )
        with np.errstate(all="ignore"):
            q, v, _ = control_step(m, list(qpos.T), list(qvel.T), list(ctrl.T), 1)
        assert np.abs(harness.stack(v, STATES) - expected["qvel"]).max() < 1e-9, f"seed {seed}"
        assert np.abs(harness.stack(q, STATES) - expected["qpos"]).max() < 1e-10, f"seed {seed}"
        stepped += 1
        constrained += int((expected["nefc"] > 0).sum())
    print(f"{stepped} of {CHUNK} models stepped, {constrained} states with constraints")
    assert stepped > CHUNK // 2
    assert constrained > STATES
