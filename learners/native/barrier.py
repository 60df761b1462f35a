"""A meeting point of threads inside compiled code: a few hundred nanoseconds, where locks of the interpreter take tens of
microseconds.

Every thread arrives at a shared counter and reads it until all have. Threads of one update are apart by microseconds; whoever
waits longer lets others have the core (`sched_yield`), and each call of compiled code is short.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gpuenvs.runtime.cpu import aligned_zeros
from learners.native.heads import INNER

# Looks at the counter before a core is offered to others: about a microsecond.
SPINS = 1000
_COUNTER = types.Array(types.int64, 1, "C")
_yield_core = types.ExternalFunction("sched_yield", types.int32())


def make_counter() -> np.ndarray:
    """A counter, alone on its cache line, for `meet`; it begins at 0."""
    return aligned_zeros((16,), np.dtype(np.int64))


def _address(context: Any, builder: ir.IRBuilder, array: Any) -> Any:
    return context.make_array(_COUNTER)(context, builder, array).data


@intrinsic
def _arrive(typingctx, counter):  # type: ignore[no-untyped-def]
    """Add 1 to counter[0], at once for all threads; what was written before is there for whoever reads the sum."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        one = ir.Constant(ir.IntType(64), 1)
        builder.atomic_rmw("add", _address(context, builder, args[0]), one, "acq_rel")
        return context.get_dummy_value()

    return types.void(_COUNTER), codegen


@intrinsic
def _arrived(typingctx, counter):  # type: ignore[no-untyped-def]
    """counter[0] as it is now; what others wrote before they arrived can be read afterwards."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.load_atomic(_address(context, builder, args[0]), "acquire", 8)

    return types.int64(_COUNTER), codegen


@numba.njit(**INNER)
def meet(counter, threads, meetings):
    """Wait until all `threads` have called this. `meetings` counts the calls since the counter was 0; returns it plus 1."""
    meetings += 1
    if threads == 1:
        return meetings
    _arrive(counter)  # pyright: ignore[reportCallIssue]
    looks = 0
    while _arrived(counter) < meetings * threads:
        looks += 1
        if looks > SPINS:
            _yield_core()
    return meetings
