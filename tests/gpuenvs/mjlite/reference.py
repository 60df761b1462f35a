"""Gymnasium's own MuJoCo environments as the judge of the tasks."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import mujoco
import numpy as np

from gpuenvs.registry import BUILTIN
from gpuenvs.spec import EnvSpec
from tests.gpuenvs.mjlite import harness

TASKS = [env_id for env_id, entry in BUILTIN.items() if entry.module.startswith("gpuenvs.mjlite")]


def gymnasium_env(env_id: str, exact: bool = True, **options: Any) -> Any:
    """Gymnasium's environment without wrappers, reset once.

    With `exact` the engine's solver goes on to rounding: tolerance 0, and Newton with 100 iterations where the model asks for
    another (the Humanoids: projected Gauss-Seidel, off the minimum by up to 1e-4; Pusher: 20 iterations).
    """
    heard = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(
        lambda message: None
    )  # else MuJoCo writes its warnings to a file in the working directory
    try:
        env: Any = gymnasium.make(env_id, disable_env_checker=True, **options).unwrapped
    finally:
        mujoco.set_mju_user_warning(heard)
    if exact:
        env.model.opt.tolerance = 0
        env.model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
        env.model.opt.iterations = 100
    env.reset(seed=0)
    return env


def sample(spec: EnvSpec, env: Any, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """States (count, fields) and actions (count, nu) of random-action trajectories, thrown and upside-down ones among them.

    Every second state is one that a step of `env` led to, so what the last forward pass left lags it as in an episode.
    """
    model = harness.model(spec.id.removesuffix("-v5"))
    qpos, qvel, ctrl = harness.states(model, count, seed)
    if spec.id == "Ant-v5":
        qpos[::5, 2] += 0.4  # random actions seldom bring it out of its healthy heights
    rows = []
    for k in range(count):
        env.set_state(qpos[k], qvel[k])
        if k % 2:
            env.step(ctrl[(k + 1) % count])
        rows.append(spec.reference.from_reference(env))  # type: ignore[union-attr]
    return np.array(rows, np.float64), ctrl


class Steps(NamedTuple):
    """Per row: observation before, observation after, reward, terminated, metrics by name."""

    first: np.ndarray
    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    metrics: dict[str, np.ndarray]


def gymnasium_steps(spec: EnvSpec, env: Any, states: np.ndarray, actions: np.ndarray) -> Steps:
    """One step of Gymnasium's environment from each state."""
    first, after, metrics = [], [], []
    for state, action in zip(states, actions, strict=True):
        spec.reference.to_reference(env, spec.state(*state.tolist()))  # type: ignore[union-attr]
        first.append(env._get_obs())
        obs, reward, terminated, _, info = env.step(action)
        after.append((obs, float(reward), bool(terminated)))
        metrics.append([float(info[name]) for name in spec.metrics])
    columns = np.array(metrics).reshape(len(states), -1).T
    return Steps(
        np.array(first),
        np.array([row[0] for row in after]),
        np.array([row[1] for row in after]),
        np.array([row[2] for row in after]),
        dict(zip(spec.metrics, columns, strict=True)),
    )


def error(mine: Any, theirs: np.ndarray) -> float:
    """Largest |difference| / max(1, |value|); infinite where either is not finite."""
    difference = np.abs(np.asarray(mine, np.float64) - theirs) / np.maximum(1.0, np.abs(theirs))
    return float(np.where(np.isfinite(difference), difference, np.inf).max())
