"""Forward kinematics: frames of bodies, joints, geoms and sites in the world.

Rotations are kept as matrices, and a joint's constant axis is folded into them, so that a model that moves in a plane
costs only what the plane needs. Quaternions are derived where asked for (`xquat`).
"""

from __future__ import annotations

from typing import Any

from gpuenvs import trace as T
from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.model import BALL, FREE, SLIDE, Model


class Data:
    """State and everything computed from it, under MuJoCo's names (mjData): nested lists of scalars.

    A stage reads and fills fields; which, its docstring says. A scalar is a traced value, a float or a numpy array with
    one entry per env.
    """

    def __init__(self, qpos: Any, qvel: Any, ctrl: Any) -> None:
        self.qpos: list[Any] = list(qpos)  # (nq,)
        self.qvel: list[Any] = list(qvel)  # (nv,)
        self.ctrl: list[Any] = list(ctrl)  # (nu,)

    def __setattr__(self, name: str, value: Any) -> None:  # any stage may add its fields
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"mjlite Data has no '{name}' yet: the stage that fills it has not run")


def kinematics(m: Model, d: Data) -> None:
    """Frames in the world (MuJoCo documentation, Computation, Forward kinematics).

    Reads qpos. Writes xpos (nbody, 3), xmat (nbody, 9), xipos, ximat (of the inertial frames), xanchor, xaxis (njnt, 3),
    geom_xpos, geom_xmat (ngeom), site_xpos, site_xmat (nsite). Lengths in m, matrices row-major, local to world.
    """
    d.xpos, d.xmat = [[0.0] * 3], [list(la.IDENTITY)]
    d.xanchor, d.xaxis = [[0.0] * 3] * m.njnt, [[0.0] * 3] * m.njnt
    for b in range(1, m.nbody):
        pos, mat = _body_frame(m, d, b)
        d.xpos.append(pos)
        d.xmat.append(mat)
    d.xipos, d.ximat = _attached(d, range(m.nbody), m.body_ipos, m.body_iquat)
    d.geom_xpos, d.geom_xmat = _attached(d, m.geom_bodyid, m.geom_pos, m.geom_quat)
    d.site_xpos, d.site_xmat = _attached(d, m.site_bodyid, m.site_pos, m.site_quat)


def _body_frame(m: Model, d: Data, b: int) -> tuple[list[Any], list[Any]]:
    """Position and matrix of a body: its parent's, the constant offset, then its joints one after the other."""
    joints = range(m.body_jntadr[b], m.body_jntadr[b] + m.body_jntnum[b])
    if m.body_jntnum[b] == 1 and m.jnt_type[joints[0]] == FREE:
        j, q = joints[0], m.jnt_qposadr[joints[0]]
        pos = d.qpos[q : q + 3]
        d.xanchor[j], d.xaxis[j] = list(pos), list(m.jnt_axis[j])
        return list(pos), la.quat_to_mat(la.quat_normalize(d.qpos[q + 3 : q + 7]))

    parent = m.body_parentid[b]
    pos = la.add(d.xpos[parent], la.mat_vec(d.xmat[parent], m.body_pos[b]))
    mat = la.mat_mat(d.xmat[parent], la.quat_to_mat(m.body_quat[b]))
    for j in joints:
        q, arm = m.jnt_qposadr[j], m.jnt_pos[j]
        d.xaxis[j] = la.mat_vec(mat, m.jnt_axis[j])
        d.xanchor[j] = la.add(pos, la.mat_vec(mat, arm))
        if m.jnt_type[j] == SLIDE:
            pos = la.add_scaled(pos, d.xaxis[j], d.qpos[q] - m.qpos0[q])
            continue
        if m.jnt_type[j] == BALL:
            mat = la.mat_mat(mat, la.quat_to_mat(la.quat_normalize(d.qpos[q : q + 4])))
        else:
            sine, cosine = T.sincos(d.qpos[q] - m.qpos0[q])
            mat = la.rotate_about(mat, m.jnt_axis[j], sine, cosine)
        if any(arm):  # the anchor is the point that stays
            pos = la.sub(d.xanchor[j], la.mat_vec(mat, arm))
    return pos, mat


def _attached(d: Data, bodies: Any, positions: Any, quats: Any) -> tuple[list[Any], list[Any]]:
    """World frames of things that are fixed to bodies."""
    out_pos, out_mat = [], []
    for b, pos, quat in zip(bodies, positions, quats):
        out_pos.append(la.add(d.xpos[b], la.mat_vec(d.xmat[b], pos)))
        out_mat.append(la.mat_mat(d.xmat[b], la.quat_to_mat(quat)))
    return out_pos, out_mat


def xquat(m: Model, d: Data) -> list[list[Any]]:
    """Orientation quaternions (w, x, y, z) of all bodies, (nbody, 4): a by-product that only observations need."""
    out: list[list[Any]] = [[1.0, 0.0, 0.0, 0.0]]
    for b in range(1, m.nbody):
        quat = la.quat_mul(out[m.body_parentid[b]], m.body_quat[b])
        for j in range(m.body_jntadr[b], m.body_jntadr[b] + m.body_jntnum[b]):
            q = m.jnt_qposadr[j]
            if m.jnt_type[j] == FREE:
                quat = la.quat_normalize(d.qpos[q + 3 : q + 7])
            elif m.jnt_type[j] == BALL:
                quat = la.quat_mul(quat, la.quat_normalize(d.qpos[q : q + 4]))
            elif m.jnt_type[j] != SLIDE:
                sine, cosine = T.sincos((d.qpos[q] - m.qpos0[q]) * 0.5)
                quat = la.quat_mul(quat, [cosine, *la.scale(m.jnt_axis[j], sine)])
        out.append(quat)
    return out
