"""Convolution groups where lanes are threads: by units that multiply tiles, or by the threads."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.conv.cpu import lower_convolution
from numus.compiler.lower.conv.geometry import Geometry, Numbers, epilogue
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops import lower_sum
from numus.compiler.lower.relayout import Relayout, materialize, padded, permuted, reshaped
from numus.ir import Expr, Stmt
from numus.kernels.common.smem_tiles import SWIZZLE_COLUMNS, VECTOR, round_up
from numus.kernels.conv.gpu import implicit_gemm_simt as groups
from numus.kernels.conv.gpu import implicit_gemm_wgmma as tiles
from numus.kernels.conv.gpu.implicit_gemm import Sizes, Triple
from numus.shapes import Shape, row_major, size_of
from numus.target import Target

SMALL = 1 << 20  # convolutions of fewer multiplications are plain sums
LARGEST = 1 << 31  # elements that can be counted in 32 bits


def lower_group_convolution(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """Data and weights laid out as the product over all taps wants them, then that product."""
    product = group.members[0]
    g = Geometry.of(product)
    x, w = product.inputs
    if g is None or product.dtype.kind != "float" or g.work < SMALL or x.dtype is not w.dtype:
        return lower_convolution(group, layouts, target)
    by_tiles = x.dtype in (dt.bfloat16, dt.float16) and target.wgmma
    dtype = x.dtype if by_tiles else dt.compute_dtype(x.dtype)
    channels = round_up(g.channels, VECTOR) if by_tiles else g.channels
    rows, depth = g.batch * size_of(g.extents), channels * size_of(g.taps)
    data_size = g.batch * g.groups * size_of(g.space) * channels
    if max(data_size, g.groups * g.outputs * depth, product.size) >= LARGEST:
        return lower_convolution(group, layouts, target)
    outer = group.input_layouts(layouts)
    split = (g.batch, g.groups, g.channels, *g.space)
    data, first = laid(x, split, (0, 1, 3, 4, 5, 2), channels, outer, target)
    order = (0, 1, 3, 4, 5, 2) if by_tiles else (0, 3, 4, 5, 2, 1)
    split = (g.groups, g.outputs, g.channels, *g.taps)
    weights, second = laid(w, split, order, channels if by_tiles else 0, outer, target)
    if by_tiles:
        columns = tiles.columns_of(target, g.groups, rows, g.outputs, depth)
        pieces = tiles.pieces_of(target, g.groups, rows, g.outputs, columns, depth)
        threads, slice_, tile = tiles.THREADS, SWIZZLE_COLUMNS, (tiles.ROWS, columns)
    else:
        plan = groups.choose(target, dtype, g.groups, rows, g.outputs, depth)
        threads, slice_, pieces = plan.threads, plan.depth, plan.pieces
        tile = (plan.places, plan.outputs)
    every = -(-depth // slice_)
    slices = -(-every // pieces)
    pieces = -(-every // slices)
    e = Emitter(
        {**outer, data: row_major(data.shape), weights: row_major(weights.shape)},
        block_size=threads,
    )
    numbers = Numbers(e)
    row_tiles, column_tiles = -(-rows // tile[0]), -(-g.outputs // tile[1])
    sizes = Sizes(
        *(e.dim(g.batch), e.dim(g.groups), e.dim(channels), e.dim(g.outputs)),
        space=numbers(g.space),
        taps=numbers(g.taps),
        extents=numbers(g.extents),
        stride=numbers(g.stride, 2),
        dilation=numbers(g.dilation, 2),
        gap=numbers(g.gap, 2),
        low=numbers(g.low, 0),
        row_tiles=e.scalar_arg(row_tiles),
        column_tiles=e.scalar_arg(column_tiles),
        pieces=e.scalar_arg(pieces) if pieces > 1 else ir.const(1),
        slices=e.scalar_arg(slices),
        whole=channels % slice_ == 0,
    )
    partial = Value.fresh(
        *("convolve", "convolve", (data, weights), None),
        (pieces, g.groups, g.outputs, rows),
        dt.compute_dtype(x.dtype),
    )
    lack = 5 - len(product.shape)

    def finish(
        piece: Expr, group_: Expr, image: Expr, at: Triple, o: Expr, value: Expr
    ) -> list[Stmt]:
        if pieces > 1:
            row = image
            for i, n in zip(at, sizes.extents, strict=True):
                row = ir.add(ir.mul(row, n), i)
            return e.store(partial, (piece, group_, o, row), value)
        output = ir.add(ir.mul(group_, sizes.outputs), o) if g.groups > 1 else o
        return epilogue(e, group, (image, output, *at[lack:]), value)

    number = ir.var("g")
    buffers = (e.buffer(data), e.buffer(weights))
    if by_tiles:
        body, scratch = tiles.convolution(columns, sizes, dtype, number, *buffers, finish)
    else:
        body, scratch = groups.convolution(plan, sizes, dtype, number, *buffers, finish)
    e.scratch += scratch
    grid = g.groups * pieces * row_tiles * column_tiles
    notes = ("convolve",) if pieces > 1 else group.notes
    name = "tile_convolution" if by_tiles else "group_convolution"
    steps = [*first, *second, e.grid_kernel(name, number, body, grid, notes)]
    if pieces > 1:
        steps += sum_of_pieces(group, g, partial, layouts, target)
    return steps


def laid(
    x: Value,
    split: Shape,
    order: Shape,
    channels: int,
    layouts: dict[Value, Shape],
    target: Target,
) -> Relayout:
    """An operand of six axes in another order; where its channels come last, zeros after them."""
    v = permuted(reshaped(x, *split), *order)
    if channels:
        v = padded(v, (*v.shape[:-1], channels))
    return materialize(v, layouts, target)


def sum_of_pieces(
    group: FusionGroup, g: Geometry, partial: Value, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """The sum of what pieces of k came to, and what is fused behind it."""
    product = group.members[0]
    pieces = partial.shape[0]

    extents = product.shape[2:]
    split = (pieces, g.groups, g.outputs, g.batch, *extents)
    order = (0, 3, 1, 2, *range(4, len(split)))
    v = reshaped(permuted(reshaped(partial, *split), *order), pieces, *product.shape)
    total = Value.fresh("reduce_sum", "reduce", (v,), (0,), product.shape, product.dtype)
    layouts = {**layouts, partial: row_major(partial.shape)}
    return lower_sum(group, total, layouts, target)
