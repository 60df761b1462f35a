"""gpuenvs: environments as a few scalar functions, stepped thousands at a time on CPU SIMD cores or CUDA.

Everything that a file with an environment of one's own needs is here::

    from gpuenvs import EnvSpec, Range, clip, f32, lit, njit, sincos, uniform
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gpuenvs import registry as _registry
from gpuenvs.errors import GpurlError
from gpuenvs.ranges import Range
from gpuenvs.registry import get, ids
from gpuenvs.spec import EnvSpec, Reference

if TYPE_CHECKING:
    from gpuenvs.checks import check
    from gpuenvs.rng import normal, uniform
    from gpuenvs.runtime.vector_env import BatchEnv
    from gpuenvs.scalar import (
        clip,
        cos,
        f32,
        f64,
        floor,
        i32,
        isfinite,
        lit,
        log,
        njit,
        select,
        sin,
        sincos,
        sqrt,
        u32,
        wrap_angle,
    )  # fmt: skip

__all__ = [
    "BatchEnv", "EnvSpec", "GpurlError", "Range", "Reference", "check", "clip", "cos", "f32", "f64", "floor", "get", "i32",
    "ids", "isfinite", "lit", "log", "make", "njit", "normal", "register", "select", "sin", "sincos", "sqrt", "u32",
    "uniform", "wrap_angle",
]  # fmt: skip
__version__ = "0.1.0"

# Imported when first used: they bring numba along.
_LATER = {
    "gpuenvs.checks": ("check",),
    "gpuenvs.rng": ("normal", "uniform"),
    "gpuenvs.runtime.vector_env": ("BatchEnv",),
    "gpuenvs.scalar": (
        "clip", "cos", "f32", "f64", "floor", "i32", "isfinite", "lit", "log", "njit", "select", "sin", "sincos", "sqrt",
        "u32", "wrap_angle",
    ),
}  # fmt: skip


def make(env_id: str | EnvSpec, num_envs: int, **options: Any) -> BatchEnv:
    """A batch of `num_envs` environments.

    Args:
        env_id: what `get` takes: an id, a reference such as `"path/to/my_env.py:SPEC"`, or an EnvSpec.
        num_envs: rows.
        **options: see `gpuenvs.runtime.vector_env.BatchEnv`.
    """
    from gpuenvs.runtime.vector_env import BatchEnv

    return BatchEnv(get(env_id), num_envs, **options)


def register(spec: EnvSpec) -> EnvSpec:
    """Make `spec` known under its id, to gpurl and to Gymnasium as `"gpuenvs/<id>"`; returns it.

    Raises:
        DuplicateEnvError: another environment has this id.
    """
    _registry.register(spec)
    _register_with_gymnasium(spec.id, spec.max_episode_steps, spec.reward_threshold)
    return spec


def _register_with_gymnasium(env_id: str, max_episode_steps: int | None, reward_threshold: float | None) -> None:
    import gymnasium

    name = f"gpuenvs/{env_id}"
    if name not in gymnasium.registry:
        gymnasium.register(
            id=name,
            entry_point="gpuenvs.adapters.single:make_single_env",
            vector_entry_point="gpuenvs.runtime.gym:make_vector_env",
            max_episode_steps=max_episode_steps,
            reward_threshold=reward_threshold,
            kwargs={"env_id": env_id},
        )


for _env_id, _entry in _registry.BUILTIN.items():
    _register_with_gymnasium(_env_id, _entry.max_episode_steps, _entry.reward_threshold)


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            found = globals()[name] = getattr(importlib.import_module(module), name)
            return found
    raise AttributeError(f"module 'gpuenvs' has no attribute {name!r}")
