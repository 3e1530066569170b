"""Direct weight gradients (wgrad): vectors along output channels (`planes.py`).

The "window" is a whole image of cotangents and the output a few taps. Splits of the reduction are
summed by a second kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.cpu.planes import (
    ZERO,
    Task,
    Triple,
    delinearize,
    floordiv,
    load_vectors,
    mod,
    register_tile,
    volume,
)


@dataclass(slots=True)
class WgradSizes:
    """Launch arguments."""

    batch: Expr  # images of a task, at most
    images: Expr  # all of them
    out_channels: Expr  # of a group
    in_size: Triple
    out_size: Triple
    taps: Triple
    stride: Triple
    dilation: Triple
    padding_low: Triple
    block: tuple[Expr, Expr]  # rows and columns of taps
    blocks: tuple[Expr, Expr]
    row_tiles: Expr  # register tiles of a task
    image_tasks: Expr
    panels_per_task: Expr
    panel_tasks: Expr
    num_blocks: Expr  # of taps, of all channels
    blocks_per_split: Expr
    splits: Expr


def conv_wgrad(s: WgradSizes, task: Task) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Body of a task, and its scratch: `store(split, group, row, out_channel, value)` stores a
    partial sum, of linear row (image, z, y, x)."""
    return _Kernel(s, task).lower()


