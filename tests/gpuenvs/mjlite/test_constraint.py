"""Constraint rows against the C engine, row by row, in float64."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from gpuenvs.mjlite.model import load
from tests.gpuenvs.mjlite import harness
from tests.gpuenvs.mjlite.contacts import Spread, constrained, contact_errors, engine, limit_errors

STATES = 120
TOLERANCE = {
    "dist": 1e-14, "pos": 1e-13, "normal": 1e-12, "tangents": 1e-11, "D": 1e-9, "aref": 1e-10,
    "limit J": 1e-12, "limit pos": 1e-14, "limit D": 1e-12, "limit aref": 1e-12,
}  # fmt: skip
"""D of a row that hardly touches, where the impedance begins at 0, is the impedance's rounding error."""
LEAST = {
    "InvertedPendulum": (0, 10), "InvertedDoublePendulum": (0, 5), "Reacher": (0, 5), "Swimmer": (0, 5), "Hopper": (50, 20),
    "HalfCheetah": (30, 10), "Walker2d": (40, 50), "Ant": (30, 100), "Humanoid": (60, 50), "HumanoidStandup": (60, 50),
}  # fmt: skip
"""Contacts and limits that the sample must contain for the test to mean something."""


@pytest.mark.parametrize("name", LEAST)
def test_rows_of_the_tasks(name: str) -> None:
    m = harness.model(name)
    qpos, qvel, _ = harness.states(m, STATES, seed=3)
    states = engine(m, qpos, qvel)
    d = constrained(m, qpos, qvel)
    found, contacts = contact_errors(m, d, states)
    more, limits = limit_errors(m, d, states)
    for quantity, error in {**found, **more}.items():
        assert error <= TOLERANCE[quantity], f"{quantity}: {error:.1e}"
    assert (contacts >= LEAST[name][0], limits >= LEAST[name][1]) == (True, True), (contacts, limits)


ONE_JOINT = """<mujoco><option timestep="0.005"><flag {flag}/></option><worldbody><body>
  <joint name="j" type="{kind}" axis="0 1 0" range="{range}" limited="true" {joint}/>
  <geom type="capsule" size="0.05 0.2" pos="0.1 0.2 0" contype="0" conaffinity="0"/></body></worldbody></mujoco>"""


def joint_states(m: object, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    qpos = rng.uniform(-1.5, 1.5, size=(n, m.nq))  # type: ignore[attr-defined]
    return qpos, rng.normal(size=(n, m.nv)) * 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["hinge", "slide"])
@pytest.mark.parametrize(
    "joint",
    [
        "",
        'margin="0.3"',
        'margin="0.9"',  # wider than the range: both ends act at once
        'solimplimit="0 .8 1 .3 1"',
        'solimplimit=".2 .8 1 .3 2"',
        'solimplimit=".2 .8 1 .7 3"',
        'solimplimit=".2 .8 1 .5 2.5"',
        'solimplimit=".7 .7 1 .5 2"',
        'solimplimit=".2 .8 0 .5 2"',
        'solreflimit="-300 -8"',
        'solreflimit=".001 2"',
        'solreflimit=".5 .3"',
    ],
)
def test_limits_of_one_joint(kind: str, joint: str) -> None:
    m = load(ONE_JOINT.format(kind=kind, range="-0.5 0.7" if kind == "slide" else "-30 40", joint=joint, flag=""))
    qpos, qvel = joint_states(m, 200, 1)
    found, limits = limit_errors(m, constrained(m, qpos, qvel), engine(m, qpos, qvel))
    assert limits > 50
    assert max(found.values()) < 1e-11, found


def test_refsafe_can_be_off() -> None:
    text = ONE_JOINT.format(kind="hinge", range="-30 40", joint='solreflimit=".001 2"', flag='refsafe="disable"')
    m = load(text)
    qpos, qvel = joint_states(m, 100, 2)
    found, limits = limit_errors(m, constrained(m, qpos, qvel), engine(m, qpos, qvel))
    assert limits > 20
    assert max(found.values()) < 1e-12, found


