"""Curricula: params that change while a training goes on.

An environment declares one in its `EnvSpec`, a function of the training's steps so far::

    def curriculum(step):
        return {"gust": min(1.0, step / 1e6), "mass": Range(0.5 - 0.3 * min(1.0, step / 2e6), 0.5)}

    SPEC = EnvSpec(..., curriculum=curriculum)

It is asked before each horizon, and what it returns goes to `BatchEnv.set_params`: numbers and arrays count from the
horizon's first step on, ranges from each row's next episode on. A function of two arguments, `curriculum(step, envs)`, gets
the numbers of the environments too (int64, (rows,)) and may return one value for each. Evaluations use the spec's own params.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from gpuenvs.errors import ConfigError, GpurlError
from gpuenvs.ranges import Range
from gpuenvs.spec import EnvSpec


class Curriculum:
    """The curriculum of a spec as a training uses it.

    Args:
        spec: an environment that has one.
        fixed: params that the user set for this training: those are left as they are.
    """

    def __init__(self, spec: EnvSpec, fixed: Iterable[str] = ()) -> None:
        assert spec.curriculum is not None
        self._spec, self._fixed = spec, frozenset(fixed)
        self._function: Callable[..., Any] = spec.curriculum
        self._takes_envs = len(inspect.signature(spec.curriculum).parameters) > 1
        self._last: dict[str, Any] = {}

    def values(self, step: int, first_env: int, rows: int) -> dict[str, Any]:
        """The params after `step` steps of the training, for the environments first_env ... first_env + rows - 1.

        Raises:
            ConfigError: the function raises, or returns what the environment cannot take; one line.
        """
        envs = (np.arange(first_env, first_env + rows),) if self._takes_envs else ()
        try:
            given = self._function(step, *envs)
            if not isinstance(given, Mapping):
                raise TypeError(f"it must return a dict of params, got {type(given).__name__}")
            chosen = {name: value for name, value in given.items() if name not in self._fixed}
            return self._spec.check_params(chosen)
        except GpurlError as error:
            raise ConfigError(f"curriculum({step}) of {error}") from error
        except Exception as error:
            text = " ".join(str(error).split())
            raise ConfigError(
                f"curriculum({step}) of {self._spec.id} fails: {type(error).__name__}: {text}{_where(error, self._function)}"
            ) from error

    def apply(self, env: Any, step: int) -> None:
        """Set what has changed since the last call; no step of `env` may be under way."""
        values = self.values(step, env.env_offset, env.num_envs)
        changed = {name: value for name, value in values.items() if not _equal(value, self._last.get(name))}
        if changed:
            env.set_params(**changed)
        self._last.update(changed)


def of(spec: Any, env_params: Mapping[str, Any]) -> Curriculum | None:
    """The curriculum of a spec for a training with these params; None if it has none."""
    return Curriculum(spec, env_params) if getattr(spec, "curriculum", None) is not None else None


def initial(spec: EnvSpec, env_params: Mapping[str, Any], first_env: int, rows: int) -> dict[str, Any]:
    """`env_params` and what the curriculum begins with: a batch made with both can take what comes later.

    Where the spec draws a param and the curriculum begins with a number, a range may follow: the param stays a drawn one.
    """
    curriculum = of(spec, env_params)
    values = curriculum.values(0, first_env, rows) if curriculum else {}
    for name, value in values.items():
        if name in spec.ranges and not isinstance(value, Range | np.ndarray):
            values[name] = Range(value, value, resample=spec.ranges[name].resample)
    return {**values, **env_params}


def _equal(value: Any, last: Any) -> bool:
    if isinstance(value, np.ndarray) or isinstance(last, np.ndarray):
        return np.array_equal(value, last)
    return type(value) is type(last) and value == last


def _where(error: BaseException, function: Callable[..., Any]) -> str:
    """` (my_env.py, line 12)` if the error arose in the function's file."""
    code, trace, line = getattr(function, "__code__", None), error.__traceback__, None
    while trace is not None:
        if code is not None and trace.tb_frame.f_code.co_filename == code.co_filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None or code is None else f" ({code.co_filename}, line {line})"
