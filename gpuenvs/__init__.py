"""gpuenvs: environments as a few scalar functions, stepped thousands at a time on CPU SIMD cores or CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuenvs import registry as _registry
from gpuenvs.errors import GpurlError
from gpuenvs.registry import get, ids
from gpuenvs.spec import EnvSpec, Reference

if TYPE_CHECKING:
    from gpuenvs.runtime.vector_env import BatchEnv

__all__ = ["BatchEnv", "EnvSpec", "GpurlError", "Reference", "get", "ids", "make", "register"]
__version__ = "0.1.0"


def make(env_id: str | EnvSpec, num_envs: int, **options: Any) -> BatchEnv:
    """A batch of `num_envs` environments; see `gpuenvs.runtime.vector_env.BatchEnv` for the options."""
    from gpuenvs.runtime.vector_env import BatchEnv

    return BatchEnv(get(env_id), num_envs, **options)


def register(spec: EnvSpec) -> EnvSpec:
    """Make `spec` known under its id, to gpurl and as `gymnasium.make_vec("gpuenvs/<id>")`; returns it.

    Raises:
        DuplicateEnvError: another environment has this id.
    """
    _registry.register(spec)
    _register_with_gymnasium(spec)
    return spec


def _register_with_gymnasium(spec: EnvSpec) -> None:
    import gymnasium

    name = f"gpuenvs/{spec.id}"
    if name not in gymnasium.registry:
        gymnasium.register(
            id=name,
            vector_entry_point="gpuenvs.runtime.gym:make_vector_env",
            max_episode_steps=spec.max_episode_steps,
            reward_threshold=spec.reward_threshold,
            kwargs={"env_id": spec.id},
        )


for _env_id in ids():
    _register_with_gymnasium(get(_env_id))


def __getattr__(name: str) -> Any:
    if name == "BatchEnv":
        from gpuenvs.runtime.vector_env import BatchEnv

        return BatchEnv
    raise AttributeError(f"module 'gpuenvs' has no attribute {name!r}")
