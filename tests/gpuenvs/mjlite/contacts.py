"""Contacts and constraint rows of the C engine, state by state, and how far ours are from them."""

from __future__ import annotations

from collections import defaultdict
from itertools import permutations
from typing import Any

import mujoco
import numpy as np

from gpuenvs.mjlite.collision import collide
from gpuenvs.mjlite.constraint import make_constraint
from gpuenvs.mjlite.inertia import com_pos
from gpuenvs.mjlite.kinematics import Data, kinematics
from gpuenvs.mjlite.model import Model
from gpuenvs.mjlite.velocity import com_vel
from tests.gpuenvs.mjlite import harness


def prepared(m: Model, qpos: np.ndarray, qvel: np.ndarray) -> Data:
    """Data with every stage before contacts done."""
    d = harness.data_of(qpos, qvel, np.zeros((len(qpos), m.nu)))
    for stage in (kinematics, com_pos, com_vel):
        stage(m, d)
    return d


def constrained(m: Model, qpos: np.ndarray, qvel: np.ndarray) -> Data:
    """The same with unrolled contacts and all rows."""
    d = prepared(m, qpos, qvel)
    with np.errstate(all="ignore"):
        collide(m, d)
        make_constraint(m, d)
    return d


def engine(m: Model, qpos: np.ndarray, qvel: np.ndarray) -> list[Any]:
    """The C engine's data of each state, up to the rows (mj_fwdPosition, mj_fwdVelocity), with dense Jacobians."""
    m.mj.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    out = []
    for q, v in zip(qpos, qvel):
        data = mujoco.MjData(m.mj)
        data.qpos[:], data.qvel[:] = q, v
        mujoco.mj_fwdPosition(m.mj, data)
        mujoco.mj_fwdVelocity(m.mj, data)
        out.append(data)
    return out


class Spread:
    """Entry k of scalars that may be numbers or arrays (n,)."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return np.array([self(x) for x in value])
        return value[self.k] if np.ndim(value) else value


def contact_errors(m: Model, d: Data, states: list[Any]) -> tuple[dict[str, float], int]:
    """(largest difference by quantity, contacts compared). The contacts that act must be the same ones.

    The sign of a tangent is free: it exchanges the two edges of a pair of pyramid rows.
    """
    worst: dict[str, float] = defaultdict(float)
    compared = 0
    for k, data in enumerate(states):
        at = Spread(k)
        theirs, ours = defaultdict(list), defaultdict(list)
        for contact in data.contact:
            if contact.efc_address >= 0:
                theirs[tuple(contact.geom.tolist())].append(contact)
        for contact in d.contact:
            if at(contact.active):
                ours[contact.pair.geom1, contact.pair.geom2].append(contact)
            else:
                assert at(contact.D) == 0.0
        counts = [{pair: len(found) for pair, found in side.items()} for side in (ours, theirs)]
        assert counts[0] == counts[1], f"state {k}: contacts that act, here {counts[0]}, in MuJoCo {counts[1]}"
        for pair, found in theirs.items():
            order = _nearest_order(at, ours[pair], found)
            for mine, other in zip(order, found):
                compared += 1
                for name, value in _differences(m, at, mine, other, data).items():
                    worst[name] = max(worst[name], value)
    return dict(worst), compared


def _nearest_order(at: Spread, ours: list[Any], theirs: list[Any]) -> Any:
    def apart(order: Any) -> float:
        return sum(np.abs(at(mine.pos) - other.pos).max() for mine, other in zip(order, theirs))

    return min(permutations(ours), key=apart)


def _differences(m: Model, at: Spread, mine: Any, other: Any, data: Any) -> dict[str, float]:
    frame, expected = at([list(axis) for axis in mine.frame]), other.frame.reshape(3, 3)
    mu, aref = mine.mu, at(mine.aref)
    if mine.dim == 1:
        rows, signs = aref, [1.0]
    else:
        signs = [float(np.sign(frame[i] @ expected[i])) for i in (1, 2)]
        rows = np.array([aref[0] + s * mu * sign * aref[i] for i, sign in zip((1, 2), signs) for s in (1, -1)])
        assert mu == other.friction[0]
    first = other.efc_address
    theirs = data.efc_aref[first : first + len(rows)]
    assert mine.pair.margin == other.includemargin
    out = {
        "dist": abs(at(mine.dist) - other.dist),
        "pos": np.abs(at(mine.pos) - other.pos).max(),
        "normal": np.abs(frame[0] - expected[0]).max(),
        "D": np.abs(at(mine.D) / data.efc_D[first : first + len(rows)] - 1).max(),
        "aref": np.abs(rows - theirs).max() / (1 + np.abs(theirs).max()),
    }
    if mine.dim == 3:
        out["tangents"] = max(np.abs(frame[i] * sign - expected[i]).max() for i, sign in zip((1, 2), signs))
    return out


def limit_errors(m: Model, d: Data, states: list[Any]) -> tuple[dict[str, float], int]:
    """(largest difference by quantity, joint limits compared)."""
    worst: dict[str, float] = defaultdict(float)
    compared = 0
    kind = int(mujoco.mjtConstraint.mjCNSTR_LIMIT_JOINT)
    for k, data in enumerate(states):
        at = Spread(k)
        ours = [limit for limit in d.limits if at(limit.active)]
        theirs = np.nonzero(data.efc_type == kind)[0]
        assert len(ours) == len(theirs), f"state {k}"
        assert all(at(limit.D) == 0.0 for limit in d.limits if not at(limit.active))
        jacobian = data.efc_J.reshape(-1, m.nv)
        for row in theirs:
            full = {id(limit): np.zeros(m.nv) for limit in ours}
            for limit in ours:
                full[id(limit)][limit.dofs] = at(limit.jac)
            mine = min(ours, key=lambda limit: np.abs(full[id(limit)] - jacobian[row]).max())
            compared += 1
            found = {
                "limit J": np.abs(full[id(mine)] - jacobian[row]).max(),
                "limit pos": abs(at(mine.pos) - data.efc_pos[row]),
                "limit D": abs(at(mine.D) / data.efc_D[row] - 1),
                "limit aref": abs(at(mine.aref) - data.efc_aref[row]) / (1 + abs(data.efc_aref[row])),
            }
            for name, value in found.items():
                worst[name] = max(worst[name], value)
    return dict(worst), compared
