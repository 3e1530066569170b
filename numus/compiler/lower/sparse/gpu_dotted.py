"""Schedule of products with a vector on GPUs that add up the dot product of both, too."""

from __future__ import annotations

from numus import ir
from numus.compiler.lower.axis import ONE, ZERO
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.sparse.gpu_product import (
    TUNING,
    even_parts,
    resident_blocks,
    tiled_rows,
)
from numus.compiler.lower.sparse.product import ProductProblem, bounds, clamped
from numus.ir import Expr, Stmt, const
from numus.kernels.sparse.gpu_rows import ThreadRows


def computes_dotted(p: ProductProblem) -> bool:
    return p.val.op == "csr_dotted"


def lower_dotted(p: ProductProblem) -> Kernels:
    """By templates of rows; a block stores its part of the sum after the elements."""
    pointers, indices, values, x = p.val.inputs[:4]
    (count, length), n, dtype = p.val.shape, pointers.shape[0] - 1, p.accumulator
    threads, places = min(p.target.block_size, TUNING.template_threads), length - n
    per_core = resident_blocks(p, n, threads)
    blocks, each = even_parts(n, min(p.target.num_cores * per_core, places), threads)
    e, g = Emitter(p.layouts, block_size=threads), ir.var("g")
    e.resident_blocks = per_core if p.target.forward_progress else 0
    batch, block = divmod(g, e.scalar_arg(blocks)) if count > 1 else (ZERO, g)
    dots = ir.Register("dots", dtype, lanes=True)

    def element(row: Expr) -> Expr:
        found: Expr = e.value(x, (batch, row)).cast(dtype)
        return found

    def load(
        body: list[Stmt], row: Expr, column: Expr, number: int, tag: str, vectorised: bool
    ) -> list[Expr]:
        found = ir.var(tag, dtype)
        body.append(ir.Let(found, element(row)))
        return [found]

    def store(row: Expr, column: Expr, sums: list[Expr], vectorised: bool) -> list[Stmt]:
        product = ir.var("product", dtype)
        return [
            ir.Let(product, sums[0]),
            *e.store(p.val, (batch, row), product.cast(p.val.dtype)),
            ir.Set(dots, ir.read(dots) + product * element(row)),
        ]

    matrix = ThreadRows(
        dtype,
        lambda row: bounds(e, pointers, row, p.nnz),
        lambda entry: clamped(e, indices, entry, n),
        lambda entry: e.value(values, (batch, entry)).cast(dtype),
        *(load, store),
    )
    rows = tiled_rows(e, matrix, threads, p.val.inputs, TUNING.staged_bytes)
    e.scratch = [rows.staged]
    total, place = ir.var("sum", dtype), ir.var("place")
    # the places are shared evenly; in the first of its own a block has its sum, zero in others
    pitch, end = e.scalar_arg(places // blocks), const(places)
    first, last = ir.mul(block, pitch), ir.mul(ir.add(block, ONE), pitch)
    last = ir.select(block.eq(ir.sub(e.scalar_arg(blocks), ONE)), end, last)
    own = ir.select(place.eq(first), total, const(0, dtype)).cast(p.val.dtype)
    body = [
        ir.Set(dots, const(0, dtype)),
        *rows.multiply(*ir.block_range(block, e.scalar_arg(each), e.dim(n))),
        ir.Let(total, ir.lanes_reduce("add", dots)),
        ir.For(place, first, last, "lanes", e.store(p.val, (batch, ir.add(e.dim(n), place)), own)),
    ]
    return [e.grid_kernel(p.val.op, g, body, count * blocks, (p.val.op, "templates of rows"))]
