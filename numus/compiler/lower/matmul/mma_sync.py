"""Products by units that 32 threads drive: which get them, and how they read their operands."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.matmul.cpu import whole_or_pieces
from numus.compiler.lower.matmul.gpu_operands import (
    is_copied,
    lying,
    sizes_of,
    sliced,
    work_of,
)
from numus.dtypes import DType
from numus.ir import const
from numus.kernels.matmul.gpu import mma_sync as warp
from numus.shapes import Shape
from numus.target import Target

ZERO = const(0)

LEAST = 16  # rows, columns and depth below which products are mostly empty


def unit_dtype(product: Value) -> DType | None:
    """What units multiply for a product; None where they would round or overflow."""
    a, b = (x.dtype for x in product.inputs)
    if a is not b or a not in warp.MMA_DTYPES:
        return None
    if a.is_integer:
        return a if product.dtype.is_integer and product.dtype.itemsize <= 4 else None
    if a is dt.float32:
        return a if product.params == "tf32" and product.dtype is dt.float32 else None
    return a if dt.compute_dtype(product.dtype) is dt.compute_dtype(a) else None


def fits_warps(product: Value, target: Target) -> bool:
    """Whether a product is for these units."""
    _, m, n = product.shape
    k = product.inputs[0].shape[2]
    dtype = unit_dtype(product)
    if dtype is None or dtype.name not in target.mma:
        return False
    return min(m, n, k) >= LEAST


def lower_warps(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    product = group.members[0]
    batch, m, n = product.shape
    k = product.inputs[0].shape[2]
    dtype = unit_dtype(product)
    assert dtype is not None
    copies = target.async_copy
    near = group.input_layouts(layouts)
    ways = [lying(x, near, line) for line, x in enumerate(product.inputs, 1)]
    weaves = all(is_copied(how, target) for how in ways)
    tiles, pieces = warp.choose(target, dtype, copies, batch, m, n, k, weaves)

    def by_warps(part: FusionGroup) -> LoweredKernel:
        e = Emitter(near, block_size=tiles.threads)
        shape, depth = (tiles.rows, tiles.columns), tiles.shape(dtype).elements
        sizes, grid = sizes_of(e, target, product, shape, depth, pieces)
        sides = (
            sliced(e, x, line, near, target, batch > 1) for line, x in enumerate(product.inputs, 1)
        )
        g = ir.var("g")
        body, e.scratch = warp.contraction(work_of(e, part, tiles, sizes, dtype, sides), g)
        return e.grid_kernel("warp_contraction", g, body, grid, part.notes)

    return whole_or_pieces(group, layouts, target, pieces, by_warps)
