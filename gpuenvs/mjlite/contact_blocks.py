"""Contacts as the unrolled solver sees them: their directions, active edges, and what these add to the linear system."""

from __future__ import annotations

from typing import Any

from gpuenvs import trace as T
from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.pairs import path


def index(i: int, j: int) -> int:
    """Place of entry (i, j) of a symmetric 6 x 6 matrix in its list of 21."""
    i, j = max(i, j), min(i, j)
    return i * (i + 1) // 2 + j


def across(matrix: list[Any], v: Any) -> list[Any]:
    """Symmetric 6 x 6 matrix times vector."""
    return [la.dot([matrix[index(i, j)] for j in range(6)], v) for i in range(6)]


class Block:
    """One contact's rows: x = (normal, mu tangent 1, mu tangent 2), or the normal alone if it has no friction.

    Args:
        contact: with dim, frame, mu, D and aref (dim,) along the frame.
        sign: -1 if the moving body is the first one, whose motion counts backwards.
    """

    def __init__(self, contact: Any, sign: float = 1.0) -> None:
        self.contact, self.D = contact, contact.D
        self.size = 1 if contact.dim == 1 else 3
        scales = [1.0, contact.mu, contact.mu][: self.size]
        self.scales = scales
        self.axes = [[sign * s * x for x in axis] for s, axis in zip(scales, contact.frame)]
        self.aref = [s * x for s, x in zip(scales, contact.aref)]
        self.double = self.D + self.D

    def edges(self, x: list[Any]) -> list[tuple[Any, Any]]:
        """(row, D) of each edge. A tangent along which nothing can move gives two edges equal to the normal: one of 2 D."""
        if self.size == 1:
            return [(x[0], self.D)]
        out = []
        for t in x[1:]:
            out += [(x[0], self.double)] if T.is_zero(t) else [(x[0] + t, self.D), (x[0] - t, self.D)]
        return out

    def edge_weights(self, x: list[Any]) -> list[Any]:
        """D of the active edges, 0 of the others."""
        return [T.where(row < 0.0, weight, 0.0) for row, weight in self.edges(x)]

    def stiffness(self, x: list[Any]) -> list[tuple[Any, Any]]:
        """A by rows: [(A_nn, 0)], then (A_nt, A_tt) of each tangent t."""
        weights = self.edge_weights(x)
        if self.size == 1:
            return [(weights[0], 0.0)]
        normal: Any = 0.0
        rows: list[tuple[Any, Any]] = []
        for t in x[1:]:
            if T.is_zero(t):
                normal = normal + weights.pop(0)
                rows.append((0.0, 0.0))
                continue
            plus, minus = weights.pop(0), weights.pop(0)
            both = plus + minus
            normal = normal + both
            rows.append((plus - minus, both))
        return [(normal, 0.0), *rows]

    @staticmethod
    def times(stiffness: list[tuple[Any, Any]], v: list[Any]) -> list[Any]:
        """A v for a vector over the directions."""
        out = [stiffness[0][0] * v[0]]
        for (cross, own), t in zip(stiffness[1:], v[1:]):
            out[0] = out[0] + cross * t
            out.append(cross * v[0] + own * t)
        return out

    def pull(self, x: list[Any], rest: bool) -> list[Any]:
        """What A is multiplied with to give the force along the directions at x, or what it would be at rest."""
        return self.aref if rest else la.neg(x)

    def frame_force(self, x: list[Any]) -> list[Any]:
        """Force on the second body along the contact frame, newton."""
        return [-(s * f) for s, f in zip(self.scales, self.times(self.stiffness(x), x))]


class Contacts:
    """The contact points of one pair of geoms: nothing is computed for them unless some env of the vector has one.

    Attributes:
        blocks: the contacts.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def add(self, contact: Any) -> None:
        """One more contact point of the pair."""
        raise NotImplementedError

    def touching(self) -> Any:
        """Uniform condition: some env has one of the contacts."""
        return T.any_lane(T.any_of(*[block.D > 0.0 for block in self.blocks]))

    def rows(self, motion: Any) -> list[list[Any]]:
        """x of each block at a motion: accelerations (nv,), or the body's spatial acceleration (6,)."""
        raise NotImplementedError

    def residual(self, motion: Any) -> list[Any]:
        """x of all blocks, one list."""
        size = sum(block.size for block in self.blocks)
        return T.if_(self.touching(), lambda: [x for part in self.rows(motion) for x in part], [0.0] * size)

    def follow(self, parts: list[list[Any]], motion: Any) -> tuple[list[Any], Any]:
        """`residual`, and the condition that other edges are active there than at `parts`."""

        def look() -> list[Any]:
            after = self.rows(motion)
            changed = [
                u != v
                for block, x, y in zip(self.blocks, parts, after)
                for u, v in zip(block.edge_weights(x), block.edge_weights(y))
            ]
            return [*(x for part in after for x in part), T.any_of(*changed)]

        *residual, different = T.if_(self.touching(), look, [*(x for part in parts for x in part), False])
        return residual, different


