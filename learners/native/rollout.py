"""A whole horizon as one native call per thread: policy, sampling, environment step and storage.

Rows are independent over the horizon, so each thread runs its own range from the first step to the last and nobody waits.
The environment's own step kernel is called from here: there is one copy of the dynamics and of the transition.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gpuenvs.runtime.disk_cache import cached
from gpuenvs.runtime.generated import define
from gpuenvs.runtime.memory import make_load, make_store
from gpuenvs.runtime.threads import ROW_MULTIPLE, Team, cut_rows
from gpuenvs.scalar import f32, i32
from learners.native.calls import call_step, step_address
from learners.native.elementary import exp
from learners.native.epochs import pack
from learners.native.heads import INLINED, STRICT, make_log_probs
from learners.native.network import ROWS, Plan, Source, plans


def _policy_source(actor: Plan, source: Source, critic_source: Source) -> list[str]:
    """`policy(first, rows, t, act, weights, critic_weights, work, critic_work, env_obs, noise, norm, clip, obs, action,
    env_action, log_prob, value)`: one step of rows first..first + rows; `act` is False after the horizon.
    """
    work, other = source.work, critic_source.work
    ks = range(actor.outputs)
    lines = [
        f"for k in range({actor.obs_dim}):",
        "    shift = norm[0, k]",
        "    scale = norm[1, k]",
        "    for r in range(rows):",
        "        raw = env_obs[k, first + r]",
        "        obs[t, k, first + r] = raw",
        "        feature = min(max((raw - shift) * scale, -clip), clip)",
        f"        _st_x({work('x')}, r * {actor.obs_dim} + k, feature)",
        f"        _st_x({other('x')}, r * {actor.obs_dim} + k, feature)",
        *critic_source.forward(),
        "for r in range(rows):",
        f"    value[t, first + r] = _ld_z({other('z')}, r)",
        "if not act:",
        "    return",
        *source.forward(),
        "for r in range(rows):",
    ]
    z = work("z")
    if actor.log_std:
        log_std = f"(weights + {4 * actor.offsets['log_std',]})"
        lines += [
            f"    for k in range({actor.outputs}):",
            f"        chosen = _ld_z({z}, k * {ROWS} + r) + _exp(_ld_log_std({log_std}, k)) * noise[t, first + r, k]",
            "        action[t, first + r, k] = chosen",
            "        env_action[k, first + r] = chosen",
            f"        _st_real({work('action')}, k * {ROWS} + r, chosen)",
        ]
    else:
        log_std = "0"
        lines += [f"    best = _ld_z({z}, r) + noise[t, first + r, 0]", "    chosen = 0"]
        for k in ks:
            if k:
                lines += [
                    f"    score = _ld_z({z}, {k * ROWS} + r) + noise[t, first + r, {k}]",
                    f"    chosen = {k} if score > best else chosen",
                    "    best = max(score, best)",
                ]
        lines += ["    action[t, first + r] = chosen", f"    _st_int({work('action')}, r, _i32(chosen))"]
    lines += [
        f"_log_probs({z}, {work('action')}, {work('log_prob')}, {work('entropy')}, {log_std}, rows)",
        "for r in range(rows):",
        f"    log_prob[t, first + r] = _ld_z({work('log_prob')}, r)",
    ]
    head = (
        "def policy(first, rows, t, act, weights, critic_weights, work, critic_work, env_obs, noise, norm, clip, obs, "
        "action, env_action, log_prob, value):"
    )
    return [head, *(f"    {line}" for line in lines)]


def _bootstrap_source(critic: Plan, source: Source) -> list[str]:
    """`bootstrap(first, stop, t, chosen, critic_weights, critic_work, flags, env_final, norm, clip, final_value)`.

    V(final_obs) of the rows first..stop whose flag is set, at most ROWS of them.
    """
    x, z = source.work("x"), source.work("z")
    lines = [
        "rows = 0",
        "for i in range(first, stop):",
        "    if flags[0, i]:",
        "        chosen[rows] = i",
        f"        for k in range({critic.obs_dim}):",
        "            feature = min(max((env_final[k, i] - norm[0, k]) * norm[1, k], -clip), clip)",
        f"            _st_x({x}, rows * {critic.obs_dim} + k, feature)",
        "        rows += 1",
        "if rows == 0:",
        "    return",
        *source.forward(),
        "for r in range(rows):",
        f"    final_value[t, chosen[r]] = _ld_z({z}, r)",
    ]
    head = (
        "def bootstrap(first, stop, t, chosen, critic_weights, critic_work, flags, env_final, norm, clip, final_value):"
    )
    return [head, *(f"    {line}" for line in lines)]


def _make_policy(actor: Plan, critic: Plan) -> tuple[Any, Any]:
    """The compiled `policy` and `bootstrap`."""
    source, critic_source = Source(actor), Source(critic, "critic_")
    real = np.dtype(np.float32)
    lines = _policy_source(actor, source, critic_source) + _bootstrap_source(critic, critic_source)
    names = {
        "_exp": exp, "_i32": i32, "_st_x": make_store(0, real), "_ld_z": make_load(1, real),
        "_ld_log_std": make_load(2, real), "_st_real": make_store(3, real), "_st_int": make_store(3, np.dtype(np.int32)),
        "_log_probs": make_log_probs(actor.outputs, actor.log_std), **critic_source.names, **source.names,
    }  # fmt: skip
    text = "\n".join(lines)
    made = [define(name, text, names, "learners.native") for name in ("policy", "bootstrap")]
    return numba.njit(**INLINED)(made[0]), numba.njit(**INLINED)(made[1])


def _make_horizon(policy: Any, bootstrap: Any, action_slot: int, discrete: bool) -> Any:
    """`horizon(start, stop, step, ...) -> (bad states, bad rewards)`; see `FusedRollout.run` for the arguments."""

    @numba.njit(**STRICT)
    def horizon(start, stop, step, table, scratch, weights, critic_weights, work, critic_work, noise, norm, clip, env_obs,
                env_action, env_reward, env_terminated, env_truncated, env_final, env_return, env_length, obs, action,
                log_prob, value, reward, terminated, truncated, final_obs, episode_return, episode_length,
                final_value):  # fmt: skip
        steps = reward.shape[0]
        chosen = np.empty(ROWS, np.int64)
        bad_states = bad_rewards = 0
        for t in range(steps + 1):
            for first in range(start, stop, ROWS):
                policy(first, min(ROWS, stop - first), t, t < steps, weights.ctypes.data, critic_weights.ctypes.data,
                       work.ctypes.data, critic_work.ctypes.data, env_obs, noise, norm, clip, obs, action, env_action,
                       log_prob, value)  # fmt: skip
            if t == steps:
                break
            table[action_slot] = action[t].ctypes.data if discrete else env_action.ctypes.data
            _, states, rewards = call_step(step, start, stop, table, scratch)  # pyright: ignore[reportCallIssue]
            bad_states += states
            bad_rewards += rewards
            for i in range(start, stop):
                reward[t, i] = env_reward[0, i]
                terminated[t, i] = env_terminated[0, i]
                truncated[t, i] = env_truncated[0, i]
                if env_terminated[0, i] | env_truncated[0, i]:
                    episode_return[t, i] = env_return[0, i]
                    episode_length[t, i] = env_length[0, i]
                    for k in range(env_final.shape[0]):
                        final_obs[t, k, i] = env_final[k, i]
            for first in range(start, stop, ROWS):
                bootstrap(first, min(first + ROWS, stop), t, chosen, critic_weights.ctypes.data, critic_work.ctypes.data,
                          env_truncated, env_final, norm, clip, final_value)  # fmt: skip
        return bad_states, bad_rewards

    return cached(horizon)


class FusedRollout:
    """Fills a `Rollout` natively. Same actions, rewards and flags as `Collector`'s loop, up to rounding in the policy.

    Args:
        env: a CPU BatchEnv, float32, same-step autoreset.
        policy: its weights are read anew by every `run`.
        threads: most threads to use.
    """

    def __init__(self, env: Any, policy: Any, threads: int) -> None:
        both = plans(policy)
        self._env, self._plans = env, both
        self._kernel, self._action_slot = env.native_step()
        self._horizon = _make_horizon(
            *_make_policy(both["actor"], both["critic"]), self._action_slot, not policy.continuous
        )
        self._cuts = cut_rows(env.num_envs, max(1, min(threads, env.num_envs // (ROW_MULTIPLE // 2))))
        self._team = Team(len(self._cuts) - 1)
        self._weights = [np.zeros(plan.size, np.float32) for plan in both.values()]
        self._work = [[np.zeros(p.workspace_size, np.float32) for p in both.values()] for _ in range(self._team.count)]

    def run(self, policy: Any, rollout: Any, noise: np.ndarray) -> None:
        """One horizon into `rollout` (its `value` and `final_value` too), with noise (T, n, k)."""
        for packed, plan, flat in zip(
            self._weights, self._plans.values(), (policy.actor_flat, policy.critic_flat), strict=True
        ):
            pack(packed, flat.numpy(), plan.packed, plan.flat)
        norm, clip = np.zeros((2, policy.obs_dim), np.float32), np.float32(np.inf)
        norm[1] = 1.0
        if policy.obs_norm is not None:
            norm[0], norm[1] = policy.obs_norm.shift.numpy(), policy.obs_norm.scale.numpy()
            clip = np.float32(policy.obs_norm.clip)
        arrays = self._env.arrays
        taken = (arrays[name] for name in (
            "obs", "action", "reward", "terminated", "truncated", "final_obs", "episode_return", "episode_length",
        ))  # fmt: skip
        stored = (
            rollout.obs.transpose(1, 2), rollout.action, rollout.log_prob, rollout.value, rollout.reward,
            rollout.terminated, rollout.truncated, rollout.final_obs.transpose(1, 2), rollout.episode_return,
            rollout.episode_length, rollout.final_value,
        )  # fmt: skip
        shared = (noise, norm, clip, *taken, *(tensor.numpy() for tensor in stored))
        step = step_address(self._kernel)
        tables = [self._env.native_table(thread) for thread in range(self._team.count)]

        def work(thread: int) -> tuple[int, int]:
            table, scratch = tables[thread]
            start, stop = self._cuts[thread], self._cuts[thread + 1]
            return self._horizon(start, stop, step, table, scratch, *self._weights, *self._work[thread], *shared)

        if self._horizon.signatures:
            found = self._team.run(work)
        else:  # the first call compiles
            found = [work(thread) for thread in range(self._team.count)]
        self._env.count_nonfinite(*np.sum(found, axis=0))


@cached
@numba.njit(**STRICT)
def fused_gae(reward, value, terminated, truncated, final_value, gamma, gae_lambda, advantage):
    """`learners.functional.gae` on (T, n) arrays; value is (T + 1, n)."""
    steps, envs = reward.shape
    for i in range(envs):
        advantage[steps - 1, i] = f32(0.0)
    for t in range(steps - 1, -1, -1):
        for i in range(envs):
            following = final_value[t, i] if truncated[t, i] else value[t + 1, i]
            following = f32(0.0) if terminated[t, i] else following
            delta = reward[t, i] + f32(gamma) * following - value[t, i]
            running = advantage[t + 1, i] if t + 1 < steps else f32(0.0)
            ended = terminated[t, i] | truncated[t, i]
            advantage[t, i] = delta + (f32(0.0) if ended else f32(gamma * gae_lambda)) * running


@cached
@numba.njit(**STRICT)
def fused_vtrace(behaviour_log_prob, log_prob, reward, value, terminated, truncated, final_value, gamma, trace_lambda,
                 target, advantage):  # fmt: skip
    """`learners.functional.vtrace` with bars of 1 on (T, n) arrays; value is (T + 1, n)."""
    steps, envs = reward.shape
    for i in range(envs):
        following_target = value[steps, i]
        correction = f32(0.0)
        for t in range(steps - 1, -1, -1):
            ended = terminated[t, i] | truncated[t, i]
            following = final_value[t, i] if truncated[t, i] else value[t + 1, i]
            following = f32(0.0) if terminated[t, i] else following
            rho = min(f32(1.0), np.exp(log_prob[t, i] - behaviour_log_prob[t, i]))
            ahead = following if ended else following + f32(trace_lambda) * (following_target - following)
            advantage[t, i] = rho * (reward[t, i] + f32(gamma) * ahead - value[t, i])
            delta = rho * (reward[t, i] + f32(gamma) * following - value[t, i])
            correction = delta + (f32(0.0) if ended else f32(gamma * trace_lambda)) * rho * correction
            following_target = value[t, i] + correction
            target[t, i] = following_target
