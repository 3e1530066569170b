"""Factorisations by tiles on GPUs: a block per tile, in one kernel."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.grid_sync import clear_flags
from numus.compiler.lower.schedule import Problem
from numus.ir import Expr, const
from numus.kernels.factor.program import ZERO, Matrix, Number, Program, Read
from numus.kernels.factor.registers.cholesky import RANK, Shared
from numus.kernels.factor.registers.cholesky_tiles import (
    Place,
    TileMemory,
    TileOfCholesky,
)
from numus.kernels.factor.registers.tile_mma import MmaProducts
from numus.kernels.factor.registers.tile_products import GRID, SIDE, GridProducts, TileProducts
from numus.kernels.factor.registers.vector_substitution import Operands, VectorSubstitution

RESIDENT_BLOCKS = {4: 3, 8: 2, 16: 1}  # of a multiprocessor, by bytes of a number


def runs_in_tiles(p: Problem) -> bool:
    target = p.target
    on_gpu = target.simt and target.forward_progress and target.async_copy
    return on_gpu and p.val.op in _LOWERINGS


def lower_tiles(p: Problem) -> Kernels:
    return _LOWERINGS[p.val.op](p)


def _reader(e: Emitter, x: Value, *before: Expr) -> Read:
    """Elements of matrices of a value."""

    def element(i: Expr, j: Expr) -> Number:
        found = e.value(x, (*before, i, j))
        return found if x.dtype.is_complex else (found,)

    return element


def _flags(count: int) -> Value:
    return Value.fresh("workspace", "barrier", (), None, (count,), dt.uint32)


def _lower_cholesky(p: Problem) -> Kernels:
    x = p.val.inputs[0]
    batch, m, n = x.shape
    columns = -(-n // SIDE)
    rows = columns + -(-(m - n) // SIDE)
    e = Emitter(p.layouts, block_size=GRID.threads)
    e.resident_blocks = RESIDENT_BLOCKS[p.val.dtype.itemsize]
    components = 2 if p.val.dtype.is_complex else 1
    program = Program(dt.real_of(p.val.dtype), components, simt=True)
    count = batch * rows * columns
    flags = _flags(count)
    size = count * SIDE * SIDE * components
    tiles = Value.fresh("workspace", "barrier", (), None, (size,), program.real)
    number = ir.var("g")
    place, matrix = _place(program, e, number, (batch, rows, columns))

    def scratch(name: str, elements: int, stored_once: bool = False) -> ir.Buffer:
        made = ir.Buffer(name, program.real, "scratch", const(elements), stored_once=stored_once)
        e.scratch.append(made)
        return made

    near = scratch("near", 2 * SIDE * SIDE * components, True)
    memory = TileMemory(e.buffer(tiles, "write"), e.buffer(flags, "write"), near)
    start = program.let(ir.mul(matrix, e.dim(m * n)))
    out = Matrix(program, e.buffer(p.val, "write"), start, e.dim(n))
    extents = e.dim(m), e.dim(n)
    products: TileProducts
    if p.val.dtype.itemsize // components == 8 and "float64" in p.target.mma:
        products = MmaProducts(program)
    else:
        words = SIDE * RANK * components
        vectors = (scratch(name, words, True) for name in ("column", "row", "rows", "across"))
        step = Shared(*(Matrix(program, vector, ZERO, ZERO) for vector in vectors))
        products = GridProducts(program, step)
    tile = TileOfCholesky(program, memory, place, extents, out, products)
    tile.run(_reader(e, x, matrix))
    kernel = e.grid_kernel("cholesky_tiles", number, program.body, count, (p.val.op,))
    return [clear_flags(flags, p.target), kernel]


def _place(p: Program, e: Emitter, block: Expr, counts: tuple[int, int, int]) -> tuple[Place, Expr]:
    """The tile of a block, and the number of its matrix: tiles of a column one after the other."""
    batch, rows, columns = (e.dim(count) for count in counts)
    tile, matrix = p.let(ir.idiv(block, batch)), p.let(ir.irem(block, batch))
    j, i = p.let(ir.idiv(tile, rows)), p.let(ir.irem(tile, rows))
    first = p.let(ir.mul(matrix, e.dim(counts[1] * counts[2])))
    return Place(i, j, rows, columns, first), matrix


def _substitute_vectors(p: Problem) -> Kernels:
    a, inverses, b = p.val.inputs
    batch, count, n = b.shape
    tiles = inverses.shape[1]
    e, number = Emitter(p.layouts, block_size=GRID.threads), ir.var("g")
    e.resident_blocks = 1
    program = Program(dt.real_of(b.dtype), 2 if b.dtype.is_complex else 1, simt=True)
    flags = _flags(batch * tiles)
    i, matrix = (program.let(f(number, e.dim(batch))) for f in (ir.idiv, ir.irem))
    start = program.let(ir.mul(matrix, e.dim(count * n)))
    out = Matrix(program, e.buffer(p.val, "write"), start, e.dim(n))
    shared = []
    for name in ("right", "found", "rest"):
        size = const(count * SIDE * program.components)
        e.scratch.append(ir.Buffer(name, program.real, "scratch", size))
        shared.append(Matrix(program, e.scratch[-1], ZERO, const(SIDE)))
    found = VectorSubstitution(program, e.dim(n), count, out, (shared[0], shared[1], shared[2]))
    operands = Operands(
        _reader(e, a, matrix), _reader(e, inverses, matrix, i), _reader(e, b, matrix)
    )
    first = program.let(ir.mul(matrix, e.dim(tiles)))
    found.run(i, e.buffer(flags, "write"), first, operands, bool(p.val.params))
    kernel = e.grid_kernel("vector_tiles", number, program.body, batch * tiles, (p.val.op,))
    return [clear_flags(flags, p.target), kernel]


_LOWERINGS = {"lower_cholesky": _lower_cholesky, "substitute_vectors": _substitute_vectors}
