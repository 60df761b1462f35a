"""States of MuJoCo models along random-action trajectories of the C engine, and what the sample covers."""

from __future__ import annotations

import importlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

FAST = 10.0  # rad/s or m/s: a state with a faster joint counts as fast


@dataclass(frozen=True)
class Sample:
    """`n` states: qpos (n, nq), qvel (n, nv), ctrl (n, nu)."""

    qpos: np.ndarray
    qvel: np.ndarray
    ctrl: np.ndarray

    def rounded(self) -> Sample:
        """The same states as float32 holds them."""
        return Sample(*(x.astype(np.float32).astype(np.float64) for x in (self.qpos, self.qvel, self.ctrl)))


@dataclass
class Coverage:
    """Shares of the states, and the largest counts."""

    states: int
    in_contact: float
    mean_contacts: float
    most_contacts: int
    at_limit: float
    upside_down: float
    fast: float
    most_rows: int

    def row(self) -> dict[str, Any]:
        return asdict(self)


def sample(mj: Any, n: int, seed: int = 0, steps: int = 60) -> Sample:
    """Every third trajectory starts near qpos0, every third one thrown (random joint angles, fast), the others turned over.

    Controls are held for five records and exceed their range now and then; a record is three simulation steps.
    """
    mujoco: Any = importlib.import_module("mujoco")

    rng = np.random.default_rng(seed)
    data = mujoco.MjData(mj)
    out: list[tuple[np.ndarray, ...]] = []
    trajectory = 0
    while len(out) < n:
        mujoco.mj_resetData(mj, data)
        _throw(mj, data, trajectory % 3, rng)
        for step in range(steps):
            if step % 5 == 0:
                low, high = mj.actuator_ctrlrange.T
                data.ctrl[:] = (low + high) / 2 + (high - low) / 2 * rng.uniform(-1.1, 1.1, mj.nu)
            usable = np.isfinite(data.qvel).all() and np.abs(data.qvel).max() < 1e3
            if usable and rng.random() < 0.4:
                out.append((data.qpos.copy(), data.qvel.copy(), data.ctrl.copy()))
            mujoco.mj_step(mj, data, nstep=3)
        trajectory += 1
    return Sample(*(np.array(column) for column in zip(*out[:n])))


def _throw(mj: Any, data: Any, kind: int, rng: np.random.Generator) -> None:
    wild = kind == 1
    data.qpos += rng.normal(size=mj.nq) * (0.8 if wild else 0.05)
    data.qvel += rng.normal(size=mj.nv) * (5.0 if wild else 0.1)
    if kind != 2:
        return
    if mj.jnt_type[0] == 0:  # a free joint: half a turn about a random horizontal axis
        angle = rng.uniform(0, 2 * np.pi)
        data.qpos[3:7] = [0.0, np.cos(angle), np.sin(angle), 0.0]
    else:
        hinges = [k for k in range(mj.njnt) if mj.jnt_type[k] == 3]
        if hinges:
            data.qpos[mj.jnt_qposadr[hinges[0]]] += np.pi * rng.choice([-1.0, 1.0])


def each_step(mj: Any, states: Sample) -> tuple[np.ndarray, np.ndarray, Coverage]:
    """qpos and qvel after one mj_step of the C engine from each state, without a warm start; and the coverage."""
    mujoco: Any = importlib.import_module("mujoco")

    data = mujoco.MjData(mj)
    qpos, qvel = np.empty_like(states.qpos), np.empty_like(states.qvel)
    contacts, limits, rows, upside = [], [], [], []
    for k in range(len(qpos)):
        mujoco.mj_resetData(mj, data)
        data.qpos[:], data.qvel[:], data.ctrl[:] = states.qpos[k], states.qvel[k], states.ctrl[k]
        mujoco.mj_forward(mj, data)
        contacts.append(data.ncon)
        rows.append(data.nefc)
        limits.append(int(np.sum(data.efc_type[: data.nefc] == int(mujoco.mjtConstraint.mjCNSTR_LIMIT_JOINT))))
        upside.append(data.xmat[1].reshape(3, 3)[2, 2] < 0)
        mujoco.mj_resetData(mj, data)
        data.qpos[:], data.qvel[:], data.ctrl[:] = states.qpos[k], states.qvel[k], states.ctrl[k]
        mujoco.mj_step(mj, data)
        qpos[k], qvel[k] = data.qpos, data.qvel
    count, limit = np.array(contacts), np.array(limits)
    seen = Coverage(
        states=len(qpos), in_contact=float((count > 0).mean()), mean_contacts=float(count.mean()),
        most_contacts=int(count.max()), at_limit=float((limit > 0).mean()), upside_down=float(np.mean(upside)),
        fast=float((np.abs(states.qvel).max(axis=1) > FAST).mean()), most_rows=int(max(rows)),
    )  # fmt: skip
    return qpos, qvel, seen
