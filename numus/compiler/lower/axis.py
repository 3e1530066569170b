"""Rows along an axis: indices, sort keys and temporaries of scans, sorts and scatters."""

from __future__ import annotations

import math
from collections.abc import Callable

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Index
from numus.dtypes import DType
from numus.ir import Expr, const
from numus.kernels.sort.keys import decode, encode
from numus.shapes import Shape

ZERO, ONE = const(0), const(1)

Layouts = dict[Value, Shape]
RowIndex = Callable[[Expr], Index]  # a position along the axis -> the index of that element


def temporary(shape: Shape, dtype: DType) -> Value:
    """Device memory between the kernels of one lowering."""
    return Value.fresh("temporary", "temporary", (), None, shape, dtype)


def without(layouts: Layouts, val: Value) -> Layouts:
    return {v: s for v, s in layouts.items() if v is not val}


def delinearize(e: Emitter, linear: Expr, extents: list[int]) -> list[Expr]:
    """One index per extent from a row-major linear index."""
    out = []
    for i, n in enumerate(extents):
        stride = math.prod(extents[i + 1 :])
        index = linear if stride == 1 else ir.idiv(linear, e.dim(stride))
        if i:
            index = ir.irem(index, e.dim(n))
        out.append(index if n != 1 else ZERO)
    return out


# -- rows -----------------------------------------------------------------------------------------


def _other_axes(shape: Shape, axis: int) -> list[int]:
    return [i for i in range(len(shape)) if i != axis]


def _row_index(shape: Shape, axis: int, known: dict[int, Expr]) -> RowIndex:
    return lambda at: tuple(at if i == axis else known[i] for i in range(len(shape)))


def num_rows(shape: Shape, axis: int) -> int:
    return math.prod(n for i, n in enumerate(shape) if i != axis)


def row_index(e: Emitter, row: Expr, shape: Shape, axis: int) -> RowIndex:
    """The elements of a row; rows are numbered in row-major order of the other axes."""
    others = _other_axes(shape, axis)
    found = delinearize(e, row, [shape[i] for i in others])
    return _row_index(shape, axis, dict(zip(others, found, strict=True)))


def rows_in_lanes(
    e: Emitter, shape: Shape, axis: int, block: Expr, lane: Expr, lanes: int
) -> tuple[RowIndex, Expr, Expr, int]:
    """One row per lane: the index and number of a lane's row, the rows of a block, and the grid.

    Lanes run along the last axis where it is another one and long enough: contiguous accesses.
    """
    last, others = len(shape) - 1, _other_axes(shape, axis)
    if axis != last and 2 * shape[last] > lanes:
        extent = shape[last]
        outer = others[:-1]
        blocks_per_line = -(-extent // lanes)
        per_line = e.scalar_arg(blocks_per_line)
        start = ir.mul(ir.irem(block, per_line), const(lanes))
        found = delinearize(e, ir.idiv(block, per_line), [shape[i] for i in outer])
        known = dict(zip(outer, found, strict=True))
        known[last] = ir.add(start, lane)
        row = ir.add(ir.mul(ir.idiv(block, per_line), e.dim(extent)), known[last])
        grid = blocks_per_line * math.prod(shape[i] for i in outer)
    else:
        extent = num_rows(shape, axis)
        start = ir.mul(block, const(lanes))
        row = ir.add(start, lane)
        found = delinearize(e, row, [shape[i] for i in others])
        known = dict(zip(others, found, strict=True))
        grid = -(-extent // lanes)
    count = ir.minimum(ir.sub(e.dim(extent), start), const(lanes))
    return _row_index(shape, axis, known), row, count, grid


def scan_order(e: Emitter, val: Value) -> tuple[Expr, Callable[[Expr], Expr]]:
    """The row length of a scan, and the position along the axis of its i-th element."""
    _, axis, reverse = val.params
    length = e.dim(val.shape[axis])
    return length, lambda i: ir.sub(ir.sub(length, ONE), i) if reverse else i


# -- sort keys ------------------------------------------------------------------------------------


def is_argsort(val: Value) -> bool:
    return val.op == "argsort"


def sort_key(e: Emitter, val: Value, index: Index) -> Expr:
    return encode(e.value(val.inputs[0], index), val.params[1], ties=is_argsort(val))


def sort_value(val: Value, key: Expr) -> Expr:
    """The sorted element of a key; `sort` only: the keys of `argsort` do not tell ties apart."""
    return decode(key, val.inputs[0].dtype, val.params[1])
