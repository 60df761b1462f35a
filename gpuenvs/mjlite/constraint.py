"""Constraint rows: joint limits, joint friction, contacts. What the solver needs of each: D, aref and the row's Jacobian.

MuJoCo documentation, Computation chapter, "Constraint model" and "Solver parameters". For a row with position pos,
velocity vel = J qvel and margin:
    impedance d(pos): from solimp, between d0 and d_width, over |pos - margin| / width
    aref = -b vel - k d (pos - margin), stiffness k and damping b from solref
    R = (1 - d) / d * A, D = 1 / R, A an estimate of the row's inverse inertia at qpos0
A pyramid of friction mu has one D on its four edges: R = 2 mu^2 (1 - d) / d * (1 + mu^2) A.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from gpuenvs import trace as T
from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.model import BALL, FREE, Model

MIN_IMPEDANCE, MAX_IMPEDANCE = 1e-4, 0.9999  # MuJoCo's mjMINIMP, mjMAXIMP


@dataclass
class Limit:
    """One joint limit as a row: sum of jac[k] * qacc[dofs[k]] - aref, which pushes where it is negative.

    A hinge or slide joint has one row for both ends (jac = +-1, whichever end is nearer) when both cannot act at once.
    """

    joint: int
    dofs: list[int]
    jac: list[Any]
    pos: Any  # distance to the end, rad or m; negative: beyond
    active: Any  # condition
    D: Any  # 0 where not active
    aref: Any


@dataclass
class Friction:
    """Joint friction of one dof: the row qacc[dof] - aref, whose force -D * row is limited to +-loss (N m or N)."""

    dof: int
    loss: float
    D: float
    aref: Any


def make_constraint(m: Model, d: Any) -> None:
    """All rows.

    Reads qpos, qvel, contact, twist, origin. Writes limits (list of `Limit`), friction (list of `Friction`), and
    `active`, `D` and `aref` of each contact.
    """
    d.limits = [row for j in range(m.njnt) if m.jnt_limited[j] for row in _joint_limits(m, d, j)]
    d.friction = [_friction(m, d, dof) for dof in range(m.nv) if m.dof_frictionloss[dof]]
    for _, points in groupby(d.contact, key=lambda contact: contact.pair):
        _contacts(m, d, list(points))


# Reference and impedance


@dataclass(frozen=True)
class Softness:
    """A row's solver parameters, made safe: stiffness k and damping b of its reference, and its impedance."""

    k: float
    b: float
    solimp: tuple[float, ...]

    def impedance(self, pos: Any) -> Any:
        """d at pos = position - margin, for pos <= 0: where a row acts."""
        d0, d1, width, middle, power = self.solimp
        if d0 == d1 or width <= la.MINVAL:
            return 0.5 * (d0 + d1)
        x = pos * (1.0 / width)  # from 0 down to -1
        x = T.where(x < -1.0, -1.0, x)
        if power == 1.0:
            return d0 - x * (d1 - d0)
        rise = (d1 - d0) / middle ** (power - 1.0)
        fall = (d1 - d0) / (1.0 - middle) ** (power - 1.0)
        rising = x * x if power == 2.0 else _power(-x, power)
        return T.where(x >= -middle, d0 + rising * rise, d1 - _power(1.0 + x, power) * fall)


def softness(m: Model, solref: tuple[float, ...], solimp: tuple[float, ...]) -> Softness:
    """Solver parameters with MuJoCo's safeguards (option flag refsafe: time constant at least two time steps)."""
    d0, d1, width, middle, power = solimp

    def bounded(x: float) -> float:
        return min(MAX_IMPEDANCE, max(MIN_IMPEDANCE, x))

    imp = (bounded(d0), bounded(d1), max(0.0, width), bounded(middle), max(1.0, power))
    time, damp = solref
    if (time > 0) != (damp > 0):  # neither (time constant, damping ratio) nor (-stiffness, -damping)
        time, damp = 0.02, 1.0
    if m.refsafe and time > 0:
        time = max(time, 2 * m.timestep)
    if time > 0:
        return Softness(1.0 / max(la.MINVAL, (imp[1] * time * damp) ** 2), 2.0 / max(la.MINVAL, imp[1] * time), imp)
    return Softness(-time / max(la.MINVAL, imp[1] ** 2), -damp / max(la.MINVAL, imp[1]), imp)


def _power(x: Any, power: float) -> Any:
    """x to a power > 1, for x in [0, 1]."""
    if power == int(power) and power <= 8:
        out = x
        for _ in range(int(power) - 1):
            out = out * x
        return out
    return T.where(x > 0.0, T.exp(T.log(T.where(x > 0.0, x, 1.0)) * power), 0.0)


def inverse_regularisation(imp: Any, weight: Any, factor: Any = 1.0, smallest: float | None = None) -> Any:
    """D = 1 / (factor * max(tiny, (1 - imp) / imp * weight)). `smallest`: a lower bound of a weight that is no float."""
    if (1.0 - MAX_IMPEDANCE) / MAX_IMPEDANCE * (weight if smallest is None else smallest) >= la.MINVAL:
        return imp / ((1.0 - imp) * (weight * factor))
    return 1.0 / (T.maximum((1.0 - imp) * weight / imp, la.MINVAL) * factor)


