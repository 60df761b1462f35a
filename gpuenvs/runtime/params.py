"""The params of one batch as they are now: numbers for all environments, arrays with one value each, and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuenvs.errors import ConfigError
from gpuenvs.ranges import Range
from gpuenvs.spec import EnvSpec


class ParamTable:
    """What a batch was given for its params, and how that may change.

    Which params have one value per environment, and which are drawn, is part of the compiled kernels. It is decided by what
    the batch is made with; the values are not.

    Args:
        spec: the environment.
        num_envs: rows.
        given: name -> number, array of shape (num_envs,) or Range, in place of the spec's own.

    Attributes:
        numbers: the NamedTuple of shared params; defaults where a param is not shared.
        ranges: name -> Range of the drawn ones.
        arrays: name -> (num_envs,) of the others that have one value per environment.

    Raises:
        ConfigError: an unknown name, or a value that does not fit.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, given: Mapping[str, Any]) -> None:
        self._spec, self._num_envs = spec, num_envs
        self.numbers, per_env = spec.with_params(given)
        self.ranges = {name: value for name, value in per_env.items() if isinstance(value, Range)}
        self.arrays = {name: self._fitting(name, value) for name, value in per_env.items() if name not in self.ranges}

    @property
    def per_env(self) -> tuple[str, ...]:
        """Names of the params with one value per environment, drawn or not."""
        return tuple(sorted((*self.ranges, *self.arrays)))

    @property
    def drawn(self) -> tuple[tuple[str, str], ...]:
        """(name, when) of those that are drawn."""
        return tuple(sorted((name, value.resample) for name, value in self.ranges.items()))

    def change(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Take new values; returns what belongs into the rows of per-env params: name -> number or array.

        Raises:
            ConfigError: an unknown name, or a value of a kind that this batch was not made for. Nothing has changed then.
        """
        checked = self._spec.check_params(values)
        for name, value in checked.items():
            self._require(name, value)
        rows: dict[str, Any] = {}
        for name, value in checked.items():
            if isinstance(value, Range):
                self.ranges[name] = value
            elif name in self.ranges:  # all of its next draws are this number
                self.ranges[name] = Range(value, value, resample=self.ranges[name].resample)  # type: ignore[arg-type]
                rows[name] = value
            elif name in self.arrays:
                rows[name] = value
            else:
                self.numbers = self.numbers._replace(**{name: value})
        return rows

    def _require(self, name: str, value: Any) -> None:
        own = self._spec.id
        if isinstance(value, Range):
            if name not in self.ranges:
                raise ConfigError(
                    f"{own}: parameter {name} is not drawn in this batch; make it with {name}=Range(...) to change its range"
                )
            if value.resample != self.ranges[name].resample:
                raise ConfigError(f"{own}: parameter {name} is drawn per {self.ranges[name].resample}, which stays")
        elif isinstance(value, np.ndarray):
            if name in self.ranges:
                raise ConfigError(f"{own}: parameter {name} is drawn in this batch; give it a Range or a number")
            if name not in self.arrays:
                raise ConfigError(
                    f"{own}: parameter {name} is one number in this batch; make it with an array to set it per environment"
                )
            self._fitting(name, value)

    def _fitting(self, name: str, value: Any) -> np.ndarray:
        if value.shape != (self._num_envs,):
            raise ConfigError(
                f"{self._spec.id}: parameter {name} must be a number or have shape ({self._num_envs},), got {value.shape}"
            )
        return value

    # --- for snapshots -------------------------------------------------------------------------------------------------

    def state(self) -> np.ndarray:
        """Shared numbers and bounds as one float64 array; the rows of per-env params are arrays of the batch."""
        ends = [end for _, value in sorted(self.ranges.items()) for end in (value.low, value.high)]
        return np.array([*self.numbers, *ends], np.float64)

    def load(self, state: np.ndarray) -> None:
        """Take what `state` returned. Raises `ConfigError` if it is of another kind of batch."""
        numbers = tuple(self.numbers)
        if state.shape != (len(numbers) + 2 * len(self.ranges),):
            raise ConfigError(f"{self._spec.id}: the snapshot's params do not fit this batch")
        kinds = [type(number) for number in numbers]
        self.numbers = type(self.numbers)(*(kind(x) for kind, x in zip(kinds, state.tolist(), strict=False)))
        ends = state[len(numbers) :].reshape(-1, 2).tolist()
        for (name, value), (low, high) in zip(sorted(self.ranges.items()), ends, strict=True):
            self.ranges[name] = Range(low, high, resample=value.resample)
