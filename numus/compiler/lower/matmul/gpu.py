"""Contraction groups where lanes are threads: which schedule a product gets, and its epilogue."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops import lower_product_loops
from numus.compiler.lower.matmul.complex_as_real import fits_complex, lower_complex
from numus.compiler.lower.matmul.cpu import SMALL, in_pieces
from numus.compiler.lower.matmul.gemv import fits_thin, lower_thin
from numus.compiler.lower.matmul.gpu_operands import along, work_of
from numus.compiler.lower.matmul.mma_sync import fits_warps, lower_warps
from numus.compiler.lower.matmul.simt_async import fits_threads, lower_threads
from numus.compiler.lower.matmul.small_k import fits_shallow, lower_shallow
from numus.compiler.lower.matmul.wgmma import fits_tiles, lower_tiles
from numus.ir import Expr
from numus.kernels.matmul.gpu.problem import TileSizes
from numus.kernels.matmul.gpu.simt import (
    Operand,
    Tiles,
    choose,
    contraction,
    pieces_of,
)
from numus.shapes import Shape
from numus.target import Target

ZERO = ir.const(0)


def lower_group_contraction(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """Tiles where they pay; plain sums of products for complex, thin and tiny ones."""
    product = group.members[0]
    batch, m, n = product.shape
    k = product.inputs[0].shape[2]
    if m * n * k >= SMALL and fits_thin(product, layouts, target):
        return lower_thin(group, layouts, target)
    if fits_complex(product, target):
        return lower_complex(group, layouts, target, lower_group_contraction)
    tiny = min(m, n) == 1 or m * n * k < SMALL
    if tiny or product.dtype.is_complex or product.dtype is dt.bool_:
        return lower_product_loops(group, layouts, target)
    if fits_shallow(product, target):
        return lower_shallow(group, layouts, target)
    if fits_tiles(product, layouts, target):
        return lower_tiles(group, layouts, target)
    if fits_warps(product, target):
        return lower_warps(group, layouts, target)
    if fits_threads(product, layouts, target):
        return lower_threads(group, layouts, target)
    light = len(group.members) == 1
    tiles = _tiles(target, product, light)
    pieces = pieces_of(target, tiles, batch, m, n, k)
    if pieces > 1:
        return in_pieces(group, layouts, target, pieces, _tiled)
    return _tiled(group, layouts, target)


def _tiles(target: Target, product: Value, light: bool) -> Tiles:
    batch, m, n = product.shape
    dtype = dt.compute_dtype(product.dtype)
    return choose(target, dtype, batch, m, n, light, straight=not target.vector_access_bytes)


def _tiled(group: FusionGroup, layouts: dict[Value, Shape], target: Target) -> list[LoweredKernel]:
    product = group.members[0]
    a, b = product.inputs
    batch, m, n = product.shape
    k = a.shape[2]
    dtype = dt.compute_dtype(product.dtype)
    layouts = group.input_layouts(layouts)
    light = len(group.members) == 1
    tiles = _tiles(target, product, light)
    e = Emitter(layouts, block_size=tiles.threads)
    row_tiles, column_tiles = -(-m // tiles.rows), -(-n // tiles.columns)
    sizes = TileSizes(
        *(e.dim(x) for x in (m, n, k)),
        *(e.scalar_arg(x) for x in (row_tiles, column_tiles)),
    )

    def left(t: Expr, i: Expr, p: Expr, mask: Expr | None) -> Expr:
        value: Expr = e.value(a, (t if batch > 1 else ZERO, i, p), mask)
        return value.cast(dtype)

    def right(t: Expr, j: Expr, p: Expr, mask: Expr | None) -> Expr:
        value: Expr = e.value(b, (t if batch > 1 else ZERO, p, j), mask)
        return value.cast(dtype)

    sides = (
        Operand(left, sizes.m, along(a, layouts, 2)),
        Operand(right, sizes.n, along(b, layouts, 1)),
    )
    g = ir.var("g")
    body, e.scratch = contraction(work_of(e, group, tiles, sizes, dtype, sides), g)
    grid = batch * row_tiles * column_tiles
    return [e.grid_kernel("contraction", g, body, grid, group.notes)]
