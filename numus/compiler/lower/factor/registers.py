"""Factorisations of small matrices on GPUs: a matrix per block, in the registers of its threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.schedule import Problem
from numus.dtypes import DType
from numus.ir import Expr
from numus.kernels.factor import register_cholesky
from numus.kernels.factor.program import INT, Matrix, Number, Program, Read
from numus.kernels.factor.register_lu import Elimination, Shared
from numus.kernels.factor.register_tiles import ThreadGrid

ZERO = ir.const(0)


@dataclass(frozen=True)
class RegisterTuning:
    """Not measured: grids by issue slots and registers of Hopper."""

    grids: tuple[tuple[int, int], ...] = ((8, 1), (8, 2), (8, 4), (16, 4), (16, 8))  # sides, tiles
    bytes: int = 640  # of registers of a thread that hold elements


TUNING = RegisterTuning()


def _elements(val: Value, grid: ThreadGrid) -> int:
    """Elements that a thread holds at once."""
    if val.op in ("lower_cholesky", "cholesky_and_inverse"):
        triangle = grid.tiles * (grid.tiles + 1) // 2
        return triangle if val.op == "lower_cholesky" else 2 * triangle
    return grid.tiles * (grid.tiles + _widths(val, grid))


def _widths(val: Value, grid: ThreadGrid) -> int:
    """Tiles of columns of right-hand sides."""
    return 0 if val.op == "small_determinant" else -(-val.shape[2] // grid.side)


def _grid(val: Value) -> ThreadGrid | None:
    """The smallest grid that holds the matrices of an operation in registers."""
    order = max(val.inputs[0].shape[2], 0 if val.op == "cholesky_and_inverse" else val.shape[2])
    for side, tiles in TUNING.grids:
        grid = ThreadGrid(side, tiles)
        if grid.order >= order and _elements(val, grid) * val.dtype.itemsize <= TUNING.bytes:
            return grid
    return None


def fits_registers(p: Problem) -> bool:
    if not p.target.simt or p.val.op not in _WRITERS:
        return False
    shuffles = p.target.subgroup_size >= 32 or p.val.op in (
        "lower_cholesky",
        "cholesky_and_inverse",
    )
    return shuffles and _grid(p.val) is not None


class _Kernel:
    """What a kernel of one matrix per block is written with."""

    def __init__(self, p: Problem, grid: ThreadGrid) -> None:
        self.val, self.grid = p.val, grid
        self.emitter = Emitter(p.layouts, block_size=grid.threads)
        components = 2 if p.val.dtype.is_complex else 1
        self.program = Program(dt.real_of(p.val.dtype), components, simt=True)
        self.number = ir.var("g")
        self.order = self.emitter.dim(p.val.inputs[0].shape[1])
        self.columns = self.emitter.dim(p.val.shape[2])

    def read(self, which: int) -> Read:
        x = self.val.inputs[which]

        def element(i: Expr, j: Expr) -> Number:
            found = self.emitter.value(x, (self.number, i, j))
            return found if x.dtype.is_complex else (found,)

        return element

    def buffer(self, name: str, dtype: DType, count: int) -> ir.Buffer:
        """Shared memory for an element per row or column."""
        made = ir.Buffer(name, dtype, "scratch", ir.const(self.grid.order * count))
        self.emitter.scratch.append(made)
        return made

    def vector(self, name: str) -> Matrix:
        p = self.program
        return Matrix(p, self.buffer(name, p.real, p.components), ZERO, ZERO)

    def out(self) -> Matrix:
        p, (_, rows, columns) = self.program, self.val.shape
        start = p.let(ir.mul(self.number, self.emitter.dim(rows * columns)))
        return Matrix(p, self.emitter.buffer(self.val, "write"), start, self.columns)

    def done(self) -> Kernels:
        e, name = self.emitter, self.val.op
        return [e.grid_kernel(name, self.number, self.program.body, self.val.shape[0], (name,))]


def _cholesky(k: _Kernel) -> None:
    shared = k.vector("column"), k.vector("row")
    inverse = k.val.op == "cholesky_and_inverse"
    a = k.read(0)
    found, inverted = register_cholesky.cholesky(k.program, k.grid, a, k.order, shared, inverse)
    out = k.out()
    register_cholesky.write_lower(k.program, k.grid, found, out, k.order)
    if inverted is not None:
        register_cholesky.write_lower(k.program, k.grid, inverted, out, k.order, k.order)


def _eliminated(k: _Kernel) -> Elimination:
    p = k.program
    sizes = _RealMatrix(p, k.buffer("sizes", p.real, 1), ZERO, ZERO)
    vectors = k.vector("column"), sizes, k.vector("row"), k.vector("right")
    shared = Shared(*vectors, k.buffer("order", INT, 1))
    found = Elimination(p, k.grid, k.order, _widths(k.val, k.grid), shared)
    found.load(k.read(0), k.read(1) if len(k.val.inputs) == 2 else None, k.columns)
    found.eliminate()
    return found


class _RealMatrix(Matrix):
    """Real numbers of a complex program."""

    def _at(self, i: Expr, j: Expr) -> list[Expr]:
        return [j]


def _solve(k: _Kernel) -> None:
    found = _eliminated(k)
    found.substitute_back()
    found.write_solution(k.out(), k.columns)


def _determinant(k: _Kernel) -> None:
    _eliminated(k).write_determinant(k.out())


_WRITERS: dict[str, Callable[[_Kernel], None]] = {
    **{"lower_cholesky": _cholesky, "cholesky_and_inverse": _cholesky},
    **{"direct_solve": _solve, "direct_inverse": _solve, "small_determinant": _determinant},
}


def lower_registers(p: Problem) -> Kernels:
    grid = _grid(p.val)
    assert grid is not None
    kernel = _Kernel(p, grid)
    _WRITERS[p.val.op](kernel)
    return kernel.done()
