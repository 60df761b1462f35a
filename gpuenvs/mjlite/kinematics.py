"""Forward kinematics: frames of bodies, joints, geoms and sites in the world.

Rotations are kept as matrices, and a joint's constant axis is folded into them, so that a model that moves in a plane
costs only what the plane needs. Quaternions are derived where asked for (`xquat`).

Each kinematic tree has an `origin` that moves with it: spatial vectors are about it, and positions within the tree are
computed relative to it, so that they stay precise in float32 however far the tree has gone. MuJoCo's choice is the tree's
centre of mass; the anchor of the root's joint gives the same motion for less, as that joint's own axes pass through it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuenvs import trace as T
from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.model import BALL, FREE, SLIDE, Model
from gpuenvs.trace import graph


class Data:
    """State and everything computed from it, under MuJoCo's names (mjData): nested lists of scalars.

    A stage reads and fills fields; which, its docstring says. A scalar is a traced value, a float or a numpy array with
    one entry per env. What only observations read is computed when it is first read (`later`).
    """

    def __init__(self, qpos: Any, qvel: Any, ctrl: Any) -> None:
        self._later: dict[str, Callable[[], Any]] = {}
        self._found: dict[Any, Any] = {}
        self.qpos: list[Any] = list(qpos)  # (nq,)
        self.qvel: list[Any] = list(qvel)  # (nv,)
        self.ctrl: list[Any] = list(ctrl)  # (nu,)

    def later(self, name: str, compute: Callable[[], Any]) -> None:
        """Field `name` is `compute()`, run where it is read: inside a traced branch it costs nothing outside of it."""
        self._later[name] = compute

    def __setattr__(self, name: str, value: Any) -> None:  # any stage may add its fields
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("_later", ()):
            raise AttributeError(f"mjlite Data has no '{name}' yet: the stage that fills it has not run")
        place = (name, graph.program().region if graph.recording() else None)
        if place not in self._found:
            self._found[place] = self._later[name]()
        return self._found[place]


def kinematics(m: Model, d: Data) -> None:
    """Frames in the world (MuJoCo documentation, Computation, Forward kinematics).

    Reads qpos. Writes xpos (nbody, 3), xmat (nbody, 9), xipos, ximat (of the inertial frames), xanchor, xaxis (njnt, 3),
    geom_xpos, geom_xmat (ngeom), site_xpos, site_xmat (nsite), xquat (nbody, 4). Lengths in m, matrices row-major, local
    to world. Also origin (nbody, 3), the point of each body's tree that spatial vectors are about, and relative to it
    rpos (nbody, 3) of the bodies and ranchor (njnt, 3) of the joints.
    """
    zero = [0.0] * 3
    d.origin, d.rpos, d.xmat = [zero], [zero], [list(la.IDENTITY)]
    d.ranchor, d.xaxis, d.xanchor = ([zero] * m.njnt for _ in range(3))
    for b in range(1, m.nbody):
        origin, pos, mat = _free_body(m, d, b) if _is_free(m, b) else _jointed_body(m, d, b)
        d.origin.append(origin)
        d.rpos.append(pos)
        d.xmat.append(mat)
    d.xpos = [la.add(origin, pos) for origin, pos in zip(d.origin, d.rpos)]
    d.xipos, d.ximat = _attached(d, range(m.nbody), m.body_ipos, m.body_iquat)
    d.geom_xpos, d.geom_xmat = _attached(d, m.geom_bodyid, m.geom_pos, m.geom_quat)
    d.site_xpos, d.site_xmat = _attached(d, m.site_bodyid, m.site_pos, m.site_quat)
    d.later("xquat", lambda: _xquat(m, d))


def _is_free(m: Model, b: int) -> bool:
    return m.body_jntnum[b] == 1 and m.jnt_type[m.body_jntadr[b]] == FREE


def _free_body(m: Model, d: Data, b: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Origin, position relative to it and matrix of a body with a free joint."""
    j = m.body_jntadr[b]
    q = m.jnt_qposadr[j]
    d.xanchor[j], d.xaxis[j] = d.qpos[q : q + 3], list(m.jnt_axis[j])
    return d.qpos[q : q + 3], [0.0] * 3, la.quat_to_mat(la.quat_normalize(d.qpos[q + 3 : q + 7]))


def _jointed_body(m: Model, d: Data, b: int) -> tuple[list[Any], list[Any], list[Any]]:
    """The same of another body: its parent's frame, the constant offset, then its joints one after the other.

    The origin of a tree is the anchor of the first joint of its root that turns, or the root's frame if none does. Until
    it is known, positions are those in the world.
    """
    parent = m.body_parentid[b]
    origin = None if b == m.body_rootid[b] else d.origin[parent]
    pos = la.add(d.rpos[parent], la.mat_vec(d.xmat[parent], m.body_pos[b]))
    mat = la.mat_mat(d.xmat[parent], la.quat_to_mat(m.body_quat[b]))
    for j in range(m.body_jntadr[b], m.body_jntadr[b] + m.body_jntnum[b]):
        q, arm = m.jnt_qposadr[j], la.mat_vec(mat, m.jnt_pos[j])
        anchor = la.add(pos, arm)
        if origin is None and m.jnt_type[j] != SLIDE:
            origin, anchor, pos = anchor, [0.0] * 3, la.neg(arm)
        d.xaxis[j] = la.mat_vec(mat, m.jnt_axis[j])
        d.ranchor[j], d.xanchor[j] = anchor, anchor if origin is None else la.add(origin, anchor)
        if m.jnt_type[j] == SLIDE:
            pos = la.add_scaled(pos, d.xaxis[j], d.qpos[q] - m.qpos0[q])
            continue
        if m.jnt_type[j] == BALL:
            mat = la.mat_mat(mat, la.quat_to_mat(la.quat_normalize(d.qpos[q : q + 4])))
        else:
            sine, cosine = T.sincos(d.qpos[q] - m.qpos0[q])
            mat = la.rotate_about(mat, m.jnt_axis[j], sine, cosine)
        if any(m.jnt_pos[j]):  # the anchor is the point that stays
            pos = la.sub(anchor, la.mat_vec(mat, m.jnt_pos[j]))
    return (pos, [0.0] * 3, mat) if origin is None else (origin, pos, mat)


def _attached(d: Data, bodies: Any, positions: Any, quats: Any) -> tuple[list[Any], list[Any]]:
    """World frames of things that are fixed to bodies."""
    out_pos, out_mat = [], []
    for b, pos, quat in zip(bodies, positions, quats):
        out_pos.append(la.add(d.origin[b], la.add(d.rpos[b], la.mat_vec(d.xmat[b], pos))))
        out_mat.append(la.mat_mat(d.xmat[b], la.quat_to_mat(quat)))
    return out_pos, out_mat


def _xquat(m: Model, d: Data) -> list[list[Any]]:
    """Orientation quaternions (w, x, y, z) of all bodies, (nbody, 4)."""
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
