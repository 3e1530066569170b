"""Unblocked factorisations, of a matrix per task of a CPU or per block of a GPU.

Small ones go through memory that is close: on a GPU shared memory, on a CPU vectors that have an
element of as many matrices as there are lanes.
"""

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
from numus.kernels.factor.lanes import LaneMatrix, LaneProgram, moved
from numus.kernels.factor.program import Matrix, Number, Program, Read, Span
from numus.shapes import Shape


@dataclass(frozen=True)
class FactorTuning:
    """Measured on a 2-core x86-64 (Sapphire Rapids) and on one H200."""

    solve_columns: int = 64  # of a right-hand side per block
    sharing: int = 8  # threads of a pair of rows that are rotated, on GPUs that have subgroups
    rank: int = 4  # of updates where lanes run along rows
    lane_extent: int = 20  # rows and columns of matrices that run one per lane
    lane_l1_fraction: float = 0.75  # of L1 for the matrices of all lanes


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
    if p.val.op == "orthogonalize" and _sharing(p) > 1:
        side = p.val.shape[1] * _sharing(p) // 2
    while threads > MIN_BLOCK_THREADS and threads // 2 >= side:
        threads //= 2
    return threads


def _sharing(p: Problem) -> int:
    """Threads of a pair of rows that are rotated."""
    return TUNING.sharing if p.target.subgroup_size >= jacobi.SUBGROUP else 1


def _scratch(e: Emitter, val: Value, name: str, rows: int, columns: int) -> ir.Buffer:
    """Rows of numbers in scratch memory."""
    size = ir.mul(e.dim(rows * columns), ir.const(_components(val)))
    e.scratch.append(ir.Buffer(name, dt.real_of(val.dtype), "scratch", size))
    return e.scratch[-1]


def _components(val: Value) -> int:
    return 2 if val.dtype.is_complex else 1


def _write(
    p: Problem, e: Emitter, program: Program, out: Matrix, reads: list[Read], b: Span
) -> None:
    """The factorisation of what `reads` read, into a matrix; `b` is a range of columns."""
    val = p.val
    _, m, n = val.inputs[0].shape
    rows, steps = e.dim(m), e.dim(min(m, n))
    a = reads[0]
    if val.op == "orthogonalize":  # in parts of its own
        width = e.dim(val.params)
        jacobi.orthogonalize(program, out, a, rows, width, e.dim(n), _sharing(p))
        return
    with program.matrices():
        if val.op == "cholesky":
            cholesky.cholesky(program, out, a, rows)
        elif val.op == "lu":
            lu.lu(program, out, a, rows, e.dim(n), steps)
        elif val.op == "householder":
            householder.householder(program, out, a, rows, e.dim(n), steps)
        else:
            triangular.solve_lower(program, out, a, reads[1], rows, b, val.params)


# -- a matrix per block ---------------------------------------------------------------------------


