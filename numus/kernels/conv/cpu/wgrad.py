"""Convolutions whose window is larger than their result: vectors run along outputs.

Gradients by weights are of this kind: the "window" is a whole image of cotangents, the result a few
taps. See `kernels/convolution.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.cpu.planes import (
    ONE,
    ZERO,
    Task,
    Triple,
    digits,
    product,
    quotient,
    register_tile,
    rest,
)


@dataclass(slots=True)
class Gathering:
    """The numbers of a launch, as expressions."""

    batch: Expr  # images whose planes a task has, at most
    images: Expr  # all of them
    outputs: Expr  # of a group
    space: Triple
    extents: Triple  # of the result
    taps: Triple
    stride: Triple
    dilation: Triple
    low: Triple
    block: tuple[Expr, Expr]  # rows and columns of taps in a block
    blocks: tuple[Expr, Expr]
    row_tiles: Expr  # register tiles that the rows of a task take
    image_tasks: Expr
    task_panels: Expr
    output_tasks: Expr
    units: Expr  # blocks of taps of all channels
    part_units: Expr
    parts: Expr


def gathering(s: Gathering, task: Task) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The work of a task: `finish(part, group, row, output, value)` stores the sum of one part for
    row (image, z, y, x), a running number.
    """
    return _Schedule(s, task).written()


