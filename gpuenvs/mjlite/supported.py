"""What the physics here does not do is refused by name, never approximated in silence."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuenvs.errors import ModelError


def check(mj: Any) -> None:
    """Raise `ModelError` that names the first feature of the `mujoco.MjModel` outside the supported subset."""
    for problem in problems(mj):
        raise ModelError(problem)


def problems(mj: Any) -> Iterator[str]:
    """One line per unsupported feature, with the element that uses it. Which geoms can collide is `pairs`' concern."""
    yield from _options(mj)
    yield from _elements(mj)
    yield from _joints(mj)
    yield from _tendons(mj)
    yield from _actuators(mj)
    yield from _sensors(mj)


def element(mj: Any, kind: str, index: int) -> str:
    """`'name'` of an element, or `number 3` when it has none."""
    mujoco: Any = importlib.import_module("mujoco")

    name = mujoco.mj_id2name(mj, getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}"), int(index))
    return f"'{name}'" if name else f"number {int(index)}"


def _options(mj: Any) -> Iterator[str]:
    mujoco: Any = importlib.import_module("mujoco")

    integrators = {
        mujoco.mjtIntegrator.mjINT_EULER: "",
        mujoco.mjtIntegrator.mjINT_RK4: "",
        mujoco.mjtIntegrator.mjINT_IMPLICIT: "implicit",
        mujoco.mjtIntegrator.mjINT_IMPLICITFAST: "implicitfast",
    }
    if refused := integrators.get(mj.opt.integrator, f"number {mj.opt.integrator}"):
        yield f"integrator {refused} is not supported (Euler and RK4 are)"
    if mj.opt.cone != mujoco.mjtCone.mjCONE_PYRAMIDAL:
        yield "elliptic friction cones are not supported (option cone: pyramidal is)"
    if mj.opt.impratio != 1:
        yield f"option impratio {mj.opt.impratio:g} is not supported (1 is)"
    if mj.opt.noslip_iterations > 0:
        yield "the noslip solver is not supported (option noslip_iterations must be 0)"
    if mj.nv == 0:
        yield "the model has no degree of freedom"
    harmless = {"ENERGY", "FWDINV", "INVDISCRETE"}
    for name, bit in mujoco.mjtEnableBit.__members__.items():
        flag = name.removeprefix("mjENBL_")
        if name.startswith("mjENBL_") and flag not in harmless and mj.opt.enableflags & bit:
            yield f"flag {flag.lower()} is not supported"


def _elements(mj: Any) -> Iterator[str]:
    """Whole kinds of elements, and properties of bodies and geoms."""
    for i in range(mj.neq):
        yield f"equality constraint {element(mj, 'equality', i)} is not supported"
    for i in range(mj.nflex):
        yield f"flex {element(mj, 'flex', i)} is not supported"
    for i in range(mj.nplugin):
        yield f"plugin {element(mj, 'plugin', i)} is not supported"
    for i in range(mj.nbody):
        if mj.body_mocapid[i] >= 0:
            yield f"mocap body {element(mj, 'body', i)} is not supported"
        if mj.body_gravcomp[i]:
            yield f"gravcomp of body {element(mj, 'body', i)} is not supported"
    fluid = bool(mj.opt.density or mj.opt.viscosity)
    for i in range(mj.ngeom):
        if fluid and mj.geom_fluid[i].any():
            yield f"the ellipsoid fluid model of geom {element(mj, 'geom', i)} is not supported"
        for feature in ("adhesion", "surfacevel"):
            if np.any(getattr(mj, f"geom_{feature}", np.zeros(mj.ngeom))[i]):
                yield f"{feature} of geom {element(mj, 'geom', i)} is not supported"
    for i in range(mj.npair):
        if np.any(getattr(mj, "pair_adhesion", np.zeros(mj.npair))[i]):
            yield f"adhesion of contact pair {element(mj, 'pair', i)} is not supported"


