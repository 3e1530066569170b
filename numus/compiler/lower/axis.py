"""What schedules that walk an axis share: rows along it, and memory of their own."""

from __future__ import annotations

import math
from collections.abc import Callable

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Index
from numus.dtypes import DType
from numus.ir import Expr, const
from numus.shapes import Shape

ZERO, ONE = const(0), const(1)

At = Callable[[Expr], Index]  # from a place along the axis to a whole index


def temporary(shape: Shape, dtype: DType) -> Value:
    """Memory that the kernels of one group hand on to each other."""
    return Value.fresh("temporary", "temporary", (), None, shape, dtype)


def without(layouts: dict[Value, Shape], val: Value) -> dict[Value, Shape]:
    return {v: s for v, s in layouts.items() if v is not val}


def digits(e: Emitter, linear: Expr, extents: list[int]) -> list[Expr]:
    """A running number as one index per extent, the last running fastest."""
    out = []
    for i, n in enumerate(extents):
        below = math.prod(extents[i + 1 :])
        digit = linear
        if below != 1:
            digit = ir.idiv(digit, e.dim(below))
        if i:
            digit = ir.irem(digit, e.dim(n))
        out.append(digit if n != 1 else ZERO)
    return out


class Rows:
    """The rows of a shape along an axis: all its lines in that direction."""

    def __init__(self, e: Emitter, shape: Shape, axis: int) -> None:
        self.e, self.shape, self.axis = e, shape, axis
        self.others = [i for i in range(len(shape)) if i != axis]
        self.count = math.prod(shape[i] for i in self.others)

    def _index(self, known: dict[int, Expr]) -> At:
        def at(place: Expr) -> Index:
            return tuple(place if i == self.axis else known[i] for i in range(len(self.shape)))

        return at

    def one(self, number: Expr) -> At:
        """The row of a number, in row-major order of the other axes."""
        found = digits(self.e, number, [self.shape[i] for i in self.others])
        return self._index(dict(zip(self.others, found, strict=True)))

    def side_by_side(self, block: Expr, lane: Expr, lanes: int) -> tuple[At, Expr, Expr, int]:
        """The rows of a block of `lanes` at most: the row of a lane, as an index and as a number;
        how many there are; how many blocks.

        Where the last axis is another one and long enough, lanes run along it, so that neighbours
        in memory are handled together.
        """
        e, last = self.e, len(self.shape) - 1
        if self.axis != last and 2 * self.shape[last] > lanes:
            extent = self.shape[last]
            outer = self.others[:-1]
            each = -(-extent // lanes)
            per_row = e.scalar_arg(each)
            start = ir.mul(ir.irem(block, per_row), const(lanes))
            found = digits(e, ir.idiv(block, per_row), [self.shape[i] for i in outer])
            known = dict(zip(outer, found, strict=True))
            known[last] = ir.add(start, lane)
            row = ir.add(ir.mul(ir.idiv(block, per_row), e.dim(extent)), known[last])
            grid = each * math.prod(self.shape[i] for i in outer)
        else:
            extent = self.count
            start = ir.mul(block, const(lanes))
            row = ir.add(start, lane)
            found = digits(e, row, [self.shape[i] for i in self.others])
            known = dict(zip(self.others, found, strict=True))
            grid = -(-extent // lanes)
        count = ir.minimum(ir.sub(e.dim(extent), start), const(lanes))
        return self._index(known), row, count, grid
