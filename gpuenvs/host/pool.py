"""HostPool: environments stepped in executor processes, each at its own pace."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import numpy as np

from gpuenvs.errors import ConfigError
from gpuenvs.host.executor import LONGEST_LOG
from gpuenvs.host.memory import split_rows
from gpuenvs.host.processes import Processes
from gpuenvs.host.protocol import BEGIN, DUMP, MAX_ENVS, REPLAY, STEP, WORD
from gpuenvs.host.spec import HostSpec
from gpuenvs.runtime.options import whole
from gpuenvs.runtime.threads import allowed_cores


class HostPool:
    """`num_envs` environments of one spec in `executors` processes.

    A caller writes `action[i]`, asks for a step of row i by `step`, and finds its results in row i of the other arrays once
    `ready` has returned i. Rows that end begin their next episode in the same step. The arrays lie in shared memory and never
    move; they stay readable after `close`.

    Every episode begins with `env.reset(seed=...)`, whose seed is a function of (seed, row, number of the episode), so what a
    row does depends on its actions alone: not on timing, nor on the number of executors.

    Args:
        spec: the environment.
        num_envs: rows, 1 to 4096.
        executors: processes; 0: twice the cores, at least 4, and never more than rows.
        seed: a non-negative integer below 2**64.
        env_offset: number of the first row. Row k behaves like row `env_offset + k` of a larger pool.

    Attributes:
        obs: (num_envs, *shape) what to act on: where an episode has ended, the next one's first observation.
        action: (num_envs,) int64 or (num_envs, k) float32, written by the caller.
        reward: (num_envs,) float32, clipped if the spec says so.
        terminated, truncated: (num_envs,) bool.
        final_obs, episode_return, episode_length: of the episode, where it ended in the last step: its last observation, the
            sum of its rewards, its steps.
    """

    device = "cpu"
    autoreset = "same_step"
    threads = 1

    def __init__(
        self, spec: HostSpec, num_envs: int, *, executors: int = 0, seed: int = 0, env_offset: int = 0
    ) -> None:
        self.spec = spec
        self.num_envs = whole("num_envs", num_envs, 1, MAX_ENVS)
        executors = whole("executors", executors, 0, MAX_ENVS) or max(2 * allowed_cores(), 4)
        self.executors = min(executors, num_envs)
        self.seed = whole("seed", seed, 0, 2**64 - 1)
        self.env_offset = whole("env_offset", env_offset, 0, 2**32 - 1)
        self.dtype = np.dtype(np.float32)
        self.single_observation_space = spec.observation_space
        self.single_action_space = spec.action_space
        self._processes = Processes(spec, num_envs, self.executors, self.seed, self.env_offset)
        self._processes.close_with(self)
        arrays = self._arrays = self._processes.arrays
        self.obs: np.ndarray = arrays["obs"]
        self.action: np.ndarray = arrays["action"]
        self.reward: np.ndarray = arrays["reward"]
        self.terminated: np.ndarray = arrays["terminated"]
        self.truncated: np.ndarray = arrays["truncated"]
        self.final_obs: np.ndarray = arrays["final_obs"]
        self.episode_return: np.ndarray = arrays["episode_return"]
        self.episode_length: np.ndarray = arrays["episode_length"]
        self._owner = [k for k, rows in enumerate(split_rows(num_envs, self.executors)) for _ in rows]
        self._busy = bytearray(num_envs)  # rows that were asked for and are not done
        self._started = False

    # --- the loop ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin episode 0 in every row; returns when all have.

        Raises:
            HostError: an environment raised, or a process died.
        """
        self._require_idle()
        for name in ("episode", "nonfinite"):
            self._arrays[name][:] = 0
        self._run(BEGIN, range(self.num_envs))
        self._started = True

    def step(self, rows: Any) -> None:
        """Ask for a step of `rows` (row numbers) with the actions that are in `action`; does not wait for it."""
        if not self._started:
            self._require_idle()
            raise ConfigError("step before start")
        self._ask(STEP, rows.tolist() if isinstance(rows, np.ndarray) else rows)

    def ready(self) -> np.ndarray:
        """Wait until a row is done, or several; their numbers. Any number of threads may wait.

        Raises:
            HostError: an environment raised, or a process died, or the pool was closed.
        """
        data = self._processes.read()
        if data is None:
            raise self._processes.error()
        rows = np.frombuffer(data, np.int64)
        for row in rows.tolist():
            self._busy[row] = 0
        return rows

    def wake(self, count: int) -> None:
        """Let `count` calls of `ready`, those that wait or the next ones, return no rows."""
        self._processes.wake(count)

    def _ask(self, what: int, rows: Iterable[int]) -> None:
        if self._processes.over:
            raise self._processes.error()
        words: dict[int, list[bytes]] = {}
        owner, busy, pack = self._owner, self._busy, WORD.pack
        for row in rows:
            if busy[row]:
                raise ConfigError(f"row {row} is being stepped already")
            busy[row] = 1
            words.setdefault(owner[row], []).append(pack(what | row))
        if not self._processes.send(words):
            raise self._processes.error()

    def _run(self, what: int, rows: Iterable[int]) -> None:
        """Have something done by the executors, and wait for it."""
        self._ask(what, rows)
        while 1 in self._busy:
            self.ready()

    def _require_idle(self) -> None:
        if self._processes.over:
            raise self._processes.error()
        if 1 in self._busy:
            raise ConfigError("rows are under way; wait for them first")

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where every row is: its running episode and the actions of it so far, as arrays. No row may be under way."""
        self._require_idle()
        if not self._started:
            raise ConfigError("state_dict before start")
        arrays = self._arrays
        sizes = self._place_logs()
        self._run(DUMP, range(self.num_envs))
        data = self._processes.read_log(int(sizes.sum()))
        if data is None:
            raise self._processes.error()
        return {
            "env": self.spec.id,
            "seed": self.seed,
            "env_offset": self.env_offset,
            "actions": np.frombuffer(data, self._log_dtype).copy(),
            **{name: arrays[name].copy() for name in ("obs", "episode", "elapsed", "running_return", "nonfinite")},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken, by repeating the actions of the running episodes.

        Rows whose environment does not get to the same observation that way begin a new episode, with a warning.

        Raises:
            ConfigError: the state is of another environment or number of rows.
            HostError: an environment raised, or a process died.
        """
        self._require_idle()
        arrays = self._arrays
        obs = np.asarray(state["obs"])
        if state["env"] != self.spec.id or obs.shape != self.obs.shape or obs.dtype != self.obs.dtype:
            raise ConfigError(
                f"the state is of {len(obs)} x {state['env']}, but the pool has {self.num_envs} x {self.spec.id}"
            )
        if (state["seed"], state["env_offset"]) != (self.seed, self.env_offset):
            raise ConfigError(f"the state is of a pool with seed {state['seed']}, but this one has {self.seed}")
        for name in ("obs", "episode", "elapsed", "running_return", "nonfinite"):
            arrays[name][...] = state[name]
        self._place_logs()
        arrays["mismatch"][:] = False
        if not self._processes.write_log(np.asarray(state["actions"], self._log_dtype).tobytes()):
            raise self._processes.error()
        self._run(REPLAY, range(self.num_envs))
        self._started = True
        lost = int(arrays["mismatch"].sum())
        if lost:
            warnings.warn(
                f"{self.spec.id}: {lost} of {self.num_envs} environments begin a new episode, because repeating their "
                "actions from the episode's seed did not lead to where they were",
                RuntimeWarning,
                stacklevel=2,
            )

    @property
    def _log_dtype(self) -> np.dtype:
        if not self.spec.discrete:
            return np.dtype(np.float32)
        return np.dtype(np.uint8 if self.spec.action_space.n <= 256 else np.int64)  # type: ignore[attr-defined]

    def _place_logs(self) -> np.ndarray:
        """Say where in the log file each row's actions are; the bytes of each."""
        elapsed = self._arrays["elapsed"]
        width = 1 if self.spec.discrete else self.action.shape[1]
        sizes = np.where(elapsed <= LONGEST_LOG, elapsed, 0) * width * self._log_dtype.itemsize
        self._arrays["log_start"][:] = np.cumsum(sizes) - sizes
        return sizes

    # --- the rest ----------------------------------------------------------------------------------------------------

    @property
    def nonfinite_states(self) -> int:
        """Observations so far that were NaN or infinite and ended their row's episode."""
        return int(self._arrays["nonfinite"][:, 0].sum())

    @property
    def nonfinite_rewards(self) -> int:
        """Rewards so far that were NaN or infinite."""
        return int(self._arrays["nonfinite"][:, 1].sum())

    def close(self) -> None:
        """End all processes. Whoever waits in `ready` gets a HostError."""
        self._processes.close()

    def __enter__(self) -> HostPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"HostPool({self.spec.id}, num_envs={self.num_envs}, executors={self.executors})"
