"""Time stepping: semi-implicit Euler and fourth-order Runge-Kutta.

MuJoCo documentation, Computation, "Numerical integration".

How a simulation step uses this, after `forward` has filled `d.qacc` and so on:

Euler, once per step:
    `damped = damped_inertia(m, d)`: None when qacc can be used as it is, else solve damped @ acc = M @ qacc
    (= qfrc_smooth + qfrc_constraint) for acc; then `qpos, qvel = euler(m, d, acc)`.

Runge-Kutta, four stages per step. State and carry are flat lists of scalars, so the stages can be a `control.loop`:
    `carry = rk4_start(m)`
    for stage in 0, 1, 2, 3 (an int or a uniform traced value):
        forward at (qpos, qvel)
        `qpos, qvel, carry = rk4_stage(m, stage, qpos0, qvel0, d, carry)`, (qpos0, qvel0): the state at the step's start
    After stage 3, (qpos, qvel) is the state at the step's end, and carry is fit for the next step (as `rk4_start` gives it).

Since MuJoCo 4.0 the Runge-Kutta slope of an orientation is a tangent vector at the step's start: with u the rotation vector
from there to the stage's orientation, |u| <= pi, an angular velocity w at the stage counts as
    w + u x w / 2 + c(|u|) u x (u x w),  c(t) = (1 - t/2 cot(t/2)) / t^2.
"""

from __future__ import annotations

import math
from typing import Any

from gpuenvs import trace as T
from gpuenvs.mjlite import linalg as la
from gpuenvs.mjlite.kinematics import Data
from gpuenvs.mjlite.model import BALL, FREE, Model

_NEXT = (0.5, 0.5, 1.0, 0.0)
"""Fraction of the step from its start to the stage after this one, along this stage's slope."""
_WEIGHT = (1.0 / 6.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 6.0)


def damped_inertia(m: Model, d: Data) -> dict[tuple[int, int], Any] | None:
    """M + timestep * diag(damping), laid out as `qM`; None where nothing is damped. Reads qM."""
    if not m.eulerdamp or not any(m.dof_damping):
        return None
    return {(i, j): x + m.timestep * m.dof_damping[i] if i == j else x for (i, j), x in d.qM.items()}


def euler(m: Model, d: Data, acceleration: list[Any]) -> tuple[list[Any], list[Any]]:
    """(qpos, qvel) after a step: first the velocity, then the position along the new velocity. Reads qpos, qvel."""
    qvel = la.add_scaled(d.qvel, acceleration, m.timestep)
    return integrate_pos(m, d.qpos, la.scale(qvel, m.timestep)), qvel


def rk4_start(m: Model) -> list[Any]:
    """The carry of a step's first stage: (u, c) per ball or free joint, then the weighted sums of slopes; all zero."""
    return [0.0] * (4 * len(_rotations(m)) + 2 * m.nv)


def rk4_stage(
    m: Model, stage: Any, qpos0: list[Any], qvel0: list[Any], d: Data, carry: list[Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    """(qpos, qvel, carry) of the stage after `stage`, or of the step's end after stage 3.

    Args:
        stage: 0 to 3, int or uniform.
        qpos0, qvel0: state at the step's start.
        d: the stage's qvel and qacc are read.
        carry: from `rk4_start` or from the stage before.
    """
    weight, fraction, last = T.Table(_WEIGHT).load(stage), T.Table(_NEXT).load(stage), stage == 3
    rotations = _rotations(m)
    slope = list(d.qvel)
    for k, (_, v) in enumerate(rotations):
        slope[v : v + 3] = _tangent(slope[v : v + 3], carry[4 * k : 4 * k + 3], carry[4 * k + 3])
    sums = carry[4 * len(rotations) :]
    sum_vel = la.add_scaled(sums[: m.nv], slope, weight)
    sum_acc = la.add_scaled(sums[m.nv :], d.qacc, weight)

    move = [T.where(last, total, s * fraction) * m.timestep for total, s in zip(sum_vel, slope)]
    qvel = [v + T.where(last, total, a * fraction) * m.timestep for v, total, a in zip(qvel0, sum_acc, d.qacc)]
    tangents: list[Any] = []
    qpos = integrate_pos(m, qpos0, move, tangents)
    carry = [T.where(last, 0.0, x) for x in [*tangents, *sum_vel, *sum_acc]]
    return qpos, qvel, carry


def integrate_pos(m: Model, qpos: list[Any], move: list[Any], tangents: list[Any] | None = None) -> list[Any]:
    """qpos moved by `move` (nv,) = velocity times time; rotations are about the body's own axes.

    `tangents`, if given, receives u (3) and c(|u|) of each ball and free joint (see the top of the file).
    """
    out = list(qpos)
    for j in range(m.njnt):
        q, v = m.jnt_qposadr[j], m.jnt_dofadr[j]
        if m.jnt_type[j] == FREE:
            out[q : q + 3] = la.add(qpos[q : q + 3], move[v : v + 3])
            q, v = q + 3, v + 3
        if m.jnt_type[j] in (FREE, BALL):
            turn = move[v : v + 3]
            square = la.dot(turn, turn)
            still = square < la.MINVAL**2
            angle = T.sqrt(T.where(still, 1.0, square))
            inverse = 1.0 / angle
            sine, cosine = T.sincos(0.5 * angle)
            half = T.where(still, 0.5, sine * inverse)
            rotation = [T.where(still, 1.0, cosine), *la.scale(turn, half)]
            out[q : q + 4] = la.quat_mul(la.quat_normalize(qpos[q : q + 4]), rotation)
            if tangents is not None:
                tangents += _shortest(turn, square, angle, inverse, sine, cosine)
        else:
            out[q] = qpos[q] + move[v]
    return out


def _shortest(turn: list[Any], square: Any, angle: Any, inverse: Any, sine: Any, cosine: Any) -> list[Any]:
    """u (3) and c(|u|) of a rotation vector, given its squared length, its length t, 1/t, sin(t/2) and cos(t/2).

    u is the shortest rotation vector of the same rotation; c comes from a series where t is small.
    """
    turns = T.floor(angle * (0.5 / math.pi) + 0.5)
    shorter = 1.0 - turns * (2.0 * math.pi) * inverse
    square, angle = square * (shorter * shorter), angle * shorter
    small = square < 1e-4
    exact = (sine - 0.5 * angle * cosine) / T.where(small, 1.0, sine * square)
    return [*la.scale(turn, shorter), T.where(small, 1.0 / 12.0 + square / 720.0, exact)]


def _tangent(w: list[Any], u: list[Any], c: Any) -> list[Any]:
    """Angular velocity w at a stage as a tangent vector at the step's start (see the top of the file)."""
    uw = la.cross(u, w)
    return la.add_scaled(la.add_scaled(w, uw, 0.5), la.cross(u, uw), c)


def _rotations(m: Model) -> list[tuple[int, int]]:
    """(address in qpos, address in qvel) of the rotation of each ball and free joint."""
    out = []
    for j in range(m.njnt):
        if m.jnt_type[j] in (FREE, BALL):
            skip = 3 if m.jnt_type[j] == FREE else 0
            out.append((m.jnt_qposadr[j] + skip, m.jnt_dofadr[j] + skip))
    return out
