"""Constraint solver for models with many possible contacts: loops over the list of those that occur (see `listed`).

The method and the joint rows are those of `solver`. A contact enters by its Jacobian over its path of dofs; residuals,
Hessian and right-hand side are in arrays that the loops index. The Hessian is factored as straight-line code: over the
kinematic tree if no listed contact couples two branches, else as a full matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuenvs import trace as T
from gpuenvs.mjlite import factor, newton
from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.constraint import make_constraint
from gpuenvs.mjlite.listed import ContactGroup, list_contacts
from gpuenvs.mjlite.solver import JointRows, Slope


def contacts(m: Any, d: Any) -> None:
    """Lists the contacts and makes the rows of the joints."""
    list_contacts(m, d)
    make_constraint(m, d)


class Slots:
    """The listed contacts of one group: residuals now and before, and what a slot adds to the linear system.

    x of a slot: (normal, mu tangent 1, mu tangent 2), or the normal alone. `here` is x at the latest point, `before` at the
    one it was reached from.
    """

    def __init__(self, m: Any, group: ContactGroup) -> None:
        self.nv, self.group, self.dirs = m.nv, group, group.dirs
        self.here, self.before = T.Array(group.capacity * self.dirs), T.Array(group.capacity * self.dirs)

    def each(self, body: Callable[..., list[Any]], *init: Any) -> list[Any]:
        """`values = body(slot, pair, *values)` over the slots."""
        return T.loop(self.group.count, lambda s, *v: body(s, self.group.pair.load(s), *v), list(init))

    def entries(self, s: Any, pair: Any, body: Callable[..., list[Any]], *init: Any) -> list[Any]:
        """`values = body(k, dof, jacobian column, *values)` over the path of a slot."""
        stride = self.group.stride

        def entry(k: Any, *values: Any) -> list[Any]:
            dof = self.group.path_dof.load(pair * stride + k)
            start = (s * stride + k) * self.dirs
            return body(k, dof, [self.group.jac.load(start + i) for i in range(self.dirs)], *values)

        return T.loop(self.group.path_len.load(pair), entry, list(init))

    def scales(self, pair: Any) -> list[Any]:
        mu = self.group.mu(pair)
        return [1.0, mu, mu][: self.dirs]

    def load(self, array: T.Array, s: Any) -> list[Any]:
        return [array.load(s * self.dirs + i) for i in range(self.dirs)]

    def store(self, array: T.Array, s: Any, x: list[Any]) -> None:
        for i, value in enumerate(x):
            array.store(s * self.dirs + i, value)

    def residual(self, s: Any, pair: Any, a: T.Array) -> list[Any]:
        aref = self.load(self.group.aref, s)
        x = self.entries(s, pair, lambda k, dof, jac, *x: la.add_scaled(x, jac, a.load(dof)), *la.neg(aref))
        return [scale * value for scale, value in zip(self.scales(pair), x)]

    def edges(self, s: Any, x: list[Any]) -> list[Any]:
        """D of the active edges, 0 of the others."""
        weight = self.group.D.load(s)
        return [T.where(row < 0.0, weight, 0.0) for row in rows_of(x)]

    def stiffness(self, s: Any, x: list[Any]) -> list[tuple[Any, Any]]:
        """A by rows, as `contact_blocks.Block.stiffness`."""
        edges = self.edges(s, x)
        if self.dirs == 1:
            return [(edges[0], 0.0)]
        first, second = edges[0] + edges[1], edges[2] + edges[3]
        return [(first + second, 0.0), (edges[0] - edges[1], first), (edges[2] - edges[3], second)]

    def add(self, s: Any, pair: Any, matrix: T.Array, right: T.Array, rest: bool) -> None:
        """Adds J'A J to `matrix` and the contact forces (at x, or `contact_blocks.Block.pull` at rest) to `right`."""
        x, scales = self.load(self.here, s), self.scales(pair)
        stiffness = self.stiffness(s, x)
        pull = [scale * r for scale, r in zip(scales, self.load(self.group.aref, s))] if rest else la.neg(x)
        push = [scale * f for scale, f in zip(scales, times(stiffness, pull))]
        stiffness = scaled(stiffness, scales)

        def terms() -> list[Any]:
            def column(k: Any, dof: Any, jac: list[Any]) -> list[Any]:
                right.store(dof, right.load(dof) + la.dot(jac, push))
                across = times(stiffness, jac)

                def entry(j: Any) -> list[Any]:
                    place = dof * self.nv + self.group.path_dof.load(pair * self.group.stride + j)
                    start = (s * self.group.stride + j) * self.dirs
                    other = [self.group.jac.load(start + i) for i in range(self.dirs)]
                    matrix.store(place, matrix.load(place) + la.dot(other, across))
                    return []

                return T.loop(k + 1, entry, [])

            return self.entries(s, pair, column)

        T.if_(T.any_lane(stiffness[0][0] > 0.0), terms, [])


