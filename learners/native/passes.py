"""Values of many rows and log-probs of their actions under the weights as they stand, as one native call for each network."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from gpuenvs.runtime.disk_cache import cached
from gpuenvs.runtime.generated import define
from gpuenvs.runtime.memory import make_load, make_store
from gpuenvs.runtime.threads import Team
from gpuenvs.scalar import i32
from learners.native.epochs import pack
from learners.native.heads import STRICT, make_log_probs
from learners.native.network import ROWS, Plan, Source, plans


def _make_pass(plan: Plan, critic: bool) -> Any:
    """`run(weights, work, features, action, out)`: the critic's value, or the log-prob of the action, of every row."""
    source, real = Source(plan), np.dtype(np.float32)
    work = source.work
    lines = [
        "first = 0",
        "while first < rows_of(features):",
        "    rows = min(rows_of(features) - first, _ROWS)",
        "    for r in range(rows):",
        f"        for k in range({plan.obs_dim}):",
        f"            _st_x({work('x')}, r * {plan.obs_dim} + k, features[first + r, k])",
    ]
    if not critic and plan.log_std:
        lines += [f"        for k in range({plan.outputs}):"]
        lines += [f"            _st_action_real({work('action')}, k * {ROWS} + r, action[first + r, k])"]
    elif not critic:
        lines += [f"        _st_action_int({work('action')}, r, _i32(action[first + r]))"]
    lines += [f"    {line}" for line in source.forward()]
    found = work("z")
    if not critic:
        found = work("log_prob")
        log_std = f"(weights + {4 * plan.offsets['log_std',]})" if plan.log_std else "0"
        lines += [f"    _log_probs({work('z')}, {work('action')}, {found}, {work('entropy')}, {log_std}, rows)"]
    lines += ["    for r in range(rows):", f"        out[first + r] = _ld({found}, r)", "    first += rows"]
    names = {
        "_ROWS": ROWS, "_i32": i32, "rows_of": numba.njit(**STRICT)(_rows_of), "_st_x": make_store(0, real),
        "_ld": make_load(1, real), "_st_action_real": make_store(3, real),
        "_st_action_int": make_store(3, np.dtype(np.int32)), **source.names,
    }  # fmt: skip
    if not critic:
        names["_log_probs"] = make_log_probs(plan.outputs, plan.log_std)
    text = "\n".join(["def sweep(weights, work, features, action, out):", *(f"    {line}" for line in lines)])
    sweep = numba.njit(**STRICT)(define("sweep", text, names, "learners.native"))

    @numba.njit(**STRICT)
    def run(weights, work, features, action, out):
        sweep(weights.ctypes.data, work.ctypes.data, features, action, out)

    return cached(run)


def _rows_of(features):  # type: ignore[no-untyped-def]
    return features.shape[0]


class FusedPasses:
    """The native twin of `policy.value(features)` and `policy.distribution(features).log_prob(action)`.

    Args:
        policy: its weights are read anew by every call.
        threads: 1, or 2 for both networks at the same time.
    """

    def __init__(self, policy: Any, threads: int) -> None:
        self._policy, self._team = policy, Team(min(threads, 2))
        self._plans = list(plans(policy).values())
        self._runs: list[Any] = []
        self._weights = [np.zeros(plan.size, np.float32) for plan in self._plans]
        self._work = [np.zeros(plan.workspace_size, np.float32) for plan in self._plans]

    def __call__(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """(values of all rows of features (B + n, d), log-probs of the actions (B, ...) in the first B rows)."""
        if not self._runs:
            self._runs = [_make_pass(plan, critic) for plan, critic in zip(self._plans, (False, True))]
        rows = np.ascontiguousarray(features.numpy())
        taken = np.ascontiguousarray(action.numpy())
        out = torch.empty(len(taken)), torch.empty(len(rows))
        arguments = ((rows[: len(taken)], taken), (rows, taken))
        flats = (self._policy.actor_flat, self._policy.critic_flat)

        def work(net: int) -> None:
            plan = self._plans[net]
            pack(self._weights[net], flats[net].numpy(), plan.packed, plan.flat)
            self._runs[net](self._weights[net], self._work[net], *arguments[net], out[net].numpy())

        if self._team.count == 2 and self._runs[1].signatures:
            self._team.run(work)
        else:  # the first call compiles
            work(0)
            work(1)
        return out[1], out[0]
