"""Which geoms can touch, and with what contact parameters: all decided once per model.

Filters and mixing rules: MuJoCo documentation, Computation chapter, "Collision detection" (selection) and
"Contact parameters". A pair of shapes without a collider is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuenvs.errors import ModelError
from gpuenvs.mjlite.linalg import MINVAL
from gpuenvs.mjlite.model import Model
from gpuenvs.mjlite.supported import element

SHAPES = ("plane", "hfield", "sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh", "sdf")
"""By `geom_type`."""
# Most contact points per pair of shapes, the first the one with the lower type number.
POINTS = {
    ("plane", "sphere"): 1,
    ("plane", "capsule"): 2,
    ("plane", "cylinder"): 4,
    ("plane", "box"): 4,
    ("sphere", "sphere"): 1,
    ("sphere", "capsule"): 1,
    ("sphere", "cylinder"): 1,
    ("sphere", "box"): 1,
    ("capsule", "capsule"): 2,
    ("capsule", "cylinder"): 2,
}
MIN_FRICTION = 1e-5  # MuJoCo's mjMINMU


@dataclass(frozen=True)
class Pair:
    """Two geoms that can touch. `geom1` has the lower shape number, normals point from it to `geom2`.

    `body1`/`body2` are the geoms' bodies, `moving1`/`moving2` the bodies they are welded to (0: the world, does not move).
    Lengths in metres; `solref`, `solimp` as in MuJoCo, not yet made safe.
    """

    geom1: int
    geom2: int
    shapes: tuple[str, str]
    body1: int
    body2: int
    moving1: int
    moving2: int
    dim: int
    friction: float
    solref: tuple[float, ...]
    solimp: tuple[float, ...]
    margin: float
    gap: float

    @property
    def points(self) -> int:
        return POINTS[self.shapes]


def candidate_pairs(m: Model) -> list[Pair]:
    """Pairs of geoms that MuJoCo would test for contact, sorted by (geom1, geom2).

    Raises:
        ModelError: a pair needs a collider, a condim or a friction that is not supported.
    """
    pairs = [_explicit_pair(m, k) for k in range(m.npair)]
    listed = {frozenset((p.geom1, p.geom2)) for p in pairs}
    excluded = set(m.exclude_signature)
    for geom2 in range(m.ngeom):
        for geom1 in range(geom2):
            if {geom1, geom2} not in listed and _collidable(m, geom1, geom2, excluded):
                pairs.append(_mixed_pair(m, geom1, geom2))
    pairs = [p for p in pairs if p.moving1 != p.moving2]
    for pair in pairs:
        _check(m, pair)
    return sorted(pairs, key=lambda p: (p.geom1, p.geom2))


def _collidable(m: Model, geom1: int, geom2: int, excluded: set[int]) -> bool:
    """MuJoCo's filters: masks, welded bodies, two bodies without dofs, parent and child, excluded body pairs."""
    masks = m.geom_contype[geom1] & m.geom_conaffinity[geom2] or m.geom_contype[geom2] & m.geom_conaffinity[geom1]
    body1, body2 = sorted((m.geom_bodyid[geom1], m.geom_bodyid[geom2]))
    weld1, weld2 = m.body_weldid[body1], m.body_weldid[body2]
    if not masks or weld1 == weld2 or (m.body_dofnum[weld1] == 0 and m.body_dofnum[weld2] == 0):
        return False
    if m.filterparent and weld1 != 0 and weld2 != 0:
        parent1, parent2 = (m.body_weldid[m.body_parentid[weld]] for weld in (weld1, weld2))
        if weld1 == parent2 or weld2 == parent1:
            return False
    return (body1 << 16) + body2 not in excluded


def _ordered(m: Model, geom1: int, geom2: int) -> dict[str, Any]:
    """The geoms with the lower shape number first, and their bodies."""
    if m.geom_type[geom1] > m.geom_type[geom2]:
        geom1, geom2 = geom2, geom1
    body1, body2 = m.geom_bodyid[geom1], m.geom_bodyid[geom2]
    return {
        "geom1": geom1, "geom2": geom2, "shapes": (SHAPES[m.geom_type[geom1]], SHAPES[m.geom_type[geom2]]),
        "body1": body1, "body2": body2, "moving1": m.body_weldid[body1], "moving2": m.body_weldid[body2],
    }  # fmt: skip


