"""Products by plain arithmetic whose operands are copied: which get it, and with what tiles."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.matmul.cpu import whole_or_pieces
from numus.compiler.lower.matmul.gpu_operands import (
    in_runs,
    is_copied,
    lying,
    sizes_of,
    sliced,
    work_of,
)
from numus.kernels.matmul.gpu import simt_async as threads
from numus.shapes import Shape
from numus.target import Target

LEAST = 32  # rows and columns below which tiles are mostly empty


def fits_threads(product: Value, layouts: dict[Value, Shape], target: Target) -> bool:
    """Whether a product is of 4-byte numbers that are nothing but memory, which the target copies
    by itself."""
    _, m, n = product.shape
    dtype = product.dtype
    if any(x.dtype is not dtype for x in product.inputs) or min(m, n) < LEAST:
        return False
    if dtype not in (dt.float32, dt.int32, dt.uint32) or not target.async_copy:
        return False
    return all(lying(x, layouts, line) is not None for line, x in enumerate(product.inputs, 1))


def _squares(product: Value, layouts: dict[Value, Shape], target: Target) -> threads.Tiles | None:
    """Tiles that warps have squares of, for float32 that is copied in whole runs of 16 bytes."""
    a, b = product.inputs
    left, right = lying(a, layouts, 1), lying(b, layouts, 2)
    copied = is_copied(left, target) and is_copied(right, target)
    if product.dtype is not dt.float32 or not (copied and in_runs(a, left) and in_runs(b, right)):
        return None
    assert left is not None
    return threads.WIDE if left.along else threads.TALL


def lower_threads(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    product = group.members[0]
    k = product.inputs[0].shape[2]
    batch, m, n = product.shape
    near = group.input_layouts(layouts)
    tiles, pieces = threads.choose(target, batch, m, n, k, _squares(product, near, target))

    def by_threads(part: FusionGroup) -> LoweredKernel:
        e = Emitter(near, block_size=tiles.threads)
        shape = (tiles.rows, tiles.columns)
        sizes, grid = sizes_of(e, target, product, shape, tiles.depth, pieces)
        sides = (
            sliced(e, x, line, near, target, batch > 1, across=True)
            for line, x in enumerate(product.inputs, 1)
        )
        g = ir.var("g")
        work = work_of(e, part, tiles, sizes, product.dtype, sides)
        body, e.scratch = threads.contraction(work, g)
        return e.grid_kernel("thread_contraction", g, body, grid, part.notes)

    return whole_or_pieces(group, layouts, target, pieces, by_threads)
