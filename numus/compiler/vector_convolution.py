"""Convolutions where threads are lanes of a vector: products whose columns are windows of the data.

Data are laid out once with channels as neighbours, in whole runs, and with the zeros around and
between them, so that every tap of a window is a displacement and a run along k is a run in memory.
Rows of the product are outputs, and columns are places, as results lie.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.convolution_parts import Geometry, epilogue
from numus.compiler.elements import regroup
from numus.compiler.emit import Emitter, Step
from numus.compiler.groups import Group
from numus.compiler.ir import Expr, Stmt, const
from numus.compiler.laying import Laid, in_memory, padded, permuted, reshaped
from numus.compiler.local import Val
from numus.kernels import vector_contraction as vectors
from numus.kernels.vector_contraction import RUN
from numus.runtime.contract import Facts
from numus.shapes import Shape, row_major, size_of

ZERO = const(0)

LONGEST = 1 << 16  # products of one sum
LARGEST = 1 << 31  # elements that can be counted in 32 bits


def fits_vector_convolution(product: Val, g: Geometry, facts: Facts) -> bool:
    """Whether a convolution is for these kernels."""
    if not facts.lockstep or dt.compute_dtype(product.dtype) is not dt.float32:
        return False
    channels = _whole(g.channels)
    sizes = (g.batch * g.groups * size_of(_padded(g)), g.groups * g.outputs * size_of(g.taps))
    fits = max(*(n * channels for n in sizes), product.size) < LARGEST
    return fits and channels * size_of(g.taps) <= LONGEST


def lower_vector_convolution(
    group: Group, g: Geometry, layouts: dict[Val, Shape], facts: Facts
) -> list[Step]:
    """Data and weights as the product wants them, then that product."""
    product = group.members[0]
    outer = group.outside(layouts)
    data, first = _data(product.inputs[0], g, outer, facts)
    weights, second = _weights(product.inputs[1], g, outer, facts)
    tiles = vectors.Tiles(facts.lockstep)
    e = Emitter(
        {**outer, data: row_major(data.shape), weights: row_major(weights.shape)}, group=tiles.lanes
    )
    places = size_of(g.extents)
    # tiles within one image store along its places; small images share tiles
    by_image = places % tiles.columns == 0 or places >= 2 * tiles.columns
    images, columns = (g.batch, places) if by_image else (1, g.batch * places)
    row_tiles, column_tiles = -(-g.outputs // tiles.rows), -(-columns // tiles.columns)
    sizes = vectors.Sizes(
        *(e.number(n) for n in (g.outputs, columns, 1)),
        *(e.parameter(n) for n in (1, row_tiles, column_tiles)),
    )
    windows = _Windows(e, g, data, by_image)
    steps = e.number(size_of(g.taps) * windows.runs)
    last = ir.sub(sizes.m, const(1))

    def row(t: Expr, o: Expr) -> Expr:
        """Where the weights of an output begin, in runs."""
        return ir.mul(ir.add(ir.mul(windows.group(t), sizes.m), ir.minimum(o, last)), steps)

    def run_of(buffer: ir.Buffer, at: Expr) -> list[Expr]:
        first = ir.mul(at, const(RUN))
        return [ir.load(buffer, ir.add(first, const(c))) for c in range(RUN)]

    def never(*_: Expr) -> Expr:
        raise AssertionError("channels come in whole runs")

    buffers = e.buffer(data), e.buffer(weights)
    left = vectors.Operand(True, never, lambda t, at, k: run_of(buffers[1], ir.add(at, k)), row)
    right = vectors.Operand(
        True, never, lambda t, at, k: run_of(buffers[0], ir.add(at, windows.away)), windows.start
    )

    def finish(t: Expr, o: Expr, column: Expr, value: Expr) -> list[Stmt]:
        e.forget()
        image, *at = windows.place(t, column)
        output = ir.add(ir.mul(windows.group(t), sizes.m), o) if g.groups > 1 else o
        return epilogue(e, group, (image, output, *at[5 - len(product.shape) :]), value)

    number = ir.var("g")
    work = vectors.Work(tiles, sizes, dt.float32, left, right, finish, light=False)
    body, e.scratch = vectors.contraction(work, number, rest=False, walk=windows.walk)
    grid = images * g.groups * row_tiles * column_tiles
    return [*first, *second, e.blocks("vector_convolution", number, body, grid, group.notes)]


class _Windows:
    """What lies where in data of the shape (batch, groups, depth, height, width, channels)."""

    def __init__(self, e: Emitter, g: Geometry, data: Val, by_image: bool) -> None:
        self.e, self.g, self.by_image = e, g, by_image
        self.runs = data.shape[-1] // RUN
        self.strides = [n // RUN for n in row_major(data.shape)[:-1]]  # in runs
        self.away = ir.var("away")  # of a tap and its channels from the first
        self.taps = [ir.var(f"tap{i}") for i in range(3)]

    def group(self, t: Expr) -> Expr:
        if self.g.groups == 1:
            return ZERO
        return ir.irem(t, self.e.number(self.g.groups)) if self.by_image else t

    def place(self, t: Expr, column: Expr) -> tuple[Expr, ...]:
        """The image of a column, and its place there."""
        e, g = self.e, self.g
        places = size_of(g.extents)
        shape: Shape = (places,) if self.by_image else (g.batch, *g.extents)
        total = places if self.by_image else g.batch * places
        e.extents[column] = e.number(total)
        if self.by_image:
            image = ir.idiv(t, e.number(g.groups)) if g.groups > 1 else t
            return (image, *regroup(e, (column,), shape, g.extents))
        return regroup(e, (column,), (total,), shape)

    def start(self, t: Expr, column: Expr) -> Expr:
        """Where the window of a column begins, in runs; of columns that there are not, some."""
        e, g = self.e, self.g
        places = size_of(g.extents) * (1 if self.by_image else g.batch)
        image, *at = self.place(t, ir.minimum(column, ir.sub(e.number(places), const(1))))
        total = ir.mul(image, e.number(self.strides[0]))
        total = ir.add(total, ir.mul(self.group(t), e.number(self.strides[1])))
        for i, step, stride in zip(at, g.stride, self.strides[2:], strict=True):
            total = ir.add(total, ir.mul(i, e.number(step * stride)))
        return total

    def walk(self, block: vectors.Block) -> list[Stmt]:
        """Loops over the taps, and over the channels of each."""
        e, g = self.e, self.g
        c = ir.var("c")
        away, number = c, ZERO
        for tap, extent, step, stride in zip(
            self.taps, g.taps, g.dilation, self.strides[2:], strict=True
        ):
            away = ir.add(away, ir.mul(tap, e.number(step * stride)))
            number = ir.add(ir.mul(number, e.number(extent)), tap)
        number = ir.add(ir.mul(number, e.number(self.runs)), c)
        body: list[Stmt] = [ir.Let(self.away, away), *block(number)]
        body = [ir.For(c, ZERO, e.parameter(self.runs), "serial", body)]
        for tap, extent in reversed(list(zip(self.taps, g.taps, strict=True))):
            if extent == 1:
                body = [ir.Let(tap, ZERO), *body]
            else:
                body = [ir.For(tap, ZERO, e.parameter(extent), "serial", body)]
        return body


def _whole(channels: int) -> int:
    return -(-channels // RUN) * RUN


def _padded(g: Geometry) -> Shape:
    """What windows go over, with all that is zero."""
    reached = zip(g.extents, g.stride, g.taps, g.dilation, strict=True)
    return tuple((n - 1) * s + (k - 1) * d + 1 for n, s, k, d in reached)


def _laid(
    name: int,
    v: Val,
    split: Shape,
    shape: Shape,
    low: Shape,
    gap: Shape,
    layouts: dict[Val, Shape],
    facts: Facts,
) -> Laid:
    """An operand with channels as neighbours, and with zeros before, between and after."""
    v = permuted(reshaped(v, *split), 0, 1, 3, 4, 5, 2)
    between = (0, 0, *(n - 1 for n in gap), 0)
    v = padded(v, shape, (0, 0, *low, 0), between)
    return in_memory(name, v, layouts, facts, dt.float32)


def _data(x: Val, g: Geometry, layouts: dict[Val, Shape], facts: Facts) -> Laid:
    split = (g.batch, g.groups, g.channels, *g.space)
    shape = (g.batch, g.groups, *_padded(g), _whole(g.channels))
    return _laid(-50, x, split, shape, g.low, g.gap, layouts, facts)


def _weights(w: Val, g: Geometry, layouts: dict[Val, Shape], facts: Facts) -> Laid:
    split = (g.groups, g.outputs, g.channels, *g.taps)
    shape = (g.groups, g.outputs, *g.taps, _whole(g.channels))
    return _laid(-60, w, split, shape, (0, 0, 0), (1, 1, 1), layouts, facts)
