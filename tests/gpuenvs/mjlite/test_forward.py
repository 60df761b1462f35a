"""Whole simulation steps against the C engine, its solver at full precision, from states of random-action trajectories."""

import mujoco
import numpy as np
import pytest

from gpuenvs.mjlite.forward import control_step, reset_forward
from gpuenvs.trace.elementary import precision
from tests.gpuenvs.mjlite import harness

COUNT = 240
BOUND = dict.fromkeys(harness.MODELS, 1e-11) | {"Pusher": 1e-9}  # its capsules and cylinders meet by an iteration


def engine(m, qpos, qvel, ctrl, steps):
    """State after `steps` simulation steps of the C engine, and what it left of qacc, qfrc_constraint and xpos."""
    return harness.each(
        m, qpos, qvel, ctrl,
        lambda d: {name: getattr(d, name) for name in ("qpos", "qvel", "qacc", "qfrc_constraint", "xpos", "nefc")},
        lambda mj, d: mujoco.mj_step(mj, d, nstep=steps),
    )  # fmt: skip


def ours(m, qpos, qvel, ctrl, steps, listed=None):
    def watch(d):
        return [*d.qacc, *d.qfrc_constraint, *(x for pos in d.xpos for x in pos)]

    with np.errstate(all="ignore"):
        after = control_step(m, list(qpos.T), list(qvel.T), list(ctrl.T), steps, watch, listed)
    new_qpos, new_qvel, watched = (harness.stack(x, len(qpos)) for x in after)
    qacc, force, xpos = np.split(watched, [m.nv, 2 * m.nv], axis=1)
    return {
        "qpos": new_qpos, "qvel": new_qvel, "qacc": qacc, "qfrc_constraint": force,
        "xpos": xpos.reshape(len(qpos), m.nbody, 3),
    }  # fmt: skip


def errors(got, expected):
    return {name: float(np.abs(got[name] - expected[name]).max()) for name in got}


@pytest.mark.parametrize("name", BOUND)
def test_one_step_is_the_engine_s(name):
    m = harness.model(name)
    start = harness.states(m, COUNT, seed=11)
    expected = engine(m, *start, 1)
    error = errors(ours(m, *start, 1), expected)
    rows = expected["nefc"]
    print(
        f"{name}: {error}; rows per state: mean {rows.mean():.1f}, most {rows.max()}, none in {(rows == 0).mean():.0%}"
    )
    assert rows.max() > 0
    assert error["qvel"] <= BOUND[name]
    assert error["qpos"] <= BOUND[name] / 100
    assert error["xpos"] <= 1e-12
    scale = 1 + np.abs(expected["qacc"]).max()
    assert error["qacc"] <= 1e-12 * scale
    assert error["qfrc_constraint"] <= 1e-11 * (1 + np.abs(expected["qfrc_constraint"]).max())


@pytest.mark.parametrize(("name", "listed"), [("Hopper", True), ("Walker2d", True), ("Ant", True), ("Humanoid", False)])
def test_listed_and_unrolled_contacts_are_the_same_physics(name, listed):
    m = harness.model(name)
    start = harness.states(m, 80, seed=17)
    error = errors(ours(m, *start, 1, listed), engine(m, *start, 1))
    assert error["qvel"] <= 1e-11
    assert error["qpos"] <= 1e-13
    one_way, other_way = ours(m, *start, 1, listed), ours(m, *start, 1, not listed)
    assert max(errors(one_way, other_way)[name] for name in ("qpos", "qvel", "xpos")) <= 1e-11


@pytest.mark.parametrize("name", ["InvertedDoublePendulum", "Swimmer", "Hopper", "HalfCheetah", "Ant"])
def test_a_control_step_is_the_engine_s_steps(name):
    """Some steps amplify rounding, so the bound is wider; most states stay within that of one step."""
    m, steps = harness.model(name), harness.MODELS[name][1]
    start = harness.states(m, 120, seed=12)
    got, expected = ours(m, *start, steps), engine(m, *start, steps)
    error = np.abs(got["qvel"] - expected["qvel"]).max(axis=1)
    assert np.median(error) <= 1e-12
    assert error.max() <= 1e-8
    assert np.abs(got["xpos"] - expected["xpos"]).max() <= 1e-10


def test_what_is_watched_is_left_by_the_last_forward_pass_not_by_the_new_state():
    m = harness.model("Ant")
    start = harness.states(m, 40, seed=13)
    got = ours(m, *start, 1)
    lag = np.abs(got["xpos"][:, 1] - got["qpos"][:, :3]).max()
    assert lag > 1e-6
    assert np.abs(got["xpos"] - engine(m, *start, 1)["xpos"]).max() <= 1e-12


def test_reset_forward_is_mj_forward_at_rest_controls():
    m = harness.model("Walker2d")
    qpos, qvel, ctrl = harness.states(m, 60, seed=14)
    expected = harness.reference(m, qpos, qvel, 0 * ctrl)
    with np.errstate(all="ignore"):
        found = reset_forward(m, list(qpos.T), list(qvel.T), lambda d: [*d.qacc, *d.qfrc_constraint])
    qacc, force = np.split(harness.stack(found, 60), 2, axis=1)
    assert np.abs(qacc - expected["qacc"]).max() <= 1e-12 * (1 + np.abs(expected["qacc"]).max())
    assert np.abs(force - expected["qfrc_constraint"]).max() <= 1e-11 * (1 + np.abs(force).max())


def test_a_nan_stays_in_its_row():
    m = harness.model("HalfCheetah")
    qpos, qvel, ctrl = harness.states(m, 32, seed=15)
    clean = ours(m, qpos, qvel, ctrl, 2)
    qvel = qvel.copy()
    qvel[5, 3] = np.nan
    spoiled = ours(m, qpos, qvel, ctrl, 2)
    others = np.arange(32) != 5
    assert np.isnan(spoiled["qvel"][5]).any()
    assert (spoiled["qvel"][others] == clean["qvel"][others]).all()
    assert (spoiled["qpos"][others] == clean["qpos"][others]).all()


@pytest.mark.parametrize(("name", "real"), [("Walker2d", "float64"), ("Walker2d", "float32"), ("Humanoid", "float64")])
def test_a_row_does_not_depend_on_its_neighbours(name, real):
    m = harness.model(name)
    start = harness.states(m, 48, seed=16)
    with precision(real):  # of the solver's steps; the arrays are float64
        together = ours(m, *start, 2)
        for k in (0, 17, 40):
            qpos, qvel, ctrl = (x[k : k + 1] for x in start)
            alone = ours(m, qpos, qvel, ctrl, 2)
            assert (alone["qvel"][0] == together["qvel"][k]).all()
