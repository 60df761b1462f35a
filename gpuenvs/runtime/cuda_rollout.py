"""Many steps in one launch: the fused rollout of a small MLP policy, and steps with random or constant actions.

A thread keeps its environment's state in registers from the first step to the last. The lines of a step come from
`transition`, those of the policy from `cuda_policy`; the noise is that of `gpuenvs.rng.fill_normal` and `fill_gumbel`.

The arrays of a rollout are those of `learners.rollout.Rollout`: feature-major observations, everything else (T, n) or
(T, n, k). They may lie in the memory of another device that this one can write to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuenvs.errors import ConfigError
from gpuenvs.rng import fill_plane, split_seed
from gpuenvs.runtime import cuda_policy, transition
from gpuenvs.runtime.buffers import SAME_STEP, Layout
from gpuenvs.runtime.cuda import simulated
from gpuenvs.runtime.cuda_policy import Mlp, Staging
from gpuenvs.runtime.cuda_source import ARGUMENTS, TOTALS, group_rows
from gpuenvs.runtime.generated import define
from gpuenvs.runtime.transition import Target

# Arguments of the rollout kernel before those of every kernel (`cuda_source.ARGUMENTS`).
POLICY = ("weights", "order", "shift", "scale", "memory")
OUTPUTS = (
    "obs", "action", "log_prob", "reward", "terminated", "truncated", "final_obs", "episode_return", "episode_length",
)  # fmt: skip
# `first_share` and `share`: weight of new noise in the first and in later steps; `keep`: of the noise before.
SCALARS = ("noise_lo", "noise_hi", "plane", "step_lo", "step_hi", "first_share", "share", "keep", "clip")
_STEP_SCALARS = ("steps", "seed_lo", "seed_hi", "plane", "step_lo", "step_hi")
_ENDED = ("final_obs", "episode_return", "episode_length")  # written where an episode ends and not read
RANDOM_ACTIONS = 3  # stream of the random actions
ACTIONS = ("random", "constant")


class _Registers:
    """The buffers as a thread sees them that loads its row once, steps it many times and then stores it.

    Args:
        record: also write what an ended episode leaves behind into row `t` of the rollout.
    """

    def __init__(self, layout: Layout, real: np.dtype, record: bool) -> None:
        self._places, self._record = group_rows(layout, real), record
        self._known: set[str] = set()
        self.loads: list[str] = []
        self.stores: dict[str, str] = {}
        self.target = Target(self._load, self._store)

    def element(self, name: str, row: int) -> str:
        group, first = self._places[name]
        return f"{group}[{first + row}, i]"

    def _load(self, name: str, row: int, column: str = "i") -> str:
        variable = f"_act_{row}" if name == "action" else f"_{name}_{row}"
        if variable not in self._known and name != "action":
            self._known.add(variable)
            self.loads.append(f"{variable} = {self.element(name, row)}")
        return variable

    def _store(self, name: str, row: int, column: str, value: str) -> str:
        if name == "episode":
            return f"{self.element(name, row)} = {value}"
        if name in _ENDED:
            kept = f"out_{name}[t, {row}, i] = " if name == "final_obs" else f"out_{name}[t, i] = "
            return f"{self.element(name, row)} = {kept if self._record else ''}{value}"
        variable = f"_{name}_{row}"
        self._known.add(variable)
        self.stores[variable] = f"{self.element(name, row)} = {variable}"
        return f"{variable} = {value}"


def _shared_param(buffer: str, row: int) -> str:
    return f"_{buffer}_{row}"


def _indent(lines: list[str], depth: int) -> list[str]:
    return ["    " * depth + line for line in lines]


def _param_loads(layout: Layout) -> list[str]:
    """The shared params, once for all steps."""
    return [f"_{buffer}_{row} = {buffer}[{row}]" for _, buffer, row in layout.shared_numbers]


def _step_lines(layout: Layout, row: _Registers) -> list[str]:
    """One step of row i with its autoreset, counted."""
    lines = transition.advance_lines(layout, row.target, _shared_param)
    for total, flag in (("bad_states", "bad_state"), ("bad_rewards", "bad_reward")):
        lines += [f"if {flag}:", f"    cuda.atomic.add(totals, {TOTALS.index(total)}, _ONE)"]
    restart = transition.needs_restart(layout)
    if restart is None:
        return lines
    reals, integers = transition.fresh_values(layout)
    begin = [
        f"episode = _u32({row.element('episode', 0)} + _ONE_U)",
        *transition.restart_lines(layout, row.target, _shared_param),
        *transition.leave_lines(layout, row.target),
        *transition.place_lines(layout, row.target, reals + integers),
    ]
    return [*lines, f"if {restart}:", *_indent(begin, 1)]


_PROLOGUE = [
    "_limit = _i32(settings[3])",
    "_seed_lo = settings[0]",
    "_seed_hi = settings[1]",
    "_env_offset = settings[2]",
]


def rollout_source(layout: Layout, mlp: Mlp, correlated: bool) -> str:
    """`rollout_kernel(POLICY, OUTPUTS with out_ before the name, SCALARS, ARGUMENTS)`."""
    row = _Registers(layout, np.dtype(np.float32), record=True)
    obs = [row.target.load("obs", k, "i") for k in range(mlp.sizes[0])]
    step = _step_lines(layout, row)
    actions = [f"out_action[t, i, {k}] = _act_{k}" for k in range(mlp.outputs)]
    if not mlp.continuous:
        actions = ["out_action[t, i] = _i64(_act_0)"]
    turn = [
        # The compiler must not keep weights in registers over the steps: there are far too many of them.
        "cuda.threadfence_block()",
        "_now_lo, _now_hi = _step_words(step_lo, step_hi, _u32(t))",
        *(f"out_obs[t, {k}, i] = {name}" for k, name in enumerate(obs)),
        *cuda_policy.forward_lines(mlp),
        *cuda_policy.sample_lines(mlp, correlated),
        *actions,
        "out_log_prob[t, i] = _log_prob",
        *step,
        "out_reward[t, i] = _reward_0",
        "out_terminated[t, i] = _terminated_0",
        "out_truncated[t, i] = _truncated_0",
    ]
    ks = range(mlp.outputs) if correlated else ()
    alignment = "" if simulated() else ", 16"
    body = [
        *_PROLOGUE,
        "_env = _u32(_env_offset + i)",
        *_param_loads(layout),
        *row.loads,
        *cuda_policy.local_lines(mlp),
        *(f"_last_{k} = memory[i, {k}]" for k in ks),
        *(["_share = first_share"] if correlated else []),
        "for t in range(out_reward.shape[0]):",
        *_indent(turn, 1),
        *(f"out_obs[out_reward.shape[0], {k}, i] = {name}" for k, name in enumerate(obs)),
        *(f"memory[i, {k}] = _last_{k}" for k in ks),
        *row.stores.values(),
    ]
    names = ", ".join([*POLICY, *(f"out_{name}" for name in OUTPUTS), *SCALARS, *ARGUMENTS])
    head = [f"def rollout_kernel({names}):", *_indent(cuda_policy.staging_lines(mlp, alignment), 1)]
    lines = [*head, "    i = cuda.grid(1)", "    if i < reals.shape[1]:", *_indent(body, 2)]
    return "\n".join(lines) + "\n"


def steps_source(layout: Layout, real: np.dtype, actions: str) -> str:
    """`steps_kernel(actions, low, high, steps, seed_lo, seed_hi, plane, step_lo, step_hi, ARGUMENTS)`.

    `actions`: "constant" takes them from the array of that name, (k, n); "random" draws uniform ones, of step t the numbers
    that `fill_uniform` gives for step `step + t`, from `low` to `high` or scaled to the number of choices.
    """
    spec = layout.spec
    row = _Registers(layout, np.dtype(real), record=False)
    step = _step_lines(layout, row)
    dim = spec.action_dim
    before, choose = [f"_act_{k} = actions[{k}, i]" for k in range(dim)], []
    if actions == "random":
        before = ["_env = _u32(_env_offset + i)"]
        choose = ["_now_lo, _now_hi = _step_words(step_lo, step_hi, _u32(t))"]
        for block in range(-(-dim // 4)):
            names = ", ".join(f"_n_{4 * block + k}" for k in range(4))
            choose.append(f"{names} = _four(seed_lo, seed_hi, _env, _now_lo, _now_hi, _u32({block}), plane)")
        if spec.discrete:
            choices = int(spec.action_space.n)  # type: ignore[union-attr]
            choose.append(f"_act_0 = _i32(_n_0 * _float32({choices}))")
        else:
            before += [f"_low_{k} = low[{k}]" for k in range(dim)] + [
                f"_width_{k} = high[{k}] - low[{k}]" for k in range(dim)
            ]
            choose += [f"_act_{k} = _low_{k} + _width_{k} * _real(_n_{k})" for k in range(dim)]
    body = [
        *_PROLOGUE,
        *_param_loads(layout),
        *row.loads,
        *before,
        "for t in range(steps):",
        *_indent([*choose, *step], 1),
        *row.stores.values(),
    ]
    names = ", ".join(["actions", "low", "high", *_STEP_SCALARS, *ARGUMENTS])
    lines = [f"def steps_kernel({names}):", "    i = cuda.grid(1)", "    if i < reals.shape[1]:", *_indent(body, 2)]
    return "\n".join(lines) + "\n"


def python_rollout(layout: Layout, mlp: Mlp, correlated: bool, cuda: Any) -> Callable[..., None]:
    """The rollout kernel as a plain Python function, for `cuda.jit`; `cuda` is the `numba.cuda` module."""
    names = _namespace(layout, np.dtype(np.float32), cuda) | cuda_policy.namespace(mlp)
    text = rollout_source(layout, mlp, correlated)
    return define("rollout_kernel", text, names, f"gpuenvs {layout.spec.id} {mlp.sizes} {mlp.activation} cuda")


def python_steps(layout: Layout, real: np.dtype, actions: str, cuda: Any) -> Callable[..., None]:
    """The kernel of many steps as a plain Python function."""
    from gpuenvs.rng import four_uniform32

    names = _namespace(layout, np.dtype(real), cuda) | {"_four": four_uniform32, "_float32": np.float32}
    text = steps_source(layout, real, actions)
    return define("steps_kernel", text, names, f"gpuenvs {layout.spec.id} {actions} {np.dtype(real).name} cuda")


def _namespace(layout: Layout, real: np.dtype, cuda: Any) -> dict[str, Any]:
    from gpuenvs.rng import step_words

    return {**transition.namespace(layout, real), "cuda": cuda, "_step_words": step_words, "_i64": np.int64}


# --- launching -------------------------------------------------------------------------------------------------------

_kernels: dict[tuple[Any, ...], tuple[Any, Any]] = {}


def _compiled(layout: Layout, key: tuple[Any, ...], make: Callable[[Any], Callable[..., None]]) -> Any:
    """Kernels are shared by all batches of one layout in the process. Specs are compared by identity."""
    full = (id(layout.spec), *layout.key, *key)
    if full not in _kernels:
        from numba import cuda

        _kernels[full] = (cuda.jit(make(cuda)), layout.spec)
    return _kernels[full][0]


def problem(layout: Layout, real: np.dtype, mlp: Mlp) -> str | None:
    """Why there is no fused rollout kernel for this environment and policy, in words; None if there is."""
    if np.dtype(real) != np.float32:
        return f"the environment computes in {np.dtype(real)}, the fused kernels in float32"
    if layout.autoreset != SAME_STEP:
        return f"the environment's autoreset is {layout.autoreset}, a rollout needs {SAME_STEP}"
    return mlp.problem()


class FusedRolloutKernel:
    """Launches whole horizons of one environment batch under one kind of policy.

    Args:
        backend: a `CudaBackend`, float32, same-step autoreset.
        mlp: the actor.
        correlated: noise of successive steps is correlated (continuous actions).

    Raises:
        ConfigError: there is no such kernel; one line that says why.
    """

    def __init__(self, backend: Any, mlp: Mlp, correlated: bool) -> None:
        found = problem(backend.layout, backend.real, mlp)
        if found is not None:
            raise ConfigError(found)
        self._backend, self.mlp = backend, mlp
        layout = backend.layout
        self._traced: Any = None
        if layout.spec.traced:
            from gpuenvs.runtime.traced_rollout_cuda import TracedRolloutKernel

            self._traced = TracedRolloutKernel(backend, mlp, correlated)
            return
        key = ("rollout", mlp, correlated)
        self._kernel = _compiled(layout, key, lambda cuda: python_rollout(layout, mlp, correlated, cuda))
        with backend.on_device():
            self._order = backend.array_module.asarray(Staging(mlp).order)

    def launch(
        self,
        policy: tuple[Any, Any, Any, Any],
        outputs: dict[str, Any],
        *,
        seed: int,
        step: int,
        stream: int = 0,
        clip: float = np.inf,
        shares: tuple[float, float, float] = (1.0, 1.0, 0.0),
    ) -> None:
        """Fill one horizon on the current stream; returns at once.

        Args:
            policy: (flat weights, shift, scale, last noise (n, k)), float32 arrays on the device.
            outputs: an array for each of `OUTPUTS`, obs (T+1, d, n) and final_obs (T, d, n).
            seed, step, stream: of the noise, as in `gpuenvs.rng.fill_normal`.
            clip: bound of normalised observations.
            shares: weight of new noise in the first and later steps, and of the noise before.
        """
        words = (*split_seed(seed), fill_plane(stream), np.uint32(step & 0xFFFFFFFF), np.uint32(step >> 32))
        scalars = (*words, *map(np.float32, (*shares, clip)))
        if self._traced is not None:
            self._traced.launch(policy, outputs, dict(zip(SCALARS, scalars, strict=True)))
            return
        weights, shift, scale, last = policy
        arrays = [weights, self._order, shift, scale, last, *(outputs[name] for name in OUTPUTS)]
        self._backend.launch(self._kernel, arrays, scalars)


class StepsKernel:
    """Launches many steps with random or constant actions: what microbenchmarks measure.

    Args:
        backend: a `CudaBackend`.
        actions: one of `ACTIONS`.
    """

    def __init__(self, backend: Any, actions: str) -> None:
        layout, real = backend.layout, backend.real
        if layout.spec.traced:
            raise ConfigError(f"{layout.spec.id} is a traced environment, for which there is no kernel of many steps")
        self._backend = backend
        self._kernel = _compiled(
            layout, ("steps", real.name, actions), lambda cuda: python_steps(layout, real, actions, cuda)
        )
        space, xp = layout.spec.action_space, backend.array_module
        bounds = [np.zeros(1), np.ones(1)] if layout.spec.discrete else [space.low, space.high]  # type: ignore[union-attr]
        with backend.on_device():
            self._bounds = [xp.asarray(np.asarray(bound, real)) for bound in bounds]

    def launch(self, steps: int, actions: Any = None, *, seed: int = 0, step: int = 0) -> None:
        """`steps` steps of every row on the current stream; returns at once.

        `actions`: the constant ones, (k, n); the action buffer's if None.
        """
        own = self._backend.arrays["action"] if actions is None else actions
        words = (np.uint32(step & 0xFFFFFFFF), np.uint32(step >> 32))
        scalars = (np.int64(steps), *split_seed(seed), fill_plane(RANDOM_ACTIONS), *words)
        self._backend.launch(self._kernel, [own, *self._bounds], scalars)


def random_actions(spec: Any, num_envs: int, steps: int, seed: int, env_offset: int = 0, step: int = 0) -> np.ndarray:
    """The actions that `StepsKernel` draws, on the CPU: (T, n) int32 or (T, n, k) float32."""
    from gpuenvs.rng import fill_uniform

    unit = np.empty((steps, num_envs, spec.action_dim), np.float32)
    fill_uniform(unit, seed, env_offset, step, RANDOM_ACTIONS)
    if spec.discrete:
        return (unit[:, :, 0] * np.float32(spec.action_space.n)).astype(np.int32)
    low, high = (np.asarray(bound, np.float32) for bound in (spec.action_space.low, spec.action_space.high))
    return low + (high - low) * unit
