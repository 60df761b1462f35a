"""Contact forces as they act on bodies: what mj_rnePostConstraint leaves in `cfrc_ext`.

MuJoCo documentation, API reference, mj_rnePostConstraint. A pyramid's edge forces are decoded by the solver already: each
contact has its force along the axes of its frame.
"""

from __future__ import annotations

from typing import Any

from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.kinematics import Data
from gpuenvs.mjlite.listed import external_forces
from gpuenvs.mjlite.model import Model


def rne_post_constraint(m: Model, d: Data) -> None:
    """External wrench on each body: the sum of its contacts.

    Reads subtree_com and the solved contacts: contact (with `along`), or listed (with `force`) where the model lists its
    contacts. Writes cfrc_ext (nbody, 6): torque about subtree_com of the body's root (N m), then force (N), world axes.
    The world's row is zero, as in MuJoCo.
    """
    if "listed" in d.__dict__:
        d.cfrc_ext = [[0.0] * 6, *external_forces(m, d)[1:]]
    else:
        d.cfrc_ext = _unrolled(m, d)


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
