"""What colliders take and give: placed shapes and contact points. MuJoCo documentation, XML reference, geom."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpuenvs import trace as T
from gpuenvs.mjlite import linalg as la

FAR = 1e10
"""The distance of a contact point that is not there, m."""


class Geom(NamedTuple):
    """A placed shape. Sphere: size[0] radius. Capsule, cylinder: size[0] radius, size[1] half length, along `axis`."""

    pos: Any  # (3,) centre, m, world frame
    axis: Any  # (3,) its z axis in the world; the normal of a plane
    mat: Any  # (9,) orientation, row-major
    size: Any  # half sizes, m


class Point(NamedTuple):
    """One possible contact point. It acts where dist < margin; a point that a pose does not have is `FAR` away."""

    dist: Any  # m, negative: penetration
    pos: Any  # (3,) midway between the surfaces, m
    normal: Any  # (3,) unit, from the first shape to the second
    tangent: Any = None  # (3,) direction that the first tangent should follow, or None


NOWHERE = [FAR, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
"""`flat` of no point."""


def flat(found: Point) -> list[Any]:
    """A point without tangent as seven numbers, for selections between points."""
    return [found.dist, *found.pos, *found.normal]


def unflat(values: list[Any]) -> Point:
    """The point of which `values` is `flat`."""
    return Point(values[0], values[1:4], values[4:7])


def placed(pos: Any, mat: Any, size: Any) -> Geom:
    return Geom(pos, la.column(mat, 2), mat, size)


def normalized(v: Any) -> tuple[list[Any], Any]:
    """(v / |v|, |v|); the x axis where |v| is all but zero, as MuJoCo's mju_normalize3."""
    length = la.norm(v)
    tiny = length < la.MINVAL
    inverse = 1.0 / T.where(tiny, 1.0, length)
    return [T.where(tiny, 1.0 if k == 0 else 0.0, v[k] * inverse) for k in range(3)], length


def frame(normal: Any, tangent: Any = None) -> list[list[Any]]:
    """Contact axes: normal, first tangent, second tangent (3, 3), as MuJoCo's mju_makeFrame.

    The first tangent is `tangent` (a unit vector), or without one the world's y axis (z where the normal is within 60
    degrees of y), less its part along the normal.

    In a model that moves in a plane the sign of a tangent cannot matter, and a constant one folds: where `tangent` is
    known to lie in a coordinate plane with the normal, the tangents are coordinate axes.
    """
    if tangent is None:
        side = (normal[1] < 0.5) & (normal[1] > -0.5)
        tangent = [0.0, T.where(side, 1.0, 0.0), T.where(side, 0.0, 1.0)]
    along = [k for k in range(3) if _is_unit(normal[k])]
    if along:  # the normal is a coordinate axis: just drop that coordinate
        k = along[0]
        first = [0.0 if i == k else tangent[i] for i in range(3)]
        in_plane = [i for i in range(3) if i != k and not T.is_zero(tangent[i])]
        if len(in_plane) == 1:
            first = [1.0 if i == in_plane[0] else 0.0 for i in range(3)]
            return [list(normal), first, la.cross(normal, first)]
    else:
        first = la.add_scaled(tangent, normal, -la.dot(normal, tangent))
    first, _ = normalized(first)
    return [list(normal), first, la.cross(normal, first)]


def _is_unit(x: Any) -> bool:
    """Known while tracing to be 1 or -1."""
    x = getattr(x, "constant", x)
    return isinstance(x, int | float) and abs(x) == 1.0
