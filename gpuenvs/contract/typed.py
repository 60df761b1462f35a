"""What environment functions return, and arrays in them, read from their typed code.

The functions are compiled here with the very types that the kernels call them with, so the kernels find them compiled.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import types as numba_types

from gpuenvs.contract.faults import Fault, expected, head
from gpuenvs.contract.leaks import find_leaks, typed_reachable
from gpuenvs.contract.messages import explain, is_machinery
from gpuenvs.rng import Rng
from gpuenvs.spec import INT, EnvSpec, field_kinds

types: Any = numba_types  # its classes gain their attributes at run time

_MAKING = ("call", "binop", "inplace_binop", "unary")
_WORDS = "write constants as f32(0.5) or lit(0.1, x), or make them Params"


def argument_types(spec: EnvSpec, name: str, real: str) -> tuple[Any, ...]:
    """numba types of the arguments of `reset`, `step` or `observe`, as kernels call them."""
    params = _tuple_type(type(spec.params), real)
    if name == "reset":
        return (numba.typeof(Rng(*(np.uint32(0),) * 4)), params)  # type: ignore[arg-type]
    state = _tuple_type(spec.state, real)
    if name == "observe":
        return (state, params)
    action = types.int32 if spec.discrete else types.UniTuple(getattr(types, real), spec.action_dim)
    return (state, action, params)


def _tuple_type(cls: type, real: str) -> Any:
    kinds = [types.int32 if kind == INT else getattr(types, real) for kind in field_kinds(cls).values()]
    return types.BaseTuple.from_types(kinds, cls)


def compiled(spec: EnvSpec, name: str, real: str) -> Any:
    """numba's compile result of one of the functions; see `argument_types`."""
    function, arguments = getattr(spec, name), argument_types(spec, name, real)
    function.compile(arguments)
    return function.overloads[arguments]


def faults(spec: EnvSpec, name: str, real: str) -> list[Fault]:
    """Faults that the types of one function show: it does not compile, makes arrays, or returns something else."""
    function = getattr(spec, name)
    try:
        result = compiled(spec, name, real)
    except Exception as error:  # numba's own kinds, and what its parts raise on code that they did not foresee
        return [explain(error, function)]
    arrays = _arrays(function, result.type_annotation)
    if arrays:
        return arrays
    what = {"reset": _reset_fault, "step": _step_fault, "observe": _observe_fault}[name](
        spec, result.signature.return_type
    )
    if what:
        return [_at_return(function, result.type_annotation, f"returns {what}; expected {expected(spec, name)}")]
    return _dtype_faults(spec, name, real, result)


# --- arrays ------------------------------------------------------------------------------------------------------------


def _arrays(function: Any, annotation: Any) -> list[Fault]:
    """Arrays and lists that a function makes: writing past the end of one would reach other memory, other rows' included."""
    for called, typed in typed_reachable(function.py_func, annotation):
        if is_machinery(called.__code__.co_filename):
            continue
        for block in typed.blocks.values():
            for statement in block.body:
                made = getattr(getattr(statement, "value", None), "op", None) in _MAKING
                kind = typed.typemap.get(statement.target.name) if made else None
                if isinstance(kind, types.Array | types.List | types.ListType | types.DictType):
                    what = "an array" if isinstance(kind, types.Array) else "a container"
                    name, filename, _ = head(called)
                    words = (
                        f"makes {what} ({kind}); functions hold numbers and tuples alone: keep it in State or a tuple"
                    )
                    return [Fault(name, filename, statement.loc.line, words)]
    return []


# --- sizes -------------------------------------------------------------------------------------------------------------


def describe(kind: Any) -> str:
    """A numba type in words."""
    if isinstance(kind, types.BaseNamedTuple):
        return f"a {kind.instance_class.__name__}"
    if isinstance(kind, types.BaseTuple):
        return f"{len(kind)} value{'s' if len(kind) != 1 else ''}" if len(kind) else "an empty tuple"
    return {"none": "nothing (no return statement)"}.get(str(kind), f"one value ({types.unliteral(kind)})")


def _number(kind: Any) -> bool:
    return isinstance(types.unliteral(kind), types.Number | types.Boolean) and not isinstance(kind, types.Complex)


def _state_fault(spec: EnvSpec, kind: Any) -> str | None:
    """None if `kind` is the spec's State of numbers."""
    if not isinstance(kind, types.BaseNamedTuple) or kind.instance_class is not spec.state:
        return f"{describe(kind)} instead of a {spec.state.__name__}"
    for field, member in zip(kind.fields, kind.types, strict=True):
        if not _number(member):
            return f"a {spec.state.__name__} whose field {field} is {member} and not a number"
    return None


