"""One environment as a `gymnasium.Env`: to look into it, to step it by hand, and for libraries that know nothing else.

    gymnasium.make("gpuenvs/Pendulum-v1")                     # compiled, as in a batch
    gymnasium.make("gpuenvs/Pendulum-v1", python=True)        # nothing is compiled: print() and breakpoint() work
    SingleEnv("path/to/my_env.py:SPEC", python=True)          # without registering it

A row of a batch with the same seed does the same, step for step; but a batch of one wastes what a batch is good for, so
train on `gpuenvs.make` or `gymnasium.make_vec`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from gpuenvs import registry
from gpuenvs.adapters.arrays import host, to_device
from gpuenvs.errors import ConfigError
from gpuenvs.runtime.buffers import DISABLED
from gpuenvs.runtime.vector_env import BatchEnv
from gpuenvs.spec import EnvSpec

_NO_LIMIT = 2**31 - 1


class SingleEnv(gymnasium.Env):
    """A `gymnasium.Env` over a batch of one.

    Args:
        env: id, path of a file and name, or an EnvSpec, as `gpuenvs.get` takes it.
        python: run the environment's functions as plain Python.
        seed: of the first `reset` that is given none; None: a random one, as Gymnasium does.
        **options: as for `gpuenvs.make`: dtype, max_episode_steps, device (default: the CPU) and the
            environment's params.

    What `step` returns is new with every call. In `info` are the spec's metrics, and `nonfinite` when the state became NaN
    or infinite, which ends the episode.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium's class attribute)

    def __init__(
        self,
        env: str | EnvSpec,
        *,
        python: bool = False,
        seed: int | None = None,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        spec = registry.get(env)
        if render_mode is not None:
            raise ConfigError(f"{spec.id} does not render here; `gpurl play` draws episodes of a trained policy")
        if python and options.pop("device", "cpu") != "cpu":
            raise ConfigError("python=True runs on the CPU; leave device out")
        options = {"autoreset": DISABLED, "seed": 0 if seed is None else seed, **options}
        if python:
            from gpuenvs.adapters.plain import PlainBatch

            self.batch: BatchEnv = PlainBatch(spec, 1, **options)
        else:
            self.batch = BatchEnv(spec, 1, **{"device": "cpu", "threads": 1, **options})
        self.observation_space = self.batch.single_observation_space
        self.action_space = self.batch.single_action_space
        self._random_seed, self._began = seed is None, False

    @property
    def state(self) -> Any:
        """The state as the spec's State of Python numbers."""
        return self.batch.render_state(0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode; `options={"state": State}` begins it in this state."""
        rest = dict(options or {})
        state = rest.pop("state", None)
        if rest:
            raise ConfigError(f"reset knows the option state only, got {', '.join(rest)}")
        if not self._began and seed is None and self._random_seed:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        super().reset(seed=seed)
        obs, _ = self.batch.reset(seed)
        if state is not None:
            self.batch.set_state(state)
        self._began = True
        return host(obs)[0].copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """As Gymnasium. After the end of an episode call `reset`."""
        one = to_device(self.batch, np.asarray(action)[None])
        obs, reward, terminated, truncated, info = self.batch.step(one)
        extra: dict[str, Any] = {name: float(host(info[name])[0]) for name in self.batch.spec.metrics}
        if host(info["nonfinite"])[0]:
            extra["nonfinite"] = True
        ended, cut = bool(host(terminated)[0]), bool(host(truncated)[0])
        return host(obs)[0].copy(), float(host(reward)[0]), ended, cut, extra

    def close(self) -> None:
        """May be called twice."""
        self.batch.close()


def make_single_env(env_id: str, **options: Any) -> SingleEnv:
    """Entry point of the registered ids. The time limit is left to the wrapper that `gymnasium.make` puts around."""
    return SingleEnv(env_id, **{"max_episode_steps": _NO_LIMIT, **options})
