"""MuJoCo's C engine behind the interface of `gpuenvs.mjlite.forward`, one environment after the other.

With it a task's own functions (observation, reward, flags, starts) are checked apart from the physics of this package.
Scalars are numpy arrays with one entry per environment.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np

from gpuenvs.mjlite.quantities import FIELDS


class EnginePhysics:
    """`control_step` and `reset_forward` by mj_step and mj_forward; contact forces are always there.

    Args:
        mj: the MjModel to step with, for a solver of other precision than the task's model has.
    """

    def __init__(self, mj: Any) -> None:
        self.mj = mj

    def rne_post_constraint(self, m: Any, d: Any) -> None:
        """`control_step` has called it on each mjData."""

    def control_step(
        self,
        m: Any,
        qpos: list[Any],
        qvel: list[Any],
        ctrl: list[Any],
        frame_skip: int,
        watch: Callable[[Any], list[Any]],
    ) -> tuple[list[Any], list[Any], list[Any]]:
        def step(data: Any, row: np.ndarray) -> None:
            data.ctrl[:] = row
            mujoco.mj_step(self.mj, data, nstep=frame_skip)
            mujoco.mj_rnePostConstraint(self.mj, data)

        d = self._run(qpos, qvel, ctrl, step)
        return list(d.qpos), list(d.qvel), watch(d)

    def reset_forward(self, m: Any, qpos: list[Any], qvel: list[Any], watch: Callable[[Any], list[Any]]) -> list[Any]:
        return watch(self._run(qpos, qvel, [0.0] * m.nu, lambda data, _: mujoco.mj_forward(self.mj, data)))

    def _run(self, qpos: list[Any], qvel: list[Any], ctrl: list[Any], act: Callable[[Any, np.ndarray], None]) -> Any:
        rows = np.stack(np.broadcast_arrays(*qpos, *qvel, *ctrl), axis=-1).astype(np.float64)
        nq, nv = self.mj.nq, self.mj.nv
        found: dict[str, list[np.ndarray]] = {field: [] for field in FIELDS}
        data = mujoco.MjData(self.mj)
        for row in rows:
            mujoco.mj_resetData(self.mj, data)
            data.qpos[:], data.qvel[:] = row[:nq], row[nq : nq + nv]
            act(data, row[nq + nv :])
            for field in FIELDS:
                found[field].append(getattr(data, field).copy())
        return SimpleNamespace(**{field: _nested(np.stack(values)) for field, values in found.items()})


def _nested(values: np.ndarray) -> Any:
    """(n, rows) -> list of (n,) arrays; (n, rows, k) -> list of lists of them."""
    if values.ndim == 2:
        return list(values.T)
    return [list(row.T) for row in np.moveaxis(values, 0, 1)]


class NumpyRandom:
    """`uniform` and `normal` of `gpuenvs.trace.random` from a numpy Generator, which is what `rng` then is."""

    def __init__(self, count: int) -> None:
        self.count = count

    def uniform(self, rng: np.random.Generator, draw: int, low: Any, high: Any) -> np.ndarray:
        return rng.uniform(low, high, self.count)

    def normal(self, rng: np.random.Generator, draw: int, mean: Any, std: Any) -> np.ndarray:
        return rng.normal(mean, std, self.count)
