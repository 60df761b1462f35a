"""Colliders of spheres and capsules with each other. MuJoCo documentation, Computation chapter, "Collision detection"."""

from __future__ import annotations

from typing import Any

from gpuenvs import trace as T
from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.shapes import NOWHERE, Geom, Point, flat, normalized, unflat


def _spheres(pos1: Any, radius1: Any, axis1: Any, pos2: Any, radius2: Any, axis2: Any) -> Point:
    """Two spheres; where their centres coincide the normal is that of both shapes' axes."""
    apart = la.sub(pos2, pos1)
    length = la.norm(apart)
    same = length < la.MINVAL
    inverse = 1.0 / T.where(same, 1.0, length)
    normal = la.scale(apart, inverse)
    normal = T.if_(
        T.any_lane(same),
        lambda: [T.where(same, c, n) for c, n in zip(normalized(la.cross(axis1, axis2))[0], normal)],
        normal,
    )
    dist = length - radius1 - radius2
    return Point(dist, la.add_scaled(pos1, normal, radius1 + dist * 0.5), normal)


def sphere_sphere(a: Geom, b: Geom, reach: float) -> list[Point]:
    return [_spheres(a.pos, a.size[0], a.axis, b.pos, b.size[0], b.axis)]


def sphere_capsule(sphere: Geom, capsule: Geom, reach: float) -> list[Point]:
    half = capsule.size[1]
    x = T.clip(la.dot(capsule.axis, la.sub(sphere.pos, capsule.pos)), -half, half)
    nearest = la.add_scaled(capsule.pos, capsule.axis, x)
    return [_spheres(sphere.pos, sphere.size[0], sphere.axis, nearest, capsule.size[0], capsule.axis)]


PARALLEL = 1e-8
"""Square of the sine of the largest angle between capsules that count as parallel."""


def capsule_capsule(a: Geom, b: Geom, reach: float) -> list[Point]:
    """Spheres at the nearest points of the two segments; parallel segments touch at both ends of where they overlap.

    Points of the segments: a.pos + x1 * axis1, b.pos + x2 * axis2 with the axes scaled to the half lengths, x in [-1, 1].
    Parallel segments that do not overlap have their one nearest point twice, as in MuJoCo 4.0 (found by measuring).
    """
    axis1, axis2 = la.scale(a.axis, a.size[1]), la.scale(b.axis, b.size[1])
    apart = la.sub(a.pos, b.pos)
    ma, mb, mc = a.size[1] * a.size[1], -la.dot(axis1, axis2), b.size[1] * b.size[1]
    u, v = -la.dot(axis1, apart), la.dot(axis2, apart)
    det = ma * mc - mb * mb
    parallel = det < ma * mc * PARALLEL

    inverse = 1.0 / T.where(parallel, 1.0, det)
    x1, x2 = _clamped((mc * u - mb * v) * inverse, (ma * v - mb * u) * inverse, (ma, mb, mc, u, v))

    def at(x1: Any, x2: Any) -> list[Any]:
        pos1, pos2 = la.add_scaled(a.pos, axis1, x1), la.add_scaled(b.pos, axis2, x2)
        return flat(_spheres(pos1, a.size[0], a.axis, pos2, b.size[0], b.axis))

    general = at(x1, x2)

    def end(x2: float) -> list[Any]:
        """At this end of segment b, or at the end of segment a before it."""
        x1 = (u - mb * x2) / ma
        beyond = T.absolute(x1) > 1.0
        x1 = T.clip(x1, -1.0, 1.0)
        return at(x1, T.where(beyond, T.clip((v - mb * x1) / mc, -1.0, 1.0), x2))

    def ends() -> list[Any]:
        return [T.where(parallel, x, y) for x, y in zip(end(-1.0) + end(1.0), general + NOWHERE)]

    values = T.if_(T.any_lane(parallel), ends, general + NOWHERE)
    return [unflat(values[:7]), unflat(values[7:])]


def _clamped(x1: Any, x2: Any, coefficients: Any) -> tuple[Any, Any]:
    """The nearest points of two segments from those of their lines."""
    ma, mb, mc, u, v = coefficients
    over, under = x1 > 1.0, x1 < -1.0
    x2 = T.where(over, (v - mb) / mc, T.where(under, (v + mb) / mc, x2))
    x1 = T.clip(x1, -1.0, 1.0)
    over, under = x2 > 1.0, x2 < -1.0
    other = T.clip((u + T.where(over, -mb, mb)) / ma, -1.0, 1.0)
    return T.where(over | under, other, x1), T.clip(x2, -1.0, 1.0)
