"""Contact forces as they act on bodies: what mj_rnePostConstraint leaves in `cfrc_ext`.

MuJoCo documentation, API reference, mj_rnePostConstraint. A pyramid's edge forces are decoded by the solver already: each
contact has its force along the axes of its frame.
"""

from __future__ import annotations

from typing import Any

from gpuenvs import trace as T
from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.kinematics import Data
from gpuenvs.mjlite.listed import ContactGroup, ListedContacts
from gpuenvs.mjlite.model import Model


def rne_post_constraint(m: Model, d: Data) -> None:
    """External wrench on each body: the sum of its contacts.

    Reads subtree_com and the solved contacts: contact (with `along`), or listed (with `force`) where the model lists its
    contacts. Writes cfrc_ext (nbody, 6): torque about subtree_com of the body's root (N m), then force (N), world axes.
    The world's row is zero, as in MuJoCo.
    """
    listed: ListedContacts | None = getattr(d, "listed", None)
    if listed is None:
        d.cfrc_ext = _unrolled(m, d)
    else:
        d.cfrc_ext = _listed(m, d, listed)


def _unrolled(m: Model, d: Data) -> list[list[Any]]:
    out: list[list[Any]] = [[0.0] * 6 for _ in range(m.nbody)]
    for contact in d.contact:
        force: list[Any] = [0.0] * 3
        for axis, along in zip(contact.frame, contact.along):
            force = la.add_scaled(force, axis, along)
        for body, sign in ((contact.pair.body1, -1.0), (contact.pair.body2, 1.0)):
            if body:
                out[body] = la.add_scaled(out[body], _wrench(m, d, body, contact.pos, force), sign)
    return out


def _wrench(m: Model, d: Data, body: int, pos: la.Vec, force: la.Vec) -> list[Any]:
    """A force at `pos` as torque about subtree_com of the body's root, and force."""
    return [*la.cross(la.sub(pos, d.subtree_com[m.body_rootid[body]]), force), *force]


def _listed(m: Model, d: Data, listed: ListedContacts) -> list[list[Any]]:
    """Moments are taken about the world's origin in the loop, where bodies are known by number only, and moved at the end."""
    sums = T.Array(6 * m.nbody)
    for k in range(6 * m.nbody):
        sums.store(k, 0.0)
    for group in listed.groups:
        T.loop(group.count, lambda slot, group=group: _add_slot(group, slot, sums), [])
    out: list[list[Any]] = [[0.0] * 6]
    for b in range(1, m.nbody):
        torque, force = ([sums.load(6 * b + k + i) for i in range(3)] for k in (0, 3))
        out.append([*la.sub(torque, la.cross(d.subtree_com[m.body_rootid[b]], force)), *force])
    return out


def _add_slot(group: ContactGroup, slot: Any, sums: T.Array) -> list[Any]:
    force: list[Any] = [0.0] * 3
    for i in range(group.dirs):
        place = slot * group.dirs + i
        axis = [group.axes.load(place * 3 + k) for k in range(3)]
        force = la.add_scaled(force, axis, group.force.load(place))
    pos = [group.position.load(slot * 3 + k) for k in range(3)]
    wrench = [*la.cross(pos, force), *force]
    pair = group.pair.load(slot)
    for bodies, sign in ((group.body1, -1.0), (group.body2, 1.0)):
        start = bodies.load(pair) * 6
        for k, x in enumerate(wrench):
            sums.store(start + k, sums.load(start + k) + x * sign)
    return []
