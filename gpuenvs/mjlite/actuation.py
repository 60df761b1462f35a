"""Actuators (MuJoCo documentation, Computation, "Actuation model"): stateless, on hinges and slides."""

from __future__ import annotations

from typing import Any

from gpuenvs import trace as T
from gpuenvs.mjlite.kinematics import Data
from gpuenvs.mjlite.model import Model

_AFFINE = 1
"""`actuator_gaintype` and `actuator_biastype` of parameters (constant, per length, per velocity)."""


def actuation(m: Model, d: Data) -> None:
    """force = gain(length, velocity) * ctrl + bias(length, velocity), through the gear to the joint.

    Covers motor, position, velocity, damper and general actuators. Reads qpos, qvel, ctrl. Writes
        actuator_force (nu,): N or N m, clamped to forcerange;
        qfrc_actuator (nv,): joint forces, clamped to actuatorfrcrange of the joint.
    A control that is NaN stays NaN (MuJoCo replaces all controls by zero and warns).
    """
    d.actuator_force, d.qfrc_actuator = [], [0.0] * m.nv
    for i in range(m.nu):
        j, gear = m.actuator_trnid[i], m.actuator_gear[i][0]
        dof = m.jnt_dofadr[j]
        force = 0.0 if m.actuator_disabled[i] else _force(m, d, i, d.qpos[m.jnt_qposadr[j]] * gear, d.qvel[dof] * gear)
        if m.actuator_forcelimited[i]:
            force = T.clip(force, *m.actuator_forcerange[i])
        d.actuator_force.append(force)
        d.qfrc_actuator[dof] = d.qfrc_actuator[dof] + force * gear
    for j in range(m.njnt):
        if m.jnt_actfrclimited[j] and not _no_actuation(m):
            dof = m.jnt_dofadr[j]
            d.qfrc_actuator[dof] = T.clip(d.qfrc_actuator[dof], *m.jnt_actfrcrange[j])


def _no_actuation(m: Model) -> bool:
    return all(m.actuator_disabled)


def _force(m: Model, d: Data, i: int, length: Any, velocity: Any) -> Any:
    ctrl = d.ctrl[i]
    if m.actuator_ctrllimited[i]:
        ctrl = T.clip(ctrl, *m.actuator_ctrlrange[i])
    gain = m.actuator_gainprm[i][0]
    if m.actuator_gaintype[i] == _AFFINE:
        gain = _affine(m.actuator_gainprm[i], length, velocity)
    force = gain * ctrl
    if m.actuator_biastype[i] == _AFFINE:
        force = force + _affine(m.actuator_biasprm[i], length, velocity)
    return force


def _affine(parameters: tuple[float, ...], length: Any, velocity: Any) -> Any:
    constant, per_length, per_velocity = parameters[:3]
    out: Any = constant
    if per_length:
        out = out + per_length * length
    if per_velocity:
        out = out + per_velocity * velocity
    return out
