"""Capsule against cylinder, by the nearest points of the capsule's axis and the solid cylinder.

MuJoCo's general convex collider does this pair. It iterates to a tolerance (option ccd_tolerance, 1e-6 by default), so
agreement is to about 1e-6 m while the capsule's axis is outside of the cylinder; where it enters, depths agree to 1e-6 m and
points to 1e-4 m, with rare states in which two directions are all but equally deep.

A capsule that lies along an end face touches in two points, as MuJoCo 4.0 has it (found by measuring): the line of the
capsule's surface towards the first contact is cut off at the face, which counts as a polygon of 16 sides; the ends of what
is left are the contacts, with the face's normal; if one of them is too far away the other counts twice. MuJoCo's line comes
from an unfinished iteration, so these points scatter around those here: by 1e-4 m typically, in rare states by 1e-2 m.
"""

from __future__ import annotations

import math
from typing import Any

from gpuenvs import trace as T
from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.shapes import NOWHERE, Geom, Point, unflat

HALVINGS = 46
"""Turns of a bisection: positions are exact to 2^-46 of the capsule's length."""
SIDES = 16
"""Sides of the polygon that stands for an end face in contacts of two points."""
LYING = 0.0888
"""Sine of the largest angle between the capsule and an end face for contacts of two points."""


def capsule_cylinder(capsule: Geom, cylinder: Geom, reach: float) -> list[Point]:
    axes = [la.column(cylinder.mat, k) for k in range(3)]
    centre = [la.dot(axis, la.sub(capsule.pos, cylinder.pos)) for axis in axes]  # in the cylinder's frame
    along = [la.dot(axis, capsule.axis) for axis in axes]
    step = la.scale(along, capsule.size[1])
    radius, half = cylinder.size[0], cylinder.size[1]

    x = _nearest(centre, step, radius, half)
    spot = la.add_scaled(centre, step, x)
    out, square = _outward(spot, radius, half)
    deep = square < DEEP * DEEP
    gap = T.sqrt(T.where(deep, 1.0, square))
    shallow = [gap, *spot, *la.scale(out, -1.0 / gap)]
    gap, *rest = T.if_(
        T.any_lane(deep),
        lambda: [T.where(deep, a, b) for a, b in zip(least_push(centre, along, step, radius, half), shallow)],
        shallow,
    )
    spot, normal = rest[:3], rest[3:]
    dist = gap - capsule.size[0]
    one = [dist, *la.add_scaled(spot, normal, capsule.size[0] + dist * 0.5), *normal]

    lying = (T.absolute(along[2]) < LYING) & (T.absolute(normal[2]) > 1e-6)
    two = T.if_(
        T.any_lane(lying),
        lambda: _lying(centre, along, step, normal, (capsule.size[0], radius, half, reach), lying, one),
        one + NOWHERE,
    )
    return [unflat(_to_world(found, axes, cylinder.pos)) for found in (two[:7], two[7:])]


DEEP = 1e-6
"""Gap of axis and cylinder below which they count as intersecting, m."""


def _to_world(found: list[Any], axes: Any, origin: Any) -> list[Any]:
    def turned(v: Any) -> list[Any]:
        return la.add(la.add(la.scale(axes[0], v[0]), la.scale(axes[1], v[1])), la.scale(axes[2], v[2]))

    return [found[0], *la.add(origin, turned(found[1:4])), *turned(found[4:7])]


