"""Schedule of the wgmma GEMM fed by TMA: operands that TMA cannot read are repacked before."""

from __future__ import annotations

from collections.abc import Sequence

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import PACKED, Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.matmul import gpu_operands
from numus.compiler.lower.matmul.gpu_operands import MatrixLayout
from numus.compiler.lower.matmul.problem import MatmulProblem, split_in_kernel
from numus.compiler.lower.schedule import InOrder
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import repack
from numus.kernels.matmul.gpu import wgmma as kernel
from numus.kernels.matmul.gpu.epilogue import stores_whole_rows
from numus.shapes import Shape
from numus.target import Target

ZERO = const(0)

MIN_EXTENT = 16  # of m, n and k: below, tiles are nearly empty
# m and n from which on repacking an operand pays, by the bytes of an element: narrower ones are
# multiplied much faster, and there is less to move (one H200).
REPACK_MIN_EXTENT = {1: 512, 2: 128, 4: 640}
REPACK_MIN_EXTENT_BATCHED = 512  # matrices of a batch may share memory
REPACK_MAX_SHARE = 32  # 1/n of the elements of operands is copied whatever the extents are

_FLOAT16 = (dt.float16, dt.bfloat16)
_FLOAT8 = (dt.float8_e4m3fn, dt.float8_e5m2)


def wgmma_dtype(matmul: Value) -> DType | None:
    """The element type of the MMAs; None where they would round or overflow."""
    a, b = (x.dtype for x in matmul.inputs)
    if a is not b:
        return None
    if a in _FLOAT16 or a in _FLOAT8:
        return a
    if a in (dt.int8, dt.uint8) and matmul.dtype.is_integer and matmul.dtype.itemsize <= 4:
        return a
    return a if a is dt.float32 and matmul.params == "tf32" else None


def is_tma_readable(layout: MatrixLayout | None, dtype: DType) -> bool:
    """TMA copies tiles of such a layout, and wgmma multiplies them."""
    if layout is None or not layout.is_vector_aligned(dtype):
        return False
    if layout.ld <= 0 or layout.batch_stride < 0:
        return False
    return layout.k_major or dtype in _FLOAT16


class Wgmma(InOrder):
    name = "wgmma_gemm"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        p, dtype = problem, wgmma_dtype(problem.matmul)
        if not target.wgmma or dtype is None or min(p.m, p.n, p.k) < MIN_EXTENT:
            return False
        reused = REPACK_MIN_EXTENT_BATCHED if p.batch > 1 else REPACK_MIN_EXTENT[dtype.itemsize]
        if min(p.m, p.n) >= reused or dtype in _FLOAT8:
            return True
        found = zip(p.matmul.inputs, gpu_operands.layouts(p), strict=True)
        copied = [x.size for x, layout in found if not is_tma_readable(layout, dtype)]
        read = sum(x.size for x in p.matmul.inputs)
        return not copied or (p.batch == 1 and REPACK_MAX_SHARE * sum(copied) <= read)

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        p, layouts = problem, problem.input_layouts
        dtype = wgmma_dtype(p.matmul)
        assert dtype is not None
        tile, split_k = kernel.choose_tile(p.target, dtype, p.matmul.shape, p.k, persistent=True)
        repacks, operands = tma_readable(p.matmul.inputs, layouts, dtype)

        def lower_part(part: FusionGroup) -> LoweredKernel:
            itemsizes = tuple(v.dtype.itemsize for v in part.members if v in part.stored)
            t, per_sm = tile, tile.blocks_per_sm
            if t.persistent and not stores_whole_rows(itemsizes, p.n):
                t = kernel.fit_stages(p.target, (t.m, t.n), per_sm, persistent=False)
            e, block = Emitter(layouts, block_size=t.threads(dtype)), ir.var("block")
            sizes, grid = gpu_operands.split_k_sizes(
                e, p, (t.m, t.n), kernel.tile_k(dtype), split_k
            )
            tma_operands = (
                tma_operand(e, x, layout, (sizes.m, sizes.n)[axis], sizes.k, p.batch)
                for axis, (x, layout) in enumerate(operands)
            )
            call = gpu_operands.gemm_call(e, part, t, sizes, dtype, tma_operands)
            body, e.scratch = kernel.wgmma_gemm(call, block)
            resident = p.target.num_cores * per_sm if t.persistent else 0
            return e.grid_kernel(self.name, block, body, grid, part.notes, resident)

        return repacks + split_in_kernel(p, split_k, lower_part)


