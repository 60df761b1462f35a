"""Colliders against the C engine: two shapes in random poses, near each other, degenerate ones included."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from gpuenvs.mjlite.model import Model, load
from gpuenvs.mjlite.shapes import frame
from tests.gpuenvs.mjlite.contacts import constrained, contact_errors, engine

TWO = """<mujoco><default><geom margin="0.01"/></default><worldbody>
  <body><freejoint/><geom type="{first}" size="{size1}"/></body>
  <body><freejoint/><geom type="{second}" size="{size2}"/></body></worldbody></mujoco>"""
ON_PLANE = """<mujoco><default><geom margin="0.01"/></default><worldbody>
  <geom type="plane" size="1 1 1" pos=".1 .2 .3" euler="{tilt}"/>
  <body><freejoint/><geom type="{shape}" size="{size}"/></body></worldbody></mujoco>"""
SIZES = {"sphere": "0.2", "capsule": "0.1 0.3", "cylinder": "0.2 0.1", "box": "0.1 0.2 0.3"}


def unit(rng: np.random.Generator, n: int, size: int) -> np.ndarray:
    v = rng.normal(size=(n, size))
    return v / np.linalg.norm(v, axis=1, keepdims=True)


def errors(m: Model, qpos: np.ndarray, seed: int = 0) -> tuple[dict[str, float], int]:
    qvel = np.random.default_rng(seed).normal(size=(len(qpos), m.nv))
    return contact_errors(m, constrained(m, qpos, qvel), engine(m, qpos, qvel))


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("tilt", ["0 0 0", "20 -30 70", "180 0 0", "90 0 0"])
def test_above_a_plane(shape: str, tilt: str) -> None:
    m = load(ON_PLANE.format(shape=shape, size=SIZES[shape], tilt=tilt))
    n, rng = 300, np.random.default_rng(1)
    data = mujoco.MjData(m.mj)
    mujoco.mj_kinematics(m.mj, data)
    normal = data.geom_xmat[0].reshape(3, 3)[:, 2]
    qpos = np.zeros((n, 7))
    qpos[:, :3] = [0.1, 0.2, 0.3] + rng.uniform(-0.05, 0.4, size=(n, 1)) * normal + rng.normal(size=(n, 3)) * 0.05
    qpos[:, 3:] = unit(rng, n, 4)
    qpos[:20, 3:] = [1.0, 0.0, 0.0, 0.0]  # upright, as a thing that lies or stands
    found, contacts = errors(m, qpos)
    assert contacts > 100
    assert max(found.values()) < 1e-9, found


def pair_states(n: int, seed: int, reach: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    qpos = np.zeros((n, 14))
    qpos[:, 3:7], qpos[:, 10:] = unit(rng, n, 4), unit(rng, n, 4)
    qpos[:, 7:10] = unit(rng, n, 3) * rng.uniform(0.0, reach, size=(n, 1))
    return qpos


@pytest.mark.parametrize(
    ("first", "second"), [("sphere", "sphere"), ("sphere", "capsule"), ("capsule", "sphere"), ("capsule", "capsule")]
)
def test_spheres_and_capsules(first: str, second: str) -> None:
    m = load(TWO.format(first=first, second=second, size1=SIZES[first], size2=SIZES[second]))
    found, contacts = errors(m, pair_states(400, 2, 0.8))
    assert contacts > 100
    assert max(found.values()) < 1e-9, found


@pytest.mark.parametrize("solid", ["box", "cylinder"])
def test_sphere_outside_and_inside_of_a_solid(solid: str) -> None:
    m = load(TWO.format(first="sphere", second=solid, size1="0.1", size2=SIZES[solid]))
    qpos = pair_states(600, 9, 0.5)
    found, contacts = errors(m, qpos)
    inside = np.linalg.norm(qpos[:, 7:10], axis=1) < 0.1
    assert inside.sum() > 50
    assert inside.sum() < contacts < 550
    assert max(found.values()) < 1e-9, found


def test_parallel_capsules_touch_in_up_to_two_points() -> None:
    m = load(TWO.format(first="capsule", second="capsule", size1="0.1 0.3", size2="0.15 0.2"))
    n, rng = 300, np.random.default_rng(3)
    qpos = pair_states(n, 3, 0.0)
    qpos[:, 10:] = qpos[:, 3:7]
    axis = np.zeros((n, 9))
    for k in range(n):
        mujoco.mju_quat2Mat(axis[k], qpos[k, 3:7])
    mats = axis.reshape(n, 3, 3)
    along, across = rng.uniform(-0.8, 0.8, size=(n, 1)), rng.uniform(0.1, 0.3, size=(n, 1))
    qpos[:, 7:10] = mats[:, :, 2] * along + mats[:, :, 0] * across
    # Some are turned a little, by less and by more than what counts as parallel.
    for k, angle in enumerate([1e-9, 5e-5, 9.9e-5, 1.01e-4, 1e-3]):
        mujoco.mju_mulQuat(qpos[k, 10:], qpos[k, 3:7], np.array([np.cos(angle / 2), 0.0, np.sin(angle / 2), 0.0]))
    d = constrained(m, qpos, np.zeros((n, 12)))
    touching = sum(np.broadcast_to(contact.active, n).astype(int) for contact in d.contact)
    assert np.bincount(touching, minlength=3)[[0, 2]].min() > 20
    found, _ = contact_errors(m, d, engine(m, qpos, np.zeros((n, 12))))
    assert max(found.values()) < 1e-7, found  # all but parallel lines determine their nearest points badly


def test_shapes_with_the_same_centre() -> None:
    m = load(TWO.format(first="sphere", second="sphere", size1="0.2", size2="0.1"))
    qpos = pair_states(20, 4, 0.0)
    qpos[10:, 10:] = qpos[10:, 3:7]  # parallel axes too: the normal is then x
    found, contacts = errors(m, qpos)
    assert contacts == 20
    assert max(found.values()) < 1e-9, found


def test_a_static_first_geom_and_bodies_welded_together() -> None:
    m = load(
        """<mujoco><worldbody><geom type="sphere" size=".2" pos="0 0 .1"/><geom type="capsule" size=".1 .2" pos=".4 0 0"/>
        <body><freejoint/><geom type="sphere" size=".01" mass="1" contype="0" conaffinity="0"/>
        <body pos=".1 .1 0"><geom type="capsule" size=".1 .2"/></body></body></worldbody></mujoco>"""
    )
    n, rng = 200, np.random.default_rng(5)
    qpos = np.concatenate([rng.normal(size=(n, 3)) * 0.15, unit(rng, n, 4)], axis=1)
    found, contacts = errors(m, qpos)
    assert contacts > 100
    assert max(found.values()) < 1e-9, found


CYLINDER = """<mujoco><worldbody><geom type="cylinder" size=".05 .05"/>
  <body><freejoint/><geom type="capsule" size=".02 .1"/></body></worldbody></mujoco>"""


def capsules_at_a_cylinder(n: int, seed: int, tilt: float | None) -> np.ndarray:
    """Capsules that come near the cylinder: with random axes, or above it within `tilt` of its end face."""
    rng = np.random.default_rng(seed)
    qpos = np.zeros((n, 7))
    qpos[:, :3] = rng.uniform(-0.14, 0.14, size=(n, 3))
    axis = unit(rng, n, 3)
    if tilt is not None:
        yaw, pitch = rng.uniform(0, 2 * np.pi, size=n), rng.uniform(-tilt, tilt, size=n)
        axis = np.stack([np.cos(yaw) * np.cos(pitch), np.sin(yaw) * np.cos(pitch), np.sin(pitch)], axis=1)
        qpos[:, :2] = rng.uniform(-0.1, 0.1, size=(n, 2))
        qpos[:, 2] = 0.07 + rng.uniform(-0.015, -0.001, size=n)
    half = np.arccos(axis[:, 2]) / 2
    turn = np.stack([-axis[:, 1], axis[:, 0]], axis=1) / np.linalg.norm(axis[:, :2], axis=1, keepdims=True)
    qpos[:, 3], qpos[:, 4:6] = np.cos(half), np.sin(half)[:, None] * turn
    return qpos


def cylinder_contacts(m: Model, qpos: np.ndarray) -> tuple[list, list]:
    """Per state the contacts (dist, pos, normal) here and in the C engine."""
    n = len(qpos)
    d = constrained(m, qpos, np.zeros((n, 6)))
    ours = [[] for _ in range(n)]
    for contact in d.contact:
        values = [np.broadcast_to(x, n) for x in (contact.dist, *contact.pos, *contact.frame[0])]
        for k in np.nonzero(np.broadcast_to(contact.active, n))[0]:
            ours[k].append(np.array([v[k] for v in values]))
    theirs = []
    for data in engine(m, qpos, np.zeros((n, 6))):
        signs = [1.0 if contact.geom[0] == 1 else -1.0 for contact in data.contact]
        theirs.append([np.array([c.dist, *c.pos, *(s * c.frame[:3])]) for s, c in zip(signs, data.contact)])
    return ours, theirs


def test_capsule_outside_of_a_cylinder() -> None:
    """The engine iterates to 1e-6; where the capsule's axis enters, it is 1e-4 (see collide_cylinder)."""
    m = load(CYLINDER)
    ours, theirs = cylinder_contacts(m, capsules_at_a_cylinder(1500, 6, None))
    one = [(a[0], b[0]) for a, b in zip(ours, theirs) if len(a) == len(b) == 1]
    agree = sum(len(a) == len(b) for a, b in zip(ours, theirs))
    assert agree >= 1490
    outside = np.array([np.abs(a - b) for a, b in one if b[0] > -0.0199])
    inside = np.array([np.abs(a - b) for a, b in one if b[0] <= -0.0199])
    assert min(len(outside), len(inside)) > 150
    assert outside[:, 0].max() < 1e-8
    assert outside[:, 1:4].max() < 1e-5
    assert outside[:, 4:].max() < 1e-3
    assert np.median(inside[:, 0]) < 1e-6
    assert np.quantile(inside[:, 0], 0.95) < 1e-5