def _lying(centre: Any, along: Any, step: Any, normal: Any, sizes: Any, lying: Any, one: list[Any]) -> list[Any]:
    """Both points of a capsule along an end face, or `one` point where it does not lie on it; cylinder frame."""
    thickness, radius, half, reach = sizes
    down = la.add_scaled(normal, along, -la.dot(normal, along))
    line = la.add_scaled(centre, down, thickness / T.sqrt(T.maximum(la.dot(down, down), la.MINVAL)))
    low: Any = -1.0
    high: Any = 1.0
    for k in range(SIDES):
        across = (math.cos((k + 0.5) * 2 * math.pi / SIDES), math.sin((k + 0.5) * 2 * math.pi / SIDES))
        room = radius * math.cos(math.pi / SIDES) - la.dot(across, line[:2])  # at the middle of the capsule
        speed = la.dot(across, step[:2])
        cut = room / T.where(speed == 0.0, la.MINVAL, speed)
        low = T.where(speed < 0.0, T.maximum(low, cut), low)
        high = T.where(speed < 0.0, high, T.minimum(high, cut))
    side = T.where(normal[2] < 0.0, -1.0, 1.0)

    def at(x: Any) -> list[Any]:
        spot = la.add_scaled(line, step, x)
        dist = (-(side * half) - spot[2]) * side
        return [dist, spot[0], spot[1], (spot[2] - side * half) * 0.5, 0.0, 0.0, side]

    first, second = at(low), at(high)
    far1, far2 = first[0] > reach, second[0] > reach
    both = lying & (low <= high) & ~(far1 & far2)
    return [T.where(both, T.where(far1, b, a), c) for a, b, c in zip(first, second, one)] + [
        T.where(both, T.where(far2, a, b), c) for a, b, c in zip(first, second, NOWHERE)
    ]


def _outward(spot: Any, radius: Any, half: Any) -> tuple[list[Any], Any]:
    """(vector from the cylinder's nearest point to `spot`, its square length); cylinder frame, zero inside."""
    across = T.sqrt(spot[0] * spot[0] + spot[1] * spot[1])
    beyond = T.where(across > radius, 1.0 - radius / T.where(across > radius, across, 1.0), 0.0)
    above = spot[2] - T.clip(spot[2], -half, half)
    out = [spot[0] * beyond, spot[1] * beyond, above]
    return out, la.dot(out, out)


def _nearest(centre: Any, step: Any, radius: Any, half: Any) -> Any:
    """x in [-1, 1] where centre + x step is nearest to the cylinder. The distance is convex in x: halve by its slope."""

    def halve(k: Any, low: Any, high: Any) -> list[Any]:
        x = (low + high) * 0.5
        slope = la.dot(_outward(la.add_scaled(centre, step, x), radius, half)[0], step)
        # Where a piece of the axis is inside, all of it is equally near: go for the middle of the cylinder.
        flat_part = slope == 0.0
        slope = T.where(flat_part, la.dot(la.add_scaled(centre, step, x), step), slope)
        return [T.where(slope < 0.0, x, low), T.where(slope < 0.0, high, x)]

    low, high = T.loop(HALVINGS, halve, [-1.0, 1.0])
    x = (low + high) * 0.5
    return T.where(x > 1.0 - 1e-12, 1.0, T.where(x < -1.0 + 1e-12, -1.0, x))


def least_push(centre: Any, along: Any, step: Any, radius: Any, half: Any) -> list[Any]:
    """For an axis that enters the cylinder: (-depth, point of the axis (3,), direction to the cylinder (3,)), its frame.

    Moved along a direction n, the axis is out after depth(n) = radius |n_xy| + half |n_z| + |n . step| - n . centre. The
    least is along the cylinder's axis, radially from an end of the capsule's axis, or across the capsule's axis.
    """
    tried = [[0.0, 0.0, T.where(centre[2] < 0.0, -1.0, 1.0)], _across(centre, along, radius, half)]
    tried += [_unit([centre[0] + s * step[0], centre[1] + s * step[1], 0.0]) for s in (-1.0, 1.0)]
    best: list[Any] = []
    for k, n in enumerate(tried):
        lean = la.dot(n, step)
        depth = radius * T.sqrt(n[0] * n[0] + n[1] * n[1]) + half * T.absolute(n[2]) - la.dot(n, centre)
        if k == 1:  # all of the axis is equally deep: the point next to the cylinder's foremost one
            x = _next_to(centre, step, n, radius, half)
        else:
            depth = depth + T.absolute(lean)
            x = T.where(lean > 0.0, -1.0, 1.0)
        found = [-depth, *la.add_scaled(centre, step, x), *la.neg(n)]
        best = [T.where(found[0] > best[0], a, b) for a, b in zip(found, best)] if best else found
    return best


