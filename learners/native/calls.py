"""Calls of compiled kernels through their address, so that who calls is compiled without what is called.

The fused horizon is the same code for all environments of its sizes: it finds their step by the address.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

# Arguments of `step_kernel`: start, stop, address table, scratch table (see `gpuenvs.runtime.cpu`).
_TABLE = types.Array(types.int64, 1, "C")
STEP_ARGUMENTS = (types.int64, types.int64, _TABLE, _TABLE)
STEP_RESULT = types.UniTuple(types.int32, 3)


def step_address(step_kernel: Any) -> int:
    """The address of a dispatcher's code for STEP_ARGUMENTS, compiled if it is not yet.

    It is good for as long as the dispatcher lives.
    """
    step_kernel.compile(STEP_ARGUMENTS)
    compiled = step_kernel.overloads[STEP_ARGUMENTS]
    if compiled.signature.return_type != STEP_RESULT:
        raise TypeError(f"a step kernel returns {STEP_RESULT}, not {compiled.signature.return_type}")
    return compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)


@intrinsic
def call_step(typingctx, address, start, stop, table, scratch):  # type: ignore[no-untyped-def]
    """(ended rows, bad states, bad rewards) of the step kernel at `address`, whose errors are the caller's."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        convention = context.call_conv
        kind = convention.get_function_type(STEP_RESULT, STEP_ARGUMENTS)
        function = builder.inttoptr(args[0], ir.PointerType(kind))
        status, result = convention.call_function(builder, function, STEP_RESULT, STEP_ARGUMENTS, args[1:])
        with builder.if_then(status.is_error, likely=False):
            convention.return_status_propagate(builder, status)
        return result

    return STEP_RESULT(types.int64, *STEP_ARGUMENTS), codegen
