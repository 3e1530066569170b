"""The contraction by units that 32 threads drive: small products of what the threads have read.

A group of threads computes a tile of C, each 32 of them a part of it; slices of A and B along k go
through the group's memory (`slices.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.cost_model import Way, quickest
from numus.kernels.matmul.gpu.mainloop import (
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
from numus.kernels.matmul.gpu.mainloop_interleaved import Steps, woven_pipeline
from numus.kernels.matmul.gpu.problem import GroupWork
from numus.target import Target

ZERO = const(0)

WARP = 32
ROWS, COLUMNS, WORDS = 16, 8, 8  # of one product
DEPTH = 16  # words of a slice along k

# Element types that there are tensor cores for; `Target.mma` says which a device has.
MMA_DTYPES = (dt.float16, dt.bfloat16, dt.float32, dt.float64, dt.int8, dt.uint8)


@dataclass(frozen=True, slots=True)
class Tiles:
    """A schedule as data."""

    rows: int
    columns: int
    depth: int  # words of a slice along k
    stages: int
    down: int  # how the warps of a group share its tile
    across: int
    woven: bool  # whether copies are spread among the products

    @property
    def threads(self) -> int:
        return self.down * self.across * WARP

    @property
    def part(self) -> tuple[int, int]:
        """Rows and columns of a warp."""
        return self.rows // self.down, self.columns // self.across

    def shape(self, dtype: DType) -> Shape:
        spare = 32 // word_of(dtype).itemsize  # threads read 4 lines of 8: in different banks
        return Shape(dtype, self.depth, self.stages, self.threads, spare)


# What a unit takes for a slice of DEPTH words of one group, or of two at the same time, by rows and
# columns of tiles and of warps: of float64, and of what is narrower.
_Times = dict[tuple[int, int, int, int, bool], tuple[int, ...]]
_WIDE_TIMES: _Times = {
    (128, 128, 2, 4, False): (2500,),
    (64, 256, 2, 4, False): (2870,),
    (128, 64, 2, 4, False): (1465,),
    (64, 64, 2, 4, False): (860, 1720),
    (32, 64, 2, 4, False): (545, 1040),
}
_WOVEN_TIMES: _Times = {  # the same where copies are woven into the products
    (128, 128, 2, 4, True): (2350,),
    (128, 64, 2, 2, True): (1940, 2640),
    (64, 64, 2, 2, True): (670, 1210, 2060),
    (32, 64, 2, 4, False): (545, 1040),
}
_TIMES: _Times = {
    (128, 128, 2, 4, False): (2350, 2500),
    (128, 64, 2, 4, False): (935, 2060),
    (64, 64, 2, 4, False): (820, 1130),
}
_BEGIN, _WOVEN_BEGIN = 2500, 10000  # what a group of 64 rows, or of 64 x 64 sums, takes besides


def choose(
    target: Target,
    dtype: DType,
    copies: bool,
    batch: int,
    m: int,
    n: int,
    k: int,
    weaves: bool = False,
) -> tuple[Tiles, int]:
    """Tiles, and into how many pieces k is cut. Where nothing copies by itself, one slice ahead is
    as good as many. `weaves`: whether operands can be copied among the products."""
    word = word_of(dtype).itemsize
    slices = -(-k * dtype.itemsize // (DEPTH * word))
    found = _TIMES if word < 8 else _WOVEN_TIMES if weaves else _WIDE_TIMES

    def begin(rows: int, columns: int, woven: bool) -> int:
        return _WOVEN_BEGIN * rows * columns // 64**2 if woven else _BEGIN * rows // 64

    ways = [
        Way(
            *(which, batch * -(-m // which[0]) * -(-n // which[1]), slices, times),
            begin(*which[:2], which[-1]),
        )
        for which, times in found.items()
    ]
    way, pieces, together = quickest(target, ways, word * batch * m * n)
    rows, columns, down, across, woven = way.tiles

    def room(depth: int) -> int:
        return target.shared_bytes // ((rows + columns) * (depth + SPARE) * word)

    # float64 leaves room for few groups, which wait the less the deeper their slices are
    deep = word == 8 and room(2 * DEPTH) >= 3 * together
    depth = 2 * DEPTH if deep else DEPTH
    stages = max(2, min(4 if copies else 2, room(depth) // together))
    tiles = Tiles(rows, columns, depth, stages, down, across, woven)
    count = -(-k // tiles.shape(dtype).elements)
    return tiles, -(-count // -(-count // min(pieces, count)))


def _fragments(
    side: Side, own: int, stage: Expr, first: Expr, thread: Expr, step: int, height: int, tag: str
) -> list[ir.Let]:
    """What a thread gives to the products of one step along k: of 16 rows four words, two lines 8
    apart at two places; of 8 columns two words."""
    line, word = ir.idiv(thread, const(4)), ir.irem(thread, const(4))
    out: list[ir.Let] = []
    for i in range(own // height):
        for j in range(2 * height // COLUMNS):
            down = i * height + (j % 2 * 8 if height == ROWS else 0)
            right = step * WORDS + (j // 2 if height == ROWS else j) * 4
            here = ir.add(ir.add(first, line), const(down))
            at = side.place(stage, here, ir.add(word, const(right)))
            out.append(ir.Let(_name(tag, step, i, j, side.words.dtype), ir.load(side.words, at)))
    return out


def _name(tag: str, step: int, product: int, number: int, dtype: DType) -> Expr:
    return ir.var(f"{tag}{step}_{product}_{number}", dtype)


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
            for j in range(t.part[1] // COLUMNS)
        ]
        for i in range(t.part[0] // ROWS)
    ]
    out += [ir.Set(c, const(0, kind)) for line in sums for product in line for c in product]

    def read(step: int, lane: Expr, stage: Expr, tag: str) -> list[ir.Let]:
        warp, thread = ir.idiv(lane, const(WARP)), ir.irem(lane, const(WARP))
        first_a = ir.mul(ir.idiv(warp, const(t.across)), const(t.part[0]))
        first_b = ir.mul(ir.irem(warp, const(t.across)), const(t.part[1]))
        return [
            *_fragments(a, t.part[0], stage, first_a, thread, step, ROWS, f"{tag}a"),
            *_fragments(b, t.part[1], stage, first_b, thread, step, COLUMNS, f"{tag}b"),
        ]

    def multiply(step: int, tag: str) -> list[Stmt]:
        word = a.words.dtype
        found: list[Stmt] = []
        for i, line in enumerate(sums):
            x = [_name(f"{tag}a", step, i, u, word) for u in range(2 * ROWS // COLUMNS)]
            for j, c in enumerate(line):
                y = [_name(f"{tag}b", step, j, u, word) for u in range(2)]
                found.append(ir.MmaSync(c, x, y, dtype))
        return found

    def in_turn(lane: Expr, stage: Expr) -> list[Stmt]:
        body: list[Stmt] = []
        for step in range(t.depth // WORDS):
            body += [*read(step, lane, stage, ""), *multiply(step, "")]
        return body

    if t.woven:
        out += woven_pipeline((a, b), tile[0], s, Steps(t.depth // WORDS, read, multiply))
    else:
        out += pipeline((a, b), tile[0], s, in_turn)

    def place(lane: Expr, number: int) -> tuple[Expr, Expr]:
        warp, thread = ir.idiv(lane, const(WARP)), ir.irem(lane, const(WARP))
        down, right = ir.idiv(warp, const(t.across)), ir.irem(warp, const(t.across))
        (i, j), u = divmod(number // 4, t.part[1] // COLUMNS), number % 4
        row = ir.add(ir.mul(down, const(t.part[0])), ir.idiv(thread, const(4)))
        column = ir.add(
            ir.mul(right, const(t.part[1])), ir.mul(ir.irem(thread, const(4)), const(2))
        )
        row = ir.add(row, const(i * ROWS + u // 2 * 8))
        return row, ir.add(column, const(j * COLUMNS + u % 2))

    registers = [c for line in sums for product in line for c in product]
    scratch = [a.words, a.elements]
    return Summed(out, tile, (t.rows, t.columns), t.threads, registers, place, scratch, total)


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
    stage = ir.Buffer("stage", kind, "scratch", size, aliases=words)
    out: list[Stmt] = []
    for strip in range(strips):
        lane = ir.var(f"lay{strip}")
        lay: list[Stmt] = []
        for number, c in enumerate(total.registers):
            row, column = total.place(lane, number)
            at = ir.add(ir.mul(row, pitch), ir.add(column, const(-strip * width)))
            lay.append(ir.Store(stage, at, ir.read(c)))
        if strips > 1:
            right = ir.irem(ir.idiv(lane, const(WARP)), const(t.across))
            lay = [ir.If(ir.idiv(right, const(t.across // strips)).eq(strip), lay)]
        out.append(ir.For(lane, ZERO, const(t.threads), "lanes", lay))
        part = (batch, m0, ir.add(n0, const(strip * width)))
        shape, run = (t.rows, width), 16 // kind.itemsize if t.woven else RUN
        out.append(runs_out(stage, shape, pitch, (s.m, s.n), part, work.finish, f"{strip}", run))
    return out, stage
