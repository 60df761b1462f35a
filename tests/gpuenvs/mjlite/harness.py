"""Reference states and reference quantities from MuJoCo's C engine, for the tests of mjlite."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np

from gpuenvs.mjlite.kinematics import Data
from gpuenvs.mjlite.model import Model, from_mjmodel, load

mujoco.set_mju_user_warning(
    lambda text: None
)  # an unstable simulation is no news here, and no reason to write a log file

ASSETS = Path(str(gymnasium.__file__)).parent / "envs" / "mujoco" / "assets"

MODELS = {
    "InvertedPendulum": ("inverted_pendulum", 2),
    "InvertedDoublePendulum": ("inverted_double_pendulum", 5),
    "Reacher": ("reacher", 2),
    "Swimmer": ("swimmer", 4),
    "Hopper": ("hopper", 4),
    "HalfCheetah": ("half_cheetah", 5),
    "Walker2d": ("walker2d_v5", 4),
    "Ant": ("ant", 5),
    "Humanoid": ("humanoid", 5),
    "HumanoidStandup": ("humanoidstandup", 5),
    "Pusher": ("pusher_v5", 5),
}
"""Gymnasium's v5 tasks: MJCF file and frame_skip."""


@cache
def model(name: str) -> Model:
    """The model of a Gymnasium task, with the reference solver exact: Newton, tolerance 0, many iterations."""
    mj = load(ASSETS / f"{MODELS[name][0]}.xml").mj
    return exact(mj)


def exact(mj: mujoco.MjModel) -> Model:
    mj.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    mj.opt.tolerance, mj.opt.ls_tolerance = 0.0, 1e-6
    mj.opt.iterations, mj.opt.ls_iterations = 200, 100
    return from_mjmodel(mj)


def states(m: Model, n: int, seed: int = 0, steps: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`n` states (qpos (n, nq), qvel (n, nv), ctrl (n, nu)) of random-action trajectories of the C engine.

    Each trajectory starts near qpos0; every third one is turned and thrown: random joint angles, fast, upside down.
    Controls are held for some steps and exceed their range now and then. States with constraints are preferred.
    """
    rng = np.random.default_rng(seed)
    data = mujoco.MjData(m.mj)
    tolerance, m.mj.opt.tolerance = m.mj.opt.tolerance, 1e-8  # sampling needs no exact solver
    out: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    trajectory = 0
    while len(out) < n:
        mujoco.mj_resetData(m.mj, data)
        wild = trajectory % 3 == 2
        data.qpos += rng.normal(size=m.nq) * (0.8 if wild else 0.05)
        data.qvel += rng.normal(size=m.nv) * (5.0 if wild else 0.1)
        for step in range(steps):
            if step % 5 == 0:
                data.ctrl[:] = _controls(m, rng)
            keep = rng.random() < (0.7 if data.nefc else 0.3)
            if keep and np.isfinite(data.qvel).all() and np.abs(data.qvel).max() < 1e3:
                out.append((data.qpos.copy(), data.qvel.copy(), data.ctrl.copy()))
            for _ in range(3):
                mujoco.mj_step(m.mj, data)
        trajectory += 1
    m.mj.opt.tolerance = tolerance
    return tuple(np.array(column) for column in zip(*out[:n]))  # type: ignore[return-value]


def _controls(m: Model, rng: np.random.Generator) -> np.ndarray:
    low, high = m.mj.actuator_ctrlrange.T if m.nu else (np.zeros(0), np.zeros(0))
    unlimited = ~m.mj.actuator_ctrllimited.astype(bool)
    low, high = np.where(unlimited, -1.0, low), np.where(unlimited, 1.0, high)
    return (low + high) / 2 + (high - low) / 2 * rng.uniform(-1.1, 1.1, size=m.nu)


def data_of(qpos: np.ndarray, qvel: np.ndarray, ctrl: np.ndarray) -> Data:
    """A `Data` whose scalars are arrays with one entry per state."""
    return Data(list(qpos.T), list(qvel.T), list(ctrl.T))


def each(
    m: Model, qpos: np.ndarray, qvel: np.ndarray, ctrl: np.ndarray, read: Callable[[mujoco.MjData], dict[str, Any]],
    run: Callable[[Any, Any], None] = mujoco.mj_forward,
) -> dict[str, np.ndarray]:  # fmt: skip
    """`read(data)` of the C engine after `run` (mj_forward) from each state, stacked."""
    data = mujoco.MjData(m.mj)
    rows: list[dict[str, np.ndarray]] = []
    for k in range(len(qpos)):
        mujoco.mj_resetData(m.mj, data)
        data.qpos[:], data.qvel[:], data.ctrl[:] = qpos[k], qvel[k], ctrl[k]
        run(m.mj, data)
        rows.append({name: np.array(value) for name, value in read(data).items()})
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


_FIELDS = (
    "xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat",
    "subtree_com", "cinert", "cdof", "cvel", "cdof_dot", "qfrc_bias", "qfrc_passive", "qfrc_actuator", "actuator_force",
    "qfrc_smooth", "qacc_smooth", "qacc", "qfrc_constraint",
)  # fmt: skip


def reference(m: Model, qpos: np.ndarray, qvel: np.ndarray, ctrl: np.ndarray) -> dict[str, np.ndarray]:
    """The C engine's quantities after mj_forward from each state; `qM` is dense (n, nv, nv), `cfrc_ext` (n, nbody, 6).

    Also `ncon` and `nefc` (n,). Rows of constraints differ in number from state to state: use `each` to read them.
    """

    def read(data: mujoco.MjData) -> dict[str, Any]:
        dense = np.zeros((m.nv, m.nv))
        mujoco.mj_fullM(m.mj, data, dense)
        mujoco.mj_rnePostConstraint(m.mj, data)
        fields = {name: getattr(data, name) for name in _FIELDS}
        return fields | {"qM": dense, "cfrc_ext": data.cfrc_ext, "ncon": data.ncon, "nefc": data.nefc}

    return each(m, qpos, qvel, ctrl, read)


def stack(value: Any, n: int) -> np.ndarray:
    """A nested list of scalars (numbers or arrays (n,)) as one array (n, ...)."""
    if isinstance(value, list | tuple):
        return np.stack([stack(x, n) for x in value], axis=1) if len(value) else np.zeros((n, 0))
    return np.broadcast_to(np.asarray(value, dtype=float), (n,))


def dense(m: Model, qM: dict[tuple[int, int], Any], n: int) -> np.ndarray:
    """A symmetric matrix from its entries, (n, nv, nv)."""
    out = np.zeros((n, m.nv, m.nv))
    for (i, j), value in qM.items():
        out[:, i, j] = out[:, j, i] = value
    return out
