"""The contraction by plain arithmetic of 4-byte numbers that the target copies by itself.

A group computes a tile of C, slices of A and B go through its memory (`slices.py`), and each thread
keeps a tile of sums in registers, as large as they allow: what it reads from the group's memory
serves the more multiplications. Each element of C is one running sum over k, as in
`group_contraction.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus.compiler import ir
from numus.compiler.ir import Expr, Stmt, const
from numus.dtypes import DType
from numus.kernels.busy import Way, quickest
from numus.kernels.group_work import GroupWork
from numus.kernels.slices import (
    Operand,
    Parts,
    Run,
    Shape,
    Side,
    Sizes,
    Summed,
    corner,
    pipeline,
    runs_out,
    sides,
    woven,
)
from numus.runtime.contract import Facts

ZERO = const(0)

WARP = 32
DEPTH = 16  # of a slice
STAGES = 3
RUN = 4  # neighbours that a thread reads at a time, and steps along k of a part
PAIR = 2  # rows of a thread that take turns: each product waits for the one before
SPARE = 8  # elements between rows of the staged tile


@dataclass(frozen=True, slots=True)
class Tiles:
    """A schedule as data."""

    rows: int
    columns: int
    own_rows: int  # of a thread's tile
    own_columns: int

    @property
    def down(self) -> int:
        """Threads along the rows."""
        return self.rows // self.own_rows

    @property
    def across(self) -> int:
        return self.columns // self.own_columns

    @property
    def threads(self) -> int:
        return self.down * self.across


# What a unit takes for a slice of one group, of two at the same time, and so on.
_TIMES = {
    Tiles(128, 128, 8, 16): (3000, 5600),
    Tiles(256, 64, 8, 16): (3200, 6000),
    Tiles(64, 256, 8, 16): (3200, 5900),
    Tiles(64, 128, 8, 8): (1750, 3000),
    Tiles(128, 64, 8, 8): (1700, 3000),
    Tiles(64, 64, 8, 4): (1100, 1900, 2450),
}
_BEGIN = 2500


def choose(facts: Facts, batch: int, m: int, n: int, k: int) -> tuple[Tiles, int]:
    """Tiles, and into how many pieces k is cut."""
    slices = -(-k // DEPTH)
    ways = [
        Way(t, batch * -(-m // t.rows) * -(-n // t.columns), slices, times, _BEGIN)
        for t, times in _TIMES.items()
    ]
    way, pieces, _ = quickest(facts, ways, 4 * batch * m * n)
    return way.tiles, pieces


class _Side:
    """An operand as threads read it: runs of neighbours, along k or across it."""

    def __init__(self, side: Side, own: int, lanes: int, tag: str) -> None:
        self.side, self.own, self.lanes, self.tag = side, own, lanes, tag

    def line(self, lane: Expr, number: int) -> Expr:
        """Which line of the tile a thread's `number`-th is. What lies across k is read in runs of
        lines; of what lies along k, neighbouring lines belong to neighbouring threads."""
        if self.side.operand.along:
            return ir.add(lane, const(number * self.lanes))
        offset = number // RUN * (self.lanes * RUN) + number % RUN
        return ir.add(ir.mul(lane, const(RUN)), const(offset))

    def read(self, part: Expr, lane: Expr, stage: Expr, tag: str, numbers: range) -> list[Run]:
        """Begin to read some of a thread's lines, RUN steps along k of each."""
        side, runs = self.side, []
        places = [(i, k) for i in numbers for k in range(RUN)]
        if not side.operand.along:
            places.sort(key=lambda place: (place[0] // RUN, place[1]))
        origin = side.place(ZERO, ZERO, ZERO)
        first = side.place(stage, self.line(lane, 0), ir.mul(part, const(RUN)))
        for at in range(0, len(places), RUN):
            run: Run = []
            for i, k in places[at : at + RUN]:
                away = side.place(ZERO, self.line(ZERO, i), const(k)) - origin
                value = ir.load(side.words, ir.add(first, away))
                run.append(ir.Let(self.name(tag, k, i), value, ahead=True))
            runs.append(run)
        return runs

    def freed(self, number: int, runs: list[Run]) -> list[Run]:
        """Those of the runs for the next part for which there is room after a line's products."""
        if self.side.operand.along:
            return runs[number : number + 1]
        return runs[number + 1 - RUN : number + 1] if number % RUN == RUN - 1 else []

    def name(self, tag: str, step: int, number: int) -> Expr:
        return ir.var(f"{tag}{self.tag}{step}_{number}", self.side.words.dtype)


def _spread(t: Tiles, lane: Expr) -> tuple[Expr, Expr]:
    """Where a thread's tile is among those of the group: 8 x 4 or 4 x 8 of them are a warp's.
    Neighbouring threads read the same columns, their neighbours the same rows: what half of a warp
    reads is then one access."""
    width = min(8, t.across)
    warp, thread = ir.idiv(lane, const(WARP)), ir.irem(lane, const(WARP))
    warps = const(t.across // width)
    right = ir.irem(ir.idiv(thread, const(2)), const(width))
    down = ir.add(ir.mul(ir.idiv(thread, const(2 * width)), const(2)), ir.irem(thread, const(2)))
    return (
        ir.add(ir.mul(ir.idiv(warp, warps), const(WARP // width)), down),
        ir.add(ir.mul(ir.irem(warp, warps), const(width)), right),
    )


Work = GroupWork[Tiles, Sizes, Operand]


def contraction(work: Work, g: Expr) -> tuple[list[Stmt], list[ir.Buffer]]:
    """What group g does."""
    total = summed(work.tiles, work.sizes, work.dtype, g, work.left, work.right)
    return total.then(*_leave(work, total))


def summed(
    tiles: Tiles, sizes: Sizes, dtype: DType, g: Expr, left: Operand, right: Operand
) -> Summed:
    """The sums of group g's tile, row by row of a thread's own."""
    s, t = sizes, tiles
    tile, out = corner(s, g, t.rows, t.columns)
    shape = Shape(dtype, DEPTH, STAGES, t.threads, RUN)
    near_a, near_b, words = sides(shape, (left, right), (tile[1], tile[2]), (t.rows, t.columns))
    a, b = _Side(near_a, t.own_rows, t.down, "a"), _Side(near_b, t.own_columns, t.across, "b")
    sums = [
        [ir.Register(f"c{i}_{j}", dtype, lanes=True) for j in range(t.own_columns)]
        for i in range(t.own_rows)
    ]
    out += [ir.Set(c, const(0, dtype)) for row in sums for c in row]
    blocks = [range(j, j + RUN) for j in range(0, t.own_columns, RUN)]

    def read(part: Expr, lane: Expr, stage: Expr, tag: str) -> list[Run]:
        down, right_lane = _spread(t, lane)
        rows = a.read(part, down, stage, tag, range(t.own_rows))
        return [*rows, *b.read(part, right_lane, stage, tag, blocks[0])]

    def multiply(part: Expr, lane: Expr, stage: Expr, ahead: list[Run]) -> list[Stmt]:
        """By blocks of columns: what the next block needs is on its way meanwhile. In the last one,
        rows make room for those of the next part as soon as they are done."""
        body: list[Stmt] = []
        rows, columns = ahead[: t.own_rows], ahead[t.own_rows :]
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            right_lane = _spread(t, lane)[1]
            runs = b.read(part, right_lane, stage, "", after) if after else columns
            products: list[Stmt] = []
            for i in range(0, t.own_rows, PAIR):
                for k in range(RUN):
                    for row in range(i, i + PAIR):
                        for j in block:
                            c = sums[row][j]
                            x, y, old = a.name("", k, row), b.name("", k, j), ir.read(c)
                            new = ir.fma(x, y, old) if dtype.kind == "float" else old + x * y
                            products.append(ir.Set(c, new))
                if after is None:
                    for row in range(i, i + PAIR):
                        products += [let for run in a.freed(row, rows) for let in run]
            body += woven(products, runs)
        return body

    # the code of one part is what the caches for instructions hold
    parts = Parts(DEPTH // RUN, read, multiply, "serial")
    out += pipeline((near_a, near_b), tile[0], s, parts)

    def place(lane: Expr, number: int) -> tuple[Expr, Expr]:
        i, j = divmod(number, t.own_columns)
        down, right_lane = _spread(t, lane)
        return a.line(down, i), b.line(right_lane, j)

    registers = [c for row in sums for c in row]
    scratch = [near_a.words, near_a.elements]
    return Summed(out, tile, (t.rows, t.columns), t.threads, registers, place, scratch, words)


def _leave(work: Work, total: Summed) -> tuple[list[Stmt], ir.Buffer]:
    """Sums to the group's memory, as many rows at a time as lie together there, and out in runs."""
    s, t = work.sizes, work.tiles
    which, m0, n0 = total.tile
    height = RUN * t.down
    pitch = const(t.columns + SPARE)
    dtype = total.registers[0].dtype
    size = const(height * (t.columns + SPARE))
    stage = ir.Buffer("stage", dtype, "scratch", size, over=total.scratch[0])
    out: list[Stmt] = []
    for strip in range(t.own_rows // RUN):
        lane = ir.var(f"lay{strip}")
        lay: list[Stmt] = []
        for j in range(t.own_columns):
            for i in range(strip * RUN, strip * RUN + RUN):
                number = i * t.own_columns + j
                row, column = total.place(lane, number)
                at = ir.add(ir.mul(ir.add(row, const(-strip * height)), pitch), column)
                lay.append(ir.Store(stage, at, ir.read(total.registers[number])))
        out.append(ir.For(lane, ZERO, const(t.threads), "lanes", lay))
        part = (which, ir.add(m0, const(strip * height)), n0)
        shape = (height, t.columns)
        out.append(runs_out(stage, shape, pitch, (s.m, s.n), part, work.finish, f"{strip}"))
    return out, stage
