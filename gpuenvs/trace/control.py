"""Control flow and memory of traced programs. With plain numbers or numpy arrays instead of traced values each runs at once.

Uniform means: the same for all envs that run together (the lanes of a vector). Loop counts and array indices are uniform.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuenvs.trace import graph


def any_lane(condition: Any) -> Any:
    """Uniform truth: does `condition` hold in at least one env?"""
    if isinstance(condition, graph.Value):
        return graph.apply("any", condition)
    return bool(np.any(condition))


def loop(count: Any, body: Callable[..., list[Any]], init: list[Any]) -> list[Any]:
    """`for k in range(count): values = body(k, *values)`; returns the last values.

    Args:
        count: int or uniform value.
        body: (k, *values) -> new values; k is uniform.
        init: first values.
    """
    if graph.recording():
        return graph.record_loop(count, body, init)
    values = list(init)
    for k in range(int(count)):
        values = list(body(k, *values))
    return values


def do_while(body: Callable[..., tuple[list[Any], Any]], init: list[Any]) -> list[Any]:
    """Repeat `values, again = body(*values)` while the uniform condition `again` holds; returns the last values."""
    if graph.recording():
        return graph.record_do_while(body, init)
    values = list(init)
    while True:
        values, again = body(*values)
        if not again:
            return list(values)


def if_(condition: Any, body: Callable[[], list[Any]], otherwise: list[Any]) -> list[Any]:
    """`body()` if the uniform `condition` holds, else the values `otherwise`. Stores to arrays in `body` count too."""
    if isinstance(condition, graph.Value):
        return graph.record_if(condition, body, otherwise)
    return list(body()) if condition else list(otherwise)


class Array:
    """Scratch memory of `size` elements per env (`kind="real"`) or of `size` uniform integers (`kind="int"`).

    Indices are ints or uniform values. What was never stored must not be loaded.
    """

    def __init__(self, size: int, kind: str = "real") -> None:
        self.size, self.kind = size, kind
        self._storage: Any = graph.record_array(size, kind) if graph.recording() else [None] * size

    def grow(self, size: int) -> None:
        """Make room for at least `size` elements, for those who know how many only once all is recorded."""
        if size <= self.size:
            return
        if graph.recording():
            graph.resize_array(self._storage, size)
        else:
            self._storage += [None] * (size - self.size)
        self.size = size

    def load(self, index: Any) -> Any:
        if graph.recording():
            return graph.record_load(self._storage, index)
        return self._storage[int(index)]

    def store(self, index: Any, value: Any) -> None:
        if graph.recording():
            graph.record_store(self._storage, index, value)
        else:
            self._storage[int(index)] = value


class Table:
    """Constants: a one-dimensional array of numbers (reals or integers), read at an int or uniform index.

    A real entry is a real value, an integer entry a uniform one.
    """

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)
        if self.values.ndim != 1:
            raise ValueError(f"a table has one dimension, got shape {self.values.shape}")

    def load(self, index: Any) -> Any:
        if isinstance(index, graph.Value):
            return graph.record_table(self.values, index)
        return self.values[int(index)].item()
