"""Non-symmetric eigenproblems on CPUs: a task per matrix, or per eigenvector."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.factor.hessenberg import lower_hessenberg, reduces_in_blocks
from numus.compiler.lower.factor.multishift import lower_multishift, takes_many_shifts
from numus.compiler.lower.schedule import Candidate, Problem, family
from numus.ir import Expr
from numus.kernels.factor import hessenberg, quasi_vectors, qz, schur, substitution
from numus.kernels.factor.blocked.tiles import TileProgram
from numus.kernels.factor.program import Matrix, Number, Program, Read

ZERO = ir.const(0)


def _lower(p: Problem) -> Kernels:
    val = p.val
    batch, rows, columns = val.shape
    n = val.inputs[0].shape[2]
    parts = n if val.op == "triangular_vectors" else 1
    e = Emitter(p.layouts)
    g = ir.var("g")
    matrix, part = divmod(g, e.scalar_arg(parts)) if parts > 1 else (g, ZERO)
    program = Program(dt.real_of(val.dtype), 2 if val.dtype.is_complex else 1, simt=False)
    start = program.let(ir.mul(matrix, e.dim(rows * columns)))
    out = Matrix(program, e.buffer(val, "write"), start, e.dim(columns))
    _write(val, e, program, out, [_read(e, x, matrix) for x in val.inputs], part)
    return [e.grid_kernel(val.op, g, program.body, batch * parts, (val.op,))]


def _read(e: Emitter, val: Value, matrix: Expr) -> Read:
    def element(i: Expr, j: Expr) -> Number:
        found = e.value(val, (matrix, i, j))
        return found if val.dtype.is_complex else (found,)

    return element


def _write(
    val: Value, e: Emitter, program: Program, out: Matrix, operands: list[Read], part: Expr
) -> None:
    order = e.dim(val.inputs[0].shape[2])
    if val.op == "hessenberg":
        hessenberg.hessenberg(program, out, operands[0], order)
    elif val.op == "schur":
        schur.schur(program, out, operands[0], order)
    elif val.op == "qz":
        qz.qz(program, out, operands[0], operands[1], order)
    elif val.op == "triangular_vectors":
        s, t, least = operands
        smallest = program.let(least(ZERO, ZERO)[0])
        substitution.vectors(program, out, s, t, part, order, smallest)
    elif val.op == "triangular_sylvester":
        columns = e.dim(val.inputs[1].shape[2])
        substitution.sylvester(program, out, operands, order, columns, val.params)
    else:
        substitution.root(program, out, operands[0], order)


def _lower_quasi_vectors(p: Problem) -> Kernels:
    """A task for as many eigenvectors as its lanes hold."""
    val, (given, least) = p.val, p.val.inputs
    batch, n, columns = val.shape
    e, width = Emitter(p.layouts), p.target.vector_bytes // val.dtype.itemsize
    program = TileProgram(val.dtype, 1, width, p.target.vector_registers)
    count = quasi_vectors.lanes_of(program)
    parts = -(-n // count)
    g = ir.var("g")
    matrix, part = (program.let(x) for x in divmod(g, e.scalar_arg(parts)))
    order, size = e.dim(n), ir.const(2 * count)
    e.scratch.append(ir.Buffer("near", val.dtype, "scratch", e.dim(n * 2 * count)))
    x = Matrix(program, e.scratch[-1], ZERO, size)
    rows = ir.const(quasi_vectors.EIGENVALUES * count)
    e.scratch.append(ir.Buffer("own", val.dtype, "scratch", rows))
    own = Matrix(program, e.scratch[-1], ZERO, ir.const(count))
    # long columns first
    number = program.let(ir.sub(e.scalar_arg(parts - 1), part))
    first = program.let(ir.mul(number, ir.const(count)))
    stop = program.let(ir.minimum(ir.add(first, ir.const(count)), order))
    smallest = program.let(e.value(least, (matrix, ZERO, ZERO)))
    quasi_vectors.vectors(
        *(program, x, own, lambda i, j: e.value(given, (matrix, i, j))),
        *((first, stop), order, smallest),
    )
    start = program.let(ir.mul(matrix, e.dim(n * columns)))
    out = Matrix(program, e.buffer(val, "write"), start, e.dim(columns))
    end = program.let(ir.minimum(ir.add(stop, ir.const(1)), order))
    with program.loop(ZERO, order) as i:
        inside = program.let(i < end)
        for half, top in ((ZERO, ZERO), (ir.const(count), order)):
            to = program.let(ir.add(top, first))
            with program.lanes(ZERO, program.let(ir.sub(stop, first))) as lane:
                found = x[ir.minimum(i, ir.sub(end, ir.const(1))), ir.add(half, lane)][0]
                out[i, ir.add(to, lane)] = (ir.select(inside, found, program.constant(0.0)),)
    return [e.grid_kernel(val.op, g, program.body, batch * parts, (val.op,))]


lower_spectral = family(
    Problem,
    Candidate("in blocks, in place", lower_hessenberg, reduces_in_blocks),
    Candidate("many shifts at once", lower_multishift, takes_many_shifts),
    Candidate("eigenvectors in lanes", _lower_quasi_vectors, lambda p: p.val.op == "quasi_vectors"),
    Candidate("a matrix per task", _lower),
)