def _mixed_pair(m: Model, geom1: int, geom2: int) -> Pair:
    """Parameters from both geoms: those of the higher priority, or mixed."""
    order = _ordered(m, geom1, geom2)
    a, b = order["geom1"], order["geom2"]
    if m.geom_priority[a] != m.geom_priority[b]:
        chosen = a if m.geom_priority[a] > m.geom_priority[b] else b
        dim, friction = m.geom_condim[chosen], m.geom_friction[chosen][0]
        solref, solimp = m.geom_solref[chosen], m.geom_solimp[chosen]
    else:
        mix = _mix_factor(m.geom_solmix[a], m.geom_solmix[b])
        dim = max(m.geom_condim[a], m.geom_condim[b])
        friction = max(m.geom_friction[a][0], m.geom_friction[b][0])
        standard = m.geom_solref[a][0] > 0 and m.geom_solref[b][0] > 0
        refs, imps = zip(m.geom_solref[a], m.geom_solref[b]), zip(m.geom_solimp[a], m.geom_solimp[b])
        solref = tuple(mix * x + (1 - mix) * y if standard else min(x, y) for x, y in refs)
        solimp = tuple(mix * x + (1 - mix) * y for x, y in imps)
    return Pair(
        **order, dim=dim, friction=max(MIN_FRICTION, friction), solref=solref, solimp=solimp,
        margin=m.geom_margin[a] + m.geom_margin[b], gap=m.geom_gap[a] + m.geom_gap[b],
    )  # fmt: skip


def _mix_factor(first: float, second: float) -> float:
    """Weight of the first geom's solver parameters from both `solmix`."""
    if first >= MINVAL and second >= MINVAL:
        return first / (first + second)
    return 0.5 if first < MINVAL and second < MINVAL else float(first >= MINVAL)


def _explicit_pair(m: Model, k: int) -> Pair:
    """A <pair> element: its own parameters, no filters."""
    if m.pair_dim[k] == 3 and m.pair_friction[k][0] != m.pair_friction[k][1]:
        name = element(m.mj, "pair", k)
        raise ModelError(f"contact pair {name}: two different sliding friction coefficients are not supported")
    return Pair(
        **_ordered(m, m.pair_geom1[k], m.pair_geom2[k]), dim=m.pair_dim[k],
        friction=max(MIN_FRICTION, m.pair_friction[k][0]), solref=m.pair_solref[k], solimp=m.pair_solimp[k],
        margin=m.pair_margin[k], gap=m.pair_gap[k],
    )  # fmt: skip


def _check(m: Model, pair: Pair) -> None:
    both = f"contact of geoms {element(m.mj, 'geom', pair.geom1)} and {element(m.mj, 'geom', pair.geom2)}"
    if pair.shapes not in POINTS:
        first, second = pair.shapes
        raise ModelError(
            f"{both}: {first} with {second} is not supported; keep them apart with contype and conaffinity or <exclude>"
        )
    if pair.dim not in (1, 3):
        raise ModelError(f"{both}: condim {pair.dim} is not supported (1 and 3 are)")


def chain(m: Model, body: int) -> list[int]:
    """Dofs that move a body, ascending."""
    body = m.body_weldid[body]
    dofs = []
    dof = m.body_dofadr[body] + m.body_dofnum[body] - 1 if m.body_dofnum[body] else -1
    while dof >= 0:
        dofs.append(dof)
        dof = m.dof_parentid[dof]
    return dofs[::-1]


def path(m: Model, body1: int, body2: int) -> list[tuple[int, int]]:
    """Dofs that move two bodies relative to each other, ascending, each with its side: +1 moves body2, -1 body1."""
    first, second = chain(m, body1), chain(m, body2)
    sides = [(dof, -1) for dof in first if dof not in second] + [(dof, 1) for dof in second if dof not in first]
    return sorted(sides)
