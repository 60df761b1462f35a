"""Passive forces: springs, dampers and the drag of a fluid (MuJoCo documentation, Computation, "Passive forces")."""

from __future__ import annotations

import math

from gpuenvs import trace as T
from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.kinematics import Data
from gpuenvs.mjlite.model import BALL, FREE, Model


def passive(m: Model, d: Data) -> None:
    """Springs and dampers of joints, drag of bodies.

    Reads qpos, qvel and, in a fluid, twist, motion, rpos, xmat, ximat. Writes qfrc_passive (nv,), N or N m.
    """
    d.qfrc_passive = [-(m.dof_damping[i] * d.qvel[i]) if m.dof_damping[i] else 0.0 for i in range(m.nv)]
    for j in range(m.njnt):
        if m.jnt_stiffness[j]:
            dof = m.jnt_dofadr[j]
            for k, x in enumerate(_deflection(m, d, j)):
                d.qfrc_passive[dof + k] = d.qfrc_passive[dof + k] - m.jnt_stiffness[j] * x
    if m.density or m.viscosity:
        d.qfrc_passive = la.add(d.qfrc_passive, _fluid(m, d))


def _deflection(m: Model, d: Data, j: int) -> list:
    """How far a joint is from where its spring rests; rotations of balls as a rotation vector, rad."""
    q = m.jnt_qposadr[j]
    if m.jnt_type[j] == FREE:
        return la.sub(d.qpos[q : q + 3], m.qpos_spring[q : q + 3]) + _rotation(m, d, q + 3)
    if m.jnt_type[j] == BALL:
        return _rotation(m, d, q)
    return [d.qpos[q] - m.qpos_spring[q]]


def _rotation(m: Model, d: Data, q: int) -> list:
    """Rotation vector from the rest orientation to the present one, in the body's frame; its angle is in [-pi, pi]."""
    w, x, y, z = m.qpos_spring[q : q + 4]
    w, *axis = la.quat_mul([w, -x, -y, -z], la.quat_normalize(d.qpos[q : q + 4]))
    sine = la.norm(axis)
    tiny = sine < la.MINVAL
    angle = 2.0 * T.atan2(sine, w)
    angle = T.where(angle > math.pi, angle - 2.0 * math.pi, angle)
    factor = T.where(tiny, 0.0, angle / T.where(tiny, 1.0, sine))
    return la.scale(axis, factor)


def _fluid(m: Model, d: Data) -> list:
    """Joint forces (nv,) of the inertia-box fluid model: each body drags like the box that has its inertia."""
    wrench: list = [[0.0] * 6 for _ in range(m.nbody)]  # about the tree's origin, world axes
    for b in range(1, m.nbody):
        if m.body_mass[b] >= la.MINVAL:
            to_body = la.add(d.rpos[b], la.mat_vec(d.xmat[b], m.body_ipos[b]))
            torque, force = _drag(m, d, b, to_body)
            wrench[b] = [*la.add(torque, la.cross(to_body, force)), *force]
    for b in range(m.nbody - 1, 0, -1):
        wrench[m.body_parentid[b]] = la.add(wrench[m.body_parentid[b]], wrench[b])
    return [la.dot(d.motion[i], wrench[m.dof_bodyid[i]]) for i in range(m.nv)]


def _drag(m: Model, d: Data, b: int, to_body: list) -> tuple[list, list]:
    """Torque and force of the fluid on body b at its centre of mass, world axes."""
    rotation, point = d.twist[b][0:3], la.add(d.twist[b][3:6], la.cross(d.twist[b][0:3], to_body))
    spin = la.mat_t_vec(d.ximat[b], rotation)
    speed = la.mat_t_vec(d.ximat[b], la.sub(point, m.wind))
    inertia = m.body_inertia[b]
    total = sum(inertia)
    box = [math.sqrt(max(la.MINVAL, total - 2.0 * i) / m.body_mass[b] * 6.0) for i in inertia]

    torque: list = [0.0] * 3
    force: list = [0.0] * 3
    if m.viscosity > 0:  # of a sphere of the mean edge as diameter
        diameter = sum(box) / 3.0
        torque = la.scale(spin, -math.pi * diameter**3 * m.viscosity)
        force = la.scale(speed, -3.0 * math.pi * diameter * m.viscosity)
    if m.density > 0:
        for k in range(3):
            i, j = (k + 1) % 3, (k + 2) % 3
            force[k] = force[k] - (0.5 * m.density * box[i] * box[j]) * (T.absolute(speed[k]) * speed[k])
            drag = m.density * box[k] * (box[i] ** 4 + box[j] ** 4) / 64.0
            torque[k] = torque[k] - drag * (T.absolute(spin[k]) * spin[k])
    return la.mat_vec(d.ximat[b], torque), la.mat_vec(d.ximat[b], force)
