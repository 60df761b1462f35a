"""Reading single numbers by `Key`: from the physics' data while tracing, and from MuJoCo's mjData."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from gpuenvs.mjlite.model import Model
from gpuenvs.mjlite.quantities import Key


def read(model: Model, d: Any, key: Key) -> Any:
    """The number `key` in the physics' data `d`."""
    if key.field == "subtree_com":
        return _subtree_com(model, d, key.row)[key.component]
    value = getattr(d, key.field)[key.row]
    return value[key.component] if isinstance(value, list | tuple) else value


def _subtree_com(model: Model, d: Any, body: int) -> list[Any]:
    """Centre of mass of `body` and all below it (3), or the body's own where there is no mass."""
    mass = model.body_subtreemass[body]
    if not mass:
        return list(d.xipos[body])
    below = [b for b in range(model.nbody) if model.body_mass[b] and is_below(model, b, body)]
    return [sum((model.body_mass[b] / mass) * d.xipos[b][k] for b in below) for k in range(3)]


def is_below(model: Model, body: int, ancestor: int) -> bool:
    """True for `ancestor` itself and every body in its subtree."""
    while body > ancestor:
        body = model.body_parentid[body]
    return body == ancestor


def from_data(data: Any, key: Key) -> float:
    """The number `key` in a `mujoco.MjData`."""
    value = getattr(data, key.field)[key.row]
    return float(value[key.component] if np.ndim(value) else value)


def initial_values(model: Model) -> Callable[[Key], float]:
    """What MuJoCo computes at qpos0, to call a task's functions with."""
    mujoco: Any = importlib.import_module("mujoco")

    data = mujoco.MjData(model.mj)
    mujoco.mj_forward(model.mj, data)
    return lambda key: from_data(data, key)
