"""Rows along an axis: the problems, indices and temporaries of scans, sorts and scatters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup, index_of
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Index
from numus.compiler.lower.schedule import Problem
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.sort.keys import decode, encode, key_dtype
from numus.shapes import Shape

ZERO, ONE = const(0), const(1)

RowIndex = Callable[[Expr], Index]  # a position along the axis -> the index of that element


def temporary(shape: Shape, dtype: DType) -> Value:
    """Device memory between the kernels of one lowering."""
    return Value.fresh("temporary", "temporary", (), None, shape, dtype)


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
        line, number = divmod(block, e.scalar_arg(blocks_per_line))
        start = ir.mul(number, const(lanes))
        found = delinearize(e, line, [shape[i] for i in outer])
        known = dict(zip(outer, found, strict=True))
        known[last] = ir.add(start, lane)
        row = ir.add(ir.mul(line, e.dim(extent)), known[last])
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


def store_members(e: Emitter, group: FusionGroup, index: Index, result: Any) -> list[Stmt]:
    """Store a group's outputs at one index of its first member, to which `result` is bound."""
    val = group.members[0]
    e.rebind(val, result)
    point = [i for i, n in zip(index, val.shape, strict=True) if n != 1]
    out: list[Stmt] = []
    for v in group.members:
        if v in group.stored:
            at = index_of(v.shape, point)
            out += e.store(v, at, result if v is val else e.value(v, at))
    return out


# -- problems -------------------------------------------------------------------------------------


class AxisProblem(Problem):
    """The rows of an operand along an axis."""

    @property
    def source(self) -> Value:
        return self.val.inputs[0]

    @property
    def axis(self) -> int:
        return int(self.val.params[0])

    @property
    def length(self) -> int:
        return self.source.shape[self.axis]

    @property
    def rows(self) -> int:
        return num_rows(self.source.shape, self.axis)

    def index(self, e: Emitter, row: Expr) -> RowIndex:
        return row_index(e, row, self.source.shape, self.axis)


@dataclass(frozen=True)
class ScanProblem(AxisProblem):
    """A scan, the first member of its group, and elementwise consumers of it (CPU only)."""

    @property
    def op(self) -> str:
        return str(self.val.params[0])

    @property
    def axis(self) -> int:
        return int(self.val.params[1])

    @property
    def real(self) -> DType:
        """The accumulator's dtype."""
        return dt.compute_dtype(dt.real_of(self.val.dtype))

    @property
    def components(self) -> int:
        """Real numbers per element."""
        return 2 if self.val.dtype.is_complex else 1

    def temporaries(self, *shape: int) -> list[Value]:
        """Accumulators in memory."""
        return [temporary(shape, self.real) for _ in range(self.components)]

    def position(self, e: Emitter, i: Expr) -> Expr:
        """The position along the axis of the i-th element in the order of the scan."""
        reverse = self.val.params[2]
        return ir.sub(ir.sub(e.dim(self.length), ONE), i) if reverse else i

    def access(
        self, e: Emitter, row: Expr
    ) -> tuple[Callable[[Expr], Any], Callable[[Expr, Any], list[Stmt]]]:
        """Functions that load the i-th operand of a row, and store the i-th result."""
        val, index = self.val, self.index(e, row)

        def write(i: Expr, value: Any) -> list[Stmt]:
            result = value if val.dtype.is_complex else value.cast(val.dtype)
            return e.store(val, index(self.position(e, i)), result)

        return lambda i: e.value(self.source, index(self.position(e, i))), write


@dataclass(frozen=True)
class SortProblem(AxisProblem):
    """A sort or argsort of rows: a group of one value."""

    @property
    def argsort(self) -> bool:
        return self.val.op == "argsort"

    @property
    def key(self) -> DType:
        return key_dtype(self.source.dtype)

    @property
    def key_bits(self) -> int:
        """Low bits in which keys differ: all, unless the third parameter of a sort of unsigned
        integers says how many."""
        return int(self.val.params[2]) if len(self.val.params) > 2 else self.key.bits

    def sort_key(self, e: Emitter, index: Index) -> Expr:
        return encode(e.value(self.source, index), self.val.params[1], ties=self.argsort)

    def sort_value(self, key: Expr) -> Expr:
        """The sorted element of a key; not for argsort, whose keys do not tell ties apart."""
        return decode(key, self.source.dtype, self.val.params[1])


class TopkProblem(SortProblem):
    @property
    def count(self) -> int:
        """k."""
        return int(self.val.params[1])

    @property
    def descending(self) -> bool:
        return bool(self.val.params[2])
