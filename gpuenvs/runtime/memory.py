"""Loads and stores for the generated CPU kernels that tell LLVM which arrays cannot overlap.

A batch step touches a dozen arrays. Without help LLVM would have to compare every pair of them at run time, gives up, and
leaves the loop scalar (measured: 60M against 700M CartPole steps/s on one core). Each buffer gets its own alias scope
(LLVM's `alias.scope` / `noalias` metadata): an access to buffer k cannot alias an access to any other buffer.
The addresses come from one int64 table, so that a call costs the same however many arrays there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.numpy_support import from_dtype

MAX_SCOPES = 64


def _metadata(builder: ir.IRBuilder, scope: int) -> tuple[Any, Any]:
    """Metadata of one scope and of all the others. Named by strings, so that linked modules agree on them."""
    module = builder.module
    domain = module.add_metadata(["gpuenvs.buffers"])
    scopes = [module.add_metadata([f"gpuenvs.buffer.{k}", domain]) for k in range(MAX_SCOPES)]
    return module.add_metadata([scopes[scope]]), module.add_metadata([s for k, s in enumerate(scopes) if k != scope])


def _pointer(context: Any, builder: ir.IRBuilder, address: Any, index: Any, dtype: types.Type) -> Any:
    base = builder.inttoptr(address, context.get_data_type(dtype).as_pointer())
    return builder.gep(base, [index], inbounds=True)


def make_load(scope: int, dtype: np.dtype) -> Any:
    """`load(address, index)` of the buffer with this scope: element `index` of the array at `address`."""
    element = from_dtype(np.dtype(dtype))

    @intrinsic
    def load(typingctx, address, index):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            value = builder.load(_pointer(context, builder, args[0], args[1], element))
            own, others = _metadata(builder, scope)
            value.set_metadata("alias.scope", own)
            value.set_metadata("noalias", others)
            return context.data_model_manager[element].from_data(builder, value)

        return element(types.int64, types.int64), codegen

    return load


def make_store(scope: int, dtype: np.dtype) -> Any:
    """`store(address, index, value)` into the buffer with this scope."""
    element = from_dtype(np.dtype(dtype))

    @intrinsic
    def store(typingctx, address, index, value):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            data = context.data_model_manager[element].as_data(builder, args[2])
            done = builder.store(data, _pointer(context, builder, args[0], args[1], element))
            own, others = _metadata(builder, scope)
            done.set_metadata("alias.scope", own)
            done.set_metadata("noalias", others)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, element), codegen

    return store
