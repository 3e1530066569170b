"""Schedule of products with packed codes that come through a ring in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import gcd

from numus import ir
from numus.compiler.graph.strided_view import strided_view
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.matmul.gpu_operands import matrix_layout, vector_operand
from numus.compiler.lower.matmul.packed import PackedGemvProblem
from numus.compiler.lower.matmul.problem import store_epilogue
from numus.compiler.lower.matmul.row_products import ahead_of_wait, products_of
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.packed.gemv import QUAD, PackedMatrix
from numus.kernels.matmul.gpu.packed.mma_sync import MMA_VECTORS
from numus.kernels.matmul.gpu.packed.ring import Ring, RowCopies
from numus.kernels.matmul.gpu.packed.ring_mma import RingMma
from numus.kernels.matmul.gpu.packed.ring_tile import (
    TUNING,
    WORD_BYTES,
    RingTile,
    choose_tile,
)
from numus.kernels.matmul.gpu.problem import MAX_ACCESS_BYTES
from numus.kernels.matmul.packed import has_mma

ZERO = const(0)


def uses_ring(p: PackedGemvProblem) -> bool:
    return _tile(p) is not None


def _tile(p: PackedGemvProblem) -> RingTile | None:
    x, codes = p.val.inputs[:2]
    if not has_mma(p.packing, p.vectors, x.dtype, p.target) or p.chunks % QUAD:
        return None
    # warps compute a vector's norm and several products of it
    alone = p.vectors > 1 or len(products_of(p.group)) == 1
    found = strided_view(codes, p.layouts)
    if not (alone and p.target.async_copy) or matrix_layout(x, p.layouts, 1) is None:
        return None
    if found is None or found.strides[2] != 1:
        return None
    cores, clusters = p.target.num_cores, p.target.max_cluster_size
    return choose_tile(cores, p.rows, p.vectors, p.chunks, p.packing, clusters)


def lower_ring(p: PackedGemvProblem) -> Kernels:
    """The ring is filled ahead of all else."""
    t, (x, codes, *_) = _tile(p), p.val.inputs
    assert t is not None
    e, block = Emitter(p.layouts, block_size=t.threads), ir.var("block")
    e.resident_blocks, e.cluster_blocks = TUNING.blocks_per_core, t.splits
    rank, rest = (block % t.splits, block // t.splits) if t.splits > 1 else (ZERO, block)
    many = t.vector_blocks > 1
    first_row = (rest // t.vector_blocks if many else rest) * t.block_rows
    first_vector = (rest % t.vector_blocks if many else ZERO) * (t.vectors * MMA_VECTORS)
    matrix = p.matrix(e, p.val)
    of_codes = _copies(p, codes, partial(_word, matrix), t.span, p.chunks)
    assert of_codes is not None
    ring = Ring(
        packing=p.packing,
        tile=t,
        matrix=matrix,
        codes=of_codes,
        numbers=_number_copies(p, t, matrix),
        chunks=p.chunks,
        place=(rank, first_row, e.dim(p.rows)),
    )
    vectors = vector_operand(e, x, 1, x.dtype, MAX_ACCESS_BYTES // x.dtype.itemsize)
    count = e.dim(p.vectors), p.vectors
    kernel = RingMma(p.packing, t, ring, vectors, count, first_vector)
    ahead = ahead_of_wait(e, p.target, [codes, *p.numbers(p.val)], ring.first_loads())

    def epilogue(batch: Expr, vector: Expr, row: Expr, value: Expr) -> list[Stmt]:
        return store_epilogue(e, p.group, (vector, row), value.cast(p.val.dtype))

    body, e.scratch = [*ahead, *kernel.emit(epilogue)], kernel.scratch
    return [e.grid_kernel("packed_gemv_ring", block, body, t.blocks, p.group.notes)]


def _word(matrix: PackedMatrix, row: Expr, word: Expr) -> Expr:
    return matrix.codes.read(ZERO, row, word, None)


def _number_copies(
    p: PackedGemvProblem, t: RingTile, matrix: PackedMatrix
) -> list[RowCopies | None]:
    """Of scales and zero points that lie by rows."""
    if not p.packing.group:
        return [None for _ in matrix.numbers]
    groups = (-(-chunks // p.packing.group) for chunks in (t.span, p.chunks))
    of_block, of_row = groups
    return [
        _copies(p, val, number.stored, of_block, of_row)
        for number, val in zip(matrix.numbers, p.val.inputs[2:], strict=True)
    ]


def _copies(
    p: PackedGemvProblem, val: Value, read: Callable[[Expr, Expr], Expr], part: int, total: int
) -> RowCopies | None:
    """The largest copies that begin where rows, and a block's `part` of them, do; rows may be
    padded. None of what lacks elements of rows or columns, and where copies would be too small."""
    found, size = strided_view(val, p.layouts), val.dtype.itemsize
    rows, columns = val.shape[-2:]
    if found is None or rows == 1 < p.rows or columns < total or found.strides[-1] != 1:
        return None
    each = gcd(found.offset, found.strides[-2], columns, part, MAX_ACCESS_BYTES // size)
    if each * size < WORD_BYTES:
        return None

    def place(row: Expr, column: Expr) -> tuple[ir.Buffer, Expr]:
        load = read(row, column)
        while load.op != "load":  # the bits of one
            (load,) = load.args
        return load.attr, load.args[0]

    buffer, _ = place(ZERO, ZERO)
    aligned = (ir.address(buffer) & const(each * size - 1)).eq(0)
    return RowCopies(place, each, aligned, total)