def _reset_fault(spec: EnvSpec, kind: Any) -> str | None:
    return _state_fault(spec, kind)


def _step_fault(spec: EnvSpec, kind: Any) -> str | None:
    count = 4 if spec.metrics else 3
    if not isinstance(kind, types.BaseTuple) or isinstance(kind, types.BaseNamedTuple) or len(kind) != count:
        return describe(kind)
    state = _state_fault(spec, kind[0])
    if state:
        return f"{state} as its first value"
    if not _number(kind[1]):
        return f"{types.unliteral(kind[1])} as reward, not a number"
    if not isinstance(types.unliteral(kind[2]), types.Boolean | types.Integer):
        return f"{types.unliteral(kind[2])} as terminated, not a bool"
    if spec.metrics:
        if not isinstance(kind[3], types.BaseTuple) or len(kind[3]) != len(spec.metrics):
            return f"{describe(kind[3])} as metrics for {len(spec.metrics)} names"
        if not all(map(_number, kind[3])):
            return f"metrics that are not all numbers ({kind[3]})"
    return None


def _observe_fault(spec: EnvSpec, kind: Any) -> str | None:
    if not isinstance(kind, types.BaseTuple):
        hint = ", which needs a comma to be a tuple: (x,)" if _number(kind) and spec.obs_dim == 1 else ""
        return describe(kind) + hint
    if len(kind) != spec.obs_dim:
        found = f"{len(kind)} value{'s' if len(kind) != 1 else ''}"
        return f"{found} where observation_space has {spec.obs_dim}"
    odd = [k for k, member in enumerate(kind) if not _number(member)]
    return f"{kind[odd[0]]} as value {odd[0]}, not a number" if odd else None


def _at_return(function: Any, annotation: Any, what: str) -> Fault:
    """A fault at the last return statement."""
    name, filename, line = head(function)
    lines = [s.loc.line for block in annotation.blocks.values() for s in block.body if type(s).__name__ == "Return"]
    return Fault(name, filename, max(lines, default=line), what)


# --- dtypes ------------------------------------------------------------------------------------------------------------


def _parts(spec: EnvSpec, name: str, kind: Any) -> list[tuple[str, str, Any]]:
    """(what it is, the kind it is declared, its type) of each number that a function returns."""
    if name == "observe":
        return [(f"value {k} of the observation", "real", member) for k, member in enumerate(kind)]
    state = kind if name == "reset" else kind[0]
    parts = [
        (f"{spec.state.__name__}.{field}", declared, member)
        for (field, declared), member in zip(field_kinds(spec.state).items(), state.types, strict=True)
    ]
    if name == "step":
        parts.append(("reward", "real", kind[1]))
        parts += [
            (f"metric {metric}", "real", member)
            for metric, member in zip(spec.metrics, kind[3] if spec.metrics else ())
        ]
    return parts


def _dtype_faults(spec: EnvSpec, name: str, real: str, result: Any) -> list[Fault]:
    function, annotation = getattr(spec, name), result.type_annotation
    for what, declared, member in _parts(spec, name, result.signature.return_type):
        kind = types.unliteral(member)
        if declared == INT and isinstance(kind, types.Float):
            words = f"returns {kind} for {what}, which is declared int and would lose its fraction; write i32(...)"
            return [_at_return(function, annotation, words)]
        if real == "float32" and declared != INT and kind == types.float64:
            return [_float64_fault(spec, name, what, annotation)]
    return []


def _float64_fault(spec: EnvSpec, name: str, what: str, annotation: Any) -> Fault:
    """A returned float64, at the line that makes it."""
    function = getattr(spec, name)
    words = f"returns a float64 as {what}"
    rest = f"kernels compute in float32: {_WORDS}; expected {expected(spec, name)} of float32"
    found = [leak for leak in find_leaks(function.py_func, annotation) if "float64" in leak.what]
    found = [leak for leak in found if not is_machinery(leak.filename)]
    if found:  # a constant is where it begins; other lines may only hand it on
        leak = min(found, key=lambda leak: "constant" not in leak.what)
        made = f", made by `{leak.source}`" if leak.source else ""
        return Fault(leak.function.rsplit(".", 1)[-1], leak.filename, leak.line, f"{words}{made}; {rest}")
    return _at_return(function, annotation, f"{words}; {rest}")