def tma_readable(
    inputs: Sequence[Value], layouts: dict[Value, Shape], dtype: DType
) -> tuple[list[LoweredKernel], list[tuple[Value, MatrixLayout]]]:
    """A (batch, m, k) and B (batch, k, n) as TMA reads them, and the kernels that repack what it
    does not; `layouts` get those of the results."""
    repacks: list[LoweredKernel] = []
    operands: list[tuple[Value, MatrixLayout]] = []
    for axis, x in enumerate(inputs, 1):
        layout = gpu_operands.matrix_layout(x, layouts, axis)
        if layout is None or not is_tma_readable(layout, dtype):
            step, x, layout = repacked(x, layouts, axis)
            repacks.append(step)
            layouts[x] = (1,)
        operands.append((x, layout))
    return repacks, operands


def tma_operand(
    e: Emitter, x: Value, layout: MatrixLayout, extent: Expr, k: Expr, batches: int
) -> kernel.TmaOperand:
    is_repacked = len(x.shape) == 1
    buffer: ir.Buffer = e.buffer(x) if is_repacked else e.value(x, (ZERO,) * 3).attr

    def read(batch: Expr, mn: Expr, p: Expr, mask: Expr | None) -> Expr:
        slow, fast = (mn, p) if layout.k_major else (p, mn)
        first = batch * e.dim(layout.batch_stride) if batches > 1 else ZERO
        index = first + slow * e.dim(layout.ld) + fast
        return ir.load(buffer, index, mask)

    def tensor(origin: Expr, tile_mn: int, batch: Expr) -> ir.TmaTensor:
        ends = (k, extent) if layout.k_major else (extent, k)
        shared = batches == 1 or layout.batch_stride == 0  # one matrix for the whole batch
        batch_stride = e.dim(layout.ld) if shared else e.dim(layout.batch_stride)
        count = const(1) if shared else e.dim(batches)
        strides = (e.dim(layout.ld), batch_stride)
        matrix = ZERO if shared else batch
        extents = (*ends, count)
        return ir.TmaTensor(buffer, layout.k_major, extents, strides, origin, tile_mn, matrix)

    aligned = (ir.address(buffer) & const(15)).eq(0)
    aligned = const(True, dt.bool_) if is_repacked else aligned
    return kernel.TmaOperand(read, extent, layout.k_major, tensor, aligned)


def repacked(
    x: Value, layouts: dict[Value, Shape], axis: int, k_major: bool = False
) -> tuple[LoweredKernel, Value, MatrixLayout]:
    """A kernel that repacks an operand for TMA, always `k_major` or not, its result and that one's
    layout."""
    natural = gpu_operands.contiguous_along(x, layouts, 3 - axis)
    k_major = k_major or natural or x.dtype not in _FLOAT16
    batches, k, extent = x.shape[0], x.shape[3 - axis], x.shape[axis]
    rows, columns = (extent, k) if k_major else (k, extent)
    vector = 16 // x.dtype.itemsize
    ld = -(-columns // vector) * vector
    packed = Value.fresh(PACKED, "barrier", (), None, (batches * rows * ld,), x.dtype)
    e = Emitter(layouts, block_size=repack.THREADS)
    tiles = [-(-extent // repack.TILE) for extent in (rows, columns)]

    def read(batch: Expr, row: Expr, column: Expr, mask: Expr | None) -> Expr:
        mn, p = (row, column) if k_major else (column, row)
        index = (mn, p) if axis == 1 else (p, mn)
        value: Expr = e.value(x, (batch if batches > 1 else ZERO, *index), mask)
        return value

    def store(batch: Expr, row: Expr, column: Expr, value: Expr) -> list[Stmt]:
        row = batch * e.dim(rows) + row
        at = row * e.dim(ld) + column
        return [ir.Store(e.buffer(packed, "write"), at, value)]

    block = ir.var("block")
    extents = (e.dim(rows), e.dim(columns))
    counts = (e.scalar_arg(tiles[0]), e.scalar_arg(tiles[1]))
    transposed = k_major and not natural
    body, e.scratch = repack.repack(block, x.dtype, extents, counts, transposed, read, store)
    step = e.grid_kernel("pack", block, body, batches * tiles[0] * tiles[1], ("pack",))
    return step, packed, MatrixLayout(k_major, ld, rows * ld)