class Rows(JointRows):
    """`newton.Rows` over the listed contacts.

    Reads qM, qfrc_smooth, limits, friction, listed.
    """

    def __init__(self, m: Any, d: Any) -> None:
        super().__init__(m, d)
        self.slots = [Slots(m, group) for group in d.listed.groups]
        self.matrix, self.right, self.acceleration = T.Array(m.nv * m.nv), T.Array(m.nv), T.Array(m.nv)
        self.tree = [(i, j) for i in range(m.nv) for j in _ancestors(m, i)]

    def solve(self, start: list[Any], again: Any = 0.0, **options: Any) -> list[Any]:
        """The accelerations, (nv,); arguments as `newton.minimise` has them."""
        self.coupled = self._coupled()
        return newton.minimise(self, start, again, **options)

    def _coupled(self) -> Any:
        """Uniform condition: a listed contact couples dofs of which neither is above the other."""
        total: Any = 0.0
        tree = set(self.tree)
        for slots in self.slots:
            group = slots.group
            couples = []
            for p in range(len(group.pairs)):
                start = p * group.stride
                dofs = [int(x) for x in group.path_dof.values[start : start + int(group.path_len.values[p])]]
                couples.append(float(any((i, j) not in tree for i in dofs for j in dofs if j <= i)))
            table = T.Table(couples)
            (total,) = slots.each(lambda s, pair, total, table=table: [total + table.load(pair)], total)
        return T.any_lane(total > 0.0)

    def residual(self, a: list[Any]) -> list[Any]:
        self._store(a)
        for slots in self.slots:
            slots.each(lambda s, pair, slots=slots: self._first(slots, s, pair))
        return self.single_residuals(a)

    def _store(self, a: list[Any]) -> None:
        for i, value in enumerate(a):
            self.acceleration.store(i, value)

    def _first(self, slots: Slots, s: Any, pair: Any) -> list[Any]:
        slots.store(slots.here, s, slots.residual(s, pair, self.acceleration))
        return []

    def follow(self, x: list[Any], b: list[Any]) -> tuple[list[Any], Any]:
        self._store(b)
        y = self.single_residuals(b)
        changes: Any = 0.0
        for slots in self.slots:

            def look(s: Any, pair: Any, changes: Any, slots: Slots = slots) -> list[Any]:
                old, new = slots.load(slots.here, s), slots.residual(s, pair, self.acceleration)
                slots.store(slots.before, s, old)
                slots.store(slots.here, s, new)
                different = T.any_of(*(u != v for u, v in zip(slots.edges(s, old), slots.edges(s, new))))
                return [T.where(different, 1.0, changes)]

            (changes,) = slots.each(look, changes)
        return y, T.any_of(*self.single_changes(x, y), changes > 0.0)

    def retreat(self, searching: Any, t: Any) -> None:
        for slots in self.slots:

            def back(s: Any, pair: Any, slots: Slots = slots) -> list[Any]:
                old, new = slots.load(slots.before, s), slots.load(slots.here, s)
                slots.store(slots.here, s, [T.where(searching, u + t * (v - u), v) for u, v in zip(old, new)])
                return []

            slots.each(back)

    def minimum(self, x: list[Any], c: list[Any] | None) -> list[Any]:
        matrix, right = self.system(x, c)
        nv = self.m.nv
        for i in range(nv):
            self.right.store(i, right[i])
            for j in range(i + 1):
                self.matrix.store(i * nv + j, matrix.get((i, j), 0.0))
        for slots in self.slots:
            slots.each(lambda s, pair, slots=slots: slots.add(s, pair, self.matrix, self.right, c is None) or [])
        right = [self.right.load(i) for i in range(nv)]

        def over(entries: list[tuple[int, int]]) -> list[Any]:
            loaded = {(i, j): self.matrix.load(i * nv + j) for i, j in entries}
            return factor.solve(factor.factorize(loaded, nv), right)

        full = T.if_(self.coupled, lambda: over([(i, j) for i in range(nv) for j in range(i + 1)]), [0.0] * nv)
        step = T.if_(flag_not(self.coupled), lambda: over(self.tree), full)
        return step if c is None else la.add(c, step)

    def slope(self, a: list[Any], b: list[Any], x: list[Any], y: list[Any]) -> Slope:
        joints = self.joint_slope(a, b, x, y)

        def at(t: Any) -> tuple[Any, Any]:
            total = joints(t)
            for slots in self.slots:

                def edge(s: Any, pair: Any, d1: Any, d2: Any, slots: Slots = slots) -> list[Any]:
                    old, new = slots.load(slots.before, s), slots.load(slots.here, s)
                    weight = slots.group.D.load(s)
                    for value, change in zip(rows_of(old), rows_of(la.sub(new, old))):
                        here = value + t * change
                        weighted = T.where(here < 0.0, weight * change, 0.0)
                        d1, d2 = d1 + weighted * here, d2 + weighted * change
                    return [d1, d2]

                total = slots.each(edge, *total)
            return total[0], total[1]

        return at

    def forces(self, a: list[Any]) -> None:
        """Forces at the solution. Writes qfrc_constraint (nv,) and the groups' `force`."""
        self._store(a)
        for i, force in enumerate(self.joint_forces(a)):
            self.right.store(i, force)
        for slots in self.slots:

            def push(s: Any, pair: Any, slots: Slots = slots) -> list[Any]:
                x = slots.residual(s, pair, self.acceleration)
                scales = slots.scales(pair)
                force = [-(scale * f) for scale, f in zip(scales, times(slots.stiffness(s, x), x))]
                slots.store(slots.group.force, s, force)

                def spread(k: Any, dof: Any, jac: list[Any]) -> list[Any]:
                    self.right.store(dof, self.right.load(dof) + la.dot(jac, force))
                    return []

                return slots.entries(s, pair, spread)

            slots.each(push)
        self.d.qfrc_constraint = [self.right.load(i) for i in range(self.m.nv)]


rows = Rows


def rows_of(x: list[Any]) -> list[Any]:
    """The edges' rows of a slot."""
    return [x[0]] if len(x) == 1 else [x[0] + x[1], x[0] - x[1], x[0] + x[2], x[0] - x[2]]


def scaled(stiffness: list[tuple[Any, Any]], scales: list[Any]) -> list[tuple[Any, Any]]:
    """A over unit directions instead of scaled ones."""
    return [stiffness[0], *((cross * s, own * (s * s)) for (cross, own), s in zip(stiffness[1:], scales[1:]))]


def times(stiffness: list[tuple[Any, Any]], v: list[Any]) -> list[Any]:
    """A v for a vector over the directions."""
    out = [stiffness[0][0] * v[0]]
    for (cross, own), t in zip(stiffness[1:], v[1:]):
        out[0] = out[0] + cross * t
        out.append(cross * v[0] + own * t)
    return out


def flag_not(flag: Any) -> Any:
    """`not` of a uniform condition."""
    return not flag if isinstance(flag, bool) else ~flag


def _ancestors(m: Any, dof: int) -> list[int]:
    out = []
    while dof >= 0:
        out.append(dof)
        dof = m.dof_parentid[dof]
    return out
