"""Which geoms can touch, and with what contact parameters: all decided once per model.

Filters and mixing rules: MuJoCo documentation, Computation chapter, "Collision detection" (selection) and
"Contact parameters". A pair of shapes without a collider is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mujoco

from gpuenvs.errors import ModelError

SHAPES = {
    int(getattr(mujoco.mjtGeom, f"mjGEOM_{name.upper()}")): name
    for name in ("plane", "hfield", "sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh", "sdf")
}
# Most contact points per pair of shapes, the first the one with the lower type number.
POINTS = {
    ("plane", "sphere"): 1,
    ("plane", "capsule"): 2,
    ("plane", "cylinder"): 4,
    ("plane", "box"): 4,
    ("sphere", "sphere"): 1,
    ("sphere", "capsule"): 1,
    ("capsule", "capsule"): 2,
    ("capsule", "cylinder"): 1,
}
MIN_FRICTION = 1e-5  # MuJoCo's mjMINMU
MIN_VALUE = 1e-15  # MuJoCo's mjMINVAL


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
    solref: tuple[float, float]
    solimp: tuple[float, float, float, float, float]
    margin: float
    gap: float

    @property
    def points(self) -> int:
        return POINTS[self.shapes]


def name_of(mj: Any, kind: str, index: int) -> str:
    """`geom 'floor'`, or `geom 3` if it has no name."""
    name = getattr(mj, kind)(index).name
    return f"{kind} '{name}'" if name else f"{kind} {index}"


def candidate_pairs(mj: Any) -> list[Pair]:
    """Pairs of geoms of a `mujoco.MjModel` that MuJoCo would test for contact, sorted by (geom1, geom2).

    Raises:
        ModelError: a pair needs a collider, a condim, a friction cone or an option that is not supported.
    """
    flags = mujoco.mjtDisableBit
    if mj.opt.disableflags & (int(flags.mjDSBL_CONSTRAINT) | int(flags.mjDSBL_CONTACT)):
        return []
    explicit = [_explicit_pair(mj, k) for k in range(mj.npair)]
    listed = {frozenset((p.geom1, p.geom2)) for p in explicit}
    pairs = list(explicit)
    excluded = {int(s) for s in mj.exclude_signature}
    for geom2 in range(mj.ngeom):
        for geom1 in range(geom2):
            if {geom1, geom2} not in listed and _collidable(mj, geom1, geom2, excluded):
                pairs.append(_mixed_pair(mj, geom1, geom2))
    pairs = [p for p in pairs if p.moving1 != p.moving2]
    if pairs:
        _check_options(mj)
    for pair in pairs:
        _check_pair(mj, pair)
    return sorted(pairs, key=lambda p: (p.geom1, p.geom2))


def _collidable(mj: Any, geom1: int, geom2: int, excluded: set[int]) -> bool:
    """MuJoCo's filters: masks, welded bodies, two bodies without dofs, parent and child, excluded body pairs."""
    if not (
        mj.geom_contype[geom1] & mj.geom_conaffinity[geom2] or mj.geom_contype[geom2] & mj.geom_conaffinity[geom1]
    ):
        return False
    body1, body2 = sorted((int(mj.geom_bodyid[geom1]), int(mj.geom_bodyid[geom2])))
    weld1, weld2 = int(mj.body_weldid[body1]), int(mj.body_weldid[body2])
    if weld1 == weld2 or (mj.body_dofnum[weld1] == 0 and mj.body_dofnum[weld2] == 0):
        return False
    filter_parent = not mj.opt.disableflags & int(mujoco.mjtDisableBit.mjDSBL_FILTERPARENT)
    if filter_parent and weld1 != 0 and weld2 != 0:
        parent1, parent2 = (int(mj.body_weldid[mj.body_parentid[weld]]) for weld in (weld1, weld2))
        if weld1 == parent2 or weld2 == parent1:
            return False
    return (body1 << 16) + body2 not in excluded


def _ordered(mj: Any, geom1: int, geom2: int) -> dict[str, Any]:
    """The geoms with the lower shape number first, and their bodies."""
    if mj.geom_type[geom1] > mj.geom_type[geom2]:
        geom1, geom2 = geom2, geom1
    body1, body2 = int(mj.geom_bodyid[geom1]), int(mj.geom_bodyid[geom2])
    return {
        "geom1": int(geom1), "geom2": int(geom2),
        "shapes": (SHAPES[int(mj.geom_type[geom1])], SHAPES[int(mj.geom_type[geom2])]),
        "body1": body1, "body2": body2,
        "moving1": int(mj.body_weldid[body1]), "moving2": int(mj.body_weldid[body2]),
    }  # fmt: skip