class BodyContacts(Contacts):
    """Contacts of a moving body, `body`, with something that does not move."""

    def __init__(self, m: Any, d: Any, pair: Any) -> None:
        super().__init__()
        self.body = pair.moving1 or pair.moving2
        self.origin = d.origin[self.body]
        self.arms: list[list[Any]] = []

    def add(self, contact: Any) -> None:
        self.blocks.append(Block(contact, 1.0 if contact.pair.moving2 == self.body else -1.0))
        self.arms.append(la.sub(contact.pos, self.origin))

    def rows(self, motion: Any) -> list[list[Any]]:
        out = []
        for block, arm in zip(self.blocks, self.arms):
            velocity = la.add(motion[3:], la.cross(motion[:3], arm))
            out.append([la.dot(axis, velocity) - ref for axis, ref in zip(block.axes, block.aref)])
        return out

    def load(self, parts: list[list[Any]], stiffness: bool, rest: bool) -> tuple[list[Any], list[Any]]:
        """Stiffness of the body (21 numbers; 0 unless asked for) and the wrench of the contact forces on it (6)."""

        def sums() -> list[Any]:
            total: list[Any] = [0.0] * 27
            for block, arm, x in zip(self.blocks, self.arms, parts):
                own = block.stiffness(x)
                force: list[Any] = [0.0] * 3
                for axis, along in zip(block.axes, block.times(own, block.pull(x, rest))):
                    force = la.add_scaled(force, axis, along)
                matrix = spatial(linear(block.axes, own), arm) if stiffness else [0.0] * 21
                total = la.add(total, [*matrix, *la.cross(arm, force), *force])
            return total

        total = T.if_(self.touching(), sums, [0.0] * 27)
        return total[:21], total[21:]


def linear(axes: list[list[Any]], stiffness: list[tuple[Any, Any]]) -> list[list[Any]]:
    """The stiffness A over directions `axes` as a 3 x 3 matrix in the world frame."""
    rows = [la.scale(axes[0], stiffness[0][0])]
    for axis, (cross, own) in zip(axes[1:], stiffness[1:]):
        rows[0] = la.add_scaled(rows[0], axis, cross)
        rows.append(la.add_scaled(la.scale(axes[0], cross), axis, own))
    out: list[list[Any]] = [[0.0] * 3 for _ in range(3)]
    for i in range(3):  # row i of the sum over directions: of the two equal entries, the one cheaper for a level ground
        for j in range(i + 1):
            out[i][j] = out[j][i] = la.dot([axis[i] for axis in axes], [row[j] for row in rows])
    return out


def spatial(matrix: list[list[Any]], arm: list[Any]) -> list[Any]:
    """A 3 x 3 stiffness of the point at `arm` from the origin as one of the whole body, symmetric 6 x 6 (21)."""
    out: list[Any] = [0.0] * 21
    columns = [la.cross(arm, matrix[j]) for j in range(3)]  # torque per displacement along j
    for i in range(3):
        turned = la.cross(arm, [columns[j][i] for j in range(3)])
        for j in range(3):
            out[index(3 + j, i)] = columns[j][i]
            if j <= i:
                out[index(i, j)] = turned[j]
                out[index(3 + i, 3 + j)] = matrix[i][j]
    return out


class PairContacts(Contacts):
    """Contacts between two moving bodies, by their Jacobian over the dofs that move one of them but not the other."""

    def __init__(self, m: Any, d: Any, pair: Any) -> None:
        super().__init__()
        self.m, self.d = m, d
        self.path = path(m, pair.moving1, pair.moving2)

    def add(self, contact: Any) -> None:
        self.blocks.append(Block(contact))

    def jacobian(self, block: Block) -> list[list[Any]]:
        """Per dof of the path, its effect on each direction. Computed where needed: most pairs hardly ever touch."""
        out = []
        for i, side in self.path:
            arm = la.sub(block.contact.pos, self.d.origin[self.m.dof_bodyid[i]])
            velocity = la.add(self.d.motion[i][3:], la.cross(self.d.motion[i][:3], arm))
            row = [la.dot(axis, velocity) for axis in block.axes]
            out.append(row if side > 0 else la.neg(row))
        return out

    def rows(self, motion: Any) -> list[list[Any]]:
        out = []
        for block in self.blocks:
            row = la.neg(block.aref)
            for (i, _), effect in zip(self.path, self.jacobian(block)):
                row = la.add_scaled(row, effect, motion[i])
            out.append(row)
        return out

    def add_terms(
        self, parts: list[list[Any]], matrix: dict[tuple[int, int], Any] | None, right: list[Any], rest: bool
    ) -> None:
        """Adds the contact forces to `right` and J'A J to `matrix`, if there is one."""
        dofs = [i for i, _ in self.path]
        count = len(dofs)
        places = [(i, j) for i in range(count) for j in range(i + 1)] if matrix is not None else []

        def terms() -> list[Any]:
            total: list[Any] = [0.0] * (count + len(places))
            for block, x in zip(self.blocks, parts):
                jacobian, stiffness = self.jacobian(block), block.stiffness(x)
                pushes = block.times(stiffness, block.pull(x, rest))
                columns = [block.times(stiffness, row) for row in jacobian]
                mine = [la.dot(row, pushes) for row in jacobian] + [la.dot(jacobian[j], columns[i]) for i, j in places]
                total = la.add(total, mine)
            return total

        found = T.if_(self.touching(), terms, [0.0] * (count + len(places)))
        for i, push in zip(dofs, found):
            right[i] = right[i] + push
        if matrix is not None:
            for (i, j), term in zip(places, found[count:]):
                key = dofs[i], dofs[j]
                matrix[key] = matrix.get(key, 0.0) + term