class _Kernel:
    def __init__(self, s: WgradSizes, task: Task) -> None:
        g, tile, dtype = task.g, task.tile, task.dtype
        self.s, self.tile, self.dtype, self.planes = s, tile, dtype, task.planes
        self.data, self.weights, self.store_partial = task.data, task.weights, task.store
        self.rows, self.columns = const(tile.rows), const(tile.columns)
        self.tile_size = const(tile.rows * tile.columns)
        self.split = g % s.splits
        linear = g // s.splits
        self.first_image = linear % s.image_tasks * s.batch
        linear = linear // s.image_tasks
        per_task = s.panels_per_task * self.columns
        self.first_channel = linear % s.panel_tasks * per_task
        self.group = linear // s.panel_tasks
        self.count = ir.minimum(s.batch, s.images - self.first_image)
        outputs = s.out_channels - self.first_channel + (self.columns - 1)
        self.panels = ir.minimum(s.panels_per_task, outputs // self.columns)
        self.pixels = volume(s.out_size)
        self.area = s.block[0] * s.block[1]  # taps of a block
        # of this block: the last ones may be smaller
        self.height, self.width = ir.var("height"), ir.var("width")

        def scratch(name: str, dtype: DType, size: Expr) -> ir.Buffer:
            return ir.Buffer(name, dtype, "scratch", size)

        self.offsets = scratch("offsets", ir.INDEX, s.row_tiles * self.rows)
        panel = self.area * s.panels_per_task
        self.packed = scratch("packed", dtype, panel * self.columns)
        tiles = s.panels_per_task * s.row_tiles
        self.acc = scratch("acc", dtype, tiles * self.tile_size)

    def lower(self) -> tuple[list[Stmt], list[ir.Buffer]]:
        s = self.s
        u = ir.var("block")
        first = self.split * s.blocks_per_split
        stop = ir.minimum(first + s.blocks_per_split, s.num_blocks)
        blocks = ir.For(u, first, stop, "serial", self._block(u))
        body = [self._table(), self._clear(), blocks, self._epilogue()]
        return body, [self.planes.buffer, self.packed, self.offsets, self.acc]

    # -- a task -----------------------------------------------------------------------------------

    def _table(self) -> Stmt:
        """Offsets of the rows of a tile; rows past the end read the first."""
        s = self.s
        row = ir.var("row")
        pixel = delinearize(row % self.pixels, s.out_size)
        displacement = [p * t for p, t in zip(pixel, s.stride, strict=True)]
        image = row // self.pixels * self.planes.channel_size
        offset = image + self.planes.offset(displacement)
        exists = row < self.count * self.pixels
        store = ir.Store(self.offsets, row, ir.select(exists, offset, ZERO))
        return ir.For(row, ZERO, s.row_tiles * self.rows, "serial", [store])

    def _clear(self) -> Stmt:
        k = ir.var("acc_k")
        size = self.panels * self.s.row_tiles * self.tile_size
        return ir.For(k, ZERO, size, "lanes", [ir.Store(self.acc, k, const(0, self.dtype))])

    def _epilogue(self) -> Stmt:
        s = self.s
        panel, r, j = (ir.var(f"out_{name}") for name in ("panel", "row", "j"))
        first = panel * s.row_tiles * self.tile_size
        value = ir.load(self.acc, first + r * self.columns + j)
        start = self.first_channel + panel * self.columns
        row = self.first_image * self.pixels + r
        store = self.store_partial(self.split, self.group, row, start + j, value)
        stop = ir.minimum(self.columns, s.out_channels - start)
        row_loop = ir.For(j, ZERO, stop, "lanes", store)
        rows = ir.For(r, ZERO, self.count * self.pixels, "serial", [row_loop])
        return ir.For(panel, ZERO, self.panels, "serial", [rows])

    # -- one block of taps ------------------------------------------------------------------------

    def _block(self, u: Expr) -> list[Stmt]:
        s = self.s
        per_channel = s.taps[0] * s.blocks[0] * s.blocks[1]
        c, kz, ky0, kx0 = (ir.var(name) for name in ("channel", "block_z", "block_y", "block_x"))
        within = mod(u, per_channel)
        lets: list[Stmt] = [
            ir.Let(c, floordiv(u, per_channel)),
            ir.Let(kz, floordiv(within, s.blocks[0] * s.blocks[1])),
            ir.Let(ky0, mod(floordiv(within, s.blocks[1]), s.blocks[0]) * s.block[0]),
            ir.Let(kx0, mod(within, s.blocks[1]) * s.block[1]),
            ir.Let(self.height, ir.minimum(s.block[0], s.taps[1] - ky0)),
            ir.Let(self.width, ir.minimum(s.block[1], s.taps[2] - kx0)),
        ]
        origin: Triple = (ir.var("origin_z"), ir.var("origin_y"), ir.var("origin_x"))
        lets += [
            ir.Let(v, k * d - low)
            for v, k, d, low in zip(origin, (kz, ky0, kx0), s.dilation, s.padding_low, strict=True)
        ]

        def read(image: Expr, *at: Expr) -> Expr:
            return self.data(self.first_image + image, self.group, c, *at)

        fill = self.planes.fill(self.count, origin, s.in_size, read)
        return [*lets, *fill, *self._pack(c, (kz, ky0, kx0)), self._multiply()]

    def _pack(self, c: Expr, first: Triple) -> list[Stmt]:
        """The weights of a block, in panels of output channels."""
        kz, ky0, kx0 = first
        panel, j, y, x = (ir.var(f"pack_{name}") for name in ("panel", "j", "y", "x"))
        tap = y * self.width + x
        to = (panel * self.area + tap) * self.columns + j
        o = self.first_channel + (panel * self.columns + j)
        o = ir.minimum(o, self.s.out_channels - 1)
        weight = self.weights(self.group, o, c, kz, ky0 + y, kx0 + x)
        store = ir.Store(self.packed, to, weight.cast(self.dtype))
        pack: list[Stmt] = [ir.For(j, ZERO, self.columns, "lanes", [store])]
        for v, stop in ((x, self.width), (y, self.height), (panel, self.panels)):
            pack = [ir.For(v, ZERO, stop, "serial", pack)]
        return pack

    def _multiply(self) -> Stmt:
        s, tile = self.s, self.tile
        panel, t, y, x = (ir.var(f"sum_{name}") for name in ("panel", "tile", "y", "x"))
        weights = panel * self.area * self.columns
        pixel_offsets = [ir.var(f"start{i}") for i in range(tile.rows)]
        names: list[Stmt] = [
            ir.Let(v, ir.load(self.offsets, t * self.rows + i)) for i, v in enumerate(pixel_offsets)
        ]

        def step(lane: Expr) -> tuple[list[Stmt], list[Expr], list[Expr]]:
            base = weights + (y * self.width + x) * self.columns
            lets, vectors = load_vectors("dy", self.packed, base + lane, tile)
            at = y * self.planes.size[2] + x
            return (lets, [ir.load(self.planes.buffer, v + at) for v in pixel_offsets], vectors)

        tile_start = (panel * s.row_tiles + t) * self.tile_size

        def where(lane: Expr, i: int, v: int) -> Expr:
            return tile_start + lane + (i * tile.columns + v * tile.width)

        taps = [(y, ZERO, self.height), (x, ZERO, self.width)]
        multiply = register_tile(tile, self.dtype, self.acc, taps, step, where)
        rows = ir.For(t, ZERO, s.row_tiles, "serial", [*names, *multiply])
        return ir.For(panel, ZERO, self.panels, "serial", [rows])
