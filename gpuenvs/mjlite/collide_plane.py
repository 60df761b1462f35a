"""Colliders of a plane with the convex shapes above it. MuJoCo documentation, Computation chapter, "Collision detection"."""

from __future__ import annotations

import math
from typing import Any

from gpuenvs import trace as T
from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.shapes import Geom, Point


def _height(plane: Geom, pos: Any) -> Any:
    """Distance of a point to the plane, m."""
    return la.dot(la.sub(pos, plane.pos), plane.axis)


def _sphere(plane: Geom, centre: Any, radius: Any, tangent: Any = None) -> Point:
    dist = _height(plane, centre) - radius
    return Point(dist, la.add_scaled(centre, plane.axis, -(dist * 0.5 + radius)), plane.axis, tangent)


def plane_sphere(plane: Geom, sphere: Geom, reach: float) -> list[Point]:
    return [_sphere(plane, sphere.pos, sphere.size[0])]


def plane_capsule(plane: Geom, capsule: Geom, reach: float) -> list[Point]:
    """A sphere at each end; the first tangent follows the capsule."""
    half = la.scale(capsule.axis, capsule.size[1])
    ends = (la.add(capsule.pos, half), la.sub(capsule.pos, half))
    return [_sphere(plane, end, capsule.size[0], capsule.axis) for end in ends]


def _corner(plane: Geom, pos: Any, dist: Any) -> Point:
    return Point(dist, la.add_scaled(pos, plane.axis, dist * -0.5), plane.axis)


def plane_cylinder(plane: Geom, cylinder: Geom, reach: float) -> list[Point]:
    """The lowest point of each disk, then two more on the lower disk, 120 degrees from its lowest point."""
    normal, radius, half = plane.axis, cylinder.size[0], cylinder.size[1]
    along = la.dot(normal, cylinder.axis)
    up = along > 0.0
    axis = [T.where(up, -a, a) for a in cylinder.axis]  # towards the plane
    along = T.where(up, -along, along)
    centre = _height(plane, cylinder.pos)

    # The direction from the axis to the lowest point of a disk; any will do if the disk is parallel to the plane.
    down = la.sub(la.scale(axis, along), normal)
    square = la.dot(down, down)
    tilted = square >= la.MINVAL * la.MINVAL
    scale = radius / T.sqrt(T.where(tilted, square, 1.0))
    down = [T.where(tilted, x * scale, y * radius) for x, y in zip(down, la.column(cylinder.mat, 0))]
    drop = la.dot(down, normal)

    axis, along = la.scale(axis, half), along * half
    lower, upper = la.add(cylinder.pos, axis), la.sub(cylinder.pos, axis)
    points = [
        _corner(plane, la.add(lower, down), centre + along + drop),
        _corner(plane, la.add(upper, down), centre - along + drop),
    ]
    side = la.cross(down, axis)
    side = la.scale(side, radius * (0.5 * math.sqrt(3.0)) / T.maximum(la.norm(side), la.MINVAL))
    inner = la.add_scaled(lower, down, -0.5)
    dist = centre + along - drop * 0.5
    return [*points, _corner(plane, la.add(inner, side), dist), _corner(plane, la.sub(inner, side), dist)]


def plane_box(plane: Geom, box: Geom, reach: float) -> list[Point]:
    """The corners below the box's centre: of two opposite corners it is always one, so there are four."""
    centre = _height(plane, box.pos)
    edges = [la.scale(la.column(box.mat, k), box.size[k]) for k in range(3)]
    heights = [la.dot(edge, plane.axis) for edge in edges]
    points = []
    for sign0, sign1 in ((-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0), (1.0, 1.0)):
        height = heights[0] * sign0 + heights[1] * sign1 - heights[2]
        above = height > 0.0
        corner = [e0 * sign0 + e1 * sign1 - e2 for e0, e1, e2 in zip(*edges)]
        corner = [p + T.where(above, -c, c) for p, c in zip(box.pos, corner)]
        points.append(_corner(plane, corner, centre - T.absolute(height)))
    return points