def test_capsule_along_the_end_of_a_cylinder() -> None:
    m = load(CYLINDER)
    ours, theirs = cylinder_contacts(m, capsules_at_a_cylinder(1000, 7, 0.15))
    counts = np.array([(len(a), len(b)) for a, b in zip(ours, theirs)])
    assert (counts[:, 0] == counts[:, 1]).mean() > 0.98
    two = [(a, b) for a, b in zip(ours, theirs) if len(a) == len(b) == 2]
    assert len(two) > 200
    errors = [min(np.abs(np.array(a) - np.array(b)[list(order)]).max() for order in ((0, 1), (1, 0))) for a, b in two]
    assert np.median(errors) < 1e-3  # the engine's points scatter, see collide_cylinder
    assert np.quantile(errors, 0.25) < 1e-4


def test_frame_follows_the_given_tangent_or_the_axes() -> None:
    assert frame([0.0, 0.0, 1.0]) == [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]
    assert frame([0.0, 1.0, 0.0])[1] == [0.0, 0.0, 1.0]
    assert frame([0.0, 0.0, 1.0], [0.6, 0.0, 0.8])[1] == [1.0, 0.0, 0.0]  # in the plane of a planar model
    tilted = frame([0.0, 0.6, 0.8], [1.0, 0.0, 0.0])
    assert np.allclose(np.array(tilted) @ np.array(tilted).T, np.eye(3), atol=1e-15)
    assert np.linalg.det(np.array(tilted)) == pytest.approx(1.0)