def _next_to(centre: Any, step: Any, n: Any, radius: Any, half: Any) -> Any:
    """x in [-1, 1] of the axis' point nearest to the cylinder's foremost point (on a level n: line) in direction n."""
    level = T.absolute(n[2]) < 1e-6
    scale = radius / T.maximum(T.sqrt(n[0] * n[0] + n[1] * n[1]), la.MINVAL)
    apart = [n[0] * scale - centre[0], n[1] * scale - centre[1], T.where(n[2] < 0.0, -half, half) - centre[2]]
    apart[2] = T.where(level, 0.0, apart[2])
    square = la.dot(step[:2], step[:2]) + T.where(level, 0.0, step[2] * step[2])
    return T.clip(la.dot(apart, step) / T.where(square > 0.0, square, 1.0), -1.0, 1.0)


STARTS = 12
"""Directions tried before the bisection."""


def _across(centre: Any, along: Any, radius: Any, half: Any) -> list[Any]:
    """The best direction perpendicular to the capsule: an angle from horizontal in [0, pi/2], up to signs by symmetry.

    In the plane across the capsule the cylinder's outline has the support radius sqrt(c^2 + s^2 lean^2) + half s level,
    (c, s) the direction, lean and level the sine and cosine of the capsule's angle with the end faces.
    """
    level = T.sqrt(along[0] * along[0] + along[1] * along[1])
    lean2 = along[2] * along[2]
    inverse = 1.0 / T.maximum(level, la.MINVAL)
    flat_axis = [-along[1] * inverse, along[0] * inverse, 0.0]
    flat_axis = [T.where(level < la.MINVAL, 1.0 if k == 0 else 0.0, flat_axis[k]) for k in range(3)]
    rising = la.cross(along, flat_axis)
    q1, q2 = la.dot(flat_axis, centre), la.dot(rising, centre)
    a1, a2 = T.absolute(q1), T.absolute(q2)

    def depth(angle: Any) -> tuple[Any, Any]:
        """The depth and its derivative."""
        s, c = T.sincos(angle)
        root = T.maximum(T.sqrt(c * c + lean2 * s * s), la.MINVAL)
        return (
            radius * root + half * level * s - a1 * c - a2 * s,
            radius * (lean2 - 1.0) * s * c / root + half * level * c + a1 * s - a2 * c,
        )

    width = math.pi / 2 / STARTS
    best, start = depth(0.0 * a1)[0], 0.0 * a1
    for k in range(1, STARTS + 1):
        value = depth(k * width + 0.0 * a1)[0]
        start = T.where(value < best, k * width, start)
        best = T.minimum(value, best)

    def halve(_: Any, low: Any, high: Any) -> list[Any]:
        angle = (low + high) * 0.5
        rising_there = depth(angle)[1] > 0.0
        return [T.where(rising_there, low, angle), T.where(rising_there, angle, high)]

    low, high = T.maximum(start - width, 0.0), T.minimum(start + width, math.pi / 2)
    low, high = T.loop(HALVINGS, halve, [low, high])
    s, c = T.sincos((low + high) * 0.5)
    c, s = T.where(q1 < 0.0, -c, c), T.where(q2 < 0.0, -s, s)
    return la.add(la.scale(flat_axis, c), la.scale(rising, s))


def _unit(v: Any) -> list[Any]:
    """v / |v|; the x axis where v is all but zero."""
    square = la.dot(v, v)
    tiny = square < la.MINVAL * la.MINVAL
    inverse = 1.0 / T.sqrt(T.where(tiny, 1.0, square))
    return [T.where(tiny, 1.0 if k == 0 else 0.0, v[k] * inverse) for k in range(3)]
