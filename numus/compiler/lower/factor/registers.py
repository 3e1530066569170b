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
from numus.kernels.factor.program import INT, Matrix, Number, Program, Read
from numus.kernels.factor.registers import cholesky, triangular
from numus.kernels.factor.registers.lu import Elimination, Shared
from numus.kernels.factor.registers.qr import Triangularisation
from numus.kernels.factor.registers.tiles import ThreadGrid

ZERO = ir.const(0)
SUBGROUP = 32  # threads that exchange registers


@dataclass(frozen=True)
class RegisterTuning:
    """Not measured: grids by issue slots and registers of Hopper."""

    sides: tuple[tuple[int, int], ...] = ((8, 1), (8, 2), (8, 4), (16, 4), (16, 8))  # tiles of each
    # of eliminations, which have most to do besides products: few threads with many tiles
    few: tuple[int, int] = (8, 8)
    few_bytes: int = 384  # of registers of one of these that hold elements
    # of QR: threads down and across, rows and columns of each
    tall: tuple[tuple[int, int, int, int], ...] = (
        *((8, 8, 1, 1), (8, 8, 2, 2), (16, 8, 2, 4), (16, 16, 4, 4)),
        *((32, 8, 4, 4), (32, 8, 4, 8), (32, 8, 8, 4), (32, 8, 16, 4)),
    )
    bytes: int = 640  # of registers of a thread that hold elements


TUNING = RegisterTuning()

_ELIMINATIONS = ("direct_solve", "direct_inverse", "small_determinant")
_TRIANGULAR = ("lower_cholesky", "cholesky_and_inverse", "lower_inverse")


def _grids(op: str) -> list[ThreadGrid]:
    if op == "direct_qr":
        return [ThreadGrid(*sizes, columns_first=True) for sizes in TUNING.tall]
    sides = [*TUNING.sides]
    if op in _ELIMINATIONS:
        sides.insert(3, TUNING.few)
    return [ThreadGrid(side, side, tiles, tiles) for side, tiles in sides]


def _elements(val: Value, grid: ThreadGrid) -> int:
    """Elements that a thread holds at once."""
    if val.op in _TRIANGULAR:
        triangle = grid.rows * (grid.rows + 1) // 2
        return triangle if val.op == "lower_cholesky" else 2 * triangle
    if val.op == "direct_qr":
        return grid.rows * grid.columns * (2 if val.params else 1)
    return grid.rows * (grid.columns + _widths(val, grid))