@pytest.mark.parametrize("joint", ["", 'margin="0.2"'])
def test_limits_of_a_ball_joint(joint: str) -> None:
    m = load(ONE_JOINT.format(kind="ball", range="0 60", joint=joint, flag=""))
    qpos, qvel = joint_states(m, 200, 3)  # not normalised, all angles
    qpos[:20] /= 20.0
    qpos[:20, 0] = 1.0  # near the middle: not limited
    found, limits = limit_errors(m, constrained(m, qpos, qvel), engine(m, qpos, qvel))
    assert 50 < limits < 200
    assert max(found.values()) < 1e-11, found


def test_free_joints_and_disabled_limits_have_no_rows() -> None:
    m = load(ONE_JOINT.format(kind="hinge", range="-30 40", joint="", flag='limit="disable"'))
    qpos, qvel = joint_states(m, 5, 4)
    assert constrained(m, qpos, qvel).limits == []


def test_joint_friction() -> None:
    m = load(
        """<mujoco><worldbody><body><joint type="slide" axis="1 0 0" frictionloss="0.7" solreffriction=".1 .5"
           solimpfriction=".3 .6 .1 .5 2"/><joint axis="0 1 0"/><joint axis="0 0 1" frictionloss="2"/>
           <geom size="0.1" contype="0" conaffinity="0"/></body></worldbody></mujoco>"""
    )
    qpos, qvel = joint_states(m, 30, 5)
    rows = constrained(m, qpos, qvel).friction
    assert [(row.dof, row.loss) for row in rows] == [(0, 0.7), (2, 2.0)]
    for k, data in enumerate(engine(m, qpos, qvel)):
        at = Spread(k)
        assert [row.D for row in rows] == pytest.approx(data.efc_D, rel=1e-14)
        assert [at(row.aref) for row in rows] == pytest.approx(data.efc_aref, rel=1e-14)


CONTACT = """<mujoco><option timestep="0.01"/><default><geom {geom}/></default><worldbody><geom type="plane" size="1 1 1"/>
  <body pos="0 0 .1"><freejoint/><geom type="sphere" size=".1" mass="{mass}"/></body></worldbody></mujoco>"""


@pytest.mark.parametrize("mass", ["1", "1e13"])
@pytest.mark.parametrize(
    "geom",
    [
        'condim="1"',
        'condim="3" friction="0.3"',
        'condim="3" friction="0"',
        'margin="0.05" gap="0.01"',
        'solref="-5000 -20"',
        'solref=".005 1" solimp="0 .9 .05 .2 4"',
        'solimp=".3 .9 .05 .2 1"',
    ],
)
def test_contact_parameters(geom: str, mass: str) -> None:
    m = load(CONTACT.format(geom=geom, mass=mass))
    rng = np.random.default_rng(6)
    qpos = np.tile(m.mj.qpos0, (60, 1))
    qpos[:, 2] = rng.uniform(0.02, 0.26, size=60)
    qpos[:, 3:] = rng.normal(size=(60, 4))
    qvel = rng.normal(size=(60, 6))
    found, contacts = contact_errors(m, constrained(m, qpos, qvel), engine(m, qpos, qvel))
    assert 10 < contacts < 60
    assert max(found.values()) < 1e-11, found


def test_the_two_rows_of_a_planar_contact_that_coincide_are_known_while_tracing() -> None:
    """In a model that moves in a plane the second tangent's velocity is the number 0."""
    from gpuenvs import trace as T
    from gpuenvs.mjlite.collision import collide
    from gpuenvs.mjlite.constraint import make_constraint
    from gpuenvs.mjlite.inertia import com_pos
    from gpuenvs.mjlite.kinematics import Data, kinematics
    from gpuenvs.mjlite.velocity import com_vel
    from gpuenvs.trace.graph import record, statement

    m = harness.model("HalfCheetah")
    with record():
        d = Data(
            [statement("get", "real", (), k) for k in range(m.nq)],
            [statement("get", "real", (), k) for k in range(m.nv)],
            [],
        )
        for stage in (kinematics, com_pos, com_vel, collide, make_constraint):
            stage(m, d)
        assert len(d.contact) == 16
        for contact in d.contact:
            assert T.is_zero(contact.aref[2])
            assert not T.is_zero(contact.aref[1])
            assert [x for axis in contact.frame for x in axis] == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0]


def test_mujoco_is_the_version_compared_with() -> None:
    assert mujoco.__version__.startswith("4.0"), "margins add up since 3.5; see pairs"
