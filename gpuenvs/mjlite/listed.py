"""Listed contacts: for models with many possible contacts (Humanoid: 126 pairs) of which few touch at a time.

Straight-line code for every candidate would be large and mostly wasted, so here loops over tables of pairs test for
contact and append what touches to a list. The list is uniform: a slot exists if any env (lane) of the program has that
contact, and an env without it has D = 0 in the slot. Everything about a slot is in `control.Array`s; what belongs to the
slot's pair and never changes is in `control.Table`s. Contacts of equal condim share one `ContactGroup`.

Layout, for slot s in range(group.count) and pair p = group.pair.load(s) (both uniform integers); dirs = group.dirs:
    group.dim                         1 (frictionless) or 3 (pyramid of four edges)
    group.dirs                        directions stored: 1 (normal) if dim == 1, else 3 (normal, tangent 1, tangent 2)
    group.path_len.load(p)            number of dofs the contact moves with (dofs that move both bodies alike are not among them)
    group.path_dof.load(p * group.stride + k)    k-th of these dofs, ascending
    group.jac.load((s * group.stride + k) * dirs + i)     d(velocity of geom 2 - velocity of geom 1 along direction i)/d(qvel[dof k])
    group.aref.load(s * dirs + i)     reference acceleration along direction i: aref of a pyramid edge n +- mu*t is a_n +- mu*a_t
    group.D.load(s)                   inverse regularisation, the same for all rows of the contact; 0 where the env has no such contact
    group.mu(p)                       sliding friction coefficient; a float if all pairs of the group share it
    group.force.store(s * dirs + i, f)    written by the solver: force along direction i (of an edge pair with forces f0, f1:
                                      normal f0 + f1, tangential mu * (f0 - f1), summed over the two edge pairs)
Rows of a slot, with x_i = sum_k jac_ik * qacc[dof_k] - aref_i: dim 1: (x_0); dim 3: x_0 + mu x_1, x_0 - mu x_1, x_0 + mu x_2,
x_0 - mu x_2. A row pushes where it is negative: cost D/2 * min(row, 0)^2, edge force -D * min(row, 0).

Formulas: MuJoCo documentation, Computation chapter, "Constraint model" (contact Jacobian, pyramidal cones, impedance).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuenvs import trace as T


@dataclass
class ContactGroup:
    """The touching contacts of one condim; the layout is at the top of this file."""

    dim: int
    dirs: int
    stride: int  # longest path
    capacity: int  # most slots that can ever be used: every candidate of the group
    path_len: T.Table
    path_dof: T.Table
    body1: T.Table
    body2: T.Table
    friction: float | T.Table
    count: Any  # uniform integer: slots in use
    pair: T.Array  # int [capacity]
    jac: T.Array  # [capacity * stride * dirs]
    aref: T.Array  # [capacity * dirs]
    D: T.Array  # [capacity]
    force: T.Array  # [capacity * dirs], by the solver
    position: T.Array  # [capacity * 3] contact point, world frame
    axes: T.Array  # [capacity * dirs * 3] unit vectors of the directions, world frame

    def mu(self, pair: Any) -> Any:
        """Sliding friction coefficient of a pair."""
        return self.friction.load(pair) if isinstance(self.friction, T.Table) else self.friction


@dataclass
class ListedContacts:
    """All groups with at least one candidate; `d.listed` after `list_contacts`."""

    groups: list[ContactGroup]
