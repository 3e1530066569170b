"""The contraction by units that multiply whole tiles, fed by an engine that copies them.

A group of 256 threads and 32 that order copies computes 128 rows of C, or 64. Operands are memory
that the engine can read: what is not is packed before (`pack`). Where the memory turns out not to
be aligned the threads fill the tiles by themselves. Sums leave through the epilogue by way of the
group's memory, in runs of neighbours. Where these are whole lines, groups stay and take one tile
after the other: slices of the next one arrive while one leaves (`tile_strips.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType, float32, int32
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import wgmma_epilogue as strips
from numus.kernels.matmul.gpu.cost_model import Way, quickest
from numus.kernels.matmul.gpu.mainloop import Sizes, corner, runs_out, zero
from numus.kernels.matmul.gpu.problem import GroupWork
from numus.target import Target

ZERO, ONE = const(0), const(1)

WORKERS = 256  # threads that multiply
THREADS = WORKERS + 32
STAYING = WORKERS + 128  # where others leave them their registers
ROWS = 128
STAGES = 8  # slices in the group's memory, at most
LEAST_STAGES = 3  # whose memory holds the sums of a tile at the end
SPARE = 8  # elements between rows of the staged tile: they shift the banks
_RESERVED = 512  # bytes of a unit's memory that a group has besides


@dataclass(slots=True)
class Operand:
    """`read(batch, line, k, mask)` is an element; lines are rows of A or columns of B.

    `source(first, lines, batch)` is a tile of it, with all of k.
    """

    read: Callable[[Expr, Expr, Expr, Expr], Expr]
    extent: Expr  # how many lines there are
    source: Callable[[Expr, int, Expr], ir.TmaTensor]
    aligned: Expr  # whether the engine can read it after all


def depth_of(dtype: DType) -> int:
    """Elements along k of a slice."""
    return ir.SWIZZLE_BYTES // dtype.itemsize


def promotes(dtype: DType) -> bool:
    """Whether sums of slices are kept by themselves before they are added up."""
    return dtype.itemsize == 1 and dtype.kind == "float"


@dataclass(frozen=True, slots=True)
class Tiles:
    """A schedule as data: columns of a tile, slices in the group's memory, rows of a tile; whether
    groups stay, and then the bytes of a line that they store at a time and how many a unit has."""

    columns: int
    stages: int
    rows: int = ROWS
    stays: bool = False
    line: int = 0
    together: int = 1

    @property
    def own(self) -> int:
        """Columns of which a warp has 16 rows."""
        return self.columns * self.rows // ROWS

    def threads(self, dtype: DType) -> int:
        """Of a group. Those whose sums leave no room for another on their unit get more registers
        from those that do not multiply."""
        sums = self.own // 2 * (2 if promotes(dtype) else 1)
        return STAYING if self.stays and sums > 64 else THREADS


# What a unit takes for a slice of one group, or of two at the same time, and what a group takes
# besides, by the rows and columns of its tiles. Those of 128 x 256 need a unit for themselves:
# nothing is multiplied while one ends and the next begins. Smaller ones share it.
_Times = dict[tuple[int, int], tuple[tuple[int, ...], int, int]]
_TIMES: _Times = {
    (128, 256): ((1250,), 8000, 0),
    (128, 128): ((850, 1600), 3500, 0),
    (128, 64): ((500, 1000), 2500, 0),
    (64, 64): ((400, 850), 2200, 0),
}
# The same of groups that stay, of 8 and 16 bits, and what comes once.
_STAYING: _Times = {
    (128, 256): ((1250,), 3300, 2500),
    (128, 128): ((700, 1250), 5000, 1000),
    (128, 64): ((500, 1000), 2000, 500),
    (64, 64): ((400, 850), 2000, 200),
}
_NARROW = (900, 1800)  # of float32, as units round it, in narrow tiles


def choose(
    target: Target, dtype: DType, shape: tuple[int, ...], k: int, *, stays: bool = False
) -> tuple[Tiles, int]:
    """Tiles (of 128 rows where groups do not stay), and into how many pieces k is cut."""
    batch, m, n = shape
    slices = -(-k // depth_of(dtype))
    ways = []
    known = _STAYING if stays and dtype is not float32 else _TIMES
    for tile, (times, begin, once) in known.items():
        if dtype is float32 and tile[1] < 256:
            times = _NARROW
        if stays and promotes(dtype) and tile == (128, 128):  # sums are kept twice: one at a time
            times, begin = times[:1], begin // 2
        groups = batch * -(-m // tile[0]) * -(-n // tile[1])
        if (stays or tile[0] == ROWS) and not (promotes(dtype) and tile[1] > 128):
            ways.append(Way(tile, groups, slices, times, begin, once=once))
    way, pieces, together = quickest(target, ways, 4 * batch * m * n)
    return fitted(target, way.tiles, together, stays=stays), pieces


def fitted(target: Target, tile: tuple[int, int], together: int, *, stays: bool) -> Tiles:
    """Tiles with as many slices ahead as there is room for, of so many groups on a unit."""
    rows, columns = tile
    size = (rows + columns) * ir.SWIZZLE_BYTES
    if not stays:
        room = (target.shared_bytes - 4096) // together
        return Tiles(columns, max(LEAST_STAGES, min(STAGES, room // size)), rows)
    line = strips.LINE if together == 1 else strips.SHORT_LINE
    room = target.shared_bytes // together - _RESERVED - strips.room(line)
    return Tiles(columns, max(2, min(STAGES, room // (size + 16))), rows, True, line, together)


def together_of(target: Target, columns: int, row_tiles: int) -> int:
    """Rows of tiles that share columns, so that what runs at the same time is about a square."""
    square = int((target.num_cores * columns / ROWS) ** 0.5)
    return max(1, min(square, row_tiles))


Work = GroupWork[Tiles, Sizes, Operand]


def contraction(work: Work, g: Expr) -> tuple[list[Stmt], list[ir.Buffer]]:
    """What group g does. The epilogue is told which piece of which batch, as one number."""
    s, dtype, left, right = work.sizes, work.dtype, work.left, work.right
    rows, columns, stages = work.tiles.rows, work.tiles.columns, work.tiles.stages
    (which, m0, n0), out = corner(s, g, rows, columns, quick=work.tiles.stays)
    depth = depth_of(dtype)
    batch, first, mine = s.piece(which, depth)
    a, b = left.source(m0, rows, batch), right.source(n0, columns, batch)
    count = ir.pipeline_smem_elements(dtype, rows, columns, stages)
    scratch = ir.Buffer("slices", dtype, "scratch", const(count))
    kind = float32 if dtype.kind == "float" else int32
    sums = [ir.Register(f"c{i}", kind, lanes=True) for i in range(work.tiles.own // 2)]
    fresh = work.tiles.stays and not promotes(dtype)
    aligned = left.aligned & right.aligned
    start = ir.mul(first, const(depth))
    total = ir.WgmmaMainloop(sums, a, b, start, mine, stages, scratch, fresh)
    out += [] if fresh else [ir.Set(c, const(0, kind)) for c in sums]
    out.append(ir.If(aligned, [total]))
    q = ir.var("slice")
    begin = ir.add(start, ir.mul(q, const(depth)))
    slow: list[Stmt] = []
    for tag, operand, tile, at in (("a", left, a, 0), ("b", right, b, rows * depth)):
        lane = ir.var(f"fill_{tag}")
        fill = _fill(lane, operand, tile, batch, begin, s.k, scratch, at)
        runs = tile.tile_mn * depth // (16 // dtype.itemsize)
        slow.append(ir.For(lane, ZERO, const(runs), "lanes", fill))
    onto = q if fresh else None
    product = ir.WgmmaTile(sums, scratch, rows, columns, (a.k_major, b.k_major), onto)
    slow += [ir.AsyncFence(), ir.AsyncWait(0), product, ir.AsyncWait(0)]
    out.append(ir.If(~aligned, [ir.For(q, ZERO, mine, "serial", slow)]))
    if work.tiles.stays:
        t = work.tiles
        shape = strips.Shape((rows, columns), t.own, t.line, (s.m, s.n))
        leaving, buffers = strips.leave(shape, kind, sums, (which, m0, n0), work.finish)
        return [*out, *leaving], [scratch, *buffers]
    stage = ir.Buffer("stage", kind, "scratch", const(rows * (columns + SPARE)), aliases=scratch)
    return [*out, *_leave(work, stage, sums, (which, m0, n0))], [scratch, stage]


def _fill(
    lane: Expr,
    operand: Operand,
    tile: ir.TmaTensor,
    batch: Expr,
    begin: Expr,
    k_size: Expr,
    scratch: ir.Buffer,
    at: int,
) -> list[Stmt]:
    """A run of 16 bytes of a tile, element by element."""
    dtype = scratch.dtype
    depth, run = depth_of(dtype), 16 // dtype.itemsize
    fast = const((depth if tile.k_major else tile.tile_mn) // run)
    slow, quick = ir.idiv(lane, fast), ir.mul(ir.irem(lane, fast), const(run))
    line, deep = (slow, quick) if tile.k_major else (quick, slow)
    to = ir.add(ir.swizzle(tile.k_major, line, deep, depth, dtype.itemsize), const(at))
    line, k = ir.add(tile.mn_offset, line), ir.add(begin, deep)
    out: list[Stmt] = []
    for u in range(run):
        here = ir.add(line, const(0 if tile.k_major else u))
        p = ir.add(k, const(u if tile.k_major else 0))
        inside = (here < operand.extent) & (p < k_size)
        value = ir.select(inside, operand.read(batch, here, p, inside), zero(dtype))
        out.append(ir.Store(scratch, ir.add(to, const(u)), value))
    return out


def _leave(
    work: Work, stage: ir.Buffer, sums: list[ir.Register], tile: tuple[Expr, Expr, Expr]
) -> list[Stmt]:
    """Sums to the group's memory, where of 64 rows and 8 columns a thread has two neighbours in
    each of two rows; from there out, in runs."""
    t = work.tiles
    pitch = const(t.columns + SPARE)
    lane = ir.var("lay")
    warp, band = ir.idiv(lane, const(32)), const(t.rows // 16)  # warps one below the other
    below, beside = (warp, ZERO) if t.rows == ROWS else (ir.irem(warp, band), ir.idiv(warp, band))
    row = ir.add(ir.mul(below, const(16)), ir.idiv(ir.irem(lane, const(32)), const(4)))
    column = ir.mul(ir.irem(lane, const(4)), const(2))
    column = ir.add(ir.mul(beside, const(t.own)), column)
    lay: list[Stmt] = []
    for i, c in enumerate(sums):
        down, across = i // 2 % 2 * 8, i // 4 * 8 + i % 2
        to = ir.add(ir.mul(ir.add(row, const(down)), pitch), column)
        lay.append(ir.Store(stage, ir.add(to, const(across)), ir.read(c)))
    out: list[Stmt] = [ir.For(lane, ZERO, const(WORKERS), "lanes", lay)]
    ends = (work.sizes.m, work.sizes.n)
    return [*out, runs_out(stage, (t.rows, t.columns), pitch, ends, tile, work.finish)]
