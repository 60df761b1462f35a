"""Listed contacts: for models with many possible contacts (Humanoid: 126 pairs) of which few touch at a time.

Straight-line code for every candidate would be large and mostly wasted, so here loops over tables of pairs test for
contact and append what touches to a list. The list is uniform: a slot exists if any env (lane) of the program has that
contact, and an env without it has D = 0 in the slot. Everything about a slot is in `control.Array`s; what belongs to the
slot's pair and never changes is in `control.Table`s. Contacts of equal condim and softness share one `ContactGroup`.

Layout, for slot s in range(group.count) and pair p = group.pair.load(s) (both uniform integers); dirs = group.dirs:
    group.dim                 1 (frictionless) or 3 (pyramid of four edges)
    group.dirs                directions stored: 1 (normal) if dim == 1, else 3 (normal, tangent 1, tangent 2)
    group.path_len.load(p)    number of dofs the contact moves with (without those that move both bodies alike)
    group.path_dof.load(p * group.stride + k)         k-th of these dofs, ascending
    group.jac.load((s * group.stride + k) * dirs + i) change of the velocity of geom 2 relative to geom 1 along direction i
                              with qvel of that dof
    group.aref.load(s * dirs + i)    reference acceleration along direction i: that of a pyramid edge n +- mu t is
                              aref_n +- mu aref_t
    group.D.load(s)           inverse regularisation, the same for all rows of the contact; 0 in an env without it
    group.mu(p)               sliding friction coefficient; a float if all pairs of the group share it
    group.force.store(s * dirs + i, f)    to be written by the solver: force along direction i. Of an edge pair with forces
                              f0, f1: f0 + f1 along the normal (summed over both pairs), mu (f0 - f1) along the tangent
Rows of a slot, with x_i = sum_k jac_ik qacc[dof_k] - aref_i: dim 1: x_0; dim 3: x_0 + mu x_1, x_0 - mu x_1, x_0 + mu x_2,
x_0 - mu x_2. A row pushes where it is negative: cost D/2 min(row, 0)^2, edge force -D min(row, 0).

Formulas: MuJoCo documentation, Computation chapter, "Constraint model" (contact Jacobian, pyramidal cones, impedance).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuenvs import trace as T
from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.constraint import contact_weight, inverse_regularisation, softness
from gpuenvs.mjlite.listed_collision import Placed, find, same_or_table
from gpuenvs.mjlite.model import Model
from gpuenvs.mjlite.pairs import Pair, candidate_pairs, path


@dataclass
class ContactGroup:
    """The touching contacts of one condim and softness; the layout is at the top of this file."""

    pairs: list[Pair]
    dim: int
    dirs: int
    stride: int  # longest path
    capacity: int  # most slots that can ever be used: every possible point of the group
    path_len: T.Table
    path_dof: T.Table
    path_side: T.Table | None  # +1.0 or -1.0 per entry of path_dof; None: all +1
    body1: T.Table
    body2: T.Table
    friction: float | T.Table
    count: Any  # uniform integer: slots in use
    pair: T.Array  # int [capacity]
    dist: T.Array  # [capacity], m
    position: T.Array  # [capacity * 3] contact point, m
    axes: T.Array  # [capacity * dirs * 3] unit vectors of the directions in the world
    jac: T.Array  # [capacity * stride * dirs]
    aref: T.Array  # [capacity * dirs]
    D: T.Array  # [capacity]
    force: T.Array  # [capacity * dirs], by the solver

    def mu(self, pair: Any) -> Any:
        """Sliding friction coefficient of a pair."""
        return self.friction.load(pair) if isinstance(self.friction, T.Table) else self.friction


@dataclass
class ListedContacts:
    """All groups with at least one candidate."""

    groups: list[ContactGroup]


def list_contacts(m: Model, d: Any) -> None:
    """Find the contacts and compute their rows.

    Reads geom_xpos, geom_xmat, motion, origin, qvel. Writes listed (a `ListedContacts`) and, as there are none
    of them, contact (empty).
    """
    d.contact = []
    together: dict[Any, list[Pair]] = {}
    for pair in candidate_pairs(m):
        together.setdefault((pair.dim, pair.solref, pair.solimp, pair.margin, pair.gap), []).append(pair)
    d.listed = ListedContacts([_group(m, pairs) for pairs in together.values()])
    placed = Placed(m, d, candidate_pairs(m))
    motion = _Motion(m, d)
    for group in d.listed.groups:
        group.count = find(placed, group)
        T.loop(group.count, lambda s, group=group: _rows(m, group, motion, s), [])


def _group(m: Model, pairs: list[Pair]) -> ContactGroup:
    paths = [path(m, pair.body1, pair.body2) for pair in pairs]
    stride = max(len(dofs) for dofs in paths)
    dofs, sides = np.zeros((len(pairs), stride), np.int64), np.ones((len(pairs), stride))
    for p, entries in enumerate(paths):
        dofs[p, : len(entries)] = [dof for dof, _ in entries]
        sides[p, : len(entries)] = [side for _, side in entries]
    frictions = {pair.friction for pair in pairs}
    capacity, dirs = sum(pair.points for pair in pairs), pairs[0].dim
    return ContactGroup(
        pairs=pairs, dim=pairs[0].dim, dirs=dirs, stride=stride, capacity=capacity,
        path_len=T.Table([len(dofs) for dofs in paths]), path_dof=T.Table(dofs.ravel()),
        path_side=None if (sides > 0).all() else T.Table(sides.ravel()),
        body1=T.Table([pair.body1 for pair in pairs]), body2=T.Table([pair.body2 for pair in pairs]),
        friction=frictions.pop() if len(frictions) == 1 else T.Table([pair.friction for pair in pairs]),
        count=0, pair=T.Array(capacity, "int"), dist=T.Array(capacity), position=T.Array(capacity * 3),
        axes=T.Array(capacity * dirs * 3), jac=T.Array(capacity * stride * dirs), aref=T.Array(capacity * dirs),
        D=T.Array(capacity), force=T.Array(capacity * dirs),
    )  # fmt: skip


class _Motion:
    """Motion axes and velocities of the dofs where loops can index them."""

    def __init__(self, m: Model, d: Any) -> None:
        self.axes, self.qvel = T.Array(m.nv * 6), T.Array(m.nv)
        for dof in range(m.nv):
            self.qvel.store(dof, d.qvel[dof])
            for k in range(6):
                self.axes.store(dof * 6 + k, d.motion[dof][k])
        roots = sorted({m.body_rootid[body] for body in m.dof_bodyid})
        # With several trees each dof's motion is about its own tree's origin.
        self.origin: Any = d.origin[roots[0]] if len(roots) == 1 else None
        if self.origin is None:
            self.tree = T.Table([roots.index(m.body_rootid[body]) * 3 for body in m.dof_bodyid])
            self.origins = T.Array(len(roots) * 3)
            for t, root in enumerate(roots):
                for k in range(3):
                    self.origins.store(t * 3 + k, d.origin[root][k])

    def arm(self, dof: Any, pos: Any, single: Any) -> Any:
        """From the origin of the dof's tree to `pos`."""
        if single is not None:
            return single
        start = self.tree.load(dof)
        return [pos[k] - self.origins.load(start + k) for k in range(3)]


