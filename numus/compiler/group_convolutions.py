"""Convolution groups where lanes are threads: by tiles where units multiply them."""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.convolution_parts import Geometry, Numbers, epilogue
from numus.compiler.convolutions import lower_convolution
from numus.compiler.emit import Emitter, Step
from numus.compiler.fuse import Group
from numus.compiler.ir import Expr, Stmt
from numus.compiler.local import Val
from numus.compiler.loops import lower_loops
from numus.kernels import tile_convolution as tiles
from numus.kernels.tile_matrices import BLOCK, RUN, rounded
from numus.runtime.contract import Facts
from numus.shapes import Shape, row_major, size_of

SMALL = 1 << 22  # convolutions of fewer multiplications are plain sums
LARGEST = 1 << 31  # elements that can be counted in 32 bits


def lower_group_convolution(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    """Data and weights with their channels as neighbours, then a product over all taps."""
    product = group.members[0]
    g = Geometry.of(product)
    x, w = product.inputs
    halves = x.dtype is w.dtype and x.dtype in (dt.bfloat16, dt.float16)
    if g is None or not halves or "tiles" not in facts.features or g.work < SMALL:
        return lower_convolution(group, layouts, facts)
    channels = rounded(g.channels, RUN)
    inside = set(group.members)
    outer = {v: s for v, s in layouts.items() if v not in inside}
    data, first = _laid(-50, x, (g.batch, g.groups, g.channels, *g.space), channels, outer, facts)
    split = (g.groups, g.outputs, g.channels, *g.taps)
    weights, second = _laid(-60, w, split, channels, outer, facts)
    if max(data.size, weights.size, product.size) >= LARGEST:
        return lower_convolution(group, layouts, facts)
    rows, depth = g.batch * size_of(g.extents), channels * size_of(g.taps)
    columns = tiles.columns_of(facts, g.groups, rows, g.outputs, depth)
    pieces = tiles.pieces_of(facts, g.groups, rows, g.outputs, columns, depth)
    every = rounded(depth, BLOCK) // BLOCK
    slices = -(-every // pieces)
    pieces = -(-every // slices)
    e = Emitter(
        {**outer, data: row_major(data.shape), weights: row_major(weights.shape)},
        group=tiles.THREADS,
    )
    numbers = Numbers(e)
    row_tiles, column_tiles = -(-rows // tiles.ROWS), -(-g.outputs // columns)
    sizes = tiles.Sizes(
        *(e.number(g.batch), e.number(g.groups), e.number(channels), e.number(g.outputs)),
        space=numbers(g.space),
        taps=numbers(g.taps),
        extents=numbers(g.extents),
        stride=numbers(g.stride, 2),
        dilation=numbers(g.dilation, 2),
        gap=numbers(g.gap, 2),
        low=numbers(g.low, 0),
        row_tiles=e.parameter(row_tiles),
        column_tiles=e.parameter(column_tiles),
        pieces=e.parameter(pieces) if pieces > 1 else ir.const(1),
        slices=e.parameter(slices),
        whole=channels % BLOCK == 0,
    )
    partial = Val(
        *(-70, "convolve", "convolve", (data, weights), None),
        (pieces, g.groups, g.outputs, rows),
        dt.float32,
    )
    lack = 5 - len(product.shape)

    def finish(
        piece: Expr, group_: Expr, image: Expr, at: tiles.Triple, o: Expr, value: Expr
    ) -> list[Stmt]:
        if pieces > 1:
            row = image
            for i, n in zip(at, sizes.extents, strict=True):
                row = ir.add(ir.mul(row, n), i)
            return e.store(partial, (piece, group_, o, row), value)
        output = ir.add(ir.mul(group_, sizes.outputs), o) if g.groups > 1 else o
        return epilogue(e, group, (image, output, *at[lack:]), value)

    number = ir.var("g")
    body, scratch = tiles.convolution(
        columns, sizes, x.dtype, number, e.buffer(data), e.buffer(weights), finish
    )
    e.scratch += scratch
    grid = g.groups * pieces * row_tiles * column_tiles
    notes = ("convolve",) if pieces > 1 else tuple(v.op for v in group.members)
    steps = [*first, *second, e.blocks("tile_convolution", number, body, grid, notes)]
    if pieces > 1:
        steps += _sum_of_pieces(group, g, partial, layouts, facts)
    return steps


def _laid(
    name: int, x: Val, split: Shape, channels: int, layouts: dict[Val, Shape], facts: Facts
) -> tuple[Val, list[Step]]:
    """An operand (…, c, three axes) with its channels last, and zeros after them."""
    order = (0, 1, 3, 4, 5, 2)
    turned = tuple(split[i] for i in order)
    shape = (*turned[:-1], channels)

    def view(op: str, v: Val, params: object, shape: Shape) -> Val:
        return Val(name - 1, op, "view", (v,), params, shape, v.dtype)

    v = view("permute", view("reshape", x, split, split), order, turned)
    if channels != split[2]:
        nothing = (0,) * 6
        v = view("pad", v, (nothing, (*nothing[:-1], channels - split[2]), nothing), shape)
    laid = Val(name, "cast", "elementwise", (v,), None, shape, x.dtype)
    group = Group(laid, 0)
    group.stored = {laid}
    return laid, lower_loops(group, layouts, facts)


def _sum_of_pieces(
    group: Group, g: Geometry, partial: Val, layouts: dict[Val, Shape], facts: Facts
) -> list[Step]:
    """The sum of what pieces of k came to, and what is fused behind it."""
    product, *tail = group.members
    pieces = partial.shape[0]

    def view(op: str, v: Val, params: object, shape: Shape) -> Val:
        return Val(-71, op, "view", (v,), params, shape, v.dtype)

    extents = product.shape[2:]
    split = (pieces, g.groups, g.outputs, g.batch, *extents)
    order = (0, 3, 1, 2, *range(4, len(split)))
    v = view("reshape", partial, split, split)
    v = view("permute", v, order, (pieces, g.batch, g.groups, g.outputs, *extents))
    v = view("reshape", v, (pieces, *product.shape), (pieces, *product.shape))
    total = Val(-72, "reduce_sum", "reduce", (v,), (0,), product.shape, product.dtype)
    rest = Group(total, group.position)
    rest.members = [total, *tail]
    rest.stored = {total if v is product else v for v in group.stored}
    layouts = {**layouts, partial: row_major(partial.shape)}
    return lower_loops(rest, layouts, facts, {total: (product, 0, 0)}, {product: total})
