"""Panels of tall matrices on GPUs: whole rows per thread, in registers of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.scan.gpu import MIN_BLOCK_THREADS
from numus.compiler.lower.schedule import Problem
from numus.kernels.factor.panels import panel_threads, register_rows
from numus.kernels.factor.program import Matrix, Number, Program
from numus.kernels.factor.registers.lu_panel import PanelElimination


@dataclass(frozen=True)
class PanelTuning:
    """Not measured: by what is known of barriers of Hopper."""

    min_rows: int = 33  # fewer: one block with all of the matrix in shared memory
    rows_per_thread: int = 2  # of more, panels are shared by more CTAs


TUNING = PanelTuning()


class PanelGrid(NamedTuple):
    """`ctas` of `threads`, each of which holds `rows` rows of `width` columns."""

    ctas: int
    threads: int
    rows: int
    width: int


def panel_grid(p: Problem) -> PanelGrid | None:
    """The fewest CTAs whose registers hold a panel, few rows per thread if they can."""
    _, m, n = p.val.inputs[0].shape
    width = 1 << max(n - 1, 0).bit_length()
    most = register_rows(width, p.val.dtype)
    threads, found, ctas = panel_threads(p.target), None, 1
    while threads > MIN_BLOCK_THREADS and threads // 2 >= m:
        threads //= 2
    while ctas <= p.target.max_cluster_size:
        count = -(-m // (ctas * threads))
        if count <= most:
            found = PanelGrid(ctas, threads, count, width)
            if count <= TUNING.rows_per_thread:
                break
        ctas *= 2
    return found


def fits_panel(p: Problem) -> bool:
    if not p.target.simt or p.val.op != "lu" or p.target.max_cluster_size == 1:
        return False
    return p.val.inputs[0].shape[1] >= TUNING.min_rows and panel_grid(p) is not None


def lower_panel(p: Problem) -> Kernels:
    grid, val = panel_grid(p), p.val
    assert grid is not None
    x, threads = val.inputs[0], grid.ctas * grid.threads
    batch, m, n = x.shape
    e = Emitter(p.layouts, block_size=threads)
    e.cluster_size = grid.ctas
    components, g = (2 if val.dtype.is_complex else 1), ir.var("g")
    program = Program(dt.real_of(val.dtype), components, simt=True)

    def element(i: ir.Expr, j: ir.Expr) -> Number:
        found = e.value(x, (g, i, j))
        return found if x.dtype.is_complex else (found,)

    shape = (batch, grid.width * grid.width * components)
    shared = Value.fresh("workspace", "barrier", (), None, shape, program.real)
    out = _matrix(e, program, val, g, val.shape[1] * val.shape[2], e.dim(val.shape[2]))
    pivots = _matrix(e, program, shared, g, grid.width**2, ir.const(grid.width))
    pivots.buffer.stored_once = True
    panel = PanelElimination(program, threads, grid.rows, grid.width, (e.dim(m), e.dim(n)))
    panel.load(element)
    panel.eliminate(pivots, out)
    panel.write(out)
    return [e.grid_kernel("lu_panel", g, program.body, batch, (val.op,))]


def _matrix(e: Emitter, p: Program, val: Value, g: ir.Expr, size: int, stride: ir.Expr) -> Matrix:
    """The matrix of a block, of `size` numbers."""
    return Matrix(p, e.buffer(val, "write"), p.let(ir.mul(g, e.dim(size))), stride)
