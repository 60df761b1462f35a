"""id -> EnvSpec. The built-in table is the only place that names an environment's module."""

from __future__ import annotations

import importlib

from gpuenvs.errors import DuplicateEnvError, UnknownEnvError, near_names
from gpuenvs.spec import EnvSpec

# One line an environment: its id and the module that holds its SPEC (imported when first asked for).
BUILTIN = {
    "CartPole-v1": "gpuenvs.classic.cartpole",
    "MountainCar-v0": "gpuenvs.classic.mountain_car",
    "MountainCarContinuous-v0": "gpuenvs.classic.mountain_car_continuous",
    "Pendulum-v1": "gpuenvs.classic.pendulum",
    "Acrobot-v1": "gpuenvs.classic.acrobot",
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
        _specs[name] = importlib.import_module(BUILTIN[name]).SPEC
    return _specs[name]


def ids() -> list[str]:
    """Every known id: the built-in ones, then those that were registered."""
    return list(dict.fromkeys((*BUILTIN, *_specs)))
