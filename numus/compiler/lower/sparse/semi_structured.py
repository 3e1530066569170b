"""Schedule of products with 2:4 sparsity: the sparse wgmma GEMM, fed by TMA."""

from __future__ import annotations

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import ZERO
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.matmul.gpu_operands import MatrixLayout, matrix_layout, tile_sizes
from numus.compiler.lower.matmul.wgmma import is_tma_readable, repacked, tma_operand
from numus.compiler.lower.sparse.product import ProductProblem
from numus.ir import Expr, Stmt
from numus.kernels.matmul.gpu import sparse_wgmma as kernel
from numus.kernels.matmul.gpu.problem import GemmCall
from numus.kernels.matmul.gpu.wgmma import PERSISTENT_THREADS, cluster_blocks

ALIGNMENT = 8  # bytes of positions of a row of a k tile, as a thread loads them, or of two


def lower_semi_structured(p: ProductProblem) -> Kernels:
    """Operands that TMA cannot read are repacked before."""
    values, metadata, x = p.val.inputs
    val, (count, m, n), k = p.val, p.val.shape, x.shape[1]
    dtype, layouts = x.dtype, dict(p.layouts)
    kernels: Kernels = []
    operands: list[tuple[Value, MatrixLayout]] = []
    for axis, (operand, is_k_major) in enumerate(((values, True), (x, False)), 1):
        layout = matrix_layout(operand, layouts, axis)
        readable = layout is not None and is_tma_readable(layout, dtype)
        if layout is None or not readable or (is_k_major and not layout.k_major):
            step, operand, layout = repacked(operand, layouts, axis, is_k_major)
            kernels.append(step)
            layouts[operand] = (1,)
        operands.append((operand, layout))
    bits = matrix_layout(metadata, layouts, 1)
    if bits is None or not bits.k_major or bits.ld % ALIGNMENT or bits.batch_stride % ALIGNMENT:
        step, metadata, bits = repacked(metadata, layouts, 1, True)
        kernels.append(step)
        layouts[metadata] = (1,)
    rows = bits
    whole = (rows.ld | rows.batch_stride | k // kernel.K_OF_BYTE) % (2 * ALIGNMENT) == 0
    load_bytes = 2 * ALIGNMENT if whole else ALIGNMENT
    t = kernel.choose_tile(p.target, count, m, n, k)
    e, block = Emitter(layouts, block_size=PERSISTENT_THREADS), ir.var("block")
    shape = (count, m, n, k)
    e.cluster_blocks = sharing = cluster_blocks(p.target, kernel.TUNING.cluster_blocks, t, m)
    sizes, grid = tile_sizes(e, p.target, shape, (t.m, t.n), kernel.TILE_K, 1, sharing)
    extents = ((sizes.m, e.dim(k // kernel.KEPT)), (sizes.n, sizes.k))
    a, b = (
        tma_operand(e, *operand, *extent, count)
        for operand, extent in zip(operands, extents, strict=True)
    )

    def epilogue(*at_and_value: Expr) -> list[Stmt]:
        *at, value = at_and_value
        return e.store(val, tuple(at), value.cast(val.dtype))

    def positions(batch: Expr) -> ir.SparseMetadata:
        is_repacked = len(metadata.shape) == 1
        buffer = e.buffer(metadata) if is_repacked else e.value(metadata, (ZERO,) * 3).attr
        first = batch * e.dim(rows.batch_stride) if count > 1 else ZERO
        return ir.SparseMetadata(buffer, first, sizes.m, e.dim(rows.ld), load_bytes)

    resident = p.target.num_cores // sharing * sharing
    call = GemmCall(t, sizes, dtype, a, b, epilogue, True)
    body, e.scratch = kernel.sparse_wgmma_gemm(call, positions, block, sharing)
    notes = (val.op, "wgmma.sp")
    return [*kernels, e.grid_kernel("wgmma_sp", block, body, grid, notes, resident)]
