"""Listed contacts, first part: which pairs touch. Loops over tables of pairs of equal shapes; see `listed`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuenvs import trace as T
from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.collision import COLLIDERS
from gpuenvs.mjlite.model import Model
from gpuenvs.mjlite.pairs import Pair
from gpuenvs.mjlite.shapes import Geom, Point, frame, placed

if TYPE_CHECKING:
    from gpuenvs.mjlite.listed import ContactGroup

AXIS_ONLY = ("plane", "sphere", "capsule")  # shapes of which only the z axis is needed


class Placed:
    """Positions and orientations of the geoms where loops can index them."""

    def __init__(self, m: Model, d: Any, pairs: list[Pair]) -> None:
        self.m, self.d = m, d
        self.whole = any(shape not in AXIS_ONLY for pair in pairs for shape in pair.shapes)
        self.stride = 12 if self.whole else 6
        self.values = T.Array(m.ngeom * self.stride)
        for g in sorted({g for pair in pairs for g in (pair.geom1, pair.geom2)}):
            mat = d.geom_xmat[g]
            for k, x in enumerate([*d.geom_xpos[g], *(mat if self.whole else la.column(mat, 2))]):
                self.values.store(g * self.stride + k, x)

    def known(self, g: int) -> Geom:
        """A geom whose number is known: what is constant about it folds."""
        return placed(self.d.geom_xpos[g], self.d.geom_xmat[g], self.m.geom_size[g])

    def load(self, geoms: list[int], k: Any) -> Geom:
        """The k-th of a list of geoms."""
        start = T.Table([g * self.stride for g in geoms]).load(k)
        values = [self.values.load(start + i) for i in range(self.stride)]
        size = [same_or_table([self.m.geom_size[g][i] for g in geoms], k) for i in range(3)]
        if self.whole:
            return placed(values[:3], values[3:], size)
        return Geom(values[:3], values[3:], None, size)


def same_or_table(values: Sequence[float], k: Any) -> Any:
    """The k-th of constants: a float if they are all the same."""
    return values[0] if len(set(values)) == 1 else T.Table(values).load(k)


def find(placed: Placed, group: ContactGroup) -> Any:
    """Append a slot for every point of the group's pairs that acts in some env; returns the number of slots."""
    families: dict[Any, list[int]] = {}
    for p, pair in enumerate(group.pairs):
        plane = pair.geom1 if pair.shapes[0] == "plane" else None
        families.setdefault((pair.shapes, plane), []).append(p)
    count = T.Array(1, "int")
    count.store(0, 0)
    for (shapes, plane), members in families.items():
        T.loop(len(members), _tester(placed, group, count, shapes, plane, members), [])
    return count.load(0)


def _tester(
    placed: Placed, group: ContactGroup, count: T.Array, shapes: tuple[str, str], plane: int | None, members: list[int]
) -> Any:
    """The loop body that tests the k-th pair of one family (pairs of the same shapes; of one plane)."""
    pairs = [group.pairs[p] for p in members]
    reach = pairs[0].margin + pairs[0].gap
    bounds = [placed.m.geom_rbound[p.geom1] + placed.m.geom_rbound[p.geom2] + reach for p in pairs]

    def test(k: Any) -> list[Any]:
        second = placed.load([p.geom2 for p in pairs], k)
        first = placed.load([p.geom1 for p in pairs], k) if plane is None else placed.known(plane)

        def points() -> list[Any]:
            for point in COLLIDERS[shapes](first, second, reach):
                _append(group, count, point, T.Table(members).load(k))
            return []

        if plane is not None:
            return points()
        apart = la.sub(second.pos, first.pos)
        near = la.dot(apart, apart) < same_or_table([b * b for b in bounds], k)
        return T.if_(T.any_lane(near), points, [])

    return test


def _append(group: ContactGroup, count: T.Array, point: Point, pair: Any) -> None:
    """A slot for the point if it acts in some env."""
    dirs = group.dirs

    def append() -> list[Any]:
        s = count.load(0)
        count.store(0, s + 1)
        group.pair.store(s, pair)
        group.dist.store(s, point.dist)
        for k in range(3):
            group.position.store(s * 3 + k, point.pos[k])
        axes = [point.normal] if dirs == 1 else frame(point.normal, point.tangent)
        for i, axis in enumerate(axes):
            for k in range(3):
                group.axes.store(s * (dirs * 3) + i * 3 + k, axis[k])
        return []

    T.if_(T.any_lane(point.dist < group.pairs[0].margin), append, [])
