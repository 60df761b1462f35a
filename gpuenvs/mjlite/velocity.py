"""Velocities of bodies and the bias force (Coriolis, centrifugal, gyroscopic, gravity).

MuJoCo documentation, Computation, "Bias force": recursive Newton-Euler with zero joint acceleration. Spatial vectors are
about subtree_com of the tree's root body, rotation first.
"""

from __future__ import annotations

from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.kinematics import Data
from gpuenvs.mjlite.model import BALL, FREE, Model


def com_vel(m: Model, d: Data) -> None:
    """Spatial velocities.

    Reads qvel, cdof. Writes cvel (nbody, 6), cdof_dot (nv, 6): rate of change of cdof.
    """
    d.cvel, d.cdof_dot = [[0.0] * 6], [[0.0] * 6 for _ in range(m.nv)]
    for b in range(1, m.nbody):
        velocity = list(d.cvel[m.body_parentid[b]])
        for j in range(m.body_jntadr[b], m.body_jntadr[b] + m.body_jntnum[b]):
            dofs = list(_dofs(m, j))
            if m.jnt_type[j] == FREE:  # the translations are along the world's axes: their cdof_dot is zero
                velocity = _moved(d, velocity, dofs[:3])
                dofs = dofs[3:]
            for i in dofs:  # the three rotations of a ball see the velocity before any of them
                d.cdof_dot[i] = la.cross_motion(velocity, d.cdof[i])
            velocity = _moved(d, velocity, dofs)
        d.cvel.append(velocity)


def _dofs(m: Model, j: int) -> range:
    return range(m.jnt_dofadr[j], m.jnt_dofadr[j] + {FREE: 6, BALL: 3}.get(m.jnt_type[j], 1))


def _moved(d: Data, velocity: list, dofs: list[int]) -> list:
    for i in dofs:
        velocity = la.add_scaled(velocity, d.cdof[i], d.qvel[i])
    return velocity


def rne(m: Model, d: Data) -> None:
    """Bias force: what the actuators would have to exert to keep all joint accelerations at zero.

    Reads rigid, cdof, cdof_dot, cvel, qvel. Writes qfrc_bias (nv,), N or N m. Welded bodies count with their carrier.
    """
    acceleration: list = [[0.0] * 6 for _ in range(m.nbody)]
    force: list = [[0.0] * 6 for _ in range(m.nbody)]
    acceleration[0] = [0.0, 0.0, 0.0, *(-g if g else 0.0 for g in m.gravity)]  # gravity as an acceleration of the world
    for b in range(1, m.nbody):
        acceleration[b] = acceleration[m.body_parentid[b]]
        for i in range(m.body_dofadr[b], m.body_dofadr[b] + m.body_dofnum[b]):
            acceleration[b] = la.add_scaled(acceleration[b], d.cdof_dot[i], d.qvel[i])
        if m.body_dofnum[b]:
            momentum = la.inertia_vec(d.rigid[b], d.cvel[b])
            force[b] = la.add(la.inertia_vec(d.rigid[b], acceleration[b]), la.cross_force(d.cvel[b], momentum))
    for b in range(m.nbody - 1, 0, -1):
        force[m.body_parentid[b]] = la.add(force[m.body_parentid[b]], force[b])
    d.qfrc_bias = [la.dot(d.cdof[i], force[m.dof_bodyid[i]]) for i in range(m.nv)]
