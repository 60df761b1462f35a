"""Colliders of a sphere with a box and with a cylinder: by the nearest point of the solid, or the nearest face from inside.

MuJoCo documentation, Computation chapter, "Collision detection".
"""

from __future__ import annotations

from typing import Any

from gpuenvs import trace as T
from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.shapes import Geom, Point


def sphere_box(sphere: Geom, box: Geom, reach: float) -> list[Point]:
    centre = la.mat_t_vec(box.mat, la.sub(sphere.pos, box.pos))
    out = [x - T.clip(x, -half, half) for x, half in zip(centre, box.size)]
    # From inside: out through the nearest face, of equally near ones the first.
    room = [half - T.absolute(x) for x, half in zip(centre, box.size)]
    first = (room[0] <= room[1]) & (room[0] <= room[2])
    second = T.logical_not(first) & (room[1] <= room[2])
    through = [first, second, T.logical_not(first | second)]
    side = [T.where(x > 0.0, 1.0, -1.0) for x in centre]
    exit_ = [T.where(face, s, 0.0) for face, s in zip(through, side)]
    depth = T.where(first, room[0], T.where(second, room[1], room[2]))
    return [_touch(sphere, out, exit_, depth, box.mat)]


def sphere_cylinder(sphere: Geom, cylinder: Geom, reach: float) -> list[Point]:
    radius, half = cylinder.size[0], cylinder.size[1]
    centre = la.mat_t_vec(cylinder.mat, la.sub(sphere.pos, cylinder.pos))
    across = T.sqrt(centre[0] * centre[0] + centre[1] * centre[1])
    on_axis = across < la.MINVAL
    inverse = 1.0 / T.where(on_axis, 1.0, across)
    radial = [T.where(on_axis, 1.0, centre[0] * inverse), T.where(on_axis, 0.0, centre[1] * inverse)]
    beyond = T.maximum(across - radius, 0.0)
    out = [radial[0] * beyond, radial[1] * beyond, centre[2] - T.clip(centre[2], -half, half)]
    # From inside: out through the nearer of the end faces and the side.
    to_end, to_side = half - T.absolute(centre[2]), radius - across
    by_end = to_end < to_side
    exit_ = [
        T.where(by_end, 0.0, radial[0]),
        T.where(by_end, 0.0, radial[1]),
        T.where(by_end, T.where(centre[2] > 0.0, 1.0, -1.0), 0.0),
    ]
    return [_touch(sphere, out, exit_, T.where(by_end, to_end, to_side), cylinder.mat)]


def _touch(sphere: Geom, out: Any, exit_: Any, depth: Any, mat: Any) -> Point:
    """The contact from what leads from the solid to the sphere's centre: `out` (zero inside), or `exit_` and its `depth`."""
    gap = la.norm(out)
    inside = gap <= la.MINVAL
    inverse = 1.0 / T.where(inside, 1.0, gap)
    normal = la.neg(la.mat_vec(mat, [T.where(inside, e, o * inverse) for o, e in zip(out, exit_)]))
    dist = T.where(inside, -depth, gap) - sphere.size[0]
    return Point(dist, la.add_scaled(sphere.pos, normal, sphere.size[0] + dist * 0.5), normal)
