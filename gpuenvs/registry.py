"""id -> EnvSpec. The built-in table is the only place that names an environment's module."""

from __future__ import annotations

import importlib
from typing import NamedTuple

from gpuenvs import loading
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
    "InvertedPendulum-v5": Builtin("gpuenvs.mjlite.tasks.inverted_pendulum", 1000, 950.0),
    "InvertedDoublePendulum-v5": Builtin("gpuenvs.mjlite.tasks.inverted_double_pendulum", 1000, 9100.0),
    "Reacher-v5": Builtin("gpuenvs.mjlite.tasks.reacher", 50, -3.75),
    "Pusher-v5": Builtin("gpuenvs.mjlite.tasks.pusher", 100, 0.0),
    "Swimmer-v5": Builtin("gpuenvs.mjlite.tasks.swimmer", 1000, 360.0),
    "Hopper-v5": Builtin("gpuenvs.mjlite.tasks.hopper", 1000, 3800.0),
    "HalfCheetah-v5": Builtin("gpuenvs.mjlite.tasks.half_cheetah", 1000, 4800.0),
    "Walker2d-v5": Builtin("gpuenvs.mjlite.tasks.walker2d", 1000),
    "Ant-v5": Builtin("gpuenvs.mjlite.tasks.ant", 1000, 6000.0),
    "Humanoid-v5": Builtin("gpuenvs.mjlite.tasks.humanoid", 1000),
    "HumanoidStandup-v5": Builtin("gpuenvs.mjlite.tasks.humanoid_standup", 1000),
}

_specs: dict[str, EnvSpec] = {}


def register(spec: EnvSpec) -> EnvSpec:
    """Make `spec` known under its id; returns it.

    Raises:
        DuplicateEnvError: another environment has this id.
    """
    known = _specs.get(spec.id)
    if spec.id in BUILTIN or (known is not None and known is not spec):
        from gpuenvs.contract.faults import where

        whose = f"with the step of {where(known.step)}" if known is not None else "by gpurl"
        raise DuplicateEnvError(
            f"{spec.id}: this id is registered already, {whose}; give the one with the step of {where(spec.step)} "
            "another name or version"
        )
    _specs[spec.id] = spec
    return spec


def get(env_id: str | EnvSpec) -> EnvSpec:
    """The spec of an id (a leading `gpuenvs/` does not count), or of a reference to a file or module.

    Args:
        env_id: `"CartPole-v1"`, `"path/to/my_env.py:SPEC"`, `"package.module:SPEC"` (see `gpuenvs.loading`), or an EnvSpec,
            which passes through.

    Raises:
        UnknownEnvError: no such id, file, module or name in it; the message names near ones.
        LoadError: the file or module raises while it is imported.
        SpecError: what the name stands for is not an EnvSpec.
        DuplicateEnvError: a file's environment has the id of a built-in one.
    """
    if isinstance(env_id, EnvSpec):
        return env_id
    if loading.is_reference(env_id):
        spec = loading.load(env_id)
        if spec.id in BUILTIN and spec is not _specs.get(spec.id):
            from gpuenvs.contract.faults import where

            raise DuplicateEnvError(
                f"{env_id}: its id {spec.id!r} is a built-in environment's; give the one with the step of {where(spec.step)} "
                "another name or version"
            )
        return spec
    name = env_id.removeprefix("gpuenvs/")
    if name not in _specs:
        if name not in BUILTIN:
            raise UnknownEnvError(f"unknown environment {env_id!r}{near_names(name, ids())}; `gpurl envs` lists all")
        _specs[name] = importlib.import_module(BUILTIN[name].module).SPEC
    return _specs[name]


def ids() -> list[str]:
    """Every known id: the built-in ones, then those that were registered."""
    return list(dict.fromkeys((*BUILTIN, *_specs)))