class _Schedule:
    def __init__(self, s: Gathering, task: Task) -> None:
        g, tile, dtype = task.g, task.tile, task.dtype
        self.s, self.tile, self.dtype, self.planes = s, tile, dtype, task.planes
        self.data, self.weights, self.finish = task.data, task.weights, task.finish
        self.rows, self.columns = const(tile.rows), const(tile.columns)
        self.tile_size = const(tile.rows * tile.columns)
        self.part = ir.irem(g, s.parts)
        number = ir.idiv(g, s.parts)
        self.first_image = ir.mul(ir.irem(number, s.image_tasks), s.batch)
        number = ir.idiv(number, s.image_tasks)
        per_task = ir.mul(s.task_panels, self.columns)
        self.first_output = ir.mul(ir.irem(number, s.output_tasks), per_task)
        self.group = ir.idiv(number, s.output_tasks)
        self.count = ir.minimum(s.batch, ir.sub(s.images, self.first_image))
        outputs = ir.add(ir.sub(s.outputs, self.first_output), ir.sub(self.columns, ONE))
        self.panels = ir.minimum(s.task_panels, ir.idiv(outputs, self.columns))
        self.places = product(s.extents)
        self.area = ir.mul(s.block[0], s.block[1])  # taps of a block
        # a block's size: the last ones may be smaller
        self.height, self.width = ir.var("height"), ir.var("width")

        def scratch(name: str, dtype: DType, size: Expr) -> ir.Buffer:
            return ir.Buffer(name, dtype, "scratch", size)

        self.offsets = scratch("offsets", ir.INDEX, ir.mul(s.row_tiles, self.rows))
        panel = ir.mul(self.area, s.task_panels)
        self.packed = scratch("packed", dtype, ir.mul(panel, self.columns))
        tiles = ir.mul(s.task_panels, s.row_tiles)
        self.sums = scratch("sums", dtype, ir.mul(tiles, self.tile_size))

    def written(self) -> tuple[list[Stmt], list[ir.Buffer]]:
        """The statements of a task, and the memory it needs."""
        s = self.s
        u = ir.var("unit")
        first = ir.mul(self.part, s.part_units)
        stop = ir.minimum(ir.add(first, s.part_units), s.units)
        blocks = ir.For(u, first, stop, "serial", self._block(u))
        body = [self._table(), self._blank(), blocks, self._results()]
        return body, [self.planes.buffer, self.packed, self.offsets, self.sums]

    # -- once per task ----------------------------------------------------------------------------

    def _table(self) -> Stmt:
        """Where each row of the tile begins; rows that do not exist read the first place."""
        s = self.s
        row = ir.var("row")
        place = digits(ir.irem(row, self.places), s.extents)
        reached = [ir.mul(p, t) for p, t in zip(place, s.stride, strict=True)]
        image = ir.mul(ir.idiv(row, self.places), self.planes.size)
        offset = ir.add(image, self.planes.offset(reached))
        exists = row < ir.mul(self.count, self.places)
        store = ir.Store(self.offsets, row, ir.select(exists, offset, ZERO))
        return ir.For(row, ZERO, ir.mul(s.row_tiles, self.rows), "serial", [store])

    def _blank(self) -> Stmt:
        k = ir.var("sums_k")
        size = ir.mul(ir.mul(self.panels, self.s.row_tiles), self.tile_size)
        return ir.For(k, ZERO, size, "lanes", [ir.Store(self.sums, k, const(0, self.dtype))])

    def _results(self) -> Stmt:
        """What the part came to."""
        s = self.s
        panel, r, j = (ir.var(f"out_{name}") for name in ("panel", "row", "j"))
        first = ir.mul(ir.mul(panel, s.row_tiles), self.tile_size)
        value = ir.load(self.sums, ir.add(ir.add(first, ir.mul(r, self.columns)), j))
        start = ir.add(self.first_output, ir.mul(panel, self.columns))
        row = ir.add(ir.mul(self.first_image, self.places), r)
        store = self.finish(self.part, self.group, row, ir.add(start, j), value)
        stop = ir.minimum(self.columns, ir.sub(s.outputs, start))
        line = ir.For(j, ZERO, stop, "lanes", store)
        lines = ir.For(r, ZERO, ir.mul(self.count, self.places), "serial", [line])
        return ir.For(panel, ZERO, self.panels, "serial", [lines])

    # -- one block of taps ------------------------------------------------------------------------

    def _block(self, u: Expr) -> list[Stmt]:
        s = self.s
        per_channel = ir.mul(ir.mul(s.taps[0], s.blocks[0]), s.blocks[1])
        c, kz, ky0, kx0 = (ir.var(name) for name in ("channel", "block_z", "block_y", "block_x"))
        within = rest(u, per_channel)
        decode: list[Stmt] = [
            ir.Let(c, quotient(u, per_channel)),
            ir.Let(kz, quotient(within, ir.mul(s.blocks[0], s.blocks[1]))),
            ir.Let(ky0, ir.mul(rest(quotient(within, s.blocks[1]), s.blocks[0]), s.block[0])),
            ir.Let(kx0, ir.mul(rest(within, s.blocks[1]), s.block[1])),
            ir.Let(self.height, ir.minimum(s.block[0], ir.sub(s.taps[1], ky0))),
            ir.Let(self.width, ir.minimum(s.block[1], ir.sub(s.taps[2], kx0))),
        ]
        origin: Triple = (ir.var("origin_z"), ir.var("origin_y"), ir.var("origin_x"))
        decode += [
            ir.Let(v, ir.sub(ir.mul(k, d), low))
            for v, k, d, low in zip(origin, (kz, ky0, kx0), s.dilation, s.low, strict=True)
        ]

        def read(image: Expr, *at: Expr) -> Expr:
            return self.data(ir.add(self.first_image, image), self.group, c, *at)

        fill = self.planes.fill(self.count, origin, s.space, read)
        return [*decode, *fill, *self._pack(c, (kz, ky0, kx0)), self._products()]

    def _pack(self, c: Expr, first: Triple) -> list[Stmt]:
        """The weights of a block, panel by panel of outputs."""
        kz, ky0, kx0 = first
        panel, j, y, x = (ir.var(f"pack_{name}") for name in ("panel", "j", "y", "x"))
        tap = ir.add(ir.mul(y, self.width), x)
        to = ir.add(ir.mul(ir.add(ir.mul(panel, self.area), tap), self.columns), j)
        o = ir.add(self.first_output, ir.add(ir.mul(panel, self.columns), j))
        o = ir.minimum(o, ir.sub(self.s.outputs, ONE))
        weight = self.weights(self.group, o, c, kz, ir.add(ky0, y), ir.add(kx0, x))
        store = ir.Store(self.packed, to, weight.cast(self.dtype))
        pack: list[Stmt] = [ir.For(j, ZERO, self.columns, "lanes", [store])]
        for v, stop in ((x, self.width), (y, self.height), (panel, self.panels)):
            pack = [ir.For(v, ZERO, stop, "serial", pack)]
        return pack

    def _products(self) -> Stmt:
        s, tile = self.s, self.tile
        panel, t, y, x = (ir.var(f"sum_{name}") for name in ("panel", "tile", "y", "x"))
        weights = ir.mul(ir.mul(panel, self.area), self.columns)
        starts = [ir.var(f"start{i}") for i in range(tile.rows)]
        names: list[Stmt] = [
            ir.Let(v, ir.load(self.offsets, ir.add(ir.mul(t, self.rows), const(i))))
            for i, v in enumerate(starts)
        ]

        def step(lane: Expr) -> tuple[list[Stmt], list[Expr], list[Expr]]:
            lets: list[Stmt] = []
            vectors = []
            base = ir.add(weights, ir.mul(ir.add(ir.mul(y, self.width), x), self.columns))
            for v in range(tile.vectors):
                name = ir.var(f"outputs{v}", self.dtype)
                where = ir.add(ir.add(base, lane), const(v * tile.width))
                lets.append(ir.Let(name, ir.load(self.packed, where)))
                vectors.append(name)
            at = ir.add(ir.mul(y, self.planes.extents[2]), x)
            return lets, [ir.load(self.planes.buffer, ir.add(v, at)) for v in starts], vectors

        home = ir.mul(ir.add(ir.mul(panel, s.row_tiles), t), self.tile_size)

        def where(lane: Expr, i: int, v: int) -> Expr:
            return ir.add(ir.add(home, lane), const(i * tile.columns + v * tile.width))

        taps = [(y, ZERO, self.height), (x, ZERO, self.width)]
        multiply = register_tile(tile, self.dtype, self.sums, taps, step, where)
        rows = ir.For(t, ZERO, s.row_tiles, "serial", [*names, *multiply])
        return ir.For(panel, ZERO, self.panels, "serial", [rows])
