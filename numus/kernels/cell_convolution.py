"""Convolution whose windows are displacements: an engine brings them as it brings any tile.

Data lies on a grid of cells, a line of channels in each, so wide that zeros follow every row and
every image. Results are counted by the same cells. Then every tap of a window lies one fixed number
of lines away from the cell it is for, before it or behind, and what falls outside of the data falls
on zeros. With a stride, every so-many-th cell is a grid of its own, a `phase`: of a tap, the
displacement tells both the phase and the cell. Cells of no result are multiplied in vain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus.compiler import ir
from numus.compiler.ir import Expr, Stmt, const
from numus.dtypes import DType, bool_, float32, uint32
from numus.kernels.slices import Sizes, corner
from numus.kernels.tile_contraction import ROWS, WORKERS, Tiles, depth_of
from numus.kernels.windows import Finish, Triple, apart, small

ZERO = const(0)
EACH = 8  # sums that a thread takes at a time
SPARE = 4  # sums between columns of the staged tile: they shift the banks


@dataclass(frozen=True, slots=True)
class Axis:
    """How windows lie along one axis of space."""

    space: int
    taps: int
    extent: int
    stride: int
    dilation: int
    low: int

    @property
    def up(self) -> int:
        """Cells that the first tap lies before its result, at most."""
        return max(0, -(-self.low // self.stride))

    @property
    def cells(self) -> int:
        """Of a phase: enough for the data and zeros behind it, and for the results."""
        hops = [(t * self.dilation - self.low) // self.stride for t in (0, self.taps - 1)]
        used = -(-self.space // self.stride)
        return max(used + max(0, -hops[0]), self.extent + max(0, hops[1]), used, self.extent)


@dataclass(slots=True)
class Cells:
    """The numbers of a launch, as expressions: of axes, from the slowest on."""

    groups: Expr
    outputs: Expr  # of a group
    blocks: Expr  # slices of a tap
    taps: Triple
    extents: Triple
    cells: Triple
    stride: Triple
    dilation: Triple
    up: Triple
    lead: Triple  # cells that the first tap lies after the `up`-th before its result, in data
    phase: Expr  # lines of a phase

    def place(self, m: Expr) -> tuple[Expr, Triple, Expr]:
        """The image and the place of a cell (32 bits), and whether it is a result's."""
        a, b, c = (small(n) for n in self.cells)
        each = ir.mul(ir.mul(a, b), c)
        at = apart(ir.irem(small(m), each), self.cells)
        inside = const(True, bool_)
        for i, n in zip(at, self.extents, strict=True):
            inside = inside & (i < small(n))
        return ir.idiv(small(m), each), at, inside

    def displaced(self, line: Expr, number: Expr) -> tuple[Expr, Expr]:
        """The block of channels of a slice, and the line that its tap displaces a line to."""
        tap, block = ir.idiv(small(number), small(self.blocks)), ir.irem(number, self.blocks)
        phase, hop, back = const(0, uint32), const(0, uint32), ZERO
        sides = zip(
            *(apart(tap, self.taps), self.cells, self.stride, self.dilation, self.up, self.lead),
            strict=True,
        )
        for t, cells, stride, dilation, up, lead in sides:
            away = ir.add(ir.mul(t, small(dilation)), small(lead))
            phase = ir.add(ir.mul(phase, small(stride)), ir.irem(away, small(stride)))
            hop = ir.add(ir.mul(hop, small(cells)), ir.idiv(away, small(stride)))
            back = ir.add(ir.mul(back, cells), up)
        line = ir.add(line, hop.cast(ir.INDEX)) - back
        return block, ir.add(line, ir.mul(phase.cast(ir.INDEX), self.phase))


@dataclass(slots=True)
class Lines:
    """Lines of neighbours one after the other, so many for each group of channels."""

    buffer: ir.Buffer
    width: Expr
    count: Expr
    all: Expr  # elements of them

    def source(
        self,
        groups: Expr,
        first: Expr,
        lines: int,
        group: Expr,
        number: Expr | None = None,
        at: tuple[Expr, Expr] | None = None,
        along: bool = True,
    ) -> ir.TileSource:
        ends = (self.width, self.count, groups)
        matrix = ZERO if groups.op == "const" else group
        strides = (self.width, self.all)
        return ir.TileSource(self.buffer, along, ends, strides, first, lines, matrix, number, at)


