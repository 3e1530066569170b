"""Eigenvalues of large real symmetric matrices on a CPU: tridiagonalisation by a task per matrix,
then a task for each range of columns of the eigenvectors.

Every task finds the rotations for itself: they take n², the columns they turn n³.
"""

from __future__ import annotations

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.schedule import Problem
from numus.ir import Expr, const
from numus.kernels.factor import tridiagonal
from numus.kernels.factor.program import ZERO, Matrix, Number, Program
from numus.kernels.factor.tridiagonal import VECTORS

MIN_ORDER = 128  # of matrices whose columns are worth several tasks
MIN_COLUMNS = 64  # of a task


def runs_in_columns(p: Problem) -> bool:
    val = p.val
    return not p.target.simt and val.op == "eigh" and val.shape[-1] >= MIN_ORDER


def lower_columns(p: Problem) -> Kernels:
    batch, _, n = p.val.shape
    parts = max(1, min(p.target.num_cores // max(batch, 1), n // MIN_COLUMNS))
    line = p.target.vector_bytes
    pitch = (n // line + 1) * line + line // 2  # columns of rows of 2^k would meet in few sets

    def memory(rows: int) -> Value:
        shape = (batch, rows * pitch)
        return Value.fresh("workspace", "barrier", (), None, shape, p.val.dtype)

    t, work, q, vectors = memory(n), memory(VECTORS), memory(n), memory(n)
    return [
        _reduced(p, pitch, t, work),
        _accumulated(p, pitch, parts, (t, work, q)),
        _rotated(p, pitch, parts, (work, q, vectors)),
    ]


class _Task:
    def __init__(self, p: Problem, pitch: int, parts: int = 1) -> None:
        self.problem, self._parts = p, parts
        self.emitter, self.program = Emitter(p.layouts), Program(p.val.dtype, 1, simt=False)
        self.grid_index = ir.var("g")
        n = p.val.shape[-1]
        self.n, self.pitch = self.emitter.scalar_arg(n), self.emitter.scalar_arg(pitch)
        self.matrix, part = divmod(self.grid_index, self.emitter.scalar_arg(parts))
        width = -(-n // parts)
        first, stop = ir.block_range(part, self.emitter.scalar_arg(width), self.n)
        self.columns = self.program.let(first), self.program.let(stop)

    def of(self, value: Value, access: str = "write") -> Matrix:
        e, p = self.emitter, self.program
        start = p.let(ir.mul(self.matrix, e.scalar_arg(value.shape[1])))
        return Matrix(p, e.buffer(value, access), start, self.pitch)

    def near(self, rows: int) -> Matrix:
        """Rows of memory of a worker."""
        e, p = self.emitter, self.program
        n = self.problem.val.shape[-1]
        e.scratch.append(ir.Buffer("near", p.real, "scratch", const(rows * n)))
        return Matrix(p, e.scratch[-1], ZERO, const(n))

    def kernel(self) -> LoweredKernel:
        e, name, batch = self.emitter, "eigh", self.problem.val.shape[0]
        body, grid = self.program.body, batch * self._parts
        return e.grid_kernel(name, self.grid_index, body, grid, (name,))


def _reduced(p: Problem, pitch: int, t: Value, work: Value) -> LoweredKernel:
    task = _Task(p, pitch)
    program, n, given = task.program, task.n, p.val.inputs[0]

    def element(i: Expr, j: Expr) -> Number:
        return (task.emitter.value(given, (task.matrix, i, j)),)

    near = task.of(t)
    with program.each((ZERO, n), (ZERO, n)) as (i, j):
        near[i, j] = element(i, j)
    tridiagonal.reduce(program, near, task.of(work), n)
    return task.kernel()


def _accumulated(
    p: Problem, pitch: int, parts: int, values: tuple[Value, Value, Value]
) -> LoweredKernel:
    task = _Task(p, pitch, parts)
    t, work, q = values
    near = task.near(tridiagonal.ROTATIONS)
    given = task.of(work, "read")
    tridiagonal.accumulate(
        task.program, task.of(q), task.of(t, "read"), (given, near), task.n, task.columns
    )
    return task.kernel()


def _rotated(
    p: Problem, pitch: int, parts: int, values: tuple[Value, Value, Value]
) -> LoweredKernel:
    task = _Task(p, pitch, parts)
    work, q, rotated = values
    program, n, columns = task.program, task.n, task.columns
    source, vectors, near = task.of(q, "read"), task.of(rotated), task.near(VECTORS)
    with program.loop(*columns) as j, program.loop(ZERO, n) as i:
        vectors[i, j] = source[j, i]
    tridiagonal.start(program, near, task.of(work, "read"), n)
    tridiagonal.iterate(program, vectors, near, n, columns)
    e = task.emitter
    size = e.scalar_arg(p.val.shape[1] * p.val.shape[2])
    start = program.let(ir.mul(task.matrix, size))
    out = Matrix(program, e.buffer(p.val, "write"), start, n)
    tridiagonal.values(program, out, near, columns)
    below = tridiagonal.Below(out)
    with program.loop(ZERO, n) as i, program.lanes(*columns) as j:
        below[i, j] = vectors[i, j]
    return task.kernel()