def _mixed_pair(mj: Any, geom1: int, geom2: int) -> Pair:
    """Parameters from both geoms: of the higher priority, or mixed."""
    order = _ordered(mj, geom1, geom2)
    a, b = order["geom1"], order["geom2"]
    first, second = float(mj.geom_solmix[a]), float(mj.geom_solmix[b])
    if first >= MIN_VALUE and second >= MIN_VALUE:
        mix = first / (first + second)
    else:
        mix = 0.5 if first < MIN_VALUE and second < MIN_VALUE else float(first >= MIN_VALUE)
    if mj.geom_priority[a] != mj.geom_priority[b]:
        chosen = a if mj.geom_priority[a] > mj.geom_priority[b] else b
        dim, friction = int(mj.geom_condim[chosen]), float(mj.geom_friction[chosen, 0])
        solref, solimp = mj.geom_solref[chosen].tolist(), mj.geom_solimp[chosen].tolist()
    else:
        dim = int(max(mj.geom_condim[a], mj.geom_condim[b]))
        friction = float(max(mj.geom_friction[a, 0], mj.geom_friction[b, 0]))
        standard = mj.geom_solref[a, 0] > 0 and mj.geom_solref[b, 0] > 0
        refs = zip(mj.geom_solref[a].tolist(), mj.geom_solref[b].tolist())
        solref = [mix * x + (1 - mix) * y if standard else min(x, y) for x, y in refs]
        imps = zip(mj.geom_solimp[a].tolist(), mj.geom_solimp[b].tolist())
        solimp = [mix * x + (1 - mix) * y for x, y in imps]
    return Pair(
        **order, dim=dim, friction=max(MIN_FRICTION, friction), solref=tuple(solref), solimp=tuple(solimp),
        margin=float(mj.geom_margin[a] + mj.geom_margin[b]), gap=float(mj.geom_gap[a] + mj.geom_gap[b]),
    )  # fmt: skip


def _explicit_pair(mj: Any, k: int) -> Pair:
    """A <pair> element: its own parameters, no filters."""
    order = _ordered(mj, int(mj.pair_geom1[k]), int(mj.pair_geom2[k]))
    if mj.pair_dim[k] == 3 and mj.pair_friction[k, 0] != mj.pair_friction[k, 1]:
        raise ModelError(f"{name_of(mj, 'pair', k)}: two different sliding friction coefficients are not supported")
    return Pair(
        **order, dim=int(mj.pair_dim[k]), friction=max(MIN_FRICTION, float(mj.pair_friction[k, 0])),
        solref=tuple(mj.pair_solref[k].tolist()), solimp=tuple(mj.pair_solimp[k].tolist()),
        margin=float(mj.pair_margin[k]), gap=float(mj.pair_gap[k]),
    )  # fmt: skip


def _check_options(mj: Any) -> None:
    enable = mujoco.mjtEnableBit
    if mj.opt.cone != mujoco.mjtCone.mjCONE_PYRAMIDAL:
        raise ModelError('option cone="elliptic" is not supported, only "pyramidal"')
    if mj.opt.enableflags & int(enable.mjENBL_OVERRIDE):
        raise ModelError('option flag override="enable" is not supported')
    for field in ("geom_adhesion", "pair_adhesion", "geom_surfacevel"):
        if getattr(mj, field).any():
            kind, what = field.split("_")
            index = int(getattr(mj, field).reshape(len(getattr(mj, field)), -1).any(axis=1).argmax())
            raise ModelError(f"{name_of(mj, kind, index)}: {what} is not supported")


def _check_pair(mj: Any, pair: Pair) -> None:
    both = f"{name_of(mj, 'geom', pair.geom1)} and {name_of(mj, 'geom', pair.geom2)}"
    if pair.shapes not in POINTS:
        first, second = pair.shapes
        raise ModelError(
            f"contact between {both}: no collider for {first} and {second}; "
            "keep them apart with contype/conaffinity or <exclude>"
        )
    if pair.dim not in (1, 3):
        raise ModelError(f"contact between {both}: condim {pair.dim} is not supported, only 1 and 3")


def chain(mj: Any, body: int) -> list[int]:
    """Dofs that move a body, ascending."""
    body = int(mj.body_weldid[body])
    dofs = []
    dof = int(mj.body_dofadr[body] + mj.body_dofnum[body] - 1) if mj.body_dofnum[body] else -1
    while dof >= 0:
        dofs.append(dof)
        dof = int(mj.dof_parentid[dof])
    return dofs[::-1]


def path(mj: Any, body1: int, body2: int) -> list[tuple[int, int]]:
    """Dofs that move two bodies relative to each other, ascending, each with its side: +1 moves body2, -1 body1."""
    first, second = chain(mj, body1), chain(mj, body2)
    sides = [(dof, -1) for dof in first if dof not in second] + [(dof, 1) for dof in second if dof not in first]
    return sorted(sides)