def convolution(
    tiles: Tiles,
    s: Sizes,
    cells: Cells,
    dtype: DType,
    g: Expr,
    data: Lines,
    weights: Lines,
    finish: Finish,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The work of group g, and its scratch. Data are lines of channels, one for each cell; weights
    lines of all taps, one for each output."""
    columns, depth = tiles.columns, depth_of(dtype)
    (which, m0, n0), out = corner(s, g, ROWS, columns)
    group, piece = ir.idiv(which, s.pieces), ir.irem(which, s.pieces)
    first = ir.mul(piece, s.slices)
    every = ir.idiv(s.k, const(depth))
    mine = ir.minimum(s.slices, every - first)
    number = ir.var("number")
    block, line = cells.displaced(m0, ir.add(first, number))
    at = (ir.mul(block, const(depth)), line)
    a = data.source(cells.groups, m0, ROWS, group, number, at)
    b = weights.source(cells.groups, n0, columns, group)
    total = Total(tiles, dtype, a, b, ir.mul(first, const(depth)), mine)
    m = ir.add(m0, total.row)
    image, (d, h, w), inside = cells.place(m)
    where = (d.cast(ir.INDEX), h.cast(ir.INDEX), w.cast(ir.INDEX))
    inside = inside & (m < s.m)

    def done(o: Expr, value: Expr) -> list[Stmt]:
        return finish(piece, group, image.cast(ir.INDEX), where, o, value)

    return [*out, *total.body(n0, cells.outputs, inside, done)], total.scratch


def correlation(
    tiles: Tiles,
    s: Sizes,
    cells: Cells,
    dtype: DType,
    g: Expr,
    data: Lines,
    weights: Lines,
    finish: Finish,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The same for windows that are larger than what slides: gradients by weights. The sum runs
    over the cells of windows, of all channels; a result's place is what displaces the data. Lines
    are of images, and of outputs; there is one for each channel and cell. Rows of the product are
    images, and there is a product for each place of a result."""
    columns, depth = tiles.columns, depth_of(dtype)
    (which, m0, n0), out = corner(s, g, ROWS, columns)
    place, piece = ir.idiv(which, s.pieces), ir.irem(which, s.pieces)
    first = ir.mul(piece, s.slices)
    every = ir.idiv(ir.add(s.k, const(depth - 1)), const(depth))
    mine = ir.minimum(s.slices, every - first)
    number = ir.var("number")
    _, line = cells.displaced(ir.mul(ir.add(first, number), const(depth)), place)
    at = (m0, line)
    a = data.source(const(1), m0, ROWS, ZERO, number, at, along=False)
    b = weights.source(const(1), n0, columns, ZERO, along=False)
    total = Total(tiles, dtype, a, b, ir.mul(first, const(depth)), mine)
    m = ir.add(m0, total.row)
    d, h, w = apart(small(place), cells.taps)
    where = (d.cast(ir.INDEX), h.cast(ir.INDEX), w.cast(ir.INDEX))

    def done(o: Expr, value: Expr) -> list[Stmt]:
        return finish(piece, ZERO, m, where, o, value)

    return [*out, *total.body(n0, cells.outputs, m < s.m, done)], total.scratch


class Total:
    """A tile of sums and its way out, by the group's memory: rows are neighbours."""

    def __init__(
        self,
        tiles: Tiles,
        dtype: DType,
        left: ir.TileSource,
        right: ir.TileSource,
        start: Expr,
        slices: Expr,
    ) -> None:
        columns = self.columns = tiles.columns
        size = const(ir.tile_scratch(dtype, ROWS, columns, tiles.stages))
        slices_ = ir.Buffer("slices", dtype, "scratch", size)
        size = const(columns * (ROWS + SPARE))
        self.stage = ir.Buffer("stage", float32, "scratch", size, over=slices_)
        self.scratch = [slices_, self.stage]
        self.sums = [ir.Register(f"c{i}", float32, lanes=True) for i in range(columns // 2)]
        self._sum = ir.TileSum(self.sums, left, right, start, slices, tiles.stages, slices_)
        self._thread = ir.var("out")
        self.row = ir.irem(self._thread, const(ROWS))  # a thread's own

    def body(
        self, n0: Expr, outputs: Expr, inside: Expr, done: Callable[[Expr, Expr], list[Stmt]]
    ) -> list[Stmt]:
        """`done(column, value)` is what becomes of a sum of the thread's row."""
        out: list[Stmt] = [ir.Set(c, const(0.0, float32)) for c in self.sums]
        out.append(self._sum)
        pitch, lane = const(ROWS + SPARE), ir.var("lay")
        lay: list[Stmt] = []
        for i, c in enumerate(self.sums):
            row, column = ir.sum_place(lane, i)
            lay.append(ir.Store(self.stage, ir.add(ir.mul(column, pitch), row), ir.read(c)))
        out.append(ir.For(lane, ZERO, const(WORKERS), "lanes", lay))
        j, turn = ir.var("columns"), ir.idiv(self._thread, const(ROWS))
        values = [ir.var(f"v{u}", float32) for u in range(EACH)]
        loads: list[Stmt] = []
        stores: list[Stmt] = []
        for u, value in enumerate(values):
            number = ir.add(ir.mul(j, const(EACH)), const(u))
            column = ir.add(ir.mul(number, const(WORKERS // ROWS)), turn)
            at = ir.add(ir.mul(column, pitch), self.row)
            loads.append(ir.Let(value, ir.load(self.stage, at)))
            o = ir.add(n0, column)
            stores.append(ir.If(o < outputs, done(o, value)))
        turns = const(self.columns * ROWS // WORKERS // EACH)
        each = ir.For(j, ZERO, turns, "serial", [*loads, *stores])
        body: list[Stmt] = [ir.If(inside, [each])]
        return [*out, ir.For(self._thread, ZERO, const(WORKERS), "lanes", body)]
