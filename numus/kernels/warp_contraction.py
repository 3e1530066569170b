"""The contraction by units that 32 threads drive: small products of what the threads have read.

A group of 256 threads computes a tile of C, each 32 of them a part of it; slices of A and B along k
go through the group's memory (`slices.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.ir import Expr, Stmt, const
from numus.dtypes import DType
from numus.kernels.busy import Way, quickest
from numus.kernels.group_work import GroupWork
from numus.kernels.slices import (
    RUN,
    SPARE,
    Operand,
    Shape,
    Side,
    Sizes,
    Summed,
    corner,
    pipeline,
    runs_out,
    sides,
    word_of,
)
from numus.runtime.contract import Facts

ZERO = const(0)

WARP = 32
DOWN, ACROSS = 2, 4  # how the 8 warps of a group share its tile
THREADS = DOWN * ACROSS * WARP
ROWS, COLUMNS, WORDS = 16, 8, 8  # of one product
DEPTH = 16  # words of a slice along k

# From which compute capability on there are units for a dtype.
SINCE = {
    **{dt.float16: 75, dt.bfloat16: 80, dt.float32: 80, dt.float64: 80},
    **{dt.int8: 80, dt.uint8: 80},
}


@dataclass(frozen=True, slots=True)
class Tiles:
    """A schedule as data."""

    rows: int
    columns: int
    depth: int  # words of a slice along k
    stages: int

    @property
    def own(self) -> tuple[int, int]:
        """Products of a warp, down and across."""
        return self.rows // DOWN // ROWS, self.columns // ACROSS // COLUMNS

    def shape(self, dtype: DType) -> Shape:
        spare = 32 // word_of(dtype).itemsize  # threads read 4 lines of 8: in different banks
        return Shape(dtype, self.depth, self.stages, THREADS, spare)


# What a unit takes for a slice of DEPTH words of one group, or of two at the same time, by rows and
# columns of tiles: of float64, and of what is narrower.
_WIDE_TIMES: dict[tuple[int, int], tuple[int, ...]] = {
    (128, 128): (2500,),
    (64, 256): (2870,),
    (128, 64): (1465,),
    (64, 64): (860, 1720),
    (32, 64): (545, 1040),
}
_TIMES: dict[tuple[int, int], tuple[int, ...]] = {
    (128, 128): (2350, 2500),
    (128, 64): (935, 2060),
    (64, 64): (820, 1130),
}
_BEGIN = 2500


def choose(
    facts: Facts, dtype: DType, copies: bool, batch: int, m: int, n: int, k: int
) -> tuple[Tiles, int]:
    """Tiles, and into how many pieces k is cut. Where nothing copies by itself, one slice ahead is
    as good as many."""
    word = word_of(dtype).itemsize
    slices = -(-k * dtype.itemsize // (DEPTH * word))
    found = _WIDE_TIMES if word == 8 else _TIMES
    ways = [
        Way(
            *((rows, columns), batch * -(-m // rows) * -(-n // columns), slices, times),
            begin=_BEGIN * rows // 64,
        )
        for (rows, columns), times in found.items()
    ]
    way, pieces, together = quickest(facts, ways, word * batch * m * n)
    rows, columns = way.tiles

    def room(depth: int) -> int:
        return facts.group_memory // ((rows + columns) * (depth + SPARE) * word)

    # float64 leaves room for few groups, which wait the less the deeper their slices are
    deep = word == 8 and room(2 * DEPTH) >= 3 * together
    depth = 2 * DEPTH if deep else DEPTH
    tiles = Tiles(rows, columns, depth, max(2, min(4 if copies else 2, room(depth) // together)))
    count = -(-k // tiles.shape(dtype).elements)
    return tiles, -(-count // -(-count // min(pieces, count)))


def _fragments(
    side: Side, own: int, stage: Expr, first: Expr, thread: Expr, step: int, tag: str
) -> tuple[list[Stmt], list[list[Expr]]]:
    """What a thread gives to the products of one step along k: of 16 rows four words, two lines 8
    apart at two places; of 8 columns two words."""
    height = ROWS if tag == "a" else COLUMNS
    line, word = ir.idiv(thread, const(4)), ir.irem(thread, const(4))
    out: list[Stmt] = []
    found: list[list[Expr]] = []
    for i in range(own // height):
        part: list[Expr] = []
        for j in range(2 * height // COLUMNS):
            down = i * height + (j % 2 * 8 if tag == "a" else 0)
            right = step * WORDS + (j // 2 if tag == "a" else j) * 4
            here = ir.add(ir.add(first, line), const(down))
            at = side.place(stage, here, ir.add(word, const(right)))
            name = ir.var(f"{tag}{step}_{i}_{j}", side.words.dtype)
            out.append(ir.Let(name, ir.load(side.words, at)))
            part.append(name)
        found.append(part)
    return out, found


Work = GroupWork[Tiles, Sizes, Operand]


def contraction(work: Work, g: Expr) -> tuple[list[Stmt], list[ir.Buffer]]:
    """What group g does."""
    total = summed(work.tiles, work.sizes, work.dtype, g, work.left, work.right)
    steps, stage = _leave(work, total)
    return [*total.body, *steps], [*total.scratch, stage]


def summed(
    tiles: Tiles, sizes: Sizes, dtype: DType, g: Expr, left: Operand, right: Operand
) -> Summed:
    """The sums of group g's tile: of 16 rows and 8 columns a thread has two neighbours in each of
    two rows."""
    s, t = sizes, tiles
    tile, out = corner(s, g, t.rows, t.columns)
    shape = t.shape(dtype)
    a, b, total = sides(shape, (left, right), (tile[1], tile[2]), (t.rows, t.columns))
    kind = dt.int32 if dtype.is_integer else dt.compute_dtype(dtype)
    sums = [
        [
            [ir.Register(f"c{i}_{j}_{u}", kind, lanes=True) for u in range(4)]
            for j in range(t.own[1])
        ]
        for i in range(t.own[0])
    ]
    out += [ir.Set(c, const(0, kind)) for line in sums for product in line for c in product]

    def multiply(lane: Expr, stage: Expr) -> list[Stmt]:
        warp, thread = ir.idiv(lane, const(WARP)), ir.irem(lane, const(WARP))
        own_rows, own_columns = t.rows // DOWN, t.columns // ACROSS
        first_a = ir.mul(ir.idiv(warp, const(ACROSS)), const(own_rows))
        first_b = ir.mul(ir.irem(warp, const(ACROSS)), const(own_columns))
        steps: list[Stmt] = []
        for step in range(t.depth // WORDS):
            lets_a, xs = _fragments(a, own_rows, stage, first_a, thread, step, "a")
            lets_b, ys = _fragments(b, own_columns, stage, first_b, thread, step, "b")
            steps += [*lets_a, *lets_b]
            for i, x in enumerate(xs):
                steps += [ir.WarpProduct(sums[i][j], x, y, dtype) for j, y in enumerate(ys)]
        return steps

    out += pipeline((a, b), tile[0], s, multiply)

    def place(lane: Expr, number: int) -> tuple[Expr, Expr]:
        warp, thread = ir.idiv(lane, const(WARP)), ir.irem(lane, const(WARP))
        down, right = ir.idiv(warp, const(ACROSS)), ir.irem(warp, const(ACROSS))
        i, j, u = number // 4 // t.own[1], number // 4 % t.own[1], number % 4
        row = ir.add(ir.mul(down, const(t.rows // DOWN)), ir.idiv(thread, const(4)))
        column = ir.add(
            ir.mul(right, const(t.columns // ACROSS)), ir.mul(ir.irem(thread, const(4)), const(2))
        )
        row = ir.add(row, const(i * ROWS + u // 2 * 8))
        return row, ir.add(column, const(j * COLUMNS + u % 2))

    registers = [c for line in sums for product in line for c in product]
    scratch = [a.words, a.elements]
    return Summed(out, tile, (t.rows, t.columns), THREADS, registers, place, scratch, total)


def _leave(work: Work, total: Summed) -> tuple[list[Stmt], ir.Buffer]:
    """Sums to the group's memory and from there out in runs, as many columns at a time as there is
    room for."""
    s, t = work.sizes, work.tiles
    kind, words = total.registers[0].dtype, total.scratch[0]
    room = total.words * words.dtype.itemsize
    batch, m0, n0 = total.tile
    strips = 1
    while t.rows * (t.columns // strips + RUN) * kind.itemsize > room:
        strips *= 2
    width = t.columns // strips
    pitch = const(width + RUN)
    size = const(t.rows * (width + RUN))
    stage = ir.Buffer("stage", kind, "scratch", size, over=words)
    out: list[Stmt] = []
    for strip in range(strips):
        lane = ir.var(f"lay{strip}")
        lay: list[Stmt] = []
        for number, c in enumerate(total.registers):
            row, column = total.place(lane, number)
            at = ir.add(ir.mul(row, pitch), ir.add(column, const(-strip * width)))
            lay.append(ir.Store(stage, at, ir.read(c)))
        if strips > 1:
            right = ir.irem(ir.idiv(lane, const(WARP)), const(ACROSS))
            lay = [ir.If(ir.idiv(right, const(ACROSS // strips)).eq(strip), lay)]
        out.append(ir.For(lane, ZERO, const(THREADS), "lanes", lay))
        part = (batch, m0, ir.add(n0, const(strip * width)))
        out.append(
            runs_out(stage, (t.rows, width), pitch, (s.m, s.n), part, work.finish, f"{strip}")
        )
    return out, stage
