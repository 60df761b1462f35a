"""Colliders of cylinders."""

from __future__ import annotations

from gpuenvs.mjlite.shapes import Geom, Point


def capsule_cylinder(capsule: Geom, cylinder: Geom, reach: float) -> list[Point]:
    raise NotImplementedError
