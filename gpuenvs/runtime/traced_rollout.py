"""The fused rollout of a traced environment: policy, noise, step, autoreset and storage of T steps as one recorded program.

A row's state stays in the environment's arrays between steps: next to the physics those loads and stores are few.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpuenvs import trace as T
from gpuenvs.runtime import traced, traced_policy
from gpuenvs.runtime.buffers import Layout
from gpuenvs.runtime.cuda_policy import Mlp
from gpuenvs.runtime.cuda_rollout import OUTPUTS, SCALARS
from gpuenvs.trace.graph import Program, Value, as_value, statement

# What such a kernel is given beside the address table: addresses and whole numbers, then real numbers.
WORDS = ("weights", "order", "shift", "scale", "memory", *OUTPUTS, "steps", *SCALARS[:5])
REALS = SCALARS[5:]
FENCE = -1  # number of a `count` that counts nothing: no load of weights moves across it
_DTYPES = {"terminated": "bool", "truncated": "bool", "episode_length": "int32"}
_ENDED = ("final_obs", "episode_return", "episode_length")


class Place(NamedTuple):
    """An element of an array of the rollout: (t * per_step + rows) * n + i * per_env + offset, n the number of envs."""

    slot: int
    dtype: str
    per_step: int
    rows: int = 0
    per_env: int = 1
    offset: int = 0


class RolloutRecorder(traced.Recorder):
    """Records the rollout program of one layout under one kind of policy; see `traced.Recorder` for the first arguments.

    Attributes:
        first_slot: of `WORDS`, then `REALS`, after those of the address table.
    """

    def __init__(self, layout: Layout, settings: dict[str, int], mlp: Mlp, correlated: bool) -> None:
        super().__init__(layout, np.dtype(np.float32), settings, np.dtype(np.float32))
        self.mlp, self.correlated = mlp, correlated
        self.first_slot = first_slot(layout)
        self._turn: Value  # the step being recorded
        self._extra = {name: self.first_slot + k for k, name in enumerate((*WORDS, *REALS))}

    def record(self, kernel: str = "rollout") -> Program:
        return super().record(kernel)

    def _place(self, name: str, k: int = 0, per_step: int = 1) -> Place:
        """Element k of feature-major field `name` with `per_step` rows a step."""
        return Place(self._extra[name], _DTYPES.get(name, "float32"), per_step, k)

    def _out(self, place: Place, value: Any, t: Value) -> None:
        kind = {"bool": "bool", "int32": "i32", "int64": "i32"}.get(place.dtype, "real")
        statement("put", "none", (as_value(value, kind), self._mask, t), place)

    def _given(self, name: str, kind: str) -> Value:
        return statement("setting", kind, (), self._extra[name])

    def _rollout(self) -> None:
        mlp, dim = self.mlp, self.mlp.sizes[0]
        steps = self._given("steps", "index")
        words = {name: self._given(name, "u32") for name in ("noise_lo", "noise_hi", "plane", "step_lo", "step_hi")}
        reals = {name: self._given(name, "real") for name in REALS}
        env = self._setting("env_offset", "u32") + self._row
        zero = as_value(0, "index")
        memory = [Place(self._extra["memory"], "float32", 0, 0, mlp.outputs, k) for k in range(mlp.outputs)]
        carried: list[Any] = []
        if self.correlated:
            carried = [reals["first_share"], *(statement("get", "real", (zero,), place) for place in memory)]

        def turn(t: Any, *kept: Any) -> list[Any]:
            statement("count", "none", (self._mask,), FENCE)
            self._known = {}
            obs = [self._get("obs", k) for k in range(dim)]
            for k, x in enumerate(obs):
                self._out(self._place("obs", k, dim), x, t)
            outputs = traced_policy.forward(mlp, _weight, obs, reals["clip"])
            now = traced_policy.step_words(words["step_lo"], words["step_hi"], t)
            numbers = traced_policy.noise(mlp, env, (words["noise_lo"], words["noise_hi"]), now, words["plane"])
            if self.correlated:
                share, *last = kept
                numbers = [
                    number * share + reals["keep"] * before for number, before in zip(numbers, last, strict=True)
                ]
                kept = (reals["share"], *numbers)
            actions, log_prob = traced_policy.sample(mlp, _weight, outputs, numbers)
            self._store_actions(actions, t)
            self._out(self._place("log_prob"), log_prob, t)
            self._turn = t
            self._step_kernel()
            for name in ("reward", "terminated", "truncated"):
                self._out(self._place(name), self._known[name, 0], t)
            return list(kept)

        kept = T.loop(steps, turn, carried)
        self._known = {}
        for k in range(dim):
            self._out(self._place("obs", k, dim), self._get("obs", k), steps)
        for place, value in zip(memory, kept[1:]):
            self._out(place, value, zero)

    def _store_actions(self, actions: list[Any], t: Value) -> None:
        for k, action in enumerate(actions):
            self._known["action", k] = action
            if self.mlp.continuous:
                count = len(actions)
                self._out(Place(self._extra["action"], "float32", count, 0, count, k), action, t)
            else:
                self._out(Place(self._extra["action"], "int64", 1), action, t)

    def _restart(self, names: dict[str, Any], ended: Value) -> list[Value]:
        super()._restart(names, ended)
        for name in _ENDED:
            rows = self.mlp.sizes[0] if name == "final_obs" else 1
            for k in range(rows):
                self._out(self._place(name, k, rows), self._known[name, k], self._turn)
        return []


def _weight(index: Any) -> Value:
    """An element of shared memory. Not a pure value: it would move out of the loop over steps."""
    return statement("weight", "real", (as_value(index, "index"),))


def first_slot(layout: Layout) -> int:
    """The slot after the address table's last."""
    return max(traced.slots(layout).values()) + 1


def record_rollout(layout: Layout, mlp: Mlp, correlated: bool) -> Program:
    """The program, with the address table of `gpuenvs.runtime.cpu` and after it `WORDS` and `REALS`."""
    return RolloutRecorder(layout, traced.slots(layout), mlp, correlated).record()
