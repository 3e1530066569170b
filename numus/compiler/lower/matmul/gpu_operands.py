"""How products of groups of threads read their operands and store what they make of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup, index_of, squeeze
from numus.compiler.graph import strided_view as views
from numus.compiler.graph.value import Value
from numus.compiler.lower.affine import accesses, unit_stride_count
from numus.compiler.lower.emitter import Emitter
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import mainloop
from numus.kernels.matmul.gpu.problem import GroupWork, Operand, Sizes, Tiles
from numus.kernels.matmul.gpu.wgmma import together_of
from numus.shapes import Shape
from numus.target import Target

ZERO = const(0)

FAR = 1 << 31  # elements from line to line, from which on copies do not reckon with them


def finish(e: Emitter, group: FusionGroup, t: Expr, i: Expr, j: Expr, value: Expr) -> list[Stmt]:
    """Store what the group makes of an element of the product."""
    product = group.members[0]
    point = [x for x, extent in zip((t, i, j), product.shape, strict=True) if extent != 1]
    e.bind(product, value.cast(product.dtype))
    e.invalidate()
    out: list[Stmt] = []
    for v in group.members:
        if v in group.stored:
            assert v is product or squeeze(v.shape) == squeeze(product.shape)
            index = index_of(v.shape, point)
            out += e.store(v, index, e.value(v, index))
    return out


def work_of(
    e: Emitter,
    group: FusionGroup,
    tiles: Tiles,
    sizes: Sizes,
    dtype: DType,
    operands: Iterable[Operand],
) -> GroupWork[Tiles, Sizes, Operand]:
    """A group's product as schedules are given it."""
    left, right = operands
    light = len(group.members) == 1
    return GroupWork(tiles, sizes, dtype, left, right, lambda *at: finish(e, group, *at), light)


def sizes_of(
    e: Emitter, target: Target, product: Value, tile: tuple[int, int], depth: int, pieces: int
) -> tuple[mainloop.Sizes, int]:
    """The numbers of a product by tiles of so many rows and columns and by slices of such a depth;
    and how many groups it takes."""
    a, b = product.inputs
    m, n, k = a.shape[1], b.shape[2], a.shape[2]
    row_tiles, column_tiles = -(-m // tile[0]), -(-n // tile[1])
    count = -(-k // depth)
    each = -(-count // pieces)
    together = together_of(target, tile[1], row_tiles)
    chosen = (row_tiles, column_tiles, together, pieces, each)
    sizes = mainloop.Sizes(*(e.dim(x) for x in (m, n, k)), *(e.scalar_arg(x) for x in chosen))
    if pieces == 1:
        sizes.pieces = const(1)
    return sizes, a.shape[0] * pieces * row_tiles * column_tiles


def along(x: Value, layouts: dict[Value, Shape], axis: int, other: int | None = None) -> bool:
    """Whether most of what an operand reads has its neighbours in memory along this axis, rather
    than along the other: of a matrix in a batch, that of its two which is left."""
    e = Emitter(layouts)
    names = [e.variable(f"q{i}", e.dim(n)) for i, n in enumerate(x.shape)]
    e.value(x, tuple(names))
    pieces = accesses(e)
    left = names[3 - axis if other is None else other]
    return unit_stride_count(pieces, names[axis]) >= unit_stride_count(pieces, left)


@dataclass(frozen=True, slots=True)
class Lying:
    """How an operand lies in memory: lines of neighbours, along k or across it."""

    along: bool
    line: int  # elements from line to line
    matrix: int  # and from matrix to matrix


def lying(x: Value, layouts: dict[Value, Shape], line: int) -> Lying | None:
    """How an operand whose lines are counted along axis `line` lies in memory; None where it is
    more than views of memory, does not begin where its buffer does, or has no neighbours."""
    found = views.strided_view(x, layouts)
    if found is None or found.offset:
        return None
    matrix, *strides = (0 if n == 1 else s for n, s in zip(x.shape, found.strides, strict=True))
    k = strides[2 - line]
    across = strides[line - 1]
    if k == 1:
        return Lying(True, across, matrix)
    return Lying(False, k, matrix) if across == 1 else None


def is_copied(how: Lying | None, target: Target) -> bool:
    """Whether the target brings slices of an operand that lies so, or in no such way, by itself."""
    return how is not None and target.async_copy and abs(how.line) < FAR


def sliced(
    e: Emitter,
    x: Value,
    line: int,
    layouts: dict[Value, Shape],
    target: Target,
    batched: bool,
    across: bool = False,
) -> mainloop.Operand:
    """An operand whose slices go through the group's memory, its lines counted along axis `line`:
    copied where it is nothing but memory and the target does that, else read. They lie there as in
    memory, or always `across` k."""
    extent = e.dim(x.shape[line])

    def read(t: Expr, i: Expr, p: Expr, mask: Expr | None) -> Expr:
        index = (i, p) if line == 1 else (p, i)
        value: Expr = e.value(x, (t if batched else ZERO, *index), mask)
        return value

    def where(t: Expr, i: Expr, p: Expr) -> tuple[ir.Buffer, Expr]:
        found = read(t, i, p, None)
        return found.attr, found.args[0]

    how = lying(x, layouts, line)
    by_k = along(x, layouts, 3 - line) if how is None else how.along
    copies = is_copied(how, target)
    size = x.dtype.itemsize
    if size < 4:  # elements of a word are neighbours along k
        copies = copies and by_k and in_runs(x, how)
        by_k = True
    if not copies:
        return mainloop.Operand(read, extent, by_k and not across, None, const(False, dt.bool_))
    buffer, _ = where(ZERO, ZERO, ZERO)
    aligned = (ir.address(buffer) & const(15)).eq(0) & const(in_runs(x, how), dt.bool_)
    assert how is not None
    pitch = e.dim(how.line)
    turned = by_k and across
    return mainloop.Operand(read, extent, by_k and not across, where, aligned, pitch, turned)


def in_runs(x: Value, how: Lying | None) -> bool:
    """Whether lines of neighbours lie whole runs of 16 bytes apart."""
    run = 16 // x.dtype.itemsize
    return how is not None and not how.line % run and not how.matrix % run
