"""GEMMs of bytes on wgmma: float8 scaled in blocks, and int8 times the codes of packed words.

Tiles of float8 are as long along k as a block of scales, by which their products are multiplied on
the way to the accumulators (as in DeepGEMM). Bytes of words are unsigned: wgmma multiplies them
with signed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.strided_view import strided_view
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.matmul import gpu_operands
from numus.compiler.lower.matmul.gpu_operands import MatrixLayout
from numus.compiler.lower.matmul.problem import store_epilogue
from numus.compiler.lower.matmul.wgmma import (
    is_tma_readable,
    repacked,
    tma_operand,
    tma_readable,
)
from numus.compiler.lower.schedule import Candidate, Problem, family
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import wgmma as kernel
from numus.kernels.matmul.gpu.epilogue import stores_whole_rows
from numus.kernels.matmul.gpu.problem import GemmCall
from numus.kernels.matmul.packed import SCALED_BLOCK

ZERO, ONE = const(0), const(1)
WORD_BYTES = 4

# A and B, given m, n and k at run time; the scale of a row, the first column of a tile, a K-tile.
MakeOperands = Callable[[Emitter, Expr, Expr, Expr], Sequence[kernel.TmaOperand]]
Scale = Callable[[Emitter, Expr, Expr, Expr], Expr]


@dataclass(frozen=True)
class ScaledProblem(Problem):
    """A (m, k), scales (m, blocks of k), B (n, k), scales (blocks of n, blocks of k); or A (m, k)
    and words of B (n, k / 4)."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n, k."""
        a = self.val.inputs[0]
        return (*self.val.shape, a.shape[1])  # type: ignore[return-value]

    @property
    def dtype(self) -> DType:
        """Of A."""
        return self.val.inputs[0].dtype


def _matrices(a: Value, b: Value) -> tuple[Value, Value]:
    """A (1, m, k) and B (1, k, n) of (m, k) and (n, k)."""
    rows, columns = (
        Value.fresh("reshape", "view", (x,), (1, *x.shape), (1, *x.shape), x.dtype) for x in (a, b)
    )
    transposed = (1, *b.shape[::-1])
    return rows, Value.fresh("permute", "view", (columns,), (0, 2, 1), transposed, b.dtype)


def _lower_scaled(p: ScaledProblem) -> Kernels:
    a, a_scales, b, b_scales = p.val.inputs
    layouts = dict(p.layouts)
    repacks, matrices = tma_readable(_matrices(a, b), layouts, a.dtype)

    def operands(e: Emitter, m: Expr, n: Expr, k: Expr) -> Sequence[kernel.TmaOperand]:
        return [
            tma_operand(e, x, layout, extent, k, 1)
            for (x, layout), extent in zip(matrices, (m, n), strict=True)
        ]

    def scale(e: Emitter, row: Expr, column: Expr, k_tile: Expr) -> Expr:
        own: Expr = e.value(a_scales, (row, k_tile))
        of_block: Expr = e.value(b_scales, (column // SCALED_BLOCK, k_tile))
        return own * of_block

    return [*repacks, _lower_wgmma(p, layouts, operands, scale)]


def _lower_codes(p: ScaledProblem) -> Kernels:
    layouts = dict(p.layouts)
    a, words = _matrices(*p.val.inputs)
    packs, (left,) = tma_readable((a,), layouts, a.dtype)
    layout = gpu_operands.matrix_layout(words, layouts, 2)
    if layout is None or not (layout.k_major and is_tma_readable(layout, words.dtype)):
        step, words, layout = repacked(words, layouts, 2)
        layouts[words] = (1,)
        packs.append(step)
    right = words, layout

    def operands(e: Emitter, m: Expr, n: Expr, k: Expr) -> Sequence[kernel.TmaOperand]:
        return tma_operand(e, *left, m, k, 1), _byte_operand(e, *right, n, k)

    return [*packs, _lower_wgmma(p, layouts, operands)]


def _byte_operand(
    e: Emitter, x: Value, layout: MatrixLayout, extent: Expr, k: Expr
) -> kernel.TmaOperand:
    """The bytes of words in memory."""
    found = strided_view(x, e.layouts)
    buffer = e.byte_buffer(x if found is None else found.base)
    ld = e.dim(layout.ld * WORD_BYTES)

    def read(batch: Expr, mn: Expr, p: Expr, mask: Expr | None) -> Expr:
        return ir.load(buffer, mn * ld + p, mask).bitcast(dt.int8)

    def tensor(origin: Expr, tile_mn: int, batch: Expr) -> ir.TmaTensor:
        return ir.TmaTensor(buffer, True, (k, extent, ONE), (ld, ld), origin, tile_mn, ZERO)

    return kernel.TmaOperand(read, extent, True, tensor, (ir.address(buffer) & const(15)).eq(0))


def _lower_wgmma(
    p: ScaledProblem, layouts: Layouts, operands: MakeOperands, scale: Scale | None = None
) -> LoweredKernel:
    m, n, k = p.sizes
    shape = (1, m, n)
    tile, _ = kernel.choose_tile(p.target, p.dtype, shape, k, persistent=True, splits=False)
    per_sm = tile.blocks_per_sm
    itemsizes = tuple(v.dtype.itemsize for v in p.group.members if v in p.group.stored)
    if not stores_whole_rows(itemsizes, n):
        tile = kernel.fit_stages(p.target, (tile.m, tile.n), per_sm, persistent=False)
    e, block = Emitter(layouts, block_size=tile.threads(p.dtype)), ir.var("block")
    extents = (tile.m, tile.n)
    wanted = kernel.FLOAT8_CLUSTER_BLOCKS if kernel.promotes_accumulators(p.dtype) else 1
    e.cluster_blocks = sharing = kernel.cluster_blocks(p.target, wanted, tile, m)
    split = kernel.tile_k(p.dtype), 1, sharing
    sizes, grid = gpu_operands.tile_sizes(e, p.target, (*shape, k), extents, *split)

    def epilogue(batch: Expr, row: Expr, column: Expr, value: Expr) -> list[Stmt]:
        return store_epilogue(e, p.group, (row, column), value.cast(p.val.dtype))

    left, right = operands(e, sizes.m, sizes.n, sizes.k)
    alone = len(p.group.members) == 1
    call = GemmCall(tile, sizes, p.dtype, left, right, epilogue, alone)
    factors = None if scale is None else partial(scale, e)
    body, e.scratch = kernel.wgmma_gemm(call, block, factors, sharing)
    resident = p.target.num_cores * per_sm // sharing * sharing if tile.persistent else 0
    return e.grid_kernel("wgmma_gemm", block, body, grid, p.group.notes, resident)


def _is_scaled(p: ScaledProblem) -> bool:
    return p.target.wgmma and p.dtype is dt.float8_e4m3fn


def _is_of_codes(p: ScaledProblem) -> bool:
    return p.target.wgmma and p.val.op == "code_matmul"


lower_scaled = family(
    ScaledProblem,
    Candidate("wgmma", _lower_scaled, _is_scaled),
    Candidate("wgmma of codes", _lower_codes, _is_of_codes),
)
