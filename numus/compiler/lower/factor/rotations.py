"""Jacobi rotations of small matrices on GPUs: of one or several matrices per warp, a row in the
registers of each lane."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.schedule import Problem
from numus.ir import Expr
from numus.kernels.factor.program import Matrix, Number, Program
from numus.kernels.factor.registers.jacobi import ROUNDED, WARP, Rotations, WarpRows


@dataclass(frozen=True)
class RotationTuning:
    """Not measured: registers of Hopper."""

    words: int = 64  # of a row, in registers of a lane
    warps: int = 4  # launched as one block
    registers: int = 1 << 16  # of a multiprocessor
    overhead: int = 28  # of a lane, besides its row and what it gets of its partner's
    blocks: int = 8  # of a multiprocessor at most


TUNING = RotationTuning()


def _rows(p: Problem) -> WarpRows:
    _, rows, total = p.val.shape
    width = p.val.params
    columns, others = (-(-count // ROUNDED) * ROUNDED for count in (width, total - width))
    return WarpRows(1 << (rows - 1).bit_length(), columns, others)


def fits_warp(p: Problem) -> bool:
    """Whether lanes of a warp hold the rows of matrices to be made orthogonal."""
    val = p.val
    if val.op != "orthogonalize" or not p.target.simt or p.target.subgroup_size < WARP:
        return False
    if not (val.params > 0 and 0 < val.shape[1] <= WARP):
        return False
    shape = _rows(p)
    return (shape.columns + shape.others) * val.dtype.itemsize <= 4 * TUNING.words


def _resident_blocks(shape: WarpRows, words: int) -> int:
    """As many as steps have registers for: reading an operand that is computed would take more."""
    registers = TUNING.overhead + words * (2 * shape.columns + shape.others)
    return min(TUNING.blocks, TUNING.registers // (registers * TUNING.warps * WARP))


def lower_warps(p: Problem) -> Kernels:
    val, shape = p.val, _rows(p)
    batch, rows, columns = val.shape
    e = Emitter(p.layouts, block_size=WARP)
    e.packed_blocks = TUNING.warps
    e.resident_blocks = _resident_blocks(shape, val.dtype.itemsize // 4)
    components = 2 if val.dtype.is_complex else 1
    program = Program(dt.real_of(val.dtype), components, simt=True)
    g = ir.var("g")
    first = program.let(ir.mul(g, ir.const(shape.matrices)))
    (x,) = val.inputs

    def element(k: Expr, i: Expr, j: Expr) -> Number:
        found = e.value(x, (k, i, j))
        return found if x.dtype.is_complex else (found,)

    def out(k: Expr) -> Matrix:
        start = program.let(ir.mul(k, e.dim(rows * columns)))
        return Matrix(program, e.buffer(val, "write"), start, e.dim(columns))

    extents = e.dim(rows), e.dim(val.params), e.dim(columns)
    rotations = Rotations(program, shape, extents)
    rotations.load(element, first, e.dim(batch))
    rotations.orthogonalize()
    rotations.store(out, first, e.dim(batch))
    grid = -(-batch // shape.matrices)
    return [e.grid_kernel(val.op, g, program.body, grid, (val.op,))]