def _joints(mj: Any) -> Iterator[str]:
    for i in range(mj.njnt):
        name = element(mj, "joint", i)
        if np.any(getattr(mj, "jnt_stiffnesspoly", np.zeros(mj.njnt))[i]):
            yield f"nonlinear stiffness of joint {name} is not supported"
        if np.any(getattr(mj, "jnt_springyield", np.zeros(mj.njnt))[i]):
            yield f"spring yield of joint {name} is not supported"
        if mj.jnt_actgravcomp[i]:
            yield f"actuatorgravcomp of joint {name} is not supported"
    for i in range(mj.nv):
        if np.any(getattr(mj, "dof_dampingpoly", np.zeros(mj.nv))[i]):
            yield f"nonlinear damping of joint {element(mj, 'joint', mj.dof_jntid[i])} is not supported"


def _tendons(mj: Any) -> Iterator[str]:
    """A tendon that exerts no force is ignored; one that does anything is refused."""
    does = (
        "stiffness",
        "damping",
        "frictionloss",
        "armature",
        "limited",
        "stiffnesspoly",
        "dampingpoly",
        "springyield",
    )
    for i in range(mj.ntendon):
        for feature in does:
            if np.any(getattr(mj, f"tendon_{feature}", np.zeros(mj.ntendon))[i]):
                yield f"{feature} of tendon {element(mj, 'tendon', i)} is not supported"


def _actuators(mj: Any) -> Iterator[str]:
    mujoco: Any = importlib.import_module("mujoco")

    trn, joint = mujoco.mjtTrn, mujoco.mjtJoint
    for i in range(getattr(mj, "nactuator", mj.nu)):
        name = f"actuator {element(mj, 'actuator', i)}"
        if int(mj.actuator_trntype[i]) not in (trn.mjTRN_JOINT, trn.mjTRN_JOINTINPARENT):
            kind = trn(mj.actuator_trntype[i]).name.removeprefix("mjTRN_").lower()
            yield f"{name}: transmission to a {kind} is not supported (joints are)"
        elif int(mj.jnt_type[mj.actuator_trnid[i, 0]]) not in (joint.mjJNT_SLIDE, joint.mjJNT_HINGE):
            yield f"{name}: transmission to a ball or free joint is not supported"
        if int(mj.actuator_dyntype[i]) != mujoco.mjtDyn.mjDYN_NONE or mj.actuator_actnum[i]:
            kind = mujoco.mjtDyn(mj.actuator_dyntype[i]).name.removeprefix("mjDYN_").lower()
            yield f"{name}: activation dynamics ({kind}) are not supported"
        if int(mj.actuator_gaintype[i]) not in (mujoco.mjtGain.mjGAIN_FIXED, mujoco.mjtGain.mjGAIN_AFFINE):
            kind = mujoco.mjtGain(mj.actuator_gaintype[i]).name.removeprefix("mjGAIN_").lower()
            yield f"{name}: gain type {kind} is not supported (fixed and affine are)"
        if int(mj.actuator_biastype[i]) not in (mujoco.mjtBias.mjBIAS_NONE, mujoco.mjtBias.mjBIAS_AFFINE):
            kind = mujoco.mjtBias(mj.actuator_biastype[i]).name.removeprefix("mjBIAS_").lower()
            yield f"{name}: bias type {kind} is not supported (none and affine are)"
        for feature in ("damping", "dampingpoly", "armature", "delay"):
            if np.any(getattr(mj, f"actuator_{feature}", np.zeros(mj.nu))[i]):
                yield f"{name}: {feature} is not supported"
        if getattr(mj, "actuator_ctrlnum", np.ones(mj.nu))[i] != 1:
            yield f"{name}: an actuator with other than one control is not supported"


_SENSORS = {
    "JOINTPOS", "JOINTVEL", "BALLQUAT", "BALLANGVEL", "ACTUATORPOS", "ACTUATORVEL", "ACTUATORFRC", "JOINTACTFRC", "FRAMEPOS",
    "FRAMEQUAT", "FRAMEXAXIS", "FRAMEYAXIS", "FRAMEZAXIS", "SUBTREECOM", "CLOCK",
}  # fmt: skip


def _sensors(mj: Any) -> Iterator[str]:
    """Sensors do not act on the motion; those whose value can be had from the state by name are let through."""
    mujoco: Any = importlib.import_module("mujoco")

    for i in range(mj.nsensor):
        kind = mujoco.mjtSensor(mj.sensor_type[i]).name.removeprefix("mjSENS_")
        if kind not in _SENSORS:
            yield f"sensor {element(mj, 'sensor', i)} ({kind.lower()}) is not supported"