# Joints


def _joint_limits(m: Model, d: Any, j: int) -> list[Limit]:
    dof, margin = m.jnt_dofadr[j], m.jnt_margin[j]
    soft = softness(m, m.jnt_solref[j], m.jnt_solimp[j])
    weight = m.dof_invweight0[dof]
    low, high = m.jnt_range[j]
    if m.jnt_type[j] == FREE:
        return []
    if m.jnt_type[j] == BALL:
        axis, angle = _rotation(d.qpos[m.jnt_qposadr[j] : m.jnt_qposadr[j] + 4])
        dofs, jac = [dof, dof + 1, dof + 2], la.neg(axis)
        return [_limit(d, j, dofs, jac, max(low, high) - angle, margin, soft, weight)]
    q = d.qpos[m.jnt_qposadr[j]]
    to_low, to_high = q - low, high - q
    if high - low > 2.0 * margin:  # at most one end acts
        nearer_low = to_low < to_high
        sign = T.where(nearer_low, 1.0, -1.0)
        return [_limit(d, j, [dof], [sign], T.where(nearer_low, to_low, to_high), margin, soft, weight)]
    return [
        _limit(d, j, [dof], [1.0], to_low, margin, soft, weight),
        _limit(d, j, [dof], [-1.0], to_high, margin, soft, weight),
    ]


def _limit(
    d: Any, j: int, dofs: list[int], jac: list[Any], pos: Any, margin: float, soft: Softness, weight: float
) -> Limit:
    active = pos < margin
    imp = soft.impedance(pos - margin)
    velocity = la.dot(jac, [d.qvel[dof] for dof in dofs])
    aref = -(velocity * soft.b + (pos - margin) * imp * soft.k)
    scale = T.where(active, inverse_regularisation(imp, weight), 0.0)
    return Limit(j, dofs, jac, pos, active, scale, aref)


def _rotation(quat: Any) -> tuple[list[Any], Any]:
    """(unit axis, angle in [0, pi]) of a quaternion."""
    quat = la.quat_normalize(quat)
    sine = la.norm(quat[1:])
    tiny = sine < la.MINVAL
    inverse = 1.0 / T.where(tiny, 1.0, sine)
    axis = [T.where(tiny, 1.0 if k == 0 else 0.0, quat[k + 1] * inverse) for k in range(3)]
    flipped = quat[0] < 0.0  # the other way round is shorter
    angle = T.atan2(sine, T.absolute(quat[0])) * 2.0
    return [T.where(flipped, -a, a) for a in axis], angle


def _friction(m: Model, d: Any, dof: int) -> Friction:
    soft = softness(m, m.dof_solref[dof], m.dof_solimp[dof])
    scale = inverse_regularisation(soft.impedance(0.0), m.dof_invweight0[dof])
    return Friction(dof, m.dof_frictionloss[dof], float(scale), -(d.qvel[dof] * soft.b))


# Contacts


def contact_weight(m: Model, pair: Any) -> tuple[float, float]:
    """(A, factor) of `inverse_regularisation` for the rows of a contact."""
    weight = m.body_invweight0[pair.body1][0] + m.body_invweight0[pair.body2][0]
    if pair.dim == 1:
        return weight, 1.0
    square = pair.friction * pair.friction
    return weight * (1.0 + square), 2.0 * square / m.impratio


def _contacts(m: Model, d: Any, points: list[Any]) -> None:
    """`active`, `D` and `aref` of the contact points of one pair. Two bodies seldom touch: skipped where no env has them."""
    for contact in points:
        contact.active = contact.dist < contact.pair.margin
    size = 1 + points[0].dim
    often = points[0].pair.shapes[0] == "plane"
    needed = often or T.any_lane(T.any_of(*[contact.active for contact in points]))
    rows = T.if_(needed, lambda: [x for contact in points for x in _rows(m, d, contact)], [0.0] * (size * len(points)))
    for k, contact in enumerate(points):
        contact.D, *contact.aref = rows[k * size : (k + 1) * size]


def _rows(m: Model, d: Any, contact: Any) -> list[Any]:
    """[D, aref along the contact's axes]."""
    pair = contact.pair
    soft = softness(m, pair.solref, pair.solimp)
    depth = contact.dist - pair.margin
    imp = soft.impedance(depth)
    scale = T.where(contact.active, inverse_regularisation(imp, *contact_weight(m, pair)), 0.0)
    velocity = contact_velocity(m, d, contact)
    aref = [-(la.dot(axis, velocity) * soft.b) for axis in contact.axes]
    return [scale, aref[0] - depth * imp * soft.k, *aref[1:]]


def contact_velocity(m: Model, d: Any, contact: Any) -> list[Any]:
    """Velocity of geom2 relative to geom1 at the contact point, (3,), m/s, from the bodies' spatial velocities."""
    out: list[Any] = [0.0, 0.0, 0.0]
    for body, sign in ((contact.pair.moving2, 1.0), (contact.pair.moving1, -1.0)):
        if body:
            spatial = d.twist[body]
            arm = la.sub(contact.pos, d.origin[body])
            out = la.add_scaled(out, la.add(spatial[3:], la.cross(spatial[:3], arm)), sign)
    return out
