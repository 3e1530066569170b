"""Unblocked factorisations: a task of a CPU or a block of a GPU per matrix of the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.scan.gpu import MIN_BLOCK_THREADS
from numus.compiler.lower.schedule import Problem
from numus.ir import Expr
from numus.kernels.factor import cholesky, householder, jacobi, lu, triangular
from numus.kernels.factor.program import Matrix, Number, Program, Read


@dataclass(frozen=True)
class FactorTuning:
    """Measured on a 2-core x86-64 (Sapphire Rapids)."""

    solve_columns: int = 64  # of a right-hand side per block


TUNING = FactorTuning()

ZERO = ir.const(0)


def _read(e: Emitter, val: Value, matrix: Expr) -> Read:
    def element(i: Expr, j: Expr) -> Number:
        found = e.value(val, (matrix, i, j))
        return found if val.dtype.is_complex else (found,)

    return element


def _threads(p: Problem) -> int:
    """Threads of a block: no more than a power of two above the longer side."""
    threads, side = p.target.block_size, max(p.val.shape[1:])
    while threads > MIN_BLOCK_THREADS and threads // 2 >= side:
        threads //= 2
    return threads


Write = Callable[[Emitter, Program, Matrix, Expr, Expr], None]


def _lowered(p: Problem, parts: int, write: Write) -> Kernels:
    """A kernel of `parts` blocks per matrix; `write(e, program, out, matrix, part)` fills them."""
    val = p.val
    simt = p.target.simt
    e = Emitter(p.layouts, block_size=_threads(p) if simt else 0)
    g = ir.var("g")
    matrix, part = divmod(g, e.scalar_arg(parts)) if parts > 1 else (g, ZERO)
    program = Program(dt.real_of(val.dtype), 2 if val.dtype.is_complex else 1, simt)
    _, rows, columns = val.shape
    start = ir.mul(matrix, e.dim(rows * columns))
    out = Matrix(program, e.buffer(val, "write"), program.let(start), e.dim(columns))
    write(e, program, out, matrix, part)
    return [e.grid_kernel(val.op, g, program.body, val.shape[0] * parts, (val.op,))]


def lower_block(p: Problem) -> Kernels:
    val = p.val
    source = val.inputs[0]
    _, m, n = source.shape

    def write(e: Emitter, program: Program, out: Matrix, matrix: Expr, part: Expr) -> None:
        a, rows, columns, steps = _read(e, source, matrix), e.dim(m), e.dim(n), e.dim(min(m, n))
        if val.op == "cholesky":
            cholesky.cholesky(program, out, a, rows)
        elif val.op == "lu":
            lu.lu(program, out, a, rows, columns, steps)
        elif val.op == "householder":
            householder.householder(program, out, a, rows, columns, steps)
        else:
            jacobi.orthogonalize(program, out, a, rows, e.dim(val.params), columns)

    return _lowered(p, 1, write)


def lower_solve(p: Problem) -> Kernels:
    """Ranges of columns of the right-hand side run in parallel."""
    a, b = p.val.inputs
    columns = b.shape[2]
    parts = -(-columns // TUNING.solve_columns)

    def write(e: Emitter, program: Program, out: Matrix, matrix: Expr, part: Expr) -> None:
        span = ir.block_range(part, e.scalar_arg(TUNING.solve_columns), e.dim(columns))
        span = (program.let(span[0]), program.let(span[1]))
        operands = _read(e, a, matrix), _read(e, b, matrix)
        triangular.solve_lower(program, out, *operands, e.dim(a.shape[1]), span, p.val.params)

    return _lowered(p, parts, write)
