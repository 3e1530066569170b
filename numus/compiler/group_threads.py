"""Products by plain arithmetic whose operands are copied: which get it, and with what tiles."""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.emit import Emitter, Step
from numus.compiler.group_operands import capability, lying, sizes_of, sliced, work_of
from numus.compiler.groups import Group
from numus.compiler.laying import in_memory
from numus.compiler.local import Val
from numus.compiler.products import whole_or_pieces
from numus.kernels import slices
from numus.kernels import thread_contraction as threads
from numus.runtime.contract import Facts
from numus.shapes import Shape, row_major

LEAST = 32  # rows and columns below which tiles are mostly empty
REUSED = 512  # rows and columns from which on an operand that is no memory is written out before


def fits_threads(product: Val, layouts: dict[Val, Shape], facts: Facts) -> bool:
    """Whether a product is of 4-byte numbers that are nothing but memory, which the target copies
    by itself, or are worth becoming that."""
    _, m, n = product.shape
    dtype = product.dtype
    if any(x.dtype is not dtype for x in product.inputs) or min(m, n) < LEAST:
        return False
    if dtype not in (dt.float32, dt.int32, dt.uint32) or capability(facts) < slices.COPIES_SINCE:
        return False
    ways = [lying(x, layouts, line) for line, x in enumerate(product.inputs, 1)]
    return min(m, n) >= REUSED or None not in ways


def lower_threads(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    product = group.members[0]
    k = product.inputs[0].shape[2]
    batch, m, n = product.shape
    tiles, pieces = threads.choose(facts, batch, m, n, k)
    near = group.outside(layouts)
    steps: list[Step] = []
    operands: list[Val] = []
    for line, x in enumerate(product.inputs, 1):
        if lying(x, near, line) is None:
            x, more = in_memory(-44 - line, x, near, facts)
            steps, near = [*steps, *more], {**near, x: row_major(x.shape)}
        operands.append(x)

    def by_threads(part: Group) -> Step:
        e = Emitter(near, group=tiles.threads)
        shape = (tiles.rows, tiles.columns)
        sizes, grid = sizes_of(e, facts, product, shape, threads.DEPTH, pieces)
        sides = (
            sliced(e, x, line, near, facts, batch > 1, across=line == 1)
            for line, x in enumerate(operands, 1)
        )
        g = ir.var("g")
        work = work_of(e, part, tiles, sizes, product.dtype, sides)
        body, e.scratch = threads.contraction(work, g)
        return e.blocks("thread_contraction", g, body, grid, part.notes)

    return steps + whole_or_pieces(group, layouts, facts, pieces, by_threads)
