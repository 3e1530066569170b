"""Contraction groups where lanes are threads: which schedule a product gets, and its epilogue."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import Group
from numus.compiler.graph.builder import Val
from numus.compiler.lower.emitter import Emitter, Step
from numus.compiler.lower.loops import lower_product_loops
from numus.compiler.lower.matmul.complex_as_real import fits_complex, lower_complex
from numus.compiler.lower.matmul.cpu import SMALL, in_pieces
from numus.compiler.lower.matmul.gemv import fits_thin, lower_thin
from numus.compiler.lower.matmul.gpu_operands import along, capability, work_of
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
from numus.runtime.contract import Facts
from numus.shapes import Shape

ZERO = ir.const(0)


def lower_group_contraction(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    """Tiles where they pay; plain sums of products for complex, thin and tiny ones."""
    product = group.members[0]
    batch, m, n = product.shape
    k = product.inputs[0].shape[2]
    if m * n * k >= SMALL and fits_thin(product, layouts, facts):
        return lower_thin(group, layouts, facts)
    if fits_complex(product, facts):
        return lower_complex(group, layouts, facts, lower_group_contraction)
    tiny = min(m, n) == 1 or m * n * k < SMALL
    if tiny or product.dtype.is_complex or product.dtype is dt.bool_:
        return lower_product_loops(group, layouts, facts)
    if fits_shallow(product, facts):
        return lower_shallow(group, layouts, facts)
    if fits_tiles(product, layouts, facts):
        return lower_tiles(group, layouts, facts)
    if fits_warps(product, facts):
        return lower_warps(group, layouts, facts)
    if fits_threads(product, layouts, facts):
        return lower_threads(group, layouts, facts)
    light = len(group.members) == 1
    tiles = _tiles(facts, product, light)
    pieces = pieces_of(facts, tiles, batch, m, n, k)
    if pieces > 1:
        return in_pieces(group, layouts, facts, pieces, _tiled)
    return _tiled(group, layouts, facts)


def _tiles(facts: Facts, product: Val, light: bool) -> Tiles:
    batch, m, n = product.shape
    dtype = dt.compute_dtype(product.dtype)
    return choose(facts, dtype, batch, m, n, light, straight=not capability(facts))


def _tiled(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    product = group.members[0]
    a, b = product.inputs
    batch, m, n = product.shape
    k = a.shape[2]
    dtype = dt.compute_dtype(product.dtype)
    layouts = group.outside(layouts)
    light = len(group.members) == 1
    tiles = _tiles(facts, product, light)
    e = Emitter(layouts, group=tiles.threads)
    row_tiles, column_tiles = -(-m // tiles.rows), -(-n // tiles.columns)
    sizes = TileSizes(
        *(e.number(x) for x in (m, n, k)),
        *(e.parameter(x) for x in (row_tiles, column_tiles)),
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
    return [e.blocks("contraction", g, body, grid, group.notes)]
