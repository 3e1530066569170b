"""Schedules of products with the first vectors of a basis: blocks of elements per task of a CPU,
whose partial sums are added up in their order."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import ZERO, temporary
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.sparse.product import ProductProblem
from numus.ir import Expr, Stmt, const
from numus.kernels.sparse.basis import Span, products, remainder
from numus.shapes import row_major


@dataclass(frozen=True)
class BasisTuning:
    """Measured on a 2-core x86-64 (Cascade Lake)."""

    block_elements: int = 2048  # of a vector: those that they are multiplied by stay in L1
    accumulators: int = 8  # vectors times others
    unroll: int = 4


TUNING = BasisTuning()


def _count(e: Emitter, counts: Value, batch: Expr, vectors: int) -> Expr:
    number = e.value(counts, (batch,)).cast(dt.int64)
    return ir.minimum(ir.maximum(number, ZERO), e.dim(vectors))


def _block(e: Emitter, g: Expr, batch: int, n: int) -> tuple[Expr, Expr, Span, int]:
    """The number of the batch, the block, its elements, and the blocks of a vector."""
    blocks = -(-n // TUNING.block_elements)
    at, block = divmod(g, e.scalar_arg(blocks)) if batch > 1 else (ZERO, g)
    return at, block, ir.block_range(block, const(TUNING.block_elements), e.dim(n)), blocks


def lower_basis(p: ProductProblem) -> Kernels:
    return _products(p) if p.val.op == "basis_products" else [_remainder(p)]


def _products(p: ProductProblem) -> Kernels:
    counts, basis, *given = p.val.inputs
    batch, others, vectors = p.val.shape
    dtype = p.accumulator
    e = Emitter(p.layouts)
    g = ir.var("g")
    at, block, span, blocks = _block(e, g, batch, basis.shape[2])
    partial = temporary((batch, blocks, others, vectors), dtype)
    count = ir.var("count")

    def write(other: Expr, vector: Expr, total: Expr) -> list[Stmt]:
        place = e.address(partial, (at, block, other, vector), row_major(partial.shape))
        return [ir.Store(e.buffer(partial, "write"), place, total)]

    body = [
        ir.Let(count, _count(e, counts, at, vectors)),
        *products(
            *(dtype, max(1, TUNING.accumulators // max(1, others)), others, count, span),
            lambda vector, i: e.value(basis, (at, vector, i)).cast(dtype),
            lambda other, i: e.value(given[other], (at, i)).cast(dtype),
            write,
        ),
    ]
    first = e.grid_kernel("basis_products", g, body, batch * blocks, (p.val.op,))
    return [first, _sums(p, partial)]


def _sums(p: ProductProblem, partial: Value) -> LoweredKernel:
    """The sum of all blocks; vectors after the first ones have none."""
    batch, others, vectors = p.val.shape
    dtype = p.accumulator
    e = Emitter(p.layouts)
    g, vector, block = ir.var("g"), ir.var("vector"), ir.var("block")
    at, other = divmod(g, e.dim(others)) if others > 1 else (g, ZERO)
    count = ir.var("count")
    total = ir.Register("total", dtype, lanes=True)
    place = e.address(partial, (at, block, other, vector), row_major(partial.shape))
    term = ir.load(e.buffer(partial, "read"), place)
    found = ir.select(vector < count, ir.read(total), const(0, dtype))
    body = [
        ir.Set(total, const(0, dtype)),
        ir.For(
            *(block, ZERO, e.dim(partial.shape[1]), "serial"),
            [ir.Set(total, ir.read(total) + term)],
        ),
        *e.store(p.val, (at, other, vector), found.cast(p.val.dtype)),
    ]
    lines = [
        ir.Let(count, _count(e, p.val.inputs[0], at, vectors)),
        ir.For(vector, ZERO, e.dim(vectors), "lanes", body),
    ]
    return e.grid_kernel("basis_sums", g, lines, batch * others, (p.val.op,))


def _remainder(p: ProductProblem) -> LoweredKernel:
    counts, basis, y, x = p.val.inputs
    batch, n = p.val.shape
    dtype = p.accumulator
    e = Emitter(p.layouts)
    g, count = ir.var("g"), ir.var("count")
    at, _, span, blocks = _block(e, g, batch, n)
    body = [
        ir.Let(count, _count(e, counts, at, basis.shape[1])),
        *remainder(
            *(dtype, TUNING.unroll, count, span),
            lambda vector, i: e.value(basis, (at, vector, i)).cast(dtype),
            lambda vector: e.value(y, (at, vector)).cast(dtype),
            lambda i: e.value(x, (at, i)).cast(dtype),
            lambda i, left: e.store(p.val, (at, i), left.cast(p.val.dtype)),
        ),
    ]
    return e.grid_kernel("basis_remainder", g, body, batch * blocks, (p.val.op,))
