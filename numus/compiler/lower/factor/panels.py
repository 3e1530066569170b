"""Panels of tall matrices on GPUs: whole rows per thread, in registers of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.scan.gpu import MIN_BLOCK_THREADS
from numus.compiler.lower.schedule import Problem
from numus.dtypes import DType
from numus.kernels.factor.panels import panel_threads, register_rows
from numus.kernels.factor.program import INT, ZERO, Matrix, Number, Program
from numus.kernels.factor.registers.lu_panel import (
    WARP,
    PanelElimination,
    PanelGrid,
    PanelMemory,
    record_words,
)
from numus.target import Target


@dataclass(frozen=True)
class PanelTuning:
    """Measured on one H200: a step takes 0.5 us more in a cluster, and 0.3 us more for every 128
    rows of a CTA."""

    min_rows: int = 33  # fewer: one block with all of the matrix in shared memory
    rows_alone: int = 256  # that one CTA takes; of more, panels are shared by as many as there are
    # unless other matrices keep multiprocessors busy
    min_threads: int = 64  # of a CTA of a cluster


TUNING = PanelTuning()
REGISTERS = 1 << 16  # of a multiprocessor
OTHER_REGISTERS = 64  # of a thread, beside a row and the pivot's


def panel_grid(target: Target, batch: int, m: int, n: int, dtype: DType) -> PanelGrid | None:
    """The CTAs whose registers hold a panel (m, n), a row per thread if they can."""
    width = 1 << max(n - 1, 0).bit_length()
    most, limit = register_rows(width, dtype), panel_threads(target)
    busy = batch * target.max_cluster_size > target.num_cores
    ctas = 1 if m <= TUNING.rows_alone or busy else target.max_cluster_size
    least = MIN_BLOCK_THREADS if ctas == 1 else TUNING.min_threads
    while ctas <= target.max_cluster_size:
        threads = min(limit, max(least, 1 << max(-(-m // ctas) - 1, 0).bit_length()))
        count = -(-m // (ctas * threads))
        if count <= most:
            return PanelGrid(ctas, threads, count, width)
        ctas *= 2
    return None


def fits_panel(p: Problem) -> bool:
    if not p.target.simt or p.val.op != "lu" or p.target.max_cluster_size == 1:
        return False
    return p.val.inputs[0].shape[1] >= TUNING.min_rows and _grid(p) is not None


def _grid(p: Problem) -> PanelGrid | None:
    batch, m, n = p.val.inputs[0].shape
    return panel_grid(p.target, batch, m, n, p.val.dtype)


def lower_panel(p: Problem) -> Kernels:
    grid, val = _grid(p), p.val
    assert grid is not None
    x = val.inputs[0]
    batch, m, n = x.shape
    e, g = Emitter(p.layouts, block_size=grid.threads), ir.var("g")
    program = Program(dt.real_of(val.dtype), 2 if val.dtype.is_complex else 1, simt=True)
    matrix, rank = panel_block(e, program, grid, g)

    def element(i: ir.Expr, j: ir.Expr) -> Number:
        found = e.value(x, (matrix, i, j))
        return found if x.dtype.is_complex else (found,)

    start = program.let(ir.mul(matrix, e.dim(val.shape[1] * val.shape[2])))
    out = Matrix(program, e.buffer(val, "write"), start, e.dim(val.shape[2]))
    memory = panel_memory(e, program, grid)
    panel = PanelElimination(program, grid, rank, (e.dim(m), e.dim(n)), memory)
    panel.load(element)
    panel.eliminate()
    panel.write(out, e.dim(n))
    return [e.grid_kernel("lu_panel", g, program.body, batch * grid.ctas, (val.op,))]


def panel_block(e: Emitter, p: Program, grid: PanelGrid, block: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """The matrix of a block, and its number in a cluster."""
    words = grid.rows * grid.width * p.components * p.real.itemsize // 4
    registers = 2 * words + OTHER_REGISTERS
    e.resident_blocks = max(1, REGISTERS // (grid.threads * registers))
    if grid.ctas == 1:
        return block, ZERO
    e.cluster_blocks = grid.ctas
    ctas = ir.const(grid.ctas)
    return p.let(ir.idiv(block, ctas)), p.let(ir.irem(block, ctas))


def panel_memory(e: Emitter, p: Program, grid: PanelGrid) -> PanelMemory:
    def scratch(name: str, dtype: DType, count: int) -> ir.Buffer:
        made = ir.Buffer(name, dtype, "scratch", ir.const(count), stored_once=True)
        e.scratch.append(made)
        return made

    key = dt.int32 if p.real.itemsize == 4 else dt.int64
    warps, words = grid.threads // WARP, record_words(p, grid.width)
    keys, places = scratch("keys", key, warps), scratch("places", INT, warps)
    own = scratch("own", p.real, 2 * words)
    every = scratch("all", p.real, grid.ctas * words) if grid.ctas > 1 else own
    return PanelMemory(keys, places, own, every)
