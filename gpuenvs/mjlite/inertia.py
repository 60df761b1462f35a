"""Inertias and joint motions about the trees' origins, and the joint-space inertia matrix.

MuJoCo documentation, Computation, "Inertia matrix": the composite rigid body algorithm in a frame with the world's axes and
its origin at a point of the kinematic tree (see `kinematics`). There, inertias simply add.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.kinematics import Data
from gpuenvs.mjlite.model import BALL, FREE, HINGE, Model


@dataclasses.dataclass(frozen=True)
class Rigid:
    """A body together with all bodies welded to it, as one rigid body."""

    body: int
    mass: float
    ipos: tuple[float, ...]
    """Centre of mass in the frame of `body`, m."""
    principal: tuple[float, ...]
    """Principal moments about it, kg m^2."""
    axes: tuple[float, ...]
    """Principal axes as columns of a row-major matrix, in the frame of `body`."""


@dataclasses.dataclass(frozen=True)
class Moving:
    """A `Rigid` where it is: what the equations of motion need of it."""

    body: int
    mass: float
    arm: list[Any]
    """From the tree's origin to its centre of mass, world axes."""
    base: float
    spread: list[tuple[float, list[Any]]]
    """Its inertia about the centre of mass is base * identity + sum of k * axis axis' over (k, axis)."""
    tensor: list[Any]
    """The same inertia, entries xx, yy, zz, xy, xz, yz."""


def rigid_bodies(m: Model) -> list[Rigid]:
    """One entry per body with a joint: bodies without joints are merged into the one that carries them. World excluded."""
    frames: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    groups: dict[int, list[tuple[float, np.ndarray, np.ndarray]]] = {}
    for b in range(1, m.nbody):
        root = m.body_weldid[b]
        if root == 0:
            continue
        if b == root:
            frames[b] = np.zeros(3), np.eye(3)
        else:
            pos, rot = frames[m.body_parentid[b]]
            frames[b] = pos + rot @ np.array(m.body_pos[b]), rot @ _matrix(m.body_quat[b])
        pos, rot = frames[b]
        axes = rot @ _matrix(m.body_iquat[b])
        tensor = axes @ np.diag(m.body_inertia[b]) @ axes.T
        groups.setdefault(root, []).append((m.body_mass[b], pos + rot @ np.array(m.body_ipos[b]), tensor))
    return [_merge(m, root, parts) for root, parts in groups.items()]


def _merge(m: Model, body: int, parts: list[tuple[float, np.ndarray, np.ndarray]]) -> Rigid:
    """Sum of rigid parts: (mass, centre, tensor about the centre) each, in the frame of `body`."""
    if len(parts) == 1:
        axes = tuple(la.quat_to_mat(m.body_iquat[body]))
        return Rigid(body, m.body_mass[body], m.body_ipos[body], m.body_inertia[body], axes)
    mass = sum(part[0] for part in parts)
    centre = sum(part[0] * part[1] for part in parts) / mass if mass else parts[0][1]
    tensor = np.zeros((3, 3))
    for part_mass, part_centre, part_tensor in parts:
        r = part_centre - centre
        tensor += part_tensor + part_mass * (r @ r * np.eye(3) - np.outer(r, r))
    principal, axes = np.diag(tensor), np.eye(3)
    if np.abs(tensor - np.diag(principal)).max() > 1e-14 * np.abs(principal).max():
        principal, axes = np.linalg.eigh(tensor)
    snapped = [tuple(la.snap(float(x)) for x in np.ravel(array)) for array in (centre, axes)]
    return Rigid(body, float(mass), snapped[0], tuple(float(x) for x in principal), snapped[1])


def _matrix(quat: tuple[float, ...]) -> np.ndarray:
    return np.array(la.quat_to_mat(quat)).reshape(3, 3)


def com_pos(m: Model, d: Data) -> None:
    """Inertias and joint motions; centres of mass.

    Reads xpos, xmat, xipos, ximat, xaxis, origin, rpos, ranchor. Writes
        moving: a `Moving` for each body with a joint, with all that is welded to it;
        inertia (nbody, 10): the same as spatial inertia about the origin (`linalg.inertia_vec` has the layout); else zero;
        motion (nv, 6): motion of the tree per unit of joint velocity, about the origin, rotation first;
    and as MuJoCo has them, when read:
        subtree_com (nbody, 3): centre of mass of each body and all its descendants, m;
        cinert (nbody, 10), cdof (nv, 6): inertia of each body, and `motion`, about subtree_com of the tree's root.
    """
    d.moving, d.inertia = [], [[0.0] * 10 for _ in range(m.nbody)]
    for r in rigid_bodies(m):
        arm = la.add(d.rpos[r.body], la.mat_vec(d.xmat[r.body], r.ipos))
        d.moving.append(_moving(r.body, r.mass, arm, r.principal, la.mat_mat(d.xmat[r.body], r.axes)))
        d.inertia[r.body] = _about_origin(d.moving[-1])
    d.motion = [[0.0] * 6 for _ in range(m.nv)]
    for j in range(m.njnt):
        _joint_motions(m, d, j)
    d.later("subtree_com", lambda: _subtree_com(m, d))
    d.later("cinert", lambda: _cinert(m, d))
    d.later("cdof", lambda: [shifted(d.motion[i], to_com(m, d, m.dof_bodyid[i])) for i in range(m.nv)])


