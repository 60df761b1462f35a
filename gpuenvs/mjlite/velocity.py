"""Velocities of bodies and the bias force (Coriolis, centrifugal, gyroscopic, gravity).

MuJoCo documentation, Computation, "Bias force": recursive Newton-Euler with zero joint acceleration. Spatial vectors are
about the origin of the body's tree (see `kinematics`), rotation first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.inertia import Moving, shifted, to_com
from gpuenvs.mjlite.kinematics import Data
from gpuenvs.mjlite.model import BALL, FREE, Model


def com_vel(m: Model, d: Data) -> None:
    """Spatial velocities.

    Reads qvel, motion. Writes, about the origin of each body's tree,
        twist (nbody, 6): velocity;
        drift (nbody, 6): acceleration at zero joint acceleration, gravity counted as an acceleration of the world;
    and as MuJoCo has them, about subtree_com of the tree's root, when read:
        cvel (nbody, 6), cdof_dot (nv, 6): the rate of change of cdof.
    """
    d.twist, d.drift = [[0.0] * 6], [[0.0, 0.0, 0.0, *(-g if g else 0.0 for g in m.gravity)]]
    for b in range(1, m.nbody):
        velocity, drift = list(d.twist[m.body_parentid[b]]), list(d.drift[m.body_parentid[b]])
        for dofs, constant in _steps(m, b):
            step = _along(d.motion, d.qvel, dofs)
            if not constant:
                drift = la.add(drift, la.cross_motion(velocity, step))
            velocity = la.add(velocity, step)
        d.twist.append(velocity)
        d.drift.append(drift)
    d.later("cvel", lambda: [shifted(d.twist[b], to_com(m, d, b)) for b in range(m.nbody)])
    d.later("cdof_dot", lambda: _cdof_dot(m, d))


def _steps(m: Model, b: int) -> Iterator[tuple[list[int], bool]]:
    """Dofs of a body that move at once, in order; True with them if their axes are constant.

    The three rotations of a ball see the velocity before any of them; a free joint's translations are along the world's
    axes.
    """
    for j in range(m.body_jntadr[b], m.body_jntadr[b] + m.body_jntnum[b]):
        dof = m.jnt_dofadr[j]
        if m.jnt_type[j] == FREE:
            yield [dof, dof + 1, dof + 2], True
            dof += 3
        yield list(range(dof, dof + (3 if m.jnt_type[j] in (FREE, BALL) else 1))), False


def _along(motion: list[list[Any]], qvel: list[Any], dofs: list[int]) -> list[Any]:
    """Sum of motion * qvel."""
    out: list[Any] = [0.0] * 6
    for i in dofs:
        out = la.add_scaled(out, motion[i], qvel[i])
    return out


def _cdof_dot(m: Model, d: Data) -> list[list[Any]]:
    out: list[list[Any]] = [[0.0] * 6 for _ in range(m.nv)]
    for b in range(1, m.nbody):
        velocity = list(d.cvel[m.body_parentid[b]])
        for dofs, constant in _steps(m, b):
            for i in dofs:
                out[i] = out[i] if constant else la.cross_motion(velocity, d.cdof[i])
            velocity = la.add(velocity, _along(d.cdof, d.qvel, dofs))
    return out


def rne(m: Model, d: Data) -> None:
    """Bias force: what the actuators would have to exert to keep all joint accelerations at zero.

    Reads moving, motion, twist, drift. Writes qfrc_bias (nv,), N or N m.
    """
    wrench: list[Any] = [[0.0] * 6 for _ in range(m.nbody)]
    for body in d.moving:
        wrench[body.body] = _newton_euler(body, d.twist[body.body], d.drift[body.body])
    for b in range(m.nbody - 1, 0, -1):
        wrench[m.body_parentid[b]] = la.add(wrench[m.body_parentid[b]], wrench[b])
    d.qfrc_bias = [la.dot(d.motion[i], wrench[m.dof_bodyid[i]]) for i in range(m.nv)]


def _newton_euler(body: Moving, velocity: la.Vec, acceleration: la.Vec) -> list[Any]:
    """Wrench (6,) about the origin of spatial vectors that makes a body move as it does.

    At the centre of mass: force = mass * acceleration, torque = d/dt of inertia * angular velocity.
    """
    spin, turn = velocity[0:3], acceleration[0:3]
    speed = la.add(velocity[3:6], la.cross(spin, body.arm))
    centre = la.add(la.add(acceleration[3:6], la.cross(turn, body.arm)), la.cross(spin, speed))
    force = la.scale(centre, body.mass)
    if len(body.spread) < 2:
        torque = la.scale(turn, body.base)
        for k, axis in body.spread:
            torque = la.add_scaled(torque, axis, k * la.dot(axis, turn))
            torque = la.add_scaled(torque, la.cross(spin, axis), k * la.dot(axis, spin))
    else:
        torque = la.add(_times(body.tensor, turn), la.cross(spin, _times(body.tensor, spin)))
    return [*la.add(torque, la.cross(body.arm, force)), *force]


def _times(tensor: la.Vec, v: la.Vec) -> list[Any]:
    xx, yy, zz, xy, xz, yz = tensor
    return [la.dot((xx, xy, xz), v), la.dot((xy, yy, yz), v), la.dot((xz, yz, zz), v)]