def _widths(val: Value, grid: ThreadGrid) -> int:
    """Tiles of columns of right-hand sides."""
    return 0 if val.op == "small_determinant" else -(-val.shape[2] // grid.across)


def _grid(val: Value) -> ThreadGrid | None:
    """The smallest grid that holds the matrices of an operation in registers."""
    m, n = val.inputs[0].shape[1:]
    right = val.shape[2] if val.op == "direct_solve" else 0
    for grid in _grids(val.op):
        rows, columns = grid.extents
        is_few = (grid.down, grid.rows) == TUNING.few
        most = TUNING.few_bytes if is_few else TUNING.bytes
        fits = _elements(val, grid) * val.dtype.itemsize <= most
        is_tall = m > n and val.op in _TRIANGULAR
        if fits and not is_tall and rows >= m >= n and columns >= max(n, right):
            return grid
    return None


def fits_registers(p: Problem) -> bool:
    if not p.target.simt or p.val.op not in _WRITERS:
        return False
    shuffles = p.target.subgroup_size >= SUBGROUP or p.val.op in _TRIANGULAR
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

    def buffer(self, name: str, dtype: DType, count: int, turns: bool = True) -> ir.Buffer:
        """Shared memory for an element per row or column; with `turns`, there are two, which steps
        take in turns: one barrier a step then suffices."""
        size = max(self.grid.extents) * count * (2 if turns else 1)
        made = ir.Buffer(name, dtype, "scratch", ir.const(size), stored_once=turns)
        self.emitter.scratch.append(made)
        return made

    def vector(self, name: str, turns: bool = True) -> Matrix:
        p = self.program
        pitch = ir.const(max(self.grid.extents))
        return Matrix(p, self.buffer(name, p.real, p.components, turns), ZERO, pitch)

    def ranks(self, name: str, inverse: bool) -> Matrix:
        """Vectors of a step of Cholesky, side by side: each waits for all threads once."""
        p, rank = self.program, cholesky.RANK
        is_used = inverse or name in ("column", "left")
        size = max(self.grid.extents) * rank * p.components if is_used else 1
        made = ir.Buffer(name, p.real, "scratch", ir.const(size), stored_once=True)
        if is_used:
            self.emitter.scratch.append(made)
        return Matrix(p, made, ZERO, ZERO)

    def out(self) -> Matrix:
        p, (_, rows, columns) = self.program, self.val.shape
        start = p.let(ir.mul(self.number, self.emitter.dim(rows * columns)))
        return Matrix(p, self.emitter.buffer(self.val, "write"), start, self.columns)

    def done(self) -> Kernels:
        e, name = self.emitter, self.val.op
        return [e.grid_kernel(name, self.number, self.program.body, self.val.shape[0], (name,))]


def _cholesky(k: _Kernel) -> None:
    names, inverse = ("column", "row", "left", "across"), k.val.op == "cholesky_and_inverse"
    shared = cholesky.Shared(*(k.ranks(name, inverse) for name in names))
    a = k.read(0)
    found, inverted = cholesky.cholesky(k.program, k.grid, a, k.order, shared, inverse)
    out = k.out()
    cholesky.write_lower(k.program, k.grid, found, out, k.order)
    if inverted is not None:
        cholesky.write_lower(k.program, k.grid, inverted, out, k.order, k.order)


def _inverse(k: _Kernel) -> None:
    shared = k.vector("column"), k.vector("row")
    found = triangular.lower_inverse(
        k.program, k.grid, k.read(0), k.order, shared, bool(k.val.params)
    )
    cholesky.write_lower(k.program, k.grid, found, k.out(), k.order)


def _eliminated(k: _Kernel) -> Elimination:
    p = k.program
    integer = dt.int32 if p.real.itemsize == 4 else dt.int64
    keys = _RealMatrix(p, k.buffer("keys", integer, 1), ZERO, ZERO)
    vectors = k.vector("column"), keys, k.vector("row"), k.vector("right")
    shared = Shared(*vectors, k.buffer("order", INT, 1))
    found = Elimination(p, k.grid, k.order, _widths(k.val, k.grid), shared)
    found.load(k.read(0), k.read(1) if len(k.val.inputs) == 2 else None, k.columns)
    found.eliminate()
    return found


class _RealMatrix(Matrix):
    """Single numbers of a complex program."""

    def _at(self, i: Expr, j: Expr) -> list[Expr]:
        return [j]


def _solve(k: _Kernel) -> None:
    found = _eliminated(k)
    found.substitute_back()
    found.write_solution(k.out(), k.columns)


def _determinant(k: _Kernel) -> None:
    _eliminated(k).write_determinant(k.out())


def _qr(k: _Kernel) -> None:
    extents = k.order, k.columns
    shared = k.vector("column", turns=False), k.vector("taus", turns=False)
    found = Triangularisation(k.program, k.grid, extents, *shared)
    found.load(k.read(0))
    found.triangularise()
    q = found.form_q() if k.val.params else None
    found.write(k.out(), q)


_WRITERS: dict[str, Callable[[_Kernel], None]] = {
    **{"lower_cholesky": _cholesky, "cholesky_and_inverse": _cholesky},
    "lower_inverse": _inverse,
    **{"direct_solve": _solve, "direct_inverse": _solve, "small_determinant": _determinant},
    "direct_qr": _qr,
}


def lower_registers(p: Problem) -> Kernels:
    grid = _grid(p.val)
    assert grid is not None
    kernel = _Kernel(p, grid)
    _WRITERS[p.val.op](kernel)
    return kernel.done()
