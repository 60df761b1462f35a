"""A whole horizon of transitions as one native call per thread: policy, exploration, environment step, records of a replay.

The twin of `learners.collectors.transitions.TransitionLoop` for small MLPs on the CPU. Floor: a step takes two operations for
every weight of the actor, and about 40 bytes plus the record; for 64-64 units on Pendulum that is 9 kFLOP, so some ten
million steps per second on a core that makes 100 GFLOP/s, of which the environment and the noise leave a part.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from gpuenvs.runtime.disk_cache import cached
from gpuenvs.runtime.generated import define
from gpuenvs.runtime.threads import ROW_MULTIPLE, Team, cut_rows
from gpuenvs.scalar import f32
from learners.actors import LOG_STD_MAX, LOG_STD_MIN, QPolicy, SquashedPolicy, TanhPolicy
from learners.native.calls import call_step, step_address
from learners.native.elementary import exp, tanh
from learners.native.heads import STRICT
from learners.native.network import ROWS, Plan, Source, obs_statistics
from learners.native.update import pack
from learners.native.vector import LANES

_HEADS = {SquashedPolicy: "squashed", TanhPolicy: "tanh", QPolicy: "values"}
_SQRT_HALF = math.sqrt(0.5)


def misfit(policy: Any, env: Any) -> str | None:
    """Why the fused kernel cannot stand in, in words; None if it can."""
    if type(policy) not in _HEADS:
        return f"there is no fused kernel for {type(policy).__name__}"
    net = policy.actor
    if net.layer_norm:
        return "there is no native layer_norm"
    if not net.sizes[1:-1] or any(h % LANES for h in net.sizes[1:-1]):
        return f"hidden_sizes must be multiples of the SIMD width {LANES} (16 always fits)"
    return None


def _make_act(head: str, plan: Plan, k: int) -> Any:
    """`act(rows, first, z, noise, spread, epsilon, random, action)`: actions (n, k or 1) of rows first..first + rows from the
    network's outputs z[j * ROWS + row]."""
    low, half_span = f32(LOG_STD_MIN), f32(0.5 * (LOG_STD_MAX - LOG_STD_MIN))

    @numba.njit(**STRICT)
    def squashed(rows, first, z, noise, spread, epsilon, random, action):
        for r in range(rows):
            for j in range(k):
                n = noise[first + r, j]
                if random:
                    action[first + r, j] = f32(math.erf(n * _SQRT_HALF))
                else:
                    std = exp(low + half_span * (tanh(z[(k + j) * ROWS + r]) + f32(1.0)))
                    action[first + r, j] = tanh(z[j * ROWS + r] + std * n)

    @numba.njit(**STRICT)
    def plain(rows, first, z, noise, spread, epsilon, random, action):
        for r in range(rows):
            for j in range(k):
                n = noise[first + r, j]
                if random:
                    action[first + r, j] = f32(math.erf(n * _SQRT_HALF))
                else:
                    explored = tanh(z[j * ROWS + r]) + spread[first + r] * n
                    action[first + r, j] = min(max(explored, f32(-1.0)), f32(1.0))

    @numba.njit(**STRICT)
    def values(rows, first, z, noise, spread, epsilon, random, action):
        for r in range(rows):
            chosen, drawn = 0, 0
            for j in range(1, k):
                chosen = j if z[j * ROWS + r] > z[chosen * ROWS + r] else chosen
                drawn = j if noise[first + r, j] > noise[first + r, drawn] else drawn
            uniform = exp(-exp(-noise[first + r, k]))
            action[first + r, 0] = f32(drawn if random or uniform < epsilon else chosen)

    return {"squashed": squashed, "tanh": plain, "values": values}[head]


