"""Arithmetic operations per env-step, counted by running `step` and `observe` as plain Python on counting numbers.

What depends on params alone is not counted: compilers move it out of the row loop.
"""

import os
from collections import Counter

# Before the first import of numba: the functions must stay plain Python.
os.environ["NUMBA_DISABLE_JIT"] = "1"

import numpy as np

_KINDS = {
    "add": "add",
    "subtract": "add",
    "multiply": "multiply",
    "divide": "divide",
    "sqrt": "divide",
    "floor": "add",
    "less": "compare",
    "less_equal": "compare",
    "greater": "compare",
    "greater_equal": "compare",
    "equal": "compare",
    "not_equal": "compare",
}
counts: Counter = Counter()


class Counted(np.float32):
    """A float32 that counts what is done with it, and whose results count too."""

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        plain = [np.float32(x) if type(x) is Counted else x for x in inputs]
        result = getattr(ufunc, method)(*plain, **kwargs)
        counts[_KINDS.get(ufunc.__name__, "other")] += 1
        return Counted(result) if type(result) is np.float32 else result

    def __neg__(self):  # flips a bit, usually as part of the next instruction
        return Counted(-np.float32(self))

    def __abs__(self):
        return Counted(abs(np.float32(self)))


def _binary(ufunc, swapped):
    def operation(self, other):
        return ufunc(other, self) if swapped else ufunc(self, other)

    return operation


for _name, _ufunc in {"add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide}.items():
    setattr(Counted, f"__{_name}__", _binary(_ufunc, False))
    setattr(Counted, f"__r{_name}__", _binary(_ufunc, True))
for _name, _ufunc in {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}.items():  # fmt: skip
    setattr(Counted, f"__{_name}__", _binary(_ufunc, False))


def measure(request, clock):
    import gpuenvs

    spec = gpuenvs.get(request["env_id"])
    cast = {float: np.float32, int: np.int32}
    hints = type(spec.params).__annotations__
    params = type(spec.params)(
        *(cast.get(hints[name], np.float32)(value) for name, value in spec.params._asdict().items())
    )
    random = np.random.default_rng(0)
    steps = 50
    for _ in range(steps):
        state = spec.state(*(Counted(x) for x in random.uniform(-0.1, 0.1, len(spec.state._fields))))
        if spec.discrete:
            action = np.int32(random.integers(request["action"]["n"]))
        else:
            action = tuple(Counted(x) for x in random.uniform(-1, 1, spec.action_dim))
        state = spec.step(state, action, params)[0]
        spec.observe(state, params)
    step = {kind: round(number / steps, 1) for kind, number in counts.items()}
    return {"operations": step, "kernels": {"step_kernel": step, **_other_kernels(spec, params)}}


def _other_kernels(spec, params):
    """Of `reset` with `observe`, and of `observe` alone. Here the params count: rows that begin are few."""
    from gpuenvs.rng import Rng

    params = type(params)(*(Counted(x) if isinstance(x, np.floating) else x for x in params))
    counts.clear()
    with np.errstate(over="ignore"):  # the generator's integers wrap around
        rng = Rng(*map(np.uint32, (1, 2, 3, 4)))  # type: ignore[arg-type]
        state = spec.reset(rng, params)
    reset = Counter(counts)
    counts.clear()
    spec.observe(spec.state(*(Counted(x) if isinstance(x, np.floating) else x for x in state)), params)
    return {"begin_kernel": dict(reset + counts), "observe_kernel": dict(counts)}
