"""Four-step transforms of rows that stay in the L2 cache of a core (Bailey 1990), a row per task.

The columns of a row, seen as a matrix, are transformed into scratch memory, vectors of them at a
time; then its rows, a lane each, from there into the result. All of it takes one pass over memory,
where the steps of longer transforms are kernels of their own.
"""

from __future__ import annotations

from functools import partial

from numus import ir
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.fft.problem import FftProblem, Inner
from numus.ir import Expr, Stmt, const
from numus.kernels.fft.butterflies import Complex, mul
from numus.kernels.fft.radices import radices_of
from numus.kernels.fft.stockham import NONE, ZERO, Block, Transform, stockham
from numus.kernels.fft.tables import column_limit

MAX_VECTORS = 6  # of adjacent columns, or rows, that are transformed together


def _block(p: FftProblem, e: Emitter, is_last: bool, number: Expr, radix: tuple[int, int]) -> Block:
    """The block of columns, or of rows, with this number."""
    length, count = p.layout.steps[::-1] if is_last else p.layout.steps
    vector = p.layout.vector
    limit = column_limit(p.complex_dtype, p.target) // (2 * length)  # the row takes the rest of L2
    width = vector * max(1, min(MAX_VECTORS, limit, count // vector))
    return Block(
        length=length,
        radices=radices_of(length, *radix),
        largest_odd=radix[1],
        dtype=p.part,
        width=width,
        count=ir.minimum(ir.sub(e.dim(count), ir.mul(number, const(width))), const(width)),
        full=count % width == 0,
        vector=vector,
        adjacent_points=(is_last, False),
        size=e.scalar_arg,
        paired=is_last and p.result_is_paired,
        name="rows" if is_last else "columns",
        fetches=p.is_streamed,
    )


def lower_in_cache(p: FftProblem, largest: int, largest_odd: int) -> Kernels:
    """One kernel, a block of which is a transform."""
    n1, n2 = p.layout.steps
    e = Emitter(p.layouts)
    e.static = True  # points of many strides: their addresses differ by constants
    task, column, line = (ir.var(name) for name in ("g", "column", "line"))
    pitch = n2 + p.layout.vector  # lanes of powers of two would share few sets of the caches
    size = e.scalar_arg(n1 * pitch)
    slab = [ir.Buffer(f"slab_{part}", p.part, "scratch", size) for part in ("re", "im")]
    radix = largest, largest_odd
    columns = _block(p, e, False, column, radix)
    lines = _block(p, e, True, line, radix)
    read, write = p.access(e)

    def at(block: Block, number: Expr, w: Transform) -> Inner:
        return ir.add(ir.mul(number, const(block.width)), w[0]), w[1]

    def in_slab(row: Expr, column: Expr) -> Expr:
        return ir.add(ir.mul(row, e.dim(pitch)), column)

    def get(w: Transform, i: Expr) -> Complex:
        where = ir.add(*at(columns, column, w))
        return read(task, NONE, ir.add(e.times(i, e.dim(n2)), where))

    def put(w: Transform, k: Expr, z: Complex) -> list[Stmt]:
        lane = at(columns, column, w)
        z = mul(z, p.column_twiddle(e, lane, k, n1, n1 * n2))
        return ir.stores(slab, in_slab(k, ir.add(*lane)), z)

    def get_line(w: Transform, i: Expr) -> Complex:
        index = in_slab(ir.add(*at(lines, line, w)), i)
        return ir.load(slab[0], index), ir.load(slab[1], index)

    def put_line(w: Transform, k: Expr, z: Complex) -> list[Stmt]:
        where = ir.add(*at(lines, line, w))
        return write(task, NONE, ir.add(e.times(k, e.dim(n1)), where), z)

    first, scratch = stockham(columns, partial(p.twiddle, e, length=n1), get, put)
    second, others = stockham(lines, partial(p.twiddle, e, length=n2), get_line, put_line)
    e.scratch += [*slab, *scratch, *others]
    body: list[Stmt] = [
        ir.For(column, ZERO, e.scalar_arg(-(-n2 // columns.width)), "serial", first),
        ir.For(line, ZERO, e.scalar_arg(-(-n1 // lines.width)), "serial", second),
    ]
    e.static = False  # any number of transforms
    return [e.grid_kernel("fft_in_cache", task, body, p.rows, p.group.notes)]
