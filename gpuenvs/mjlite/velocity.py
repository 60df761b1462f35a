"""Velocities of bodies and the bias force (Coriolis, centrifugal, gyroscopic, gravity).

MuJoCo documentation, Computation, "Bias force": recursive Newton-Euler with zero joint acceleration. Spatial vectors are
about subtree_com of the tree's root body, rotation first.
"""

from __future__ import annotations

from typing import Any

from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.inertia import Moving
from gpuenvs.mjlite.kinematics import Data
from gpuenvs.mjlite.model import BALL, FREE, Model


def com_vel(m: Model, d: Data) -> None:
    """Spatial velocities.

    Reads qvel, cdof. Writes cvel (nbody, 6), cdof_dot (nv, 6): rate of change of cdof, and drift (nbody, 6): acceleration
    of the bodies at zero joint acceleration, gravity counted as an acceleration of the world.
    """
    d.cvel, d.cdof_dot = [[0.0] * 6], [[0.0] * 6 for _ in range(m.nv)]
    d.drift = [[0.0, 0.0, 0.0, *(-g if g else 0.0 for g in m.gravity)]]
    for b in range(1, m.nbody):
        velocity, drift = list(d.cvel[m.body_parentid[b]]), list(d.drift[m.body_parentid[b]])
        for j in range(m.body_jntadr[b], m.body_jntadr[b] + m.body_jntnum[b]):
            dofs = list(_dofs(m, j))
            if m.jnt_type[j] == FREE:  # the translations are along the world's axes: their cdof_dot is zero
                velocity = la.add(velocity, _along(d, dofs[:3]))
                dofs = dofs[3:]
            for i in dofs:  # the three rotations of a ball see the velocity before any of them
                d.cdof_dot[i] = la.cross_motion(velocity, d.cdof[i])
            step = _along(d, dofs)
            drift = la.add(drift, la.cross_motion(velocity, step))
            velocity = la.add(velocity, step)
        d.cvel.append(velocity)
        d.drift.append(drift)


def _dofs(m: Model, j: int) -> range:
    return range(m.jnt_dofadr[j], m.jnt_dofadr[j] + {FREE: 6, BALL: 3}.get(m.jnt_type[j], 1))


def _along(d: Data, dofs: list[int]) -> list[Any]:
    """Sum of cdof * qvel."""
    out: list[Any] = [0.0] * 6
    for i in dofs:
        out = la.add_scaled(out, d.cdof[i], d.qvel[i])
    return out


def rne(m: Model, d: Data) -> None:
    """Bias force: what the actuators would have to exert to keep all joint accelerations at zero.

    Reads moving, cdof, cvel, drift. Writes qfrc_bias (nv,), N or N m.
    """
    wrench: list[Any] = [[0.0] * 6 for _ in range(m.nbody)]
    for body in d.moving:
        wrench[body.body] = _newton_euler(body, d.cvel[body.body], d.drift[body.body])
    for b in range(m.nbody - 1, 0, -1):
        wrench[m.body_parentid[b]] = la.add(wrench[m.body_parentid[b]], wrench[b])
    d.qfrc_bias = [la.dot(d.cdof[i], wrench[m.dof_bodyid[i]]) for i in range(m.nv)]


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