def _rows(m: Model, group: ContactGroup, motion: _Motion, s: Any) -> list[Any]:
    """Jacobian, D and aref of a slot whose pair, dist, position and axes are known."""
    dirs, first = group.dirs, group.pairs[0]
    pair = group.pair.load(s)
    pos = [group.position.load(s * 3 + k) for k in range(3)]
    axes = [[group.axes.load(s * (dirs * 3) + i * 3 + k) for k in range(3)] for i in range(dirs)]
    single = None if motion.origin is None else la.sub(pos, motion.origin)

    def column(k: Any, *velocity: Any) -> list[Any]:
        entry = pair * group.stride + k
        dof = group.path_dof.load(entry)
        axis = [motion.axes.load(dof * 6 + i) for i in range(6)]
        moved = la.add(axis[3:], la.cross(axis[:3], motion.arm(dof, pos, single)))
        if group.path_side is not None:
            moved = la.scale(moved, group.path_side.load(entry))
        jac = [la.dot(direction, moved) for direction in axes]
        for i in range(dirs):
            group.jac.store((s * group.stride + k) * dirs + i, jac[i])
        return la.add_scaled(velocity, jac, motion.qvel.load(dof))

    velocity = T.loop(group.path_len.load(pair), column, [0.0] * dirs)
    soft = softness(m, first.solref, first.solimp)
    depth = group.dist.load(s) - first.margin
    imp = soft.impedance(depth)
    group.D.store(s, T.where(depth < 0.0, _scale(m, group, pair, imp), 0.0))
    for i in range(dirs):
        reference = -(velocity[i] * soft.b)
        group.aref.store(s * dirs + i, reference - depth * imp * soft.k if i == 0 else reference)
    return []


def _scale(m: Model, group: ContactGroup, pair: Any, imp: Any) -> Any:
    """D of an acting contact."""
    weights, factors = zip(*(contact_weight(m, p) for p in group.pairs))
    return inverse_regularisation(imp, same_or_table(weights, pair), same_or_table(factors, pair), min(weights))


def external_forces(m: Model, d: Any) -> list[list[Any]]:
    """Contact forces on the bodies, (nbody, 6): torque about the centre of mass of the body's tree (N m) and force (N).

    Reads listed (its `force`), subtree_com. MuJoCo's cfrc_ext without applied forces.
    """
    out = T.Array(m.nbody * 6)

    def clear(k: Any) -> list[Any]:
        out.store(k, 0.0)
        return []

    T.loop(m.nbody * 6, clear, [])
    coms = T.Array(m.nbody * 3)
    for body in range(m.nbody):
        for k in range(3):
            coms.store(body * 3 + k, d.subtree_com[m.body_rootid[body]][k])
    for group in d.listed.groups:
        T.loop(group.count, lambda s, group=group: _push(group, coms, out, s), [])
    return [[out.load(body * 6 + k) for k in range(6)] for body in range(m.nbody)]


def _push(group: ContactGroup, coms: T.Array, out: T.Array, s: Any) -> list[Any]:
    """Add a slot's force to its bodies (the world's is not wanted)."""
    dirs, pair = group.dirs, group.pair.load(s)
    pos = [group.position.load(s * 3 + k) for k in range(3)]
    force: list[Any] = [0.0, 0.0, 0.0]
    for i in range(dirs):
        axis = [group.axes.load(s * (dirs * 3) + i * 3 + k) for k in range(3)]
        force = la.add_scaled(force, axis, group.force.load(s * dirs + i))
    for table, bodies, sign in (
        (group.body1, [p.body1 for p in group.pairs], -1.0),
        (group.body2, [p.body2 for p in group.pairs], 1.0),
    ):
        if any(bodies):
            body = table.load(pair)
            arm = [pos[k] - coms.load(body * 3 + k) for k in range(3)]
            for k, f in enumerate(la.cross(arm, force) + force):
                out.store(body * 6 + k, out.load(body * 6 + k) + f * sign)
    return []
