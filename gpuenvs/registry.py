"""id -> EnvSpec. The built-in table is the only place that names an environment's module."""

from __future__ import annotations

import importlib
from typing import NamedTuple

from gpuenvs.errors import DuplicateEnvError, UnknownEnvError, near_names
from gpuenvs.spec import EnvSpec


class Builtin(NamedTuple):
    """What is known of a built-in environment without importing its module."""

    module: str  # holds its SPEC; imported when first asked for
    max_episode_steps: int | None
    reward_threshold: float | None = None


# One line an environment.
BUILTIN = {
    "CartPole-v1": Builtin("gpuenvs.classic.cartpole", 500, 475.0),
    "MountainCar-v0": Builtin("gpuenvs.classic.mountain_car", 200, -110.0),
    "MountainCarContinuous-v0": Builtin("gpuenvs.classic.mountain_car_continuous", 999, 90.0),
    "Pendulum-v1": Builtin("gpuenvs.classic.pendulum", 200),
    "Acrobot-v1": Builtin("gpuenvs.classic.acrobot", 500, -100.0),
}

_specs: dict[str, EnvSpec] = {}


def register(spec: EnvSpec) -> EnvSpec:
    """Make `spec` known under its id; returns it.

    Raises:
        DuplicateEnvError: another environment has this id.
    """
    if spec.id in BUILTIN or _specs.get(spec.id, spec) is not spec:
        raise DuplicateEnvError(f"environment id {spec.id!r} is registered already; give yours another name or version")
    _specs[spec.id] = spec
    return spec


def get(env_id: str | EnvSpec) -> EnvSpec:
    """The spec of `env_id` (an EnvSpec passes through; a leading `gpuenvs/` does not count).

    Raises:
        UnknownEnvError: no such id; the message names near ones.
    """
    if isinstance(env_id, EnvSpec):
        return env_id
    name = env_id.removeprefix("gpuenvs/")
    if name not in _specs:
        if name not in BUILTIN:
            raise UnknownEnvError(f"unknown environment {env_id!r}{near_names(name, ids())}; `gpurl envs` lists all")
        _specs[name] = importlib.import_module(BUILTIN[name].module).SPEC
    return _specs[name]


def ids() -> list[str]:
    """Every known id: the built-in ones, then those that were registered."""
    return list(dict.fromkeys((*BUILTIN, *_specs)))
