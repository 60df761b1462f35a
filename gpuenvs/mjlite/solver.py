"""Constraint solver for models with few possible contacts: straight-line code over all of them.

Of a contact the iteration needs its direction rows (normal, and tangents times the friction coefficient), from which the
pyramid's edges are normal +- tangent (MuJoCo documentation, Computation chapter, "Friction cones"). With D common to the
edges, the active ones add a symmetric "stiffness" A over these directions to the Hessian:

    A_nn = D (number of active edges), A_nt = D (active(n + t) - active(n - t)), A_tt = D (active(n + t) + active(n - t)).

A contact with something that does not move never needs its Jacobian: A becomes a 6 x 6 stiffness of the body about the
origin of spatial vectors, is summed towards the root like composite inertia, and stays within the sparsity of M.
A contact between two moving bodies has an explicit row over the dofs that move one body but not the other.

In models that move in a plane everything across it is the number 0 and folds away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuenvs import trace as T
from gpuenvs.mjlite import factor, newton
from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.contact_blocks import Block, BodyContacts, Contacts, PairContacts, across
from gpuenvs.mjlite.model import RK4
from gpuenvs.mjlite.single_rows import FrictionRow, LimitRow

Slope = Callable[[Any], tuple[Any, Any]]


class JointRows:
    """The part of `newton.Rows` that all models share: the smooth cost, joint limits and friction loss.

    Reads qM, qfrc_smooth, limits, friction.
    """

    def __init__(self, m: Any, d: Any) -> None:
        self.m, self.d = m, d
        self.decides_alone: bool = m.integrator != RK4
        self.singles = [LimitRow(row) for row in d.limits] + [FrictionRow(row) for row in d.friction]

    def single_residuals(self, a: list[Any]) -> list[Any]:
        return [row.residual(a) for row in self.singles]

    def system(self, x: list[Any], c: list[Any] | None) -> tuple[dict[tuple[int, int], Any], list[Any]]:
        """The linear system of all but the contacts for the step from c: matrix and right-hand side."""
        matrix, right = dict(self.d.qM), list(self.d.qfrc_smooth)
        if c is not None:
            right = la.sub(right, factor.product(self.d.qM, c))
        for row, y in zip(self.singles, x):
            pushes, weights = row.terms(y, c is None)
            for k, i in enumerate(row.dofs):
                right[i] = right[i] + pushes[k]
                for j, weight in zip(row.dofs[: k + 1], weights[k]):
                    matrix[i, j] = matrix[i, j] + weight
        return matrix, right

    def single_changes(self, x: list[Any], y: list[Any]) -> list[Any]:
        return [row.changed(u, v) for row, u, v in zip(self.singles, x, y)]

    def joint_slope(self, a: list[Any], b: list[Any], x: list[Any], y: list[Any]) -> Slope:
        """`newton.Rows.slope` without contacts."""
        step = la.sub(b, a)
        momentum = factor.product(self.d.qM, step)
        second = la.dot(step, momentum)
        first = la.dot(a, momentum) - la.dot(self.d.qfrc_smooth, step)
        rows = [(row, u, v - u) for row, u, v in zip(self.singles, x, y)]

        def at(t: Any) -> tuple[Any, Any]:
            d1, d2 = first + t * second, second
            for row, u, v in rows:
                here = u + t * v
                d1 = d1 - v * row.force(here)
                d2 = d2 + v * (row.stiffness(here) * v)
            return d1, d2

        return at

    def joint_forces(self, a: list[Any]) -> list[Any]:
        """Forces of limits and friction loss, (nv,)."""
        total: list[Any] = [0.0] * len(a)
        for row, y in zip(self.singles, self.single_residuals(a)):
            force = row.force(y)
            for i, jac in zip(row.dofs, row.jac):
                total[i] = total[i] + jac * force
        return total


class TreeRows(JointRows):
    """`newton.Rows` of limits, friction loss and contacts over the kinematic tree.

    Reads qM, qfrc_smooth, motion, origin, contact, limits, friction.
    """

    def __init__(self, m: Any, d: Any) -> None:
        super().__init__(m, d)
        groups: dict[int, Contacts] = {}
        for contact in d.contact:
            key = id(contact.pair)
            if key not in groups:
                still = 0 in (contact.pair.moving1, contact.pair.moving2)
                groups[key] = BodyContacts(m, d, contact.pair) if still else PairContacts(m, d, contact.pair)
            groups[key].add(contact)
        self.on_body = [g for g in groups.values() if isinstance(g, BodyContacts)]
        self.between = [g for g in groups.values() if isinstance(g, PairContacts)]
        self.blocks: list[Block] = [b for group in (*self.on_body, *self.between) for b in group.blocks]
        self.loaded = self._loaded_bodies()

    def solve(self, start: list[Any], again: Any = 0.0, **options: Any) -> list[Any]:
        """The accelerations, (nv,); arguments as `newton.minimise` has them."""
        if not self.blocks and not self.singles:
            return self.minimum([], None)
        return newton.minimise(self, start, again, **options)

    def forces(self, a: list[Any]) -> None:
        """Forces at the solution. Writes qfrc_constraint (nv,) and each contact's `along`: its force along `axes`, (dim,)."""
        _, parts = self._split(self.residual(a))
        total = self.joint_forces(a)
        self._add_contacts(parts, None, total, False)
        for block, y in zip(self.blocks, parts):
            block.contact.along = block.frame_force(y)
        self.d.qfrc_constraint = total

    def _loaded_bodies(self) -> list[int]:
        """Bodies that carry a contact or have one below them, parents before children."""
        found = set()
        for group in self.on_body:
            b = group.body
            while b and b not in found:
                found.add(b)
                b = self.m.body_parentid[b]
        return sorted(found)

    def residual(self, a: list[Any]) -> list[Any]:
        out = self.single_residuals(a)
        for group, motion in self._motions(a):
            out += group.residual(motion)
        return out

    def follow(self, x: list[Any], b: list[Any]) -> tuple[list[Any], Any]:
        single, parts = self._split(x)
        y = self.single_residuals(b)
        changed = self.single_changes(single, y)
        at = 0
        for group, motion in self._motions(b):
            after, different = group.follow(parts[at : at + len(group.blocks)], motion)
            y += after
            changed.append(different)
            at += len(group.blocks)
        return y, T.any_of(*changed)

    def _motions(self, a: list[Any]) -> list[tuple[Contacts, list[Any]]]:
        """Each group of contacts with the accelerations it needs."""
        twist = self._twists(a)
        return [*((group, twist[group.body]) for group in self.on_body), *((group, a) for group in self.between)]

    def _twists(self, a: list[Any]) -> dict[int, list[Any]]:
        """J a of the loaded bodies: rotational and linear acceleration at the origin of spatial vectors, (6,)."""
        twist: dict[int, list[Any]] = {0: [0.0] * 6}
        for b in self.loaded:
            v = twist[self.m.body_parentid[b]]
            for i in _dofs(self.m, b):
                v = [x + c * a[i] for x, c in zip(v, self.d.motion[i])]
            twist[b] = v
        return twist

    def _split(self, x: list[Any]) -> tuple[list[Any], list[list[Any]]]:
        """Residuals of single rows, and of each block."""
        at, parts = len(self.singles), []
        for block in self.blocks:
            parts.append(x[at : at + block.size])
            at += block.size
        return x[: len(self.singles)], parts

    def minimum(self, x: list[Any], c: list[Any] | None) -> list[Any]:
        single, parts = self._split(x)
        matrix, right = self.system(single, c)
        self._add_contacts(parts, matrix, right, c is None)
        step = factor.solve(factor.factorize(matrix, len(right)), right)
        return step if c is None else la.add(c, step)

    def _add_contacts(
        self, parts: list[list[Any]], matrix: dict[tuple[int, int], Any] | None, right: list[Any], rest: bool
    ) -> None:
        """Adds the contact forces (at x, or `Block.pull` at rest) to `right` and J'A J to `matrix`, if there is one."""
        at = 0
        stiffness: dict[int, list[Any]] = {b: [0.0] * 21 for b in self.loaded}
        wrench: dict[int, list[Any]] = {b: [0.0] * 6 for b in self.loaded}
        for group in self.on_body:
            more = group.load(parts[at : at + len(group.blocks)], matrix is not None, rest)
            b = group.body
            stiffness[b], wrench[b] = la.add(stiffness[b], more[0]), la.add(wrench[b], more[1])
            at += len(group.blocks)
        for b in reversed(self.loaded):
            for i in _dofs(self.m, b):
                right[i] = right[i] + la.dot(self.d.motion[i], wrench[b])
                if matrix is not None:
                    column = across(stiffness[b], self.d.motion[i])
                    for j in _ancestors(self.m, i):
                        matrix[i, j] = matrix.get((i, j), 0.0) + la.dot(self.d.motion[j], column)
            parent = self.m.body_parentid[b]
            if parent in stiffness:
                wrench[parent] = la.add(wrench[parent], wrench[b])
                stiffness[parent] = la.add(stiffness[parent], stiffness[b])
        for group in self.between:
            group.add_terms(parts[at : at + len(group.blocks)], matrix, right, rest)
            at += len(group.blocks)

    def retreat(self, searching: Any, t: Any) -> None:
        """Nothing is kept here."""

    def slope(self, a: list[Any], b: list[Any], x: list[Any], y: list[Any]) -> Slope:
        (single, parts), (single_y, parts_y) = self._split(x), self._split(y)
        joints = self.joint_slope(a, b, single, single_y)
        edges = [
            (value, change, change * weight)
            for block, u, v in zip(self.blocks, parts, parts_y)
            for (value, weight), (change, _) in zip(block.edges(u), block.edges(la.sub(v, u)))
        ]

        def at(t: Any) -> tuple[Any, Any]:
            d1, d2 = joints(t)
            for value, change, weighted in edges:
                here = value + t * change
                weighted = T.where(here < 0.0, weighted, 0.0)
                d1, d2 = d1 + weighted * here, d2 + weighted * change
            return d1, d2

        return at


def _dofs(m: Any, body: int) -> range:
    return range(m.body_dofadr[body], m.body_dofadr[body] + m.body_dofnum[body])


def _ancestors(m: Any, dof: int) -> list[int]:
    """The dof itself and those above it."""
    out = []
    while dof >= 0:
        out.append(dof)
        dof = m.dof_parentid[dof]
    return out
