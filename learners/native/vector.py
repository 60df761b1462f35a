"""Vector micro-kernels as LLVM IR behind numba intrinsics: matrix product with an epilogue, and rows of dot products.

LLVM's loop vectoriser does not tile a matrix product in registers; these generators do. Matrices are addresses of float32
arrays with explicit strides in elements. The order of additions depends on the shapes alone, never on threads, so a row's
result does not depend on which other rows are computed with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()


def _lanes() -> int:
    features = llvm.get_host_cpu_features()
    return 16 if features.get("avx512f") else 8 if features.get("avx2") else 4


LANES = _lanes()
# Rows x vectors of one register tile: 16 accumulators where there are 32 vector registers, 8 where there are 16.
_TILE_ROWS = 4
_TILE_VECTORS = 2 if LANES == 8 else 4
_VEC = ir.VectorType(_F32, LANES)

# tanh(x) = x P(x^2) / Q(x^2) on |x| <= 7.905, beyond which float32 tanh is 1: the coefficients of Eigen's
# `ptanh_float` (Eigen/src/Core/MathFunctionsImpl.h). Error below 4 ulp.
_TANH_BOUND = 7.90531110763549805
_TANH_P = (
    4.89352455891786e-03, 6.37261928875436e-04, 1.48572235717979e-05, 5.12229709037114e-08, -8.60467152213735e-11,
    2.00018790482477e-13, -2.76076847742355e-16,
)  # fmt: skip
_TANH_Q = (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)


def _constant(value: float) -> ir.Constant:
    return ir.Constant(_VEC, [value] * LANES)


def _call(builder: ir.IRBuilder, name: str, *args: Any) -> Any:
    function_type = ir.FunctionType(_VEC, [_VEC] * len(args))
    function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.{name}.v{LANES}f32")
    return builder.call(function, args)


def _fma(builder: ir.IRBuilder, x: Any, y: Any, z: Any) -> Any:
    # `fmuladd`, not `fma`: one instruction where there is one, and no library call where there is none.
    return _call(builder, "fmuladd", x, y, z)


def _horner(builder: ir.IRBuilder, x: Any, coefficients: tuple[float, ...]) -> Any:
    value = _constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = _fma(builder, value, x, _constant(coefficient))
    return value


def _tanh(builder: ir.IRBuilder, x: Any) -> Any:
    x = _call(builder, "minnum", _call(builder, "maxnum", x, _constant(-_TANH_BOUND)), _constant(_TANH_BOUND))
    square = builder.fmul(x, x)
    return builder.fdiv(builder.fmul(x, _horner(builder, square, _TANH_P)), _horner(builder, square, _TANH_Q))


def _splat(builder: ir.IRBuilder, scalar: Any) -> Any:
    undefined = ir.Constant(_VEC, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))


def _at(builder: ir.IRBuilder, base: Any, index: Any) -> Any:
    return builder.gep(builder.inttoptr(base, _F32.as_pointer()), [index])


def _load(builder: ir.IRBuilder, pointer: Any) -> Any:
    return builder.load(builder.bitcast(pointer, _VEC.as_pointer()), align=4)


def _store(builder: ir.IRBuilder, value: Any, pointer: Any) -> None:
    builder.store(value, builder.bitcast(pointer, _VEC.as_pointer()), align=4)


def _index(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)


def _call_shared(builder: ir.IRBuilder, name: str, args: Any, emit: Callable[[ir.IRBuilder, Any], None]) -> None:
    """Call the function `name` of int64 arguments and no result, with the body that `emit` writes.

    A kernel uses a product many times over: it is compiled once in a module, and once in all modules that are linked.
    `name` says all that the body depends on.
    """
    module = builder.module
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_I64] * len(args)), name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        function.attributes.add("nounwind")
        body = ir.IRBuilder(function.append_basic_block("entry"))
        emit(body, function.args)
        body.ret_void()
    builder.call(function, args)


class _Product:
    """Emits one tiled matrix product; see `make_matmul` for the meaning."""

    def __init__(self, builder: ir.IRBuilder, columns: int, init: str, epilogue: str, args: tuple[Any, ...]) -> None:
        self.builder, self.columns, self.init, self.epilogue = builder, columns, init, epilogue
        self.a, self.a_row, self.a_col, self.b, self.b_row, self.c, self.c_row, self.extra, self.rows, self.depth = args

    def emit(self) -> None:
        builder = self.builder
        vectors = self.columns // LANES
        whole = builder.udiv(self.rows, _index(_TILE_ROWS))
        done = builder.mul(whole, _index(_TILE_ROWS))
        for first in range(0, vectors, _TILE_VECTORS):
            width = min(_TILE_VECTORS, vectors - first)
            with cgutils.for_range(builder, whole) as loop:
                self._tile(builder.mul(loop.index, _index(_TILE_ROWS)), _TILE_ROWS, first * LANES, width)
            with cgutils.for_range(builder, builder.sub(self.rows, done)) as loop:
                self._tile(builder.add(done, loop.index), 1, first * LANES, width)

    def _tile(self, first_row: Any, height: int, first_column: int, width: int) -> None:
        builder = self.builder
        rows = [builder.add(first_row, _index(k)) for k in range(height)]
        columns = [_index(first_column + k * LANES) for k in range(width)]
        cells = {(i, j): cgutils.alloca_once(builder, _VEC) for i in range(height) for j in range(width)}
        for (i, j), cell in cells.items():
            builder.store(self._initial(rows[i], columns[j]), cell)
        starts = [builder.mul(row, self.a_row) for row in rows]
        with cgutils.for_range(builder, self.depth) as loop:
            b_start = builder.mul(loop.index, self.b_row)
            b_values = [_load(builder, _at(builder, self.b, builder.add(b_start, column))) for column in columns]
            a_step = builder.mul(loop.index, self.a_col)
            for i in range(height):
                a_value = _splat(builder, builder.load(_at(builder, self.a, builder.add(starts[i], a_step))))
                for j in range(width):
                    builder.store(_fma(builder, a_value, b_values[j], builder.load(cells[i, j])), cells[i, j])
        for (i, j), cell in cells.items():
            place = builder.add(builder.mul(rows[i], self.c_row), columns[j])
            _store(builder, self._final(builder.load(cell), place), _at(builder, self.c, place))

    def _initial(self, row: Any, column: Any) -> Any:
        builder = self.builder
        if self.init == "zero":
            return _constant(0.0)
        if self.init == "row":
            return _load(builder, _at(builder, self.extra, column))
        return _load(builder, _at(builder, self.c, builder.add(builder.mul(row, self.c_row), column)))

    def _final(self, value: Any, place: Any) -> Any:
        builder = self.builder
        if self.epilogue == "tanh":
            return _tanh(builder, value)
        if self.epilogue == "relu":
            return _call(builder, "maxnum", value, _constant(0.0))
        if self.epilogue == "none":
            return value
        output = _load(builder, _at(builder, self.extra, place))
        if self.epilogue == "tanh_grad":
            return builder.fmul(value, builder.fsub(_constant(1.0), builder.fmul(output, output)))
        return builder.select(builder.fcmp_ordered(">", output, _constant(0.0)), value, _constant(0.0))


def make_matmul(columns: int, init: str, epilogue: str = "none") -> Any:
    """Intrinsic `matmul(a, a_row, a_col, b, b_row, c, c_row, extra, rows, depth)`, all int64.

    C[i, j] = epilogue(init + sum over k < depth of A[i, k] * B[k, j]) for i < rows, j < columns, where A[i, k] is element
    `i * a_row + k * a_col` at address `a`, and rows of B and C are contiguous. The sum runs over k in order.

    Args:
        columns: a multiple of LANES.
        init: `"zero"`, `"row"` (a row vector at `extra`, e.g. a bias) or `"add"` (what C holds).
        epilogue: `"none"`, `"tanh"`, `"relu"`, or `"tanh_grad"` / `"relu_grad"`: times the derivative of the activation
            whose outputs lie at `extra`, laid out as C.
    """
    if columns % LANES:
        raise ValueError(f"columns must be a multiple of {LANES}, got {columns}")

    @intrinsic
    def matmul(typingctx, a, a_row, a_col, b, b_row, c, c_row, extra, rows, depth):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            name = f"gpurl.matmul.{LANES}.{columns}.{init}.{epilogue}"
            _call_shared(builder, name, args, lambda body, own: _Product(body, columns, init, epilogue, own).emit())
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10), codegen

    return matmul


def make_dots(depth: int) -> Any:
    """Intrinsic `dots(x, x_row, w, bias, out, out_col, rows, count)`, all int64.

    out[i + j * out_col] = bias[j] + sum over k < depth of X[i, k] * W[j, k] for i < rows, j < count; `depth` is a multiple
    of LANES, rows of X and W are contiguous, W's row length is `depth`.
    """
    if depth % LANES:
        raise ValueError(f"depth must be a multiple of {LANES}, got {depth}")

    @intrinsic
    def dots(typingctx, x, x_row, w, bias, out, out_col, rows, count):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            x, x_row, w, bias, out, out_col, rows, count = args
            reduce_type = ir.FunctionType(_F32, [_F32, _VEC])
            name = f"llvm.vector.reduce.fadd.v{LANES}f32"
            reduce = cgutils.get_or_insert_function(builder.module, reduce_type, name)
            with cgutils.for_range(builder, rows) as row:
                x_start = builder.mul(row.index, x_row)
                parts = [
                    _load(builder, _at(builder, x, builder.add(x_start, _index(k)))) for k in range(0, depth, LANES)
                ]
                with cgutils.for_range(builder, count) as column:
                    w_start = builder.mul(column.index, _index(depth))
                    total = _constant(0.0)
                    for k, part in enumerate(parts):
                        weight = _load(builder, _at(builder, w, builder.add(w_start, _index(k * LANES))))
                        total = _fma(builder, part, weight, total)
                    first = builder.load(_at(builder, bias, column.index))
                    # `reassoc` lets the lanes be added pairwise; the shape of that tree is fixed at compile time.
                    value = builder.call(reduce, [first, total], fastmath=("reassoc",))
                    place = builder.add(row.index, builder.mul(column.index, out_col))
                    builder.store(value, _at(builder, out, place))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), codegen

    return dots


@intrinsic
def transpose(typingctx, source, target, rows, columns):  # type: ignore[no-untyped-def]
    """target (columns, rows) = source (rows, columns) transposed; both sizes multiples of LANES, all int64."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        source, target, rows, columns = args
        lanes = _index(LANES)
        down_count, across_count = builder.udiv(rows, lanes), builder.udiv(columns, lanes)
        with cgutils.for_range(builder, down_count) as down, cgutils.for_range(builder, across_count) as across:
            row, column = builder.mul(down.index, lanes), builder.mul(across.index, lanes)
            block = []
            for k in range(LANES):
                start = builder.add(builder.mul(builder.add(row, _index(k)), columns), column)
                block.append(_load(builder, _at(builder, source, start)))
            for k, value in enumerate(_transposed(builder, block)):
                start = builder.add(builder.mul(builder.add(column, _index(k)), rows), row)
                _store(builder, value, _at(builder, target, start))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


def _transposed(builder: ir.IRBuilder, block: list[Any]) -> list[Any]:
    """Transpose a square block held as LANES vectors: swap the off-diagonal halves, quarters, ... down to elements."""
    block = list(block)
    half = 1
    while half < LANES:
        for k in range(LANES):
            if k & half:
                continue
            low, high = block[k], block[k + half]
            # Lane numbers of the pair (low, high): those of `high` are counted from LANES.
            first = [j if not j & half else LANES + j - half for j in range(LANES)]
            second = [j + half if not j & half else LANES + j for j in range(LANES)]
            mask_type = ir.VectorType(_I32, LANES)
            block[k] = builder.shuffle_vector(low, high, ir.Constant(mask_type, first))
            block[k + half] = builder.shuffle_vector(low, high, ir.Constant(mask_type, second))
        half *= 2
    return block


@intrinsic
def bits_to_float(typingctx, bits):  # type: ignore[no-untyped-def]
    """The float32 whose bit pattern is an int32."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], _F32)

    return types.float32(types.int32), codegen