def _make_horizon(head: str, plan: Plan, k: int, action_slot: int) -> Any:
    """`horizon(start, stop, ...) -> (bad states, bad rewards)`; see `ReplayRollout.run` for the arguments."""
    source = Source(plan)
    lines = ["def forward(rows, work, weights):", *(f"    {line}" for line in source.forward())]
    forward = numba.njit(**STRICT)(define("forward", "\n".join(lines), source.names, "learners.native"))
    act = _make_act(head, plan, k)
    d, discrete = plan.obs_dim, head == "values"
    width = 1 if discrete else k
    at_x, at_z = plan.workspace["x"], plan.workspace["z"]
    at_next, at_reward = d + width, 2 * d + width

    @numba.njit(**STRICT)
    def horizon(start, stop, step, table, scratch, weights, work, noise, norm, spread, epsilon, mid, half, random, action,
                number, env_obs, env_action, env_reward, env_terminated, env_truncated, env_final, env_return, env_length,
                data, episode_return, episode_length):  # fmt: skip
        x = work[at_x : at_x + ROWS * d].reshape(ROWS, d)
        z = work[at_z:]
        low, high = f32(-norm[2, 0]), f32(norm[2, 0])
        bad_states = bad_rewards = 0
        table[action_slot] = number.ctypes.data if discrete else env_action.ctypes.data
        for t in range(data.shape[0]):
            for first in range(start, stop, ROWS):
                rows = min(ROWS, stop - first)
                for j in range(d):
                    shift, scale = norm[0, j], norm[1, j]
                    for r in range(rows):
                        raw = env_obs[j, first + r]
                        data[t, first + r, j] = raw
                        x[r, j] = min(max((raw - shift) * scale, low), high)
                if not random:
                    forward(rows, work.ctypes.data, weights.ctypes.data)
                act(rows, first, z, noise[t], spread, epsilon, random, action)
                for r in range(rows):
                    i = first + r
                    for j in range(width):
                        a = action[i, j]
                        data[t, i, d + j] = a
                        if discrete:
                            number[i] = np.int64(a)
                        else:
                            env_action[j, i] = mid[j] + half[j] * a
            _, states, rewards = call_step(step, start, stop, table, scratch)  # pyright: ignore[reportCallIssue]
            bad_states += states
            bad_rewards += rewards
            for i in range(start, stop):
                over = env_terminated[0, i] | env_truncated[0, i]
                data[t, i, at_reward] = env_reward[0, i]
                data[t, i, at_reward + 1] = f32(1.0) if env_terminated[0, i] else f32(0.0)
                data[t, i, at_reward + 2] = f32(1.0) if env_truncated[0, i] else f32(0.0)
                if over:
                    episode_return[t, i] = env_return[0, i]
                    episode_length[t, i] = env_length[0, i]
                    for j in range(d):
                        data[t, i, at_next + j] = env_final[j, i]
                else:
                    for j in range(d):
                        data[t, i, at_next + j] = env_obs[j, i]
        return bad_states, bad_rewards

    return cached(horizon)


class ReplayRollout:
    """Fills a `Block` natively. Same records as `TransitionLoop`, up to rounding in the policy.

    Args:
        env: a CPU BatchEnv, float32, same-step autoreset.
        policy: its weights are read anew by every `run`.
        threads: most threads to use.
    """

    def __init__(self, env: Any, policy: Any, threads: int) -> None:
        self._env = env
        head, k = _HEADS[type(policy)], policy.num_outputs
        self._plan = Plan(policy.actor.sizes, policy.actor.activation)
        self._kernel, action_slot = env.native_step()
        self._step = step_address(self._kernel)
        self._horizon = _make_horizon(head, self._plan, k, action_slot)
        self._cuts = cut_rows(env.num_envs, max(1, min(threads, env.num_envs // (ROW_MULTIPLE // 2))))
        self._team = Team(len(self._cuts) - 1)
        self._weights = np.zeros(self._plan.size, np.float32)
        self._work = [np.zeros(self._plan.workspace_size, np.float32) for _ in range(self._team.count)]
        n, discrete = env.num_envs, head == "values"
        self._action, self._number = np.zeros((n, 1 if discrete else k), np.float32), np.zeros(n, np.int64)
        self._none = np.zeros(1, np.float32)

    def run(self, policy: Any, block: Any, noise: np.ndarray, random: bool) -> None:
        """One horizon into `block`, with noise (T, n, ...); `random`: actions are uniform, made from the same noise."""
        pack(self._weights, policy.flat.numpy(), self._plan.packed, self._plan.flat)
        norm = obs_statistics(policy)
        arrays = self._env.arrays
        taken = (arrays[name] for name in (
            "obs", "action", "reward", "terminated", "truncated", "final_obs", "episode_return", "episode_length",
        ))  # fmt: skip
        spread = policy.env_noise.numpy() if hasattr(policy, "env_noise") else self._none
        epsilon = np.float32(policy.epsilon) if hasattr(policy, "epsilon") else np.float32(0.0)
        bounds = (
            (policy.action_mid.numpy(), policy.action_half.numpy()) if policy.continuous else (self._none, self._none)
        )
        shared = (
            noise, norm, spread, epsilon, *bounds, random, self._action, self._number, *taken, block.data.numpy(),
            block.episode_return.numpy(), block.episode_length.numpy(),
        )  # fmt: skip
        tables = [self._env.native_table(thread) for thread in range(self._team.count)]

        def work(thread: int) -> tuple[int, int]:
            table, scratch = tables[thread]
            start, stop = self._cuts[thread], self._cuts[thread + 1]
            return self._horizon(start, stop, self._step, table, scratch, self._weights, self._work[thread], *shared)

        if self._horizon.signatures:
            found = self._team.run(work)
        else:  # the first call compiles
            found = [work(thread) for thread in range(self._team.count)]
        self._env.count_nonfinite(*np.sum(found, axis=0))
