"""examples/quadrotor.py as one would write it by hand for this environment alone: what `benchmarks.custom_env` compares with.

The arithmetic of a step is the example's, operation for operation, and so are its random numbers. All else is cut to
measure: constants are literals of the kernel, five of the six state values exist only as observations, nothing looks for NaN,
and there is no other mode, dtype, limit or option. Two kernels:

- `step_rows`: one loop over numpy arrays that does everything of a row, a new episode included.
- `step_blocks`: the same in blocks of 512 rows that stay in the first-level cache: a loop without a branch, told to LLVM as
  free of aliases so that it vectorises, then the few rows that ended, whose new episodes are computed in vectors as well.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gpuenvs.rng import Rng, uniform
from gpuenvs.runtime.cpu import aligned_zeros
from gpuenvs.runtime.memory import make_load, make_store
from gpuenvs.runtime.transition import PARAM_DRAWS
from gpuenvs.scalar import clip, f32, i32, njit, sincos, sqrt, u32

GRAVITY, ARM, INERTIA, MAX_THRUST, DRAG, DT = f32(9.81), f32(0.15), f32(0.006), f32(5.0), f32(0.15), f32(0.02)
BOUND, START, TILT = f32(4.0), f32(1.5), f32(0.5)
LIGHT, HEAVY, WEST, EAST = f32(0.4), f32(0.6), f32(-1.0), f32(1.0)
LIMIT = i32(250)
MASS_DRAW, WIND_DRAW = PARAM_DRAWS, PARAM_DRAWS + 1
ZERO, HALF, ONE, FOUR = f32(0.0), f32(0.5), f32(1.0), f32(4.0)
SPIN_COST, NEAR = f32(0.1), f32(0.04)
BLOCK = 512

# Rows of `obs`, and of `fresh`, which has what else a new episode needs.
X, Z, SINE, COSINE, VX, VZ, SPIN, ANGLE, MASS, WIND = range(10)


@njit
def fly(x, z, angle, vx, vz, spin, mass, wind, u, v):
    """One step: the six values, sine and cosine of the new angle, reward, ended, distance, near."""
    half = HALF * MAX_THRUST
    left = half * (ONE + clip(u, -ONE, ONE))
    right = half * (ONE + clip(v, -ONE, ONE))
    sine, cosine = sincos(angle)
    force = left + right
    per_mass = ONE / mass
    vx = vx - DT * per_mass * (force * sine + DRAG * (vx - wind))
    vz = vz + DT * (per_mass * (force * cosine - DRAG * vz) - GRAVITY)
    spin = spin + DT * (ARM * (right - left) / INERTIA)
    x = x + DT * vx
    z = z + DT * vz
    angle = angle + DT * spin
    squared = x * x + z * z
    reward = ONE / (ONE + FOUR * squared + SPIN_COST * (spin * spin))
    ended = (abs(x) > BOUND) | (abs(z) > BOUND)
    near = ONE if squared < NEAR else ZERO
    sine, cosine = sincos(angle)
    return x, z, angle, vx, vz, spin, sine, cosine, reward, ended, sqrt(squared), near


@njit
def begin(rng):
    """A new episode: x, z, angle, vx, vz, sine, cosine, mass, wind."""
    angle = uniform(rng, 2, -TILT, TILT)
    sine, cosine = sincos(angle)
    return (
        uniform(rng, 0, -START, START),
        uniform(rng, 1, -START, START),
        angle,
        uniform(rng, 3, -TILT, TILT),
        uniform(rng, 4, -TILT, TILT),
        sine,
        cosine,
        uniform(rng, MASS_DRAW, LIGHT, HEAVY),
        uniform(rng, WIND_DRAW, WEST, EAST),
    )


_compile = numba.njit(nogil=True, error_model="numpy", fastmath={"contract", "nsz"})


@_compile
def step_rows(
    obs, own, action, reward, terminated, truncated, metrics, elapsed, total, episode, final_obs, returns, lengths, low, high
):  # fmt: skip
    """All rows, one after the other. `own` is (3, n): angle, mass, wind; `low` and `high` are the words of the seed."""
    for i in range(obs.shape[1]):
        x, z, angle, vx, vz, spin, sine, cosine, r, ended, distance, near = fly(
            obs[X, i], obs[Z, i], own[0, i], obs[VX, i], obs[VZ, i], obs[SPIN, i], own[1, i], own[2, i],
            action[0, i], action[1, i],
        )  # fmt: skip
        obs[X, i], obs[Z, i], obs[SINE, i], obs[COSINE, i], obs[VX, i], obs[VZ, i] = x, z, sine, cosine, vx, vz
        obs[SPIN, i], own[0, i] = spin, angle
        elapsed[i] += i32(1)
        total[i] += r
        reward[i], terminated[i], truncated[i] = r, ended, elapsed[i] >= LIMIT
        metrics[0, i], metrics[1, i] = distance, near
        if terminated[i] or truncated[i]:
            for k in range(7):
                final_obs[k, i] = obs[k, i]
            returns[i], lengths[i] = total[i], elapsed[i]
            episode[i] += u32(1)
            fresh = begin(Rng(low, high, u32(i), episode[i]))  # type: ignore[arg-type]
            obs[X, i], obs[Z, i], own[0, i], obs[VX, i], obs[VZ, i] = fresh[:5]
            obs[SINE, i], obs[COSINE, i], own[1, i], own[2, i] = fresh[5:]
            obs[SPIN, i], elapsed[i], total[i] = ZERO, i32(0), ZERO


_F, _I, _U, _B = (np.dtype(name) for name in ("float32", "int32", "uint32", "bool"))
# Arrays of `step_blocks` in order of its table: name, rows, dtype. _OF_A_BLOCK are scratch.
ARRAYS = (
    ("obs", 7, _F), ("own", 3, _F), ("action", 2, _F), ("reward", 1, _F), ("terminated", 1, _B), ("truncated", 1, _B),
    ("metrics", 2, _F), ("elapsed", 1, _I), ("total", 1, _F), ("episode", 1, _U), ("final_obs", 7, _F), ("returns", 1, _F),
    ("lengths", 1, _I), ("ended", 1, _B), ("rows", 1, _I), ("fresh", 10, _F),
)  # fmt: skip
_OF_A_BLOCK = ("ended", "rows", "fresh")
(
    load_obs, load_own, load_action, _, _, _, _, load_elapsed, load_total, load_episode, _, _, _, load_ended, load_rows,
    load_fresh,
) = (make_load(k, dtype) for k, (_, _, dtype) in enumerate(ARRAYS))  # fmt: skip
(
    store_obs, store_own, _, store_reward, store_terminated, store_truncated, store_metrics, store_elapsed, store_total,
    store_episode, store_final_obs, store_returns, store_lengths, store_ended, store_rows, store_fresh,
) = (make_store(k, dtype) for k, (_, _, dtype) in enumerate(ARRAYS))  # fmt: skip


@_compile
def step_blocks(n, table, low, high):
    """All rows, block by block. `table` holds the addresses of ARRAYS."""
    obs, own, action, reward, terminated, truncated = table[0], table[1], table[2], table[3], table[4], table[5]
    metrics, elapsed, total, episode, final_obs, returns = table[6], table[7], table[8], table[9], table[10], table[11]
    lengths, ended, rows, fresh = table[12], table[13], table[14], table[15]
    for block in range(0, n, BLOCK):
        end = min(block + BLOCK, n)
        count = i32(0)
        for i in range(block, end):
            x, z, angle, vx, vz, spin, sine, cosine, r, out, distance, near = fly(
                load_obs(obs, i), load_obs(obs, n + i), load_own(own, i), load_obs(obs, VX * n + i),
                load_obs(obs, VZ * n + i), load_obs(obs, SPIN * n + i), load_own(own, n + i), load_own(own, 2 * n + i),
                load_action(action, i), load_action(action, n + i),
            )  # fmt: skip
            store_obs(obs, i, x)
            store_obs(obs, n + i, z)
            store_obs(obs, SINE * n + i, sine)
            store_obs(obs, COSINE * n + i, cosine)
            store_obs(obs, VX * n + i, vx)
            store_obs(obs, VZ * n + i, vz)
            store_obs(obs, SPIN * n + i, spin)
            store_own(own, i, angle)
            steps = i32(load_elapsed(elapsed, i) + i32(1))
            store_elapsed(elapsed, i, steps)
            store_total(total, i, load_total(total, i) + r)
            store_reward(reward, i, r)
            late = steps >= LIMIT
            store_terminated(terminated, i, out)
            store_truncated(truncated, i, late)
            store_metrics(metrics, i, distance)
            store_metrics(metrics, n + i, near)
            store_ended(ended, i - block, out | late)
            count = i32(count + i32(out | late))
        if count > 0:
            found = 0
            for i in range(block, end):
                if load_ended(ended, i - block):
                    store_rows(rows, found, i32(i))
                    store_episode(episode, i, u32(load_episode(episode, i) + u32(1)))
                    found += 1
            whole = (found + 15) & ~15  # whole vectors; what is beyond is computed and not used
            for j in range(found, whole):
                store_rows(rows, j, load_rows(rows, 0))
            for j in range(whole):
                i = load_rows(rows, j)
                rng = Rng(low, high, u32(i), load_episode(episode, i))  # type: ignore[arg-type]
                x, z, angle, vx, vz, sine, cosine, mass, wind = begin(rng)
                store_fresh(fresh, j, x)
                store_fresh(fresh, BLOCK + j, z)
                store_fresh(fresh, SINE * BLOCK + j, sine)
                store_fresh(fresh, COSINE * BLOCK + j, cosine)
                store_fresh(fresh, VX * BLOCK + j, vx)
                store_fresh(fresh, VZ * BLOCK + j, vz)
                store_fresh(fresh, SPIN * BLOCK + j, ZERO)
                store_fresh(fresh, ANGLE * BLOCK + j, angle)
                store_fresh(fresh, MASS * BLOCK + j, mass)
                store_fresh(fresh, WIND * BLOCK + j, wind)
            for j in range(found):
                i = load_rows(rows, j)
                for k in range(7):
                    store_final_obs(final_obs, k * n + i, load_obs(obs, k * n + i))
                    store_obs(obs, k * n + i, load_fresh(fresh, k * BLOCK + j))
                for k in range(3):
                    store_own(own, k * n + i, load_fresh(fresh, (ANGLE + k) * BLOCK + j))
                store_returns(returns, i, load_total(total, i))
                store_lengths(lengths, i, load_elapsed(elapsed, i))
                store_elapsed(elapsed, i, i32(0))
                store_total(total, i, ZERO)


class FusedQuadrotor:
    """A batch of `num_envs` quadrotors that starts from the state a BatchEnv of the example is in.

    Args:
        env: what to take states, params and counters from; float32, on the CPU.
        blocks: step with `step_blocks`, else with `step_rows`.
    """

    def __init__(self, env: Any, blocks: bool) -> None:
        n = env.num_envs
        self._n, self._blocks = n, blocks
        self.arrays: dict[str, np.ndarray] = {
            name: aligned_zeros((rows, BLOCK if name in _OF_A_BLOCK else n), dtype, k)
            for k, (name, rows, dtype) in enumerate(ARRAYS)
        }
        mine = self.arrays
        mine["obs"][:] = env.obs.T
        mine["own"][0], mine["own"][1:] = env.get_state().angle, env.arrays["param_real_env"]
        for name, other in (("elapsed", "elapsed"), ("total", "running_return"), ("episode", "episode")):
            mine[name][:] = env.arrays[other]
        self._table = np.array([mine[name].ctypes.data for name, _, _ in ARRAYS], np.int64)
        self._low, self._high = u32(env.seed & 0xFFFFFFFF), u32(env.seed >> 32)

    def step(self, action: np.ndarray) -> None:
        """Step all rows with `action`, (2, num_envs) float32 and contiguous."""
        if self._blocks:
            self._table[2] = action.ctypes.data
            step_blocks(self._n, self._table, self._low, self._high)
            return
        mine = {name: array[0] if len(array) == 1 else array for name, array in self.arrays.items()}
        step_rows(
            mine["obs"], mine["own"], action, mine["reward"], mine["terminated"], mine["truncated"], mine["metrics"],
            mine["elapsed"], mine["total"], mine["episode"], mine["final_obs"], mine["returns"], mine["lengths"],
            self._low, self._high,
        )  # fmt: skip
