"""Gymnasium's VectorEnv over a BatchEnv; `gpuenvs/__init__` registers it under `gpuenvs/<id>`.

    gymnasium.make_vec("gpuenvs/CartPole-v1", num_envs=1024)

By default everything is numpy in host memory and safe to keep: each call copies the outputs once. With `live_views=True`
the arrays are the batch's own (on CUDA: cupy arrays), nothing is copied, and the next call overwrites them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from gpuenvs import registry
from gpuenvs.errors import ConfigError
from gpuenvs.runtime.vector_env import BatchEnv


class GymVectorEnv(VectorEnv):
    """A `gymnasium.vector.VectorEnv` that steps a BatchEnv.

    Args:
        env_id: id of a registered environment.
        num_envs: rows.
        autoreset_mode: a `gymnasium.vector.AutoresetMode` or its name; Gymnasium's default is NEXT_STEP.
        live_views: hand out the batch's own arrays instead of copies.
        max_episode_steps: time limit instead of the environment's own.
        **options: as for `gpuenvs.make`: device, dtype, threads, seed, and the environment's params.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        live_views: bool = False,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        if render_mode is not None:
            raise ConfigError(
                f"gpuenvs/{env_id} does not render in a batch; use `gpurl play` or Gymnasium's own {env_id}"
            )
        mode = autoreset_mode.name if isinstance(autoreset_mode, AutoresetMode) else str(autoreset_mode)
        self.batch = BatchEnv(registry.get(env_id), num_envs, autoreset=mode.lower(), **options)
        self.live_views = live_views
        self.num_envs = num_envs
        self.metadata = {**self.batch.metadata, "render_modes": []}
        self.single_observation_space = self.batch.single_observation_space
        self.single_action_space = self.batch.single_action_space
        self.observation_space = self.batch.observation_space
        self.action_space = self.batch.action_space
        self._same_step = self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        self._began = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        """Begin new episodes; `options={"reset_mask": bool array}` resets these rows only.

        `seed` is one number for the whole batch (row k draws from (seed, k)). The first call without one takes a random
        seed, as Gymnasium does.
        """
        rest = dict(options or {})
        mask = rest.pop("reset_mask", None)
        if rest:
            raise ConfigError(f"reset knows the option reset_mask only, got {', '.join(rest)}")
        if seed is not None and not isinstance(seed, int | np.integer):
            raise ConfigError(
                f"seed must be one whole number for the whole batch, got {seed!r}; row k draws from (seed, k)"
            )
        if mask is not None and seed is not None:
            raise ConfigError("reset takes a seed or a reset_mask, not both: a seed begins every row anew")
        if not self._began:
            mask = None  # nothing has begun yet, so every row must
            seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        super().reset(seed=None if seed is None else int(seed))
        obs, _ = self.batch.reset(None if seed is None else int(seed), rows=mask)
        self._began = True
        return self._out(obs), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As Gymnasium: (obs, reward float64, terminated, truncated, info)."""
        obs, reward, terminated, truncated, info = self.batch.step(actions)
        if not self.live_views:
            reward = self._out(reward).astype(np.float64)
        return (
            self._out(obs),
            reward,
            self._out(terminated),
            self._out(truncated),
            self._info(info, terminated, truncated),
        )

    def _info(self, info: dict[str, Any], terminated: Any, truncated: Any) -> dict[str, Any]:
        everywhere = np.ones(self.num_envs, np.bool_)
        out: dict[str, Any] = {}
        for name in self.batch.spec.metrics:
            out[name], out[f"_{name}"] = self._out(info[name]), everywhere
        ended = self._host(terminated) | self._host(truncated)
        if self._same_step and ended.any():
            final = np.full(self.num_envs, None, dtype=object)
            for row in np.flatnonzero(ended):
                final[row] = self._host(info["final_obs"][row]).copy()
            out["final_obs"], out["_final_obs"] = final, ended
            out["final_info"], out["_final_info"] = {}, ended.copy()
        return out

    def _host(self, array: Any) -> np.ndarray:
        return array if isinstance(array, np.ndarray) else array.get()

    def _out(self, array: Any) -> Any:
        if self.live_views:
            return array
        return np.array(self._host(array), order="C")

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the batch's threads."""
        self.batch.close()


def make_vector_env(num_envs: int = 1, **options: Any) -> GymVectorEnv:
    """Entry point of the registered ids; `env_id` is among the options."""
    return GymVectorEnv(options.pop("env_id"), num_envs, **options)