def _subtree_com(m: Model, d: Data) -> list[list[Any]]:
    moments = [la.scale(d.xipos[b], m.body_mass[b]) for b in range(m.nbody)]
    for b in range(m.nbody - 1, 0, -1):
        moments[m.body_parentid[b]] = la.add(moments[m.body_parentid[b]], moments[b])
    masses = m.body_subtreemass
    return [
        list(d.xipos[b]) if masses[b] < la.MINVAL else la.scale(moments[b], 1.0 / masses[b]) for b in range(m.nbody)
    ]


def _cinert(m: Model, d: Data) -> list[list[Any]]:
    out: list[list[Any]] = [[0.0] * 10]
    for b in range(1, m.nbody):
        arm = la.sub(d.xipos[b], d.subtree_com[m.body_rootid[b]])
        out.append(_about_origin(_moving(b, m.body_mass[b], arm, m.body_inertia[b], d.ximat[b])))
    return out


def to_com(m: Model, d: Data, b: int) -> list[Any]:
    """From the tree's origin to its centre of mass."""
    return la.sub(d.subtree_com[m.body_rootid[b]], d.origin[b])


def shifted(motion: la.Vec, arm: la.Vec) -> list[Any]:
    """A spatial motion about the origin as one about the point at `arm` from it."""
    return [*motion[0:3], *la.add(motion[3:6], la.cross(motion[0:3], arm))]


def _moving(body: int, mass: float, arm: list[Any], principal: tuple[float, ...], axes: la.Vec) -> Moving:
    """A capsule or a cylinder has one principal moment that differs from the others, a sphere none."""
    tolerance = 1e-14 * max(principal)
    pairs = [(a, b) for a in range(3) for b in range(a) if abs(principal[a] - principal[b]) <= tolerance]
    base = principal[pairs[0][1]] if pairs else principal[2]
    spread = [(p - base, la.column(axes, k)) for k, p in enumerate(principal) if abs(p - base) > tolerance]
    tensor: list[Any] = [base, base, base, 0.0, 0.0, 0.0]
    for k, axis in spread:
        tensor = la.add(tensor, _products(axis, la.scale(axis, k)))
    return Moving(body, mass, arm, base, spread, tensor)


def _about_origin(body: Moving) -> list[Any]:
    """Spatial inertia (10,) about the point from which the body's `arm` is measured."""
    moment = la.scale(body.arm, body.mass)
    xx, yy, zz, xy, xz, yz = _products(body.arm, moment)
    steiner = [yy + zz, xx + zz, xx + yy, -xy, -xz, -yz]
    return [*la.add(body.tensor, steiner), *moment, body.mass]


def _products(a: la.Vec, b: la.Vec) -> list:
    """Entries xx, yy, zz, xy, xz, yz of the symmetric outer product a b' (b parallel to a)."""
    return [a[0] * b[0], a[1] * b[1], a[2] * b[2], a[0] * b[1], a[0] * b[2], a[1] * b[2]]


def _joint_motions(m: Model, d: Data, j: int) -> None:
    b, dof = m.jnt_bodyid[j], m.jnt_dofadr[j]
    if m.jnt_type[j] == FREE:
        for k in range(3):
            d.motion[dof + k] = [1.0 if i == 3 + k else 0.0 for i in range(6)]
        dof += 3
    if m.jnt_type[j] in (FREE, BALL):
        axes = [la.column(d.xmat[b], k) for k in range(3)]  # the body's own axes
    elif m.jnt_type[j] == HINGE:
        axes = [d.xaxis[j]]
    else:
        d.motion[dof] = [0.0, 0.0, 0.0, *d.xaxis[j]]
        return
    for k, axis in enumerate(axes):
        d.motion[dof + k] = [*axis, *la.cross(d.ranchor[j], axis)]


def crb(m: Model, d: Data) -> None:
    """Joint-space inertia matrix by the composite rigid body algorithm.

    Reads inertia, motion. Writes qM: {(i, j): scalar} for i >= j, j = i or an ancestor dof of i, armature included (kg, kg m
    or kg m^2).
    """
    composite = [list(inertia) for inertia in d.inertia]  # of each moving body with all its descendants
    for b in range(m.nbody - 1, 0, -1):
        carrier = m.body_weldid[m.body_parentid[b]]
        if carrier > 0 and m.body_weldid[b] == b:
            composite[carrier] = la.add(composite[carrier], composite[b])
    d.qM = {}
    for i in range(m.nv):
        force = la.inertia_vec(composite[m.dof_bodyid[i]], d.motion[i])
        j = i
        while j >= 0:
            d.qM[i, j] = la.dot(d.motion[j], force)
            j = m.dof_parentid[j]
        d.qM[i, i] = d.qM[i, i] + m.dof_armature[i]
