"""Acting with a small MLP as one native call without the GIL: one row at a time, so its company cannot matter.

The network is the one of `learners.native`, compiled for a single row. Every row therefore runs the very same
instructions over the same addresses of the actor thread's workspace, whichever rows are ready with it.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gpuenvs.runtime.disk_cache import cached
from gpuenvs.runtime.generated import define
from gpuenvs.runtime.memory import make_load, make_store
from gpuenvs.scalar import i32
from learners.native.elementary import exp
from learners.native.heads import STRICT, make_log_probs
from learners.native.network import ROWS, Plan, Source


def make_act(plan: Plan) -> Any:
    """`act(ready, times, env_obs, noise, weights, norm, clip, work, obs, action, env_action, log_prob)`.

    For each row i of `ready` (m,) at step t of `times` (m,): stores the env's observation, and the action drawn with the
    noise, its log-prob and what the env is to do.

    env_obs (n, d); noise (T, n, k); weights packed; norm (2, d) shift and scale; obs (T + 1, d, n);
    action (T, n) i64 or (T, n, k) f32; env_action (n,) or (n, k) of the same kind; log_prob (T, n).
    """
    source, real = Source(plan), np.dtype(np.float32)
    work = source.work
    x, z, chosen = work("x"), work("z"), work("action")
    body = [
        "i, t = ready[j], times[j]",
        f"for k in range({plan.obs_dim}):",
        "    raw = env_obs[i, k]",
        "    obs[t, k, i] = raw",
        f"    _st_x({x}, k, min(max((raw - norm[0, k]) * norm[1, k], -clip), clip))",
        *source.forward(),
        *(_draw_real(plan, z, chosen) if plan.log_std else _draw_index(plan, z, chosen)),
        f"_log_probs({z}, {chosen}, {work('log_prob')}, {work('entropy')}, {_log_std(plan)}, rows)",
        f"log_prob[t, i] = _ld_z({work('log_prob')}, 0)",
    ]
    lines = [
        "def act(ready, times, env_obs, noise, weights_array, norm, clip, work_array, obs, action, env_action, log_prob):",
        "    weights, work, rows = weights_array.ctypes.data, work_array.ctypes.data, 1",
        "    for j in range(ready.size):",
        *(f"        {line}" for line in body),
    ]
    names = {
        "_exp": exp, "_i32": i32, "_st_x": make_store(0, real), "_ld_z": make_load(1, real),
        "_ld_log_std": make_load(2, real), "_st_real": make_store(3, real), "_st_int": make_store(3, np.dtype(np.int32)),
        "_log_probs": make_log_probs(plan.outputs, plan.log_std), **source.names,
    }  # fmt: skip
    return cached(numba.njit(**STRICT)(define("act", "\n".join(lines), names, "learners.host")))


def _log_std(plan: Plan) -> str:
    return f"(weights + {4 * plan.offsets['log_std',]})" if plan.log_std else "0"


def _draw_real(plan: Plan, z: str, chosen: str) -> list[str]:
    return [
        f"for k in range({plan.outputs}):",
        f"    drawn = _ld_z({z}, k * {ROWS}) + _exp(_ld_log_std({_log_std(plan)}, k)) * noise[t, i, k]",
        "    action[t, i, k] = drawn",
        "    env_action[i, k] = drawn",
        f"    _st_real({chosen}, k * {ROWS}, drawn)",
    ]


def _draw_index(plan: Plan, z: str, chosen: str) -> list[str]:
    return [
        f"best, drawn = _ld_z({z}, 0) + noise[t, i, 0], 0",
        f"for k in range(1, {plan.outputs}):",
        f"    score = _ld_z({z}, k * {ROWS}) + noise[t, i, k]",
        "    drawn = k if score > best else drawn",
        "    best = max(score, best)",
        "action[t, i] = drawn",
        "env_action[i] = drawn",
        f"_st_int({chosen}, 0, _i32(drawn))",
    ]
