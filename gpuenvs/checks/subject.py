"""The environment under check, and the rollouts that several checks look at."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpuenvs
from gpuenvs.runtime.buffers import SAME_STEP
from gpuenvs.spec import EnvSpec

REAL = "float32"
ROWS = 128
SECONDS = 2.0  # what one rollout may take about; slow environments are stepped less often
_UNBOUNDED = 1e3  # stands for an infinite bound of an action


@dataclass(frozen=True)
class Samples:
    """Single steps of environments: what went in and what came out, one row each.

    Args:
        states: State of arrays (n,), before the step.
        params: Params of arrays (n,).
        actions: (n,) int32 or (n, k) float32.
        obs: (n, d), of the state after the step, before any reset.
        rewards: (n,)
        ended: (n,) bool, terminated or at the time limit; then `after` is of the next episode.
        terminated: (n,) bool
        after: State of arrays (n,).
    """

    states: Any
    params: Any
    actions: np.ndarray
    obs: np.ndarray
    rewards: np.ndarray
    ended: np.ndarray
    terminated: np.ndarray
    after: Any


@dataclass
class Rollout:
    """What a rollout saw.

    Args:
        steps: env-steps taken.
        lowest, highest: (d,), of all observations that were finite.
        bad_obs: observations that were NaN or infinite.
        bad_states, bad_rewards: steps that gave such.
        worst: (state, params, action) of the first such state, in Python numbers.
        terminated, truncated: episodes that ended in that way.
        lengths: of the episodes that ended.
        stepped: length of the rollout.
    """

    steps: int = 0
    lowest: Any = np.inf
    highest: Any = -np.inf
    bad_obs: int = 0
    bad_states: int = 0
    bad_rewards: int = 0
    worst: tuple[Any, Any, Any] | None = None
    terminated: int = 0
    truncated: int = 0
    lengths: tuple[int, ...] = ()
    stepped: int = 0


class Subject:
    """One environment under check.

    Args:
        spec: the environment; its functions hold the contract (`gpuenvs.contract`).
        seed: of everything random.

    Attributes:
        raises: a function raised in plain Python.
    """

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        self.spec, self.seed, self.raises = spec, seed, False

    def make(self, rows: int, **options: Any) -> Any:
        """A batch on the CPU."""
        return gpuenvs.make(self.spec, rows, **{"device": "cpu", "dtype": REAL, "autoreset": SAME_STEP, **options})

    def rng(self, number: int) -> np.random.Generator:
        """A generator of numbers of this check alone."""
        return np.random.default_rng((self.seed, number))

    # --- actions -------------------------------------------------------------------------------------------------------

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(low, high) of continuous actions, (k,) float32, finite."""
        space: Any = self.spec.action_space
        return np.maximum(space.low, -_UNBOUNDED), np.minimum(space.high, _UNBOUNDED)

    def random_actions(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        """(rows,) int32 or (rows, k) float32, uniform within the space."""
        if self.spec.discrete:
            return rng.integers(0, self.spec.action_space.n, rows).astype(np.int32)  # type: ignore[union-attr]
        low, high = self.bounds
        return rng.uniform(low, high, (rows, len(low))).astype(np.float32)

    def extreme_actions(self, rng: np.random.Generator, rows: int, step: int) -> np.ndarray:
        """In a quarter of the rows each: always one end, always the other, from end to end, and any corner."""
        kind = np.arange(rows) % 4
        if self.spec.discrete:
            last = int(self.spec.action_space.n) - 1  # type: ignore[union-attr]
            ends = np.choose(kind, [0, last, last * (step // 10 % 2), 0]).astype(np.int32)
            return np.where(kind == 3, self.random_actions(rng, rows), ends).astype(np.int32)
        low, high = self.bounds
        corners = np.where(rng.random((rows, len(low))) < 0.5, low, high)
        sweep = high if step // 10 % 2 else low
        chosen = np.where((kind == 0)[:, None], low, np.where((kind == 1)[:, None], high, sweep))
        return np.where((kind == 3)[:, None], corners, chosen).astype(np.float32)

    # --- rollouts ------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def speed(self) -> float:
        """Env-steps per second with all cores, measured for a moment; everything is compiled afterwards."""
        rows = 2048 if self.spec.traced else 16384
        rng = self.rng(0)
        with self.make(rows) as env:
            env.reset(seed=self.seed)
            actions = self.random_actions(rng, rows)
            env.step(actions)
            start, steps = time.perf_counter(), 0
            while (passed := time.perf_counter() - start) < 0.3 or steps < 2:
                env.step(actions)
                steps += 1
        return steps * rows / passed

    def _affordable(self, most: int) -> int:
        """Steps of a rollout of ROWS rows."""
        return max(20, min(most, int(self.speed * SECONDS / ROWS)))

    @functools.cached_property
    def random(self) -> Rollout:
        """Random actions."""
        limit = self.spec.max_episode_steps or 2000
        rng = self.rng(1)
        return self._roll(self._affordable(limit + 20), lambda t: self.random_actions(rng, ROWS))

    @functools.cached_property
    def extreme(self) -> Rollout:
        """Actions at the ends of their space."""
        rng = self.rng(2)
        return self._roll(self._affordable(500), lambda t: self.extreme_actions(rng, ROWS, t))

    @functools.cached_property
    def beyond(self) -> Rollout | None:
        """Continuous actions far outside of their space: learners may ask for them, functions should clip."""
        if self.spec.discrete:
            return None
        rng, scale = self.rng(3), np.where(np.arange(ROWS) % 2 == 0, 10.0, 1e6)[:, None]
        return self._roll(
            self._affordable(100), lambda t: (self.extreme_actions(rng, ROWS, t) * scale).astype(np.float32)
        )

    def _roll(self, steps: int, actions: Any) -> Rollout:
        seen, lengths = Rollout(stepped=steps), []
        with self.make(ROWS) as env:
            env.reset(seed=self.seed)
            self._look(seen, env.obs)
            for t in range(steps):
                before = env.get_state() if seen.worst is None else None
                params, action = env.get_params(), actions(t)
                env.step(action)
                ended = env.terminated | env.truncated
                self._look(seen, env.obs)
                self._look(seen, env.info["final_obs"][ended])
                seen.terminated += int(np.count_nonzero(env.terminated))
                seen.truncated += int(np.count_nonzero(env.truncated & ~env.terminated))
                seen.bad_rewards += int(np.count_nonzero(~np.isfinite(env.reward)))
                lengths += env.info["episode_length"][ended].tolist()
                bad = np.flatnonzero(env.info["nonfinite"])
                seen.bad_states += len(bad)
                if len(bad) and before is not None:
                    row = int(bad[0])
                    seen.worst = row_of(before, row), row_of(params, row), action[row].tolist()
            seen.steps, seen.lengths = steps * ROWS, tuple(lengths)
        return seen

    @staticmethod
    def _look(seen: Rollout, obs: np.ndarray) -> None:
        finite = np.isfinite(obs)
        seen.bad_obs += int(np.count_nonzero(~finite))
        if len(obs):
            with np.errstate(invalid="ignore"):
                seen.lowest = np.fmin(seen.lowest, np.where(finite, obs, np.inf).min(axis=0))
                seen.highest = np.fmax(seen.highest, np.where(finite, obs, -np.inf).max(axis=0))

    @functools.cached_property
    def samples(self) -> Samples:
        """Single steps from states that random and extreme actions lead to, with random actions."""
        rng, parts = self.rng(4), []
        with self.make(ROWS) as env:
            env.reset(seed=self.seed + 1)
            steps = self._affordable(min(self.spec.max_episode_steps or 200, 200))
            for t in range(steps):
                mixed = np.where(np.arange(ROWS) % 2 == 0, 1, 0)
                wild = self.extreme_actions(rng, ROWS, t)
                action = self.random_actions(rng, ROWS)
                action = np.where(mixed if self.spec.discrete else mixed[:, None], action, wild).astype(action.dtype)
                before, params = env.get_state(), env.get_params()
                env.step(action)
                # The steps of one episode are alike: of the later ones a few are enough.
                if t < 8 or t % 8 == 0:
                    parts.append(self._sample(env, before, params, action))
        return _joined(parts)

    def _sample(self, env: Any, before: Any, params: Any, action: np.ndarray) -> Samples:
        ended = env.terminated | env.truncated
        obs = np.where(ended[:, None], env.info["final_obs"], env.obs)
        wide = type(params)(*(np.broadcast_to(np.asarray(value), (ROWS,)).copy() for value in params))
        return Samples(before, wide, action, obs, env.reward.copy(), ended, env.terminated.copy(), env.get_state())


def _joined(parts: list[Samples]) -> Samples:
    def join(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], tuple):
            return type(values[0])(*(np.concatenate(columns) for columns in zip(*values, strict=True)))
        return np.concatenate(values)

    return Samples(**{name: join(name) for name in Samples.__dataclass_fields__})


def row_of(values: Any, row: int) -> Any:
    """One row of a State or Params of arrays, as Python numbers."""
    return type(values)(*(np.asarray(v)[row].item() if np.ndim(v) else v for v in values))


def shown(values: Any, digits: int = 4) -> str:
    """A State, Params or action in few characters."""
    if hasattr(values, "_fields"):
        parts = [f"{name}={value:.{digits}g}" for name, value in zip(values._fields, values, strict=True)]
        text = f"{type(values).__name__}({', '.join(parts)})"
    elif isinstance(values, list | tuple):
        text = f"({', '.join(f'{value:.{digits}g}' for value in values)})"
    else:
        text = f"{values:.{digits}g}"
    return text if len(text) <= 160 else f"{text[:157]}..."
