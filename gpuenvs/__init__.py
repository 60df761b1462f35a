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
    _register_with_gymnasium(spec.id, spec.max_episode_steps, spec.reward_threshold)
    return spec


def _register_with_gymnasium(env_id: str, max_episode_steps: int | None, reward_threshold: float | None) -> None:
    import gymnasium

    name = f"gpuenvs/{env_id}"
    if name not in gymnasium.registry:
        gymnasium.register(
            id=name,
            vector_entry_point="gpuenvs.runtime.gym:make_vector_env",
            max_episode_steps=max_episode_steps,
            reward_threshold=reward_threshold,
            kwargs={"env_id": env_id},
        )


for _env_id, _entry in _registry.BUILTIN.items():
    _register_with_gymnasium(_env_id, _entry.max_episode_steps, _entry.reward_threshold)


def __getattr__(name: str) -> Any:
    if name == "BatchEnv":
        from gpuenvs.runtime.vector_env import BatchEnv

        return BatchEnv
    raise AttributeError(f"module 'gpuenvs' has no attribute {name!r}")
