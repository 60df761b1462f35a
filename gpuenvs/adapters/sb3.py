"""Stable-Baselines3's VecEnv over a batch.

    from stable_baselines3 import PPO
    from gpuenvs.adapters.sb3 import SB3VecEnv

    model = PPO("MlpPolicy", SB3VecEnv("CartPole-v1", num_envs=64), n_steps=64)
    model.learn(300_000)

Everything handed out is numpy in host memory and safe to keep, as Stable-Baselines3 expects: a step copies observations,
rewards and ends once (4 d + 5 bytes a row with d observations in float32; on CUDA the copies go to the host and wait for the
device), and the final observations of the rows that ended. Beside that it makes one empty dict per row for `infos`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuenvs import registry
from gpuenvs.adapters.arrays import host, to_device
from gpuenvs.errors import ConfigError
from gpuenvs.runtime.buffers import SAME_STEP
from gpuenvs.runtime.vector_env import BatchEnv
from gpuenvs.spec import EnvSpec

try:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise ImportError(f"{error}; pip install stable-baselines3") from error


class SB3VecEnv(VecEnv):
    """A `stable_baselines3.common.vec_env.VecEnv` that steps a BatchEnv.

    Args:
        env: id, path of a file and name, or an EnvSpec, as `gpuenvs.get` takes it.
        num_envs: rows.
        metrics: put the spec's metrics into every row's info, which costs a Python loop over all rows and metrics; without
            it they are in `venv.batch.info` as arrays.
        seed: of the first `reset` unless `seed()` was called, as `PPO(seed=...)` does; None: a random one.
        **options: as for `gpuenvs.make`: device, dtype, threads, max_episode_steps and the environment's params.

    Of a row that ended, info has `terminal_observation`, `TimeLimit.truncated` and `episode` (return `r`, length `l` and
    time `t`), so no Monitor is needed. `venv.batch` is the BatchEnv.
    """

    def __init__(
        self,
        env: str | EnvSpec,
        num_envs: int,
        *,
        metrics: bool = False,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        if "autoreset" in options:
            raise ConfigError("Stable-Baselines3 resets in the same step; leave autoreset out")
        self.batch = BatchEnv(
            registry.get(env), num_envs, autoreset=SAME_STEP, seed=0 if seed is None else seed, **options
        )
        super().__init__(num_envs, self.batch.single_observation_space, self.batch.single_action_space)
        self._metrics = self.batch.spec.metrics if metrics else ()
        self._random_seed, self._began = seed is None, False
        self._made = time.time()
        self._action: Any = None

    def reset(self) -> np.ndarray:
        """Begin new episodes everywhere; with the seed that `seed()` has set, if it has."""
        seed = self._seeds[0]
        if any(self._options):
            raise ConfigError(f"{self.batch.spec.id} has no options of reset; params are given to SB3VecEnv(...)")
        if seed is None and not self._began and self._random_seed:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        obs, _ = self.batch.reset(seed)
        self._began = True
        self._reset_seeds()
        self.reset_infos = [{} for _ in range(self.num_envs)]
        return _copy(obs)

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions for `step_wait`."""
        self._action = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """(observations of the next step, rewards, ended or truncated, infos)."""
        action = to_device(self.batch, np.asarray(self._action))
        obs, reward, terminated, truncated, info = self.batch.step(action)
        ended, cut = _copy(terminated), host(truncated)
        done = ended | cut
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for name in self._metrics:
            for row, value in zip(infos, host(info[name]).tolist(), strict=True):
                row[name] = value
        rows = np.flatnonzero(done)
        if len(rows):
            self._describe_ends(infos, rows, info, cut & ~ended)
        return _copy(obs), _copy(reward), done, infos

    def _describe_ends(self, infos: list[dict[str, Any]], rows: np.ndarray, info: Any, cut: np.ndarray) -> None:
        final, returns, lengths = (host(info[key]) for key in ("final_obs", "episode_return", "episode_length"))
        seconds = round(time.time() - self._made, 6)
        for row in rows:
            infos[row]["terminal_observation"] = final[row].copy()
            infos[row]["TimeLimit.truncated"] = bool(cut[row])
            infos[row]["episode"] = {"r": float(returns[row]), "l": int(lengths[row]), "t": seconds}

    def close(self) -> None:
        """Stop the batch's threads."""
        self.batch.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The attribute of this object or of the batch, once for each row asked for."""
        if attr_name == "render_mode":
            value = None
        elif attr_name in vars(self) or hasattr(type(self), attr_name):
            value = getattr(self, attr_name)
        else:
            value = getattr(self.batch, attr_name)
        return [value for _ in self._rows(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refused: rows are no objects."""
        raise ConfigError(f"cannot set {attr_name}: {self.num_envs} rows of one batch, no objects; use venv.batch")

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Refused: rows are no objects."""
        raise ConfigError(f"cannot call {method_name}: {self.num_envs} rows of one batch, no objects; use venv.batch")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """True for Monitor, whose statistics are in the infos; False for any other wrapper."""
        return [wrapper_class is Monitor for _ in self._rows(indices)]

    def _rows(self, indices: Any) -> Sequence[int]:
        return list(self._get_indices(indices))


def _copy(array: Any) -> np.ndarray:
    """A contiguous copy in host memory."""
    return np.array(host(array), order="C")
