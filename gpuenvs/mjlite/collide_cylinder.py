"""Capsule against cylinder, by the nearest points of the capsule's axis and the solid cylinder.

MuJoCo has no formula of its own for this pair: its general convex collider iterates to a tolerance (option ccd_tolerance, 1e-6
by default), so agreement is to about that. It differs in kind in two cases. Where the capsule's axis enters the cylinder, its
collider looks for the direction of least penetration among all; here it is the best of the axial, radial and sideways ones.
And a capsule that lies along an end face (within about 5 degrees) touches MuJoCo's in two points, here in the nearest one.
"""

from __future__ import annotations

from typing import Any

from gpuenvs import trace as T
from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.collide_round import NOWHERE, flat, point
from gpuenvs.mjlite.shapes import Geom, Point

HALVINGS = 46
"""Bisection of the capsule's axis: the position of the nearest point is exact to 2^-46 of its length."""


def capsule_cylinder(capsule: Geom, cylinder: Geom, reach: float) -> list[Point]:
    apart = la.sub(capsule.pos, cylinder.pos)
    bound = capsule.size[0] + capsule.size[1] + cylinder.size[0] + cylinder.size[1] + reach
    near = la.dot(apart, apart) < bound * bound
    return [point(T.if_(T.any_lane(near), lambda: _touch(capsule, cylinder, apart), NOWHERE))]


def _touch(capsule: Geom, cylinder: Geom, apart: Any) -> list[Any]:
    axes = [la.column(cylinder.mat, k) for k in range(3)]
    centre = [la.dot(axis, apart) for axis in axes]  # in the cylinder's frame
    step = la.scale([la.dot(axis, capsule.axis) for axis in axes], capsule.size[1])
    radius, half = cylinder.size[0], cylinder.size[1]

    x = _nearest(centre, step, radius, half)
    spot = la.add_scaled(centre, step, x)
    out, square = _outward(spot, radius, half)
    deep = square < la.MINVAL
    gap = T.sqrt(T.where(deep, 1.0, square))
    shallow = [gap, *spot, *la.scale(out, 1.0 / gap)]
    gap, *rest = T.if_(
        T.any_lane(deep),
        lambda: [T.where(deep, a, b) for a, b in zip(_least_push(centre, step, radius, half), shallow)],
        shallow,
    )
    spot, out = rest[:3], rest[3:]

    def world(v: Any) -> list[Any]:
        return la.add(la.add(la.scale(axes[0], v[0]), la.scale(axes[1], v[1])), la.scale(axes[2], v[2]))

    normal = la.neg(world(out))
    dist = gap - capsule.size[0]
    pos = la.add(cylinder.pos, world(spot))
    return flat(Point(dist, la.add_scaled(pos, normal, capsule.size[0] + dist * 0.5), normal))


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


def _least_push(centre: Any, step: Any, radius: Any, half: Any) -> list[Any]:
    """For an axis that enters the cylinder: (-depth, point of the axis (3,), direction (3,)), cylinder frame.

    Moved along direction n, the axis is out after depth(n) = radius |n_xy| + half |n_z| + |n . step| - n . centre.
    """
    tried = [[0.0, 0.0, T.where(centre[2] < 0.0, -1.0, 1.0)]]
    sideways = [-step[1], step[0], 0.0]
    side = T.where(la.dot(sideways, centre) < 0.0, -1.0, 1.0)
    tried.append(_unit(la.scale(sideways, side)))
    tried += [_unit([centre[0] + s * step[0], centre[1] + s * step[1], 0.0]) for s in (-1.0, 1.0)]
    best: list[Any] = []
    for n in tried:
        along = la.dot(n, step)
        depth = radius * T.sqrt(n[0] * n[0] + n[1] * n[1]) + half * T.absolute(n[2])
        depth = depth + T.absolute(along) - la.dot(n, centre)
        middle = T.absolute(along) < 1e-9
        square = la.dot(step[:2], step[:2])
        foot = T.clip(-la.dot(centre[:2], step[:2]) / T.where(square > 0.0, square, 1.0), -1.0, 1.0)
        x = T.where(middle, foot, T.where(along > 0.0, -1.0, 1.0))
        found = [-depth, *la.add_scaled(centre, step, x), *n]
        best = [T.where(found[0] > best[0], a, b) for a, b in zip(found, best)] if best else found
    return best


def _unit(v: Any) -> list[Any]:
    """v / |v|; the x axis where v is all but zero."""
    square = la.dot(v, v)
    tiny = square < la.MINVAL * la.MINVAL
    inverse = 1.0 / T.sqrt(T.where(tiny, 1.0, square))
    return [T.where(tiny, 1.0 if k == 0 else 0.0, v[k] * inverse) for k in range(3)]
