"""BatchEnv: thousands of environments behind `reset` and `step`, on fixed device arrays."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from gpuenvs.errors import ConfigError
from gpuenvs.runtime import snapshot as snapshots
from gpuenvs.runtime.action import Action
from gpuenvs.runtime.buffers import AUTORESET_MODES, DISABLED, NEXT_STEP, SAME_STEP, make_layout
from gpuenvs.runtime.options import chosen_rows, real_dtype, resolve_device, whole
from gpuenvs.runtime.params import ParamTable
from gpuenvs.runtime.threads import allowed_cores
from gpuenvs.spec import EnvSpec

_NO_LIMIT = 2**31 - 1


class BatchEnv:
    """A batch of environments of one spec.

    All arrays that `reset` and `step` return live as long as the env, never move, and are overwritten by the next call.
    They are numpy arrays on the CPU and cupy arrays on CUDA; both export DLPack.

    Args:
        spec: the environment.
        num_envs: rows, at least 1.
        device: `"cpu"`, `"cuda"`, `"cuda:N"`, or `"auto"` (the first CUDA device if there is a usable one, else the CPU).
        seed: first seed, a non-negative integer below 2**64.
        dtype: `"float32"` or `"float64"`, of states, observations and rewards.
        autoreset: `"same_step"` (an ended row comes back as its next episode's first observation, the ended one is in
            `info["final_obs"]`), `"next_step"` (the row is reset by the next step, whose action is ignored and whose reward
            is 0) or `"disabled"` (rows go on until `reset(rows=...)`).
        threads: most CPU threads a step may use; default and maximum: the cores this process may use.
        env_offset: number of the first row. Row k behaves like row `env_offset + k` of a larger batch.
        max_episode_steps: time limit instead of the spec's own.
        metric_totals: sum up the spec's metrics while stepping, for `take_metrics`.
        **params: override the spec's params, each by a number, an array of shape (num_envs,) or a `Range`, or set its
            options, which change what the environment is (see `EnvSpec.configure`); `env.spec` is then another spec.

    Raises:
        ConfigError, DeviceError: a bad option; one line that says what to do.
    """

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        *,
        device: str = "auto",
        seed: int = 0,
        dtype: Any = "float32",
        autoreset: str = SAME_STEP,
        threads: int | None = None,
        env_offset: int = 0,
        max_episode_steps: int | None = None,
        metric_totals: bool = False,
        **params: Any,
    ) -> None:
        spec, params = spec.with_options(params)
        self.spec = spec
        self.num_envs = whole("num_envs", num_envs, 1, 2**31 - 1)
        self.dtype = real_dtype(dtype)
        if autoreset not in AUTORESET_MODES:
            raise ConfigError(f"autoreset must be one of {', '.join(AUTORESET_MODES)}, got {autoreset!r}")
        self.autoreset = autoreset
        self.seed = whole("seed", seed, 0, 2**64 - 1)
        self.env_offset = whole("env_offset", env_offset, 0, 2**32 - 1)
        limit = spec.max_episode_steps if max_episode_steps is None else max_episode_steps
        self.max_episode_steps = None if limit is None else whole("max_episode_steps", limit, 1, _NO_LIMIT)
        cores = allowed_cores()
        self.threads = min(cores, whole("threads", cores if threads is None else threads, 1, 4096))
        self._params = ParamTable(spec, self.num_envs, params)
        self._layout = make_layout(spec, autoreset, self._params.per_env, self._params.drawn, metric_totals)
        self.device = resolve_device(device)
        self._backend = self._make_backend()
        self._xp = self._backend.array_module
        self._arrays = self._backend.arrays
        self._action = Action(spec, self._backend, self.num_envs, self.dtype, self.device)
        self._fill_params(self._params.arrays)
        self._make_spaces()
        self._make_views()
        self._started = False
        self._closed = False
        self._nonfinite = np.zeros(2, np.int64)  # states, rewards
        self._configure()

    def _make_backend(self) -> Any:
        if self.device == "cpu" and self.spec.traced:
            from gpuenvs.runtime.traced_cpu import TracedCpuBackend

            return TracedCpuBackend(self._layout, self.dtype, self.num_envs, self.threads)
        if self.device == "cpu":
            from gpuenvs.runtime.cpu import CpuBackend

            return CpuBackend(self._layout, self.dtype, self.num_envs, self.threads)
        index = int(self.device.split(":")[1])
        if self.spec.traced:
            from gpuenvs.runtime.traced_cuda import TracedCudaBackend

            return TracedCudaBackend(self._layout, self.dtype, self.num_envs, index)
        from gpuenvs.runtime.cuda import CudaBackend

        return CudaBackend(self._layout, self.dtype, self.num_envs, index)

    def _configure(self) -> None:
        limit, table = self.max_episode_steps or _NO_LIMIT, self._params
        self._backend.configure(self.seed, self.env_offset, limit, table.numbers, table.ranges)

    def _fill_params(self, rows: dict[str, Any]) -> None:
        """Put values into the rows of per-env params."""
        with self._backend.on_device():
            for field, buffer, row, _ in self._layout.param_fields:
                if field in rows:
                    self._arrays[buffer][row] = self._xp.asarray(rows[field])

    def _make_spaces(self) -> None:
        box = self.spec.observation_space
        self.single_observation_space = gymnasium.spaces.Box(
            box.low.astype(self.dtype), box.high.astype(self.dtype), dtype=self.dtype.type
        )
        self.single_action_space = self.spec.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        modes = {
            SAME_STEP: AutoresetMode.SAME_STEP,
            NEXT_STEP: AutoresetMode.NEXT_STEP,
            DISABLED: AutoresetMode.DISABLED,
        }
        self.metadata: dict[str, Any] = {"autoreset_mode": modes[self.autoreset]}

    def _make_views(self) -> None:
        arrays = self._arrays
        self.obs = arrays["obs"].T
        self.reward = arrays["reward"][0]
        self.terminated = arrays["terminated"][0]
        self.truncated = arrays["truncated"][0]
        same_step = self.autoreset == SAME_STEP
        # Without a reset inside the step, obs and the running counters of an ended row are its final ones.
        self.info: dict[str, Any] = {
            "final_obs": arrays["final_obs"].T if same_step else self.obs,
            "episode_return": arrays["episode_return" if same_step else "running_return"][0],
            "episode_length": arrays["episode_length" if same_step else "elapsed"][0],
            "nonfinite": arrays["nonfinite"][0],
        }
        self.info.update({name: arrays["metrics"][k] for k, name in enumerate(self.spec.metrics)})

    # --- the loop ----------------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None, *, rows: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode in every row, or in `rows` only.

        Args:
            seed: sets the seed and begins the first episode of it everywhere; None goes on with the next episodes.
            rows: row numbers, or a bool mask of shape (num_envs,); not together with `seed`.

        Returns:
            (obs of shape (num_envs, obs_dim), info)
        """
        self._check_open()
        if rows is not None and seed is not None:
            raise ConfigError("reset takes a seed or rows, not both: a seed begins every row anew")
        if seed is not None:
            self.seed = whole("seed", seed, 0, 2**64 - 1)
            self._configure()
        chosen = chosen_rows(rows, self.num_envs)
        episode = self._arrays["episode"][0]
        if seed is not None or not self._started:
            episode[:] = 0
        else:
            episode[chosen] += 1
        for name in ("terminated", "truncated", "nonfinite", "ended", "reward"):
            self._arrays[name][:, chosen] = 0
        self._backend.begin(chosen)
        self._started = True
        return self.obs, self.info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every row.

        Args:
            action: (num_envs,) int32 or int64 for a Discrete action space, (num_envs, k) of the working dtype for a Box;
                numpy, cupy, or anything that speaks DLPack on the env's device.

        Returns:
            (obs (num_envs, obs_dim), reward (num_envs,), terminated (num_envs,) bool, truncated (num_envs,) bool, info).
            In info, `final_obs`, `episode_return` and `episode_length` hold where a row ended; `nonfinite` marks rows that
            ended because their state was NaN or infinite.

        Raises:
            ActionError: wrong shape, dtype, or an integer out of range; nothing was stepped. Looking at integers on CUDA
                would stall the device, so there the next read of `nonfinite_states` or `snapshot()` raises it.
        """
        self._check_open()
        if not self._started:
            raise ConfigError("step before reset: call env.reset(seed=...) first")
        _, states, rewards = self._backend.step(self._action.rows(action))
        self._nonfinite += (states, rewards)
        return self.obs, self.reward, self.terminated, self.truncated, self.info

    @property
    def nonfinite_states(self) -> int:
        """States so far that were NaN or infinite and ended their row. Waits for the device on CUDA."""
        self._collect()
        return int(self._nonfinite[0])

    @property
    def nonfinite_rewards(self) -> int:
        """Rewards so far that were NaN or infinite, of finite states. Waits for the device on CUDA."""
        self._collect()
        return int(self._nonfinite[1])

    def _collect(self) -> None:
        """Fetch what a CUDA device has counted; the CPU backend tells with each step."""
        if self.device != "cpu":
            self._nonfinite += self._backend.counts()

    @property
    def arrays(self) -> dict[str, Any]:
        """Every array of the batch by name, each (rows, num_envs); see `gpuenvs.runtime.buffers`."""
        return self._arrays

    @property
    def backend(self) -> Any:
        """What holds the arrays and launches the kernels: for kernels that do more than a step."""
        return self._backend

    def native_step(self) -> tuple[Any, int]:
        """For callers that are numba kernels themselves, CPU only: the compiled step and its action slot."""
        return self._backend.native_step()

    def native_table(self, thread: int) -> tuple[Any, Any]:
        """For one thread of such a caller: the address table (its own copy) and the scratch table."""
        self._check_open()
        if not self._started:
            raise ConfigError("step before reset: call env.reset(seed=...) first")
        return self._backend.native_table(thread)

    def count_nonfinite(self, states: int, rewards: int) -> None:
        """Add what such a caller's steps returned."""
        self._nonfinite += (states, rewards)

    # --- params and metrics --------------------------------------------------------------------------------------------

    @property
    def params(self) -> Any:
        """The params that all environments share; a param with a value per environment has its default here."""
        return self._params.numbers

    def set_params(self, **values: Any) -> None:
        """Change params without compiling anything; the others stay.

        Args:
            **values: name -> a number; an array of shape (num_envs,) for a param that the batch was made with as an array; a
                `Range` for one that it was made with as a Range. Numbers and arrays count from the next step on, a Range
                from the next episode of each row on.

        Raises:
            ConfigError: an unknown name, or a value of another kind. Nothing has changed then.
        """
        self._check_open()
        self._fill_params(self._params.change(values))
        self._configure()

    def get_params(self) -> Any:
        """The params as they are in the rows now: a number each, or a copy of shape (num_envs,) in host memory."""
        own = {f: self._host(self._arrays[b][r]).copy() for f, b, r, own in self._layout.param_fields if own}
        return self.params._replace(**own)

    def take_metrics(self) -> dict[str, float]:
        """Mean per step of each metric over all steps since the last call, NaN where there was none; waits for the device.

        Empty without `metric_totals=True`, or where the spec has no metrics.
        """
        totals = self.take_totals()
        return {} if totals is None else self.metric_means(self._host(totals))

    def take_totals(self) -> Any:
        """The sums of the metrics since the last call, on the device: (metrics + 1, num_envs), last the number of steps.

        None where there are none. For callers that must not wait; `metric_means` reads a copy of it.
        """
        if not self._layout.totals:
            return None
        with self._backend.on_device():
            totals = self._arrays["metric_totals"].copy()
            self._arrays["metric_totals"][...] = 0
        return totals

    def metric_means(self, totals: np.ndarray) -> dict[str, float]:
        """Mean per step of each metric, of totals in host memory."""
        sums = totals.sum(axis=1, dtype=np.float64)
        with np.errstate(invalid="ignore"):
            means = sums[:-1] / sums[-1]
        return dict(zip(self.spec.metrics, means.tolist(), strict=True))

    # --- states ------------------------------------------------------------------------------------------------------

    def get_state(self) -> Any:
        """A State whose fields are copies of shape (num_envs,), in host memory."""
        return self.spec.state(*(self._host(self._arrays[b][r]).copy() for _, b, r in self._layout.state_fields))

    def set_state(self, state: Any, rows: Any = None) -> None:
        """Put states into `rows` (default: all) and refresh their observations; time and return counters stay.

        Args:
            state: a State, or any sequence of its fields in order, each a number or an array with one value per row.
            rows: row numbers or a bool mask of shape (num_envs,).
        """
        self._check_open()
        if not self._started:
            self.reset()
        if len(state) != len(self._layout.state_fields):
            names = ", ".join(self.spec.state._fields)  # type: ignore[attr-defined]
            raise ConfigError(
                f"{self.spec.id}: a state has {len(self._layout.state_fields)} fields ({names}), got {len(state)}"
            )
        chosen = chosen_rows(rows, self.num_envs)
        for (field, buffer, row), value in zip(self._layout.state_fields, state, strict=True):
            values = self._xp.asarray(value)
            if values.shape not in ((), (len(chosen),)):
                raise ConfigError(
                    f"{self.spec.id}: state field {field} must have shape ({len(chosen)},), got {values.shape}"
                )
            self._arrays[buffer][row, chosen] = values
        self._backend.observe(chosen)

    def render_state(self, row: int) -> Any:
        """The state of one row as a State of Python numbers: what a renderer needs."""
        row = whole("row", row, 0, self.num_envs - 1)
        return self.spec.state(
            *(self._host(self._arrays[b][r, row : row + 1])[0].item() for _, b, r in self._layout.state_fields)
        )

    def snapshot(self) -> dict[str, np.ndarray]:
        """Everything that a later step reads, as host copies: states, counters of time and randomness, the last outputs."""
        saved = {name: self._host(self._arrays[name]).copy() for name in snapshots.ARRAYS if name in self._arrays}
        bad = (self.nonfinite_states, self.nonfinite_rewards)
        saved["totals"] = snapshots.pack_totals(self.seed, self.env_offset, *bad, self._started)
        saved["params"] = self._params.state()
        return saved

    def restore(self, snapshot: dict[str, np.ndarray]) -> None:
        """Continue bit for bit where `snapshot` was taken.

        Raises:
            ConfigError: it is of another environment, batch size or dtype.
        """
        self._check_open()
        arrays = snapshots.require_fit(self, snapshot)
        if "params" in snapshot:
            self._params.load(snapshot["params"])
        for name, value in arrays.items():
            self._arrays[name][...] = self._xp.asarray(value)
        self.seed, self.env_offset, *bad, self._started = snapshots.unpack_totals(snapshot["totals"])
        self._collect()
        self._nonfinite[:] = bad
        self._configure()

    # --- the rest ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the threads; arrays that were handed out stay valid."""
        if not self._closed:
            self._closed = True
            self._backend.close()

    def __enter__(self) -> BatchEnv:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"BatchEnv({self.spec.id}, num_envs={self.num_envs}, device={self.device}, dtype={self.dtype})"

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("this environment is closed; make a new one")

    def _host(self, array: Any) -> np.ndarray:
        return array if isinstance(array, np.ndarray) else array.get()
