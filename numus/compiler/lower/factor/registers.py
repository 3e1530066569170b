"""Factorisations of small matrices on GPUs: a matrix per block, in the registers of its threads."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.schedule import Problem
from numus.ir import Expr
from numus.kernels.factor import register_tiles
from numus.kernels.factor.program import Matrix, Number, Program
from numus.kernels.factor.register_tiles import ThreadGrid

ZERO = ir.const(0)


@dataclass(frozen=True)
class RegisterTuning:
    """Not measured: grids by issue slots and registers of Hopper."""

    grids: tuple[tuple[int, int], ...] = ((8, 1), (8, 2), (8, 4), (16, 4), (16, 8))  # sides, tiles
    bytes: int = 640  # of registers of a thread that hold elements


TUNING = RegisterTuning()

_MATRICES = {"lower_cholesky": 1, "cholesky_and_inverse": 2}  # that are held at once


def grid_of(name: str, order: int, itemsize: int) -> ThreadGrid | None:
    """The smallest grid whose registers hold the matrices of an operation."""
    for side, tiles in TUNING.grids:
        triangle = tiles * (tiles + 1) // 2
        if side * tiles >= order and triangle * _MATRICES[name] * itemsize <= TUNING.bytes:
            return ThreadGrid(side, tiles)
    return None


def fits_registers(p: Problem) -> bool:
    if not p.target.simt or p.val.op not in _MATRICES:
        return False
    order, itemsize = p.val.inputs[0].shape[-1], p.val.dtype.itemsize
    return grid_of(p.val.op, order, itemsize) is not None


def lower_registers(p: Problem) -> Kernels:
    val = p.val
    batch, n, columns = val.shape
    grid = grid_of(val.op, n, val.dtype.itemsize)
    assert grid is not None
    components = 2 if val.dtype.is_complex else 1
    e = Emitter(p.layouts, block_size=grid.threads)
    g = ir.var("g")
    program = Program(dt.real_of(val.dtype), components, simt=True)

    def element(i: Expr, j: Expr) -> Number:
        found = e.value(val.inputs[0], (g, i, j))
        return found if val.dtype.is_complex else (found,)

    def vector(name: str) -> Matrix:
        buffer = ir.Buffer(name, program.real, "scratch", ir.const(grid.order * components))
        e.scratch.append(buffer)
        return Matrix(program, buffer, ZERO, ZERO)

    order = e.dim(n)
    shared = vector("column"), vector("row")
    inverse = val.op == "cholesky_and_inverse"
    found, inverted = register_tiles.cholesky(program, grid, element, order, shared, inverse)
    start = program.let(ir.mul(g, e.dim(n * columns)))
    out = Matrix(program, e.buffer(val, "write"), start, e.dim(columns))
    register_tiles.write_lower(program, grid, found, out, order)
    if inverted is not None:
        register_tiles.write_lower(program, grid, inverted, out, order, order)
    return [e.grid_kernel(val.op, g, program.body, batch, (val.op,))]
