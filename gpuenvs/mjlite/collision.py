"""Contact candidates, unrolled: one `Contact` for every point at which some pair of geoms could touch.

MuJoCo documentation, Computation chapter, "Collision detection". The list is the same for every state; whether a contact
acts is its condition `active`, filled by `constraint.make_constraint`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuenvs import trace as T
from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.collide_cylinder import capsule_cylinder
from gpuenvs.mjlite.collide_plane import plane_box, plane_capsule, plane_cylinder, plane_sphere
from gpuenvs.mjlite.collide_round import capsule_capsule, sphere_capsule, sphere_sphere
from gpuenvs.mjlite.collide_sphere import sphere_box, sphere_cylinder
from gpuenvs.mjlite.model import Model
from gpuenvs.mjlite.pairs import Pair, candidate_pairs
from gpuenvs.mjlite.shapes import NOWHERE, Geom, Point, flat, frame, placed, unflat

COLLIDERS: dict[tuple[str, str], Callable[[Geom, Geom, float], list[Point]]] = {
    ("plane", "sphere"): plane_sphere,
    ("plane", "capsule"): plane_capsule,
    ("plane", "cylinder"): plane_cylinder,
    ("plane", "box"): plane_box,
    ("sphere", "sphere"): sphere_sphere,
    ("sphere", "capsule"): sphere_capsule,
    ("sphere", "cylinder"): sphere_cylinder,
    ("sphere", "box"): sphere_box,
    ("capsule", "capsule"): capsule_capsule,
    ("capsule", "cylinder"): capsule_cylinder,
}
"""(first shape, second shape) -> (first, second, margin + gap) -> its possible points."""


class Contact:
    """One possible contact point.

    From `collide`:
        pair: the geoms, their bodies and the contact parameters; `moving1`/`moving2` there are 0 for what never moves.
        point: which of the pair's points.
        dist: distance of the surfaces, m; negative: penetration.
        pos: (3,) contact point, m.
        frame: (3, 3) unit vectors in the world: normal (from geom1 to geom2), first and second tangent.
    From `make_constraint`:
        active: condition, the contact acts.
        D: inverse regularisation, the same for all rows; 0 where not active.
        aref: reference acceleration along the axes of `frame`: one entry if dim == 1, else three.
    """

    def __init__(self, pair: Pair, point: int, found: Point) -> None:
        self.pair, self.point = pair, point
        self.dist, self.pos = found.dist, found.pos
        self.frame: list[list[Any]] = frame(found.normal, found.tangent)
        self.active: Any = None
        self.D: Any = None
        self.aref: list[Any] = []

    @property
    def dim(self) -> int:
        """1: frictionless, 3: pyramid with four edges."""
        return self.pair.dim

    @property
    def mu(self) -> float:
        """Sliding friction coefficient."""
        return self.pair.friction

    @property
    def axes(self) -> list[list[Any]]:
        """The directions in which the contact acts: the normal, and the tangents if there is friction."""
        return self.frame[: self.dim]

    def force(self, along: list[Any]) -> list[Any]:
        """World force on geom2, (3,), N, from its components along `axes` (geom1 gets the opposite), at `pos`."""
        out: list[Any] = [0.0, 0.0, 0.0]
        for axis, f in zip(self.axes, along):
            out = la.add_scaled(out, axis, f)
        return out


def collide(m: Model, d: Any) -> None:
    """All contact candidates. Reads geom_xpos, geom_xmat; writes contact (a list of `Contact`)."""
    d.contact = [
        Contact(pair, k, found) for pair in candidate_pairs(m) for k, found in enumerate(pair_points(m, d, pair))
    ]


def pair_points(m: Model, d: Any, pair: Pair) -> list[Point]:
    """The possible points of one pair; those of two bodies that are apart in every env are skipped, `FAR` away."""
    first, second = (placed(d.geom_xpos[g], d.geom_xmat[g], m.geom_size[g]) for g in (pair.geom1, pair.geom2))
    reach = pair.margin + pair.gap
    if pair.shapes[0] == "plane":
        return COLLIDERS[pair.shapes](first, second, reach)

    def points() -> list[Any]:
        return [x for found in COLLIDERS[pair.shapes](first, second, reach) for x in flat(found)]

    bound = m.geom_rbound[pair.geom1] + m.geom_rbound[pair.geom2] + reach
    apart = la.sub(second.pos, first.pos)
    near = la.dot(apart, apart) < bound * bound
    values = T.if_(T.any_lane(near), points, NOWHERE * pair.points)
    return [unflat(values[7 * k : 7 * k + 7]) for k in range(pair.points)]