def lower_block(p: Problem) -> Kernels:
    """Ranges of columns of a right-hand side are blocks of their own."""
    val, simt = p.val, p.target.simt
    _, rows, columns = val.shape
    parts = -(-columns // TUNING.solve_columns) if val.op == "solve_lower" else 1
    e = Emitter(p.layouts, block_size=_threads(p) if simt else 0)
    g = ir.var("g")
    matrix, part = divmod(g, e.scalar_arg(parts)) if parts > 1 else (g, ZERO)
    program = Program(dt.real_of(val.dtype), _components(val), simt)
    program.rank = 1 if simt else TUNING.rank
    start = ir.mul(matrix, e.dim(rows * columns))
    out = Matrix(program, e.buffer(val, "write"), program.let(start), e.dim(columns))
    span = ZERO, e.dim(columns)
    if val.op == "solve_lower":
        span = ir.block_range(part, e.scalar_arg(TUNING.solve_columns), e.dim(columns))
        span = (program.let(span[0]), program.let(span[1]))
    if not simt and val.op in ("lu", "householder"):
        count = program.rank if val.op == "lu" else 1
        buffer = _scratch(e, val, "panel", count, rows)
        program.panel = program.column = Matrix(program, buffer, ZERO, e.dim(rows))
    near = _shared(p, program)
    reads = [_read(e, x, matrix) for x in val.inputs]
    _write(p, e, program, near or out, reads, span)
    if near is not None:
        e.scratch.append(near.buffer)
        moved(program, near, out, e.dim(rows), e.dim(columns))
    return [e.grid_kernel(val.op, g, program.body, val.shape[0] * parts, (val.op,))]


def _shared(p: Problem, program: Program) -> Matrix | None:
    """The matrix in shared memory, where it fits; its rows are skewed against conflicts."""
    val = p.val
    _, rows, columns = val.shape
    if not p.target.simt or val.op == "solve_lower":
        return None
    pitches = [columns + 1 - columns % 2]
    if val.op == "orthogonalize" and _sharing(p) > 1:  # threads of a pair are adjacent
        pitches.insert(0, columns + (_sharing(p) - columns) % jacobi.SUBGROUP)
    for pitch in pitches:
        count = rows * pitch * _components(val)
        if count * dt.real_of(val.dtype).itemsize <= p.target.shared_bytes:
            buffer = ir.Buffer("near", dt.real_of(val.dtype), "scratch", ir.const(count))
            return Matrix(program, buffer, ZERO, ir.const(pitch))
    return None


# -- a matrix per lane ----------------------------------------------------------------------------


def _width(p: Problem) -> int:
    return p.target.vector_bytes // dt.real_of(p.val.dtype).itemsize


def _lane_nbytes(p: Problem) -> int:
    elements = p.val.shape[1] * p.val.shape[2]
    if p.val.op == "solve_lower":
        elements += p.val.inputs[0].shape[1] ** 2
    return elements * p.val.dtype.itemsize * _width(p)


def runs_in_lanes(p: Problem) -> bool:
    """Many matrices, so small that those of a vector stay in L1."""
    batch, rows, columns = p.val.shape
    order = p.val.inputs[0].shape[-1]
    small = max(rows, order) <= TUNING.lane_extent and columns <= 2 * TUNING.lane_extent
    return (
        not p.target.simt
        and small
        and batch >= 2 * _width(p)
        and _lane_nbytes(p) <= TUNING.lane_l1_fraction * p.target.l1_bytes
    )


def lower_lanes(p: Problem) -> Kernels:
    val, width = p.val, _width(p)
    batch, rows, columns = val.shape
    fits_twice = 2 * _lane_nbytes(p) <= TUNING.lane_l1_fraction * p.target.l1_bytes
    unroll = 2 if fits_twice and batch >= 4 * width else 1
    count = width * unroll
    e = Emitter(p.layouts)
    g = ir.var("g")
    program = LaneProgram(dt.real_of(val.dtype), _components(val), width, unroll)

    numbers: list[Expr] = []
    for lane in range(count):  # the last lanes repeat the last matrix
        at = ir.add(ir.mul(g, ir.const(count)), ir.const(lane))
        numbers.append(program.let(ir.minimum(at, ir.sub(e.dim(batch), ir.const(1)))))

    def near(shape: Shape) -> LaneMatrix:
        size = ir.mul(e.dim(shape[1] * shape[2]), ir.const(count * _components(val)))
        name = f"lanes{len(e.scratch)}"
        e.scratch.append(ir.Buffer(name, dt.real_of(val.dtype), "scratch", size))
        return LaneMatrix(program, e.scratch[-1], e.dim(shape[2]))

    out = near(val.shape)
    operands = [near(val.inputs[0].shape), out] if len(val.inputs) == 2 else [out]
    for x, matrix in zip(val.inputs, operands, strict=True):
        sources = [_read(e, x, number) for number in numbers]
        matrix.fill(e.dim(x.shape[1]), e.dim(x.shape[2]), _element(sources))
    reads = [m.__getitem__ for m in operands]
    _write(p, e, program, out, [_pairwise(read) for read in reads], (ZERO, e.dim(columns)))
    size = e.dim(rows * columns)
    outs = [
        Matrix(program, e.buffer(val, "write"), program.let(ir.mul(n, size)), e.dim(columns))
        for n in numbers
    ]
    out.empty(e.dim(rows), e.dim(columns), outs)
    return [e.grid_kernel(val.op, g, program.body, -(-batch // count), (val.op,))]


def _element(sources: list[Read]) -> Callable[[int, Expr, Expr], Number]:
    return lambda lane, i, j: sources[lane](i, j)


def _pairwise(read: Callable[[tuple[Expr, Expr]], Number]) -> Read:
    return lambda i, j: read((i, j))
