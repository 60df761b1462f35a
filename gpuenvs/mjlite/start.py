"""Where an episode begins: the model's reference position, changed by a task's `reset` function."""

from __future__ import annotations

from typing import Any

from gpuenvs.mjlite.quantities import Names


class NamedList(list):
    """A list of numbers whose entries also go by the names of their joints; joints of several numbers are lists."""

    def __init__(self, names: Names, field: str, values: Any) -> None:
        super().__init__(values)
        self._names, self._field = names, field

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, str):
            return super().__getitem__(index)
        rows = self._names.rows(self._field, index)
        return super().__getitem__(rows[0]) if len(rows) == 1 else [super(NamedList, self).__getitem__(r) for r in rows]

    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(index, str):
            super().__setitem__(index, value)
            return
        rows = self._names.rows(self._field, index)
        for row, number in zip(rows, [value] if len(rows) == 1 else value, strict=True):
            super().__setitem__(row, number)


class Start:
    """What a task's `reset(start, params)` changes.

    Attributes:
        qpos: positions, nq numbers, at first the model's qpos0; by index, slice or joint name. Quaternions need not be
            normalised: the physics does that, and observations show them as they are, as MuJoCo does.
        qvel: velocities, nv numbers, at first 0.
    """

    def __init__(self, names: Names, qpos0: Any, nv: int, random: Any, rng: Any) -> None:
        self.qpos = NamedList(names, "qpos", qpos0)
        self.qvel = NamedList(names, "qvel", [0.0] * nv)
        self._random, self._rng, self._draws = random, rng, 0

    def _draw(self) -> int:
        self._draws += 1
        return self._draws - 1

    def uniform(self, low: Any, high: Any) -> Any:
        """A new uniform number in [low, high)."""
        return self._random.uniform(self._rng, self._draw(), low, high)

    def normal(self, mean: Any, std: Any) -> Any:
        """A new normal number."""
        return self._random.normal(self._rng, self._draw(), mean, std)
