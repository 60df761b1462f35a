"""The compiled model as plain Python constants.

MuJoCo parses and compiles MJCF; `load` copies what the physics needs from its `MjModel` into tuples of Python numbers, so
that tracing folds them, and refuses by name whatever the physics here does not do. Field names and meanings are MuJoCo's
(MuJoCo documentation, API reference, mjModel); what is added or changed says so.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import os
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gpuenvs.errors import ModelError
from gpuenvs.mjlite.linalg import snap
from gpuenvs.mjlite.quiet import mujoco_warnings_logged
from gpuenvs.mjlite.supported import check

FREE, BALL, SLIDE, HINGE = range(4)
"""`jnt_type`."""
EULER, RK4 = 0, 1
"""`integrator`."""
PLANE, HFIELD, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH, SDF = range(9)
"""`geom_type`."""

Ints: TypeAlias = tuple[int, ...]
Reals: TypeAlias = tuple[float, ...]
Rows: TypeAlias = tuple[tuple[float, ...], ...]

_FRAMES = (
    "body_pos", "body_quat", "body_ipos", "body_iquat", "jnt_pos", "jnt_axis", "geom_pos", "geom_quat",
    "site_pos", "site_quat",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """Constants of one model. Index of an entry: body, joint, dof, geom, site, actuator or pair, as the name says."""

    mj: Any = dataclasses.field(repr=False)
    """The `mujoco.MjModel`: names, rendering, the reference in tests. Not part of `key`."""

    nq: int
    nv: int
    nu: int
    nbody: int
    njnt: int
    ngeom: int
    nsite: int
    npair: int

    timestep: float
    integrator: int
    gravity: Reals
    wind: Reals
    density: float
    viscosity: float
    impratio: float
    eulerdamp: bool
    """Euler treats damping implicitly (flag eulerdamp)."""
    refsafe: bool
    filterparent: bool

    body_parentid: Ints
    body_rootid: Ints
    body_weldid: Ints
    body_jntnum: Ints
    body_jntadr: Ints
    body_dofnum: Ints
    body_dofadr: Ints
    body_geomnum: Ints
    body_geomadr: Ints
    body_pos: Rows
    body_quat: Rows
    body_ipos: Rows
    body_iquat: Rows
    body_mass: Reals
    body_subtreemass: Reals
    body_inertia: Rows
    body_invweight0: Rows

    jnt_type: Ints
    jnt_qposadr: Ints
    jnt_dofadr: Ints
    jnt_bodyid: Ints
    jnt_pos: Rows
    jnt_axis: Rows
    jnt_stiffness: Reals
    """Zero if springs are disabled."""
    jnt_limited: Ints
    """Zero if limits are disabled."""
    jnt_range: Rows
    jnt_margin: Reals
    jnt_solref: Rows
    jnt_solimp: Rows
    jnt_actfrclimited: Ints
    jnt_actfrcrange: Rows

    dof_bodyid: Ints
    dof_jntid: Ints
    dof_parentid: Ints
    dof_armature: Reals
    dof_damping: Reals
    """Zero if dampers are disabled."""
    dof_frictionloss: Reals
    """Zero if friction loss is disabled."""
    dof_invweight0: Reals
    dof_solref: Rows
    dof_solimp: Rows

    geom_type: Ints
    geom_contype: Ints
    """Zero if contacts are disabled, as is geom_conaffinity."""
    geom_conaffinity: Ints
    geom_condim: Ints
    geom_bodyid: Ints
    geom_priority: Ints
    geom_size: Rows
    geom_pos: Rows
    geom_quat: Rows
    geom_rbound: Reals
    geom_friction: Rows
    geom_margin: Reals
    geom_gap: Reals
    geom_solmix: Reals
    geom_solref: Rows
    geom_solimp: Rows

    site_bodyid: Ints
    site_pos: Rows
    site_quat: Rows

    pair_dim: Ints
    pair_geom1: Ints
    pair_geom2: Ints
    pair_margin: Reals
    pair_gap: Reals
    pair_friction: Rows
    pair_solref: Rows
    pair_solreffriction: Rows
    pair_solimp: Rows
    exclude_signature: Ints

    actuator_trnid: Ints
    """Joint of each actuator (MuJoCo's first column)."""
    actuator_gear: Rows
    actuator_gaintype: Ints
    actuator_gainprm: Rows
    actuator_biastype: Ints
    actuator_biasprm: Rows
    actuator_ctrllimited: Ints
    """Zero if clamping of controls is disabled."""
    actuator_ctrlrange: Rows
    actuator_forcelimited: Ints
    actuator_forcerange: Rows
    actuator_disabled: Ints
    """1 where the actuator's group, or actuation as a whole, is disabled."""

    qpos0: Reals
    qpos_spring: Reals

    def key(self) -> bytes:
        """Digest of all constants: two models with the same key have the same physics (names do not count)."""
        fields = [f.name for f in dataclasses.fields(self) if f.name != "mj"]
        return hashlib.sha256(repr([(name, getattr(self, name)) for name in fields]).encode()).digest()

    def id(self, kind: str, name: str) -> int:
        """Index of the element `name`; kind is body, joint, geom, site or actuator.

        Raises:
            ModelError: no such element.
        """
        mujoco: Any = importlib.import_module("mujoco")

        index = mujoco.mj_name2id(self.mj, getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}"), name)
        if index < 0:
            raise ModelError(f"the model has no {kind} '{name}'")
        return index


def load(source: str | Path) -> Model:
    """The model of an MJCF file (its path) or of MJCF text (a string that starts with `<`).

    Raises:
        ModelError: the file cannot be read or compiled, or uses a feature that is not supported.
    """
    try:
        mujoco: Any = importlib.import_module("mujoco")
    except ImportError as error:
        raise ModelError("MuJoCo models need the mujoco package: pip install 'gpurl[mujoco]'") from error
    except AttributeError as error:  # what PyOpenGL raises while mujoco is imported, when its library is missing
        wanted = os.environ.get("MUJOCO_GL", "")
        raise ModelError(
            f"mujoco cannot be imported with MUJOCO_GL={wanted!r}: unset it or install {wanted}"
        ) from error
    text = str(source)
    try:
        with mujoco_warnings_logged():
            if text.lstrip().startswith("<"):
                mj = mujoco.MjModel.from_xml_string(text)
            else:
                if not Path(text).is_file():
                    raise ModelError(f"there is no MJCF file {text}")
                mj = mujoco.MjModel.from_xml_path(text)
    except (ValueError, mujoco.FatalError) as error:
        raise ModelError(f"MuJoCo cannot compile the model: {' '.join(str(error).split())}") from error
    return from_mjmodel(mj)


def from_mjmodel(mj: Any) -> Model:
    """The model of a `mujoco.MjModel`, which stays the caller's and must not change afterwards.

    Raises:
        ModelError: the model uses a feature that is not supported.
    """
    check(mj)
    values: dict[str, Any] = {"mj": mj}
    for field in dataclasses.fields(Model):
        if field.name not in values and hasattr(mj, field.name):
            values[field.name] = _plain(getattr(mj, field.name))
        elif field.name not in values and hasattr(mj.opt, field.name):
            values[field.name] = _plain(getattr(mj.opt, field.name))
    # Compiled frames carry rounding residue of about 1e-17, which would keep products from folding.
    for name in _FRAMES:
        values[name] = tuple(tuple(map(snap, row)) for row in values[name])
    values["actuator_trnid"] = tuple(row[0] for row in values["actuator_trnid"])
    values["actuator_disabled"] = tuple(int(_actuator_disabled(mj, i)) for i in range(mj.nu))
    values.update(_flags(mj, values))
    model = Model(**values)
    from gpuenvs.mjlite.pairs import candidate_pairs  # here, as it builds on Model

    candidate_pairs(model)  # refuses geoms that can touch but have no collider
    return model


def _flags(mj: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Disable flags, folded into the constants they switch off (MuJoCo documentation, XML reference, option/flag)."""
    mujoco: Any = importlib.import_module("mujoco")

    def disabled(name: str) -> bool:
        return bool(mj.opt.disableflags & getattr(mujoco.mjtDisableBit, f"mjDSBL_{name}"))

    def zeros(name: str) -> dict[str, Any]:
        return {name: tuple(0 * x for x in values[name])}

    out: dict[str, Any] = {
        "eulerdamp": not (disabled("EULERDAMP") or disabled("DAMPER")),
        "refsafe": not disabled("REFSAFE"),
        "filterparent": not disabled("FILTERPARENT"),
    }
    if disabled("GRAVITY"):
        out["gravity"] = (0.0, 0.0, 0.0)
    if disabled("SPRING"):
        out |= zeros("jnt_stiffness")
    if disabled("DAMPER"):
        out |= zeros("dof_damping")
    if disabled("SPRING") and disabled("DAMPER"):  # then MuJoCo computes no passive forces at all
        out |= {"density": 0.0, "viscosity": 0.0}
    if disabled("CLAMPCTRL"):
        out |= zeros("actuator_ctrllimited")
    everything = disabled("CONSTRAINT")
    if everything or disabled("LIMIT"):
        out |= zeros("jnt_limited")
    if everything or disabled("FRICTIONLOSS"):
        out |= zeros("dof_frictionloss")
    if everything or disabled("CONTACT"):
        out |= zeros("geom_contype") | zeros("geom_conaffinity")
        out |= {"npair": 0} | {name: () for name in values if name.startswith("pair_")}
    return out


def _actuator_disabled(mj: Any, i: int) -> bool:
    mujoco: Any = importlib.import_module("mujoco")

    group = int(mj.actuator_group[i])
    in_disabled_group = 0 <= group <= 30 and bool(mj.opt.disableactuator & (1 << group))
    return in_disabled_group or bool(mj.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_ACTUATION)


def _plain(value: Any) -> Any:
    """Numpy arrays as nested tuples of Python numbers; truth values as 0 and 1."""
    if isinstance(value, np.ndarray):
        return tuple(_plain(x) for x in value)
    if isinstance(value, np.bool_ | bool):
        return int(value)
    return value.item() if isinstance(value, np.generic) else value
