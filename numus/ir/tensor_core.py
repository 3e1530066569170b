"""Units that multiply whole tiles in a group's memory, and copies into it that go on by themselves.

Only on targets whose target list the feature "tiles".
"""

from __future__ import annotations

from dataclasses import dataclass

from numus.dtypes import DType
from numus.ir.expressions import (
    Buffer,
    Expr,
    Register,
    add,
    binary,
    const,
    idiv,
    irem,
    mul,
)
from numus.ir.statements import Stmt


@dataclass(eq=False, slots=True)
class AsyncCopy(Stmt):
    """Begin to copy a run of 16 bytes (or 4, or 8), of which the first `limit` elements exist: the
    others become zero. Both ends are aligned to it.

    Inside a lanes loop. What is copied is there after an `AsyncWait`.
    """

    target: Buffer  # scratch
    target_index: Expr
    source: Buffer
    source_index: Expr
    limit: Expr
    nbytes: int = 16


@dataclass(eq=False, slots=True)
class AsyncCommit(Stmt):
    """The copies begun since the last one belong together. Outside lanes loops."""


@dataclass(eq=False, slots=True)
class AsyncFence(Stmt):
    """What this thread has stored in scratch memory will be seen by tile products after the next
    `AsyncWait`."""


@dataclass(eq=False, slots=True)
class AsyncWait(Stmt):
    """Wait until all but the last `pending` committed sets of copies are there, in all threads.

    With a `fence`, tile products see what was copied as well as what was stored.
    """

    pending: int
    fence: bool = False


@dataclass(eq=False, slots=True)
class MmaOperand:
    """A tile in scratch memory, `depth` along k: lines of k one after the other (`along`), or lines
    of neighbours across k in blocks of 64; in runs of 8 elements, exchanged as `tile_place` says.

    A matrix whose columns lie in blocks of 64 is both: with columns as k, its `lines` lie between
    one block and the next; with rows as k, `depth` rows do.
    """

    buffer: Buffer
    start: Expr  # in elements
    k_major: bool
    lines: int = 0  # that are stored, where k goes on beyond 64


@dataclass(eq=False, slots=True)
class Wgmma(Stmt):
    """Every 128 threads begin to add 64 rows of the product of two tiles to the sums in their
    registers, which are there after a `TileWait`. Outside lanes loops.

    A left operand in registers lies there as sums do (`sum_place`), and is rounded to the dtype of
    the right one. Those that are `fresh` begin with zeros, whatever the sums held.
    """

    accumulators: list[Register]  # per lane, float32
    left: MmaOperand | list[Register]
    right: MmaOperand
    columns: int
    depth: int
    zero_init: bool = False


@dataclass(eq=False, slots=True)
class WgmmaWait(Stmt):
    """Wait until all but the last `pending` tile products into these sums are done."""

    accumulators: list[Register]
    pending: int


def accumulator_element(thread: Expr, number: int) -> tuple[Expr, Expr]:
    """The row and the column of a tile product that a thread has in its `number`-th sum: of every
    8 columns, two neighbours in each of two rows."""
    warp, lane = idiv(thread, const(32)), irem(thread, const(32))
    row = add(mul(warp, const(16)), idiv(lane, const(4)))
    column = mul(irem(lane, const(4)), const(2))
    down, across = number // 2 % 2 * 8, number // 4 * 8 + number % 2
    return add(row, const(down)), add(column, const(across))


@dataclass(eq=False, slots=True)
class TmaTensor:
    """Matrices in memory of which an engine brings tiles: 16-byte aligned lines of neighbours.

    All extents and strides are slots or constants. A line of neighbours runs along k, or across it.
    Where tiles do not follow each other along k, `at` says at which neighbour and line that of a
    slice begins (zeros lie around the matrix), by the variable `slice`, which counts those of the
    sum.
    """

    buffer: Buffer
    k_major: bool
    extents: tuple[Expr, Expr, Expr]  # neighbours, lines of them, matrices
    strides: tuple[Expr, Expr]  # from line to line and from matrix to matrix, in elements
    first: Expr  # row of A, column of B, at which the tile begins
    lines: int  # how many rows or columns it has
    matrix: Expr  # which one
    k_tile: Expr | None = None
    origin: tuple[Expr, Expr] | None = None


@dataclass(eq=False, slots=True)
class WgmmaMainloop(Stmt):
    """Every 128 of the first 256 threads add 64 rows of a product of tiles to their sums, or half
    of the columns where there are no more rows: over `slices` of TILE_BYTES along k, the first of
    which begins at `start`. Another 32 threads bring the tiles, `stages` ahead; where the kernel
    stays, those of the next tile while this one is stored. What `scratch` holds is lost. Outside
    lanes loops.
    """

    accumulators: list[Register]  # per lane, as `TileProduct` has them
    left: TmaTensor
    right: TmaTensor
    start: Expr  # in elements
    k_tiles: Expr
    stages: int
    scratch: Buffer
    zero_init: bool = (
        False  # whether it begins with zeros, whatever the sums held; there are slices
    )


@dataclass(eq=False, slots=True)
class WgmmaTile(Stmt):
    """One slice of such a sum that threads have put into `scratch` themselves, by `tile_place`: the
    rows of A first, then the columns of B. It is done when the statement is."""

    accumulators: list[Register]
    scratch: Buffer
    rows: int
    columns: int
    k_major: tuple[bool, bool]
    accumulate: Expr | None = None  # where this is 0, sums begin with zeros, whatever they held


@dataclass(eq=False, slots=True)
class MmaSync(Stmt):
    """Every 32 threads add a product of 16 rows and 8 columns to their sums. Thread t has, of line
    t / 4 (and, of A, of 8 lines on) the words t % 4 and t % 4 + 4 along k; of C two neighbours in
    each of these lines. A word is 4 bytes of elements, or a float64. Inside a lanes loop that gives
    every thread one iteration.
    """

    accumulators: list[Register]  # 4, per lane
    left: list[Expr]  # 4: lines first, then places
    right: list[Expr]  # 2
    dtype: DType  # of elements


SWIZZLE_BYTES = 128  # of a line of a tile


def pipeline_smem_elements(dtype: DType, rows: int, columns: int, stages: int) -> int:
    """Elements of scratch that a `TileSum` needs: slices, and what tells that they are there."""
    return (stages * ((rows + columns) * SWIZZLE_BYTES + 16)) // dtype.itemsize


def swizzle(along: bool, line: Expr, k: Expr, depth: int, itemsize: int) -> Expr:
    """Where the run of 16 bytes that begins at a line and a k lies in a tile: in lines of
    TILE_BYTES, whose runs are exchanged by the number of the line."""
    run, wide = const(16 // itemsize), const(SWIZZLE_BYTES // itemsize)
    eight = const(8)
    if along:
        at = binary("xor", idiv(k, run), irem(line, eight))
        return add(mul(line, wide), mul(at, run))
    at = binary("xor", idiv(irem(line, wide), run), irem(k, eight))
    block = mul(idiv(line, wide), const(SWIZZLE_BYTES // itemsize * depth))
    return add(add(block, mul(k, wide)), mul(at, run))
