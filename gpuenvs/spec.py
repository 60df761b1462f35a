"""EnvSpec: everything gpurl knows of one environment, as data.

An environment is three pure scalar functions and two `typing.NamedTuple` classes::

    reset(rng, params)           -> State
    step(state, action, params)  -> (State, reward, terminated)            # + (metrics,) if metrics are declared
    observe(state, params)       -> (o_0, o_1, ...)

The functions see one environment at a time and Python scalars only: no arrays, time limits, resets, batches or devices.
`runtime/` turns them into batch kernels.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from gpuenvs.errors import ConfigError, SpecError, near_names
from gpuenvs.ranges import Range

REAL = "real"
INT = "int"
_ARGUMENTS = {"reset": ("rng", "params"), "step": ("state", "action", "params"), "observe": ("state", "params")}
_REQUIRED = {
    "reset": "reset, a function (rng, params) -> State",
    "step": "step, a function (state, action, params) -> (State, reward, terminated)",
    "observe": "observe, a function (state, params) -> a tuple of numbers",
    "observation_space": "Box(low, high, (n,), np.float32) for the n numbers of observe",
    "action_space": "Discrete(n) or Box(low, high, (k,), np.float32)",
}
_LARGEST_DRAWN = 2**24  # whole numbers are drawn through float32
_KINDS = {float: REAL, int: INT, "float": REAL, "int": INT}


@dataclass(frozen=True)
class Reference:
    """How to put a state into Gymnasium's own environment, for conformance tests and rendering.

    Args:
        id: Gymnasium id of the environment this one must match step for step.
        to_reference: `(env.unwrapped, state)` -> None; `state` is a State of Python scalars.
        from_reference: `env.unwrapped` -> State of Python scalars.
        keywords: params and options that Gymnasium's constructor takes by the same names, with the same meaning.
    """

    id: str
    to_reference: Callable[[Any, Any], None]
    from_reference: Callable[[Any], Any]
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True)
class EnvSpec:
    """One environment.

    Args:
        id: name with a version, e.g. `"CartPole-v1"`.
        state: `typing.NamedTuple` class; a field annotated `float` has the working real dtype (float32 or float64),
            `int` is int32.
        params: instance of a `typing.NamedTuple` class holding the default constants, annotated in the same way; a
            `Range` among them becomes one of `ranges`, and its default the constant.
        reset, step, observe: the functions above, decorated with `gpuenvs.scalar.njit`.
        observation_space: a one-dimensional `Box`; its length is the number of values that `observe` returns.
        action_space: `Discrete` (the function gets an int32 scalar, counted from 0) or a one-dimensional `Box` (it gets
            a tuple of reals, not clipped).
        max_episode_steps: time limit in steps, or None.
        metrics: names of extra values per step, the fourth item that `step` returns.
        reference: Gymnasium's own version, if there is one.
        reward_threshold: mean return that counts as solved, if there is one.
        traced: the functions are plain Python over scalars that `gpuenvs.trace` records, not numba's (see `gpuenvs.mjlite`).
        key: for traced specs: what the functions compute, as bytes for the cache of compiled kernels; empty: a hash of their
            code and of all that they use.
        configure: makes another spec from options that change more than numbers, such as what is observed.
        options: names of the options that `configure` takes.
        ranges: param -> `Range`: what a batch draws for each environment unless it is given a number.
        curriculum: `(step)` or `(step, envs)` -> {param: value} for a training that has made so many steps; see
            `learners.curriculum`.

    Raises:
        SpecError: something above does not fit; the message names the env and the part.
    """

    id: str
    state: type
    params: Any
    reset: Callable[..., Any] = field(default=None)  # type: ignore[assignment]
    step: Callable[..., Any] = field(default=None)  # type: ignore[assignment]
    observe: Callable[..., Any] = field(default=None)  # type: ignore[assignment]
    observation_space: gymnasium.spaces.Box = field(default=None)  # type: ignore[assignment]
    action_space: gymnasium.spaces.Box | gymnasium.spaces.Discrete = field(default=None)  # type: ignore[assignment]
    max_episode_steps: int | None = None
    metrics: tuple[str, ...] = ()
    reference: Reference | None = None
    reward_threshold: float | None = None
    traced: bool = False
    key: bytes = field(default=b"", repr=False)
    configure: Callable[..., EnvSpec] | None = field(default=None, compare=False, repr=False)
    options: tuple[str, ...] = ()
    ranges: Mapping[str, Range] = field(default_factory=dict)
    curriculum: Callable[..., Mapping[str, Any]] | None = field(default=None, compare=False, repr=False)
    doc: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        self._check_all_given()
        self._check_tuple_class("state", self.state)
        self._check_tuple_class("params", type(self.params))
        self._separate_ranges()
        for name, arguments in _ARGUMENTS.items():
            self._check_function(name, len(arguments))
        if self.curriculum is not None and not (
            callable(self.curriculum) and len(inspect.signature(self.curriculum).parameters) in (1, 2)
        ):
            raise SpecError(
                f"{self.id}: curriculum must be a function of (step) or (step, envs), got {self.curriculum!r}"
            )
        obs = self.observation_space
        if not isinstance(obs, gymnasium.spaces.Box) or len(obs.shape) != 1:
            raise SpecError(f"{self.id}: observation_space must be a one-dimensional Box, got {obs}")
        act = self.action_space
        if isinstance(act, gymnasium.spaces.Discrete):
            if act.start != 0:
                raise SpecError(f"{self.id}: a Discrete action_space must start at 0, got start={act.start}")
        elif not isinstance(act, gymnasium.spaces.Box) or len(act.shape) != 1:
            raise SpecError(f"{self.id}: action_space must be Discrete or a one-dimensional Box, got {act}")
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise SpecError(f"{self.id}: max_episode_steps must be at least 1 or None, got {self.max_episode_steps}")

    def _check_all_given(self) -> None:
        """None stands for what was forgotten: Python's own message would not name the environment."""
        forgotten = [name for name in _REQUIRED if getattr(self, name) is None]
        if forgotten:
            from gpuenvs.contract.faults import where_called

            words = "; ".join(f"{name}={_REQUIRED[name]}" for name in forgotten)
            raise SpecError(f"{self.id}: EnvSpec ({where_called()}) has no {', '.join(forgotten)}; give it {words}")

    def _check_tuple_class(self, what: str, cls: type) -> None:
        if not (isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")):
            raise SpecError(f"{self.id}: {what} must be a typing.NamedTuple class, got {cls!r}")
        for name, kind in field_kinds(cls).items():
            if kind not in (REAL, INT):
                raise SpecError(f"{self.id}: {what} field {name!r} must be annotated float or int, got {kind!r}")

    def _check_function(self, name: str, arity: int) -> None:
        function = getattr(self, name)
        plain = getattr(function, "py_func", function)
        if not callable(plain):
            raise SpecError(f"{self.id}: {name} must be a function, got {function!r}")
        found = len(inspect.signature(plain).parameters)
        if found != arity:
            from gpuenvs.contract.faults import where

            given = ", ".join(_ARGUMENTS[name])
            raise SpecError(
                f"{self.id}: {name} must take {arity} arguments, it takes {found}: ({given}); see {where(function)}"
            )

    def _separate_ranges(self) -> None:
        """Numbers stay in `params`, ranges go to `ranges`."""
        values = self.params._asdict()
        for name, value in values.items():
            if not isinstance(value, Range) and (np.ndim(value) or np.asarray(value).dtype.kind not in "fiub"):
                raise SpecError(f"{self.id}: parameter {name} must be a number or a Range, got {value!r}")
        try:
            given = {**{name: value for name, value in values.items() if isinstance(value, Range)}, **self.ranges}
            ranges = self.check_params(given)
            if not all(isinstance(value, Range) for value in ranges.values()):
                raise ConfigError(f"{self.id}: ranges must hold Range objects, got {self.ranges!r}")
            defaults = self.check_params({name: float(value) for name, value in ranges.items()})  # type: ignore[arg-type]
        except ConfigError as error:
            raise SpecError(str(error)) from error
        object.__setattr__(self, "ranges", ranges)
        object.__setattr__(self, "params", self.params._replace(**defaults))

    @property
    def obs_dim(self) -> int:
        """Number of values in one observation."""
        return int(self.observation_space.shape[0])

    @property
    def discrete(self) -> bool:
        """True when actions are integers."""
        return isinstance(self.action_space, gymnasium.spaces.Discrete)

    @property
    def action_dim(self) -> int:
        """Number of values in one continuous action; 1 for a discrete one."""
        return 1 if self.discrete else int(self.action_space.shape[0])  # type: ignore[index]

    def with_options(self, values: dict[str, Any]) -> tuple[EnvSpec, dict[str, Any]]:
        """The spec that `configure` makes of those of `values` that are its options, and the other values."""
        chosen = {name: values[name] for name in self.options if name in values}
        rest = {name: value for name, value in values.items() if name not in chosen}
        if not chosen or self.configure is None:
            return self, rest
        spec = self.configure(**chosen)
        if spec.key:  # the same object for what computes the same, whose kernels this process may have compiled already
            ranges = tuple(sorted(spec.ranges.items()))
            spec = _configured.setdefault((spec.id, spec.key, spec.params, ranges), spec)
        return spec, rest

    def with_params(self, overrides: Mapping[str, Any]) -> tuple[Any, dict[str, np.ndarray | Range]]:
        """Default params with `overrides` set, and apart from them what is one value per env.

        Args:
            overrides: name -> number, array of shape (num_envs,), Range, or a range as text (`"0.4..0.6"`).

        Returns:
            (params of Python numbers, {name: array or Range}); a per-env name keeps its default in the first. The spec's
            own ranges are among the second unless a number or an array takes their place.

        Raises:
            ConfigError: unknown name, or a value that is none of these.
        """
        checked = {**self.ranges, **self.check_params(overrides)}
        per_env = {name: value for name, value in checked.items() if isinstance(value, np.ndarray | Range)}
        numbers = {name: value for name, value in checked.items() if name not in per_env}
        return self.params._replace(**numbers), per_env

    def check_params(self, values: Mapping[str, Any]) -> dict[str, float | int | np.ndarray | Range]:
        """`values` of params as numbers of their kinds, arrays and ranges. Raises `ConfigError`."""
        kinds = field_kinds(type(self.params))
        checked: dict[str, float | int | np.ndarray | Range] = {}
        for name, value in values.items():
            if name not in kinds:
                known = (*kinds, *self.options)
                raise ConfigError(
                    f"{self.id} has no parameter {name!r}{near_names(name, known)}; it has: {', '.join(known)}"
                )
            checked[name] = self._check_param(name, kinds[name], value)
        return checked

    def _check_param(self, name: str, kind: str, value: Any) -> float | int | np.ndarray | Range:
        if isinstance(value, str) and ".." in value:
            value = Range.parse(value)
        if isinstance(value, Range):
            ends = (value.low, value.high)
            if kind == INT and not all(float(end).is_integer() and abs(end) <= _LARGEST_DRAWN for end in ends):
                raise ConfigError(f"{self.id}: the range of {name} needs whole numbers up to 2**24, got {value}")
            return value
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise ConfigError(f"{self.id}: parameter {name} must be a number or an array of numbers, got {value!r}")
        if not np.all(np.isfinite(array)):
            raise ConfigError(f"{self.id}: parameter {name} must be finite, got {value!r}")
        if array.ndim:
            return array
        return int(array) if kind == INT else float(array)


_configured: dict[tuple[Any, ...], EnvSpec] = {}


def field_kinds(cls: type) -> dict[str, str]:
    """Field name -> `"real"` or `"int"` (or the odd annotation itself) of a NamedTuple class, in order."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError:
        hints = dict(cls.__annotations__)
    return {name: _KINDS.get(hints.get(name, "missing"), hints.get(name, "missing")) for name in cls._fields}  # type: ignore[attr-defined]
