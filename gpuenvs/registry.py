"""id -> EnvSpec. The built-in list is the only place that names an environment's module."""

from __future__ import annotations

import importlib

from gpuenvs.errors import DuplicateEnvError, UnknownEnvError, near_names
from gpuenvs.spec import EnvSpec

# One line an environment: the module that holds its SPEC.
BUILTIN = (
    "gpuenvs.classic.cartpole",
    "gpuenvs.classic.mountain_car",
    "gpuenvs.classic.mountain_car_continuous",
    "gpuenvs.classic.pendulum",
    "gpuenvs.classic.acrobot",
)

_specs: dict[str, EnvSpec] = {}
_loaded = False


def _load_builtin() -> None:
    global _loaded
    if _loaded:
        return
    _loaded = True
    for name in BUILTIN:
        register(importlib.import_module(name).SPEC)


def register(spec: EnvSpec) -> EnvSpec:
    """Make `spec` known under its id; returns it.

    Raises:
        DuplicateEnvError: another environment has this id.
    """
    _load_builtin()
    known = _specs.get(spec.id)
    if known is not None and known is not spec:
        raise DuplicateEnvError(f"environment id {spec.id!r} is registered already; give yours another name or version")
    _specs[spec.id] = spec
    return spec


def get(env_id: str | EnvSpec) -> EnvSpec:
    """The spec of `env_id` (an EnvSpec passes through).

    Raises:
        UnknownEnvError: no such id; the message names near ones.
    """
    if isinstance(env_id, EnvSpec):
        return env_id
    _load_builtin()
    name = env_id.removeprefix("gpuenvs/")
    if name not in _specs:
        hint = near_names(name, _specs)
        raise UnknownEnvError(f"unknown environment {env_id!r}{hint}; `gpurl envs` lists all")
    return _specs[name]


def ids() -> list[str]:
    """Every registered id, in order of registration."""
    _load_builtin()
    return list(_specs)
