"""Direct weight gradients (wgrad): vectors along output channels (`planes.py`).

The "window" is a whole image of cotangents and the output a few taps. Splits of the reduction are
summed by a second kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.cpu import planes
from numus.kernels.conv.cpu.planes import ZERO, Task, Triple, floordiv, loop_nest, mod


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


class WgradKernel:
    """Partial sums go to `store(split, group, row, out_channel, value)`, of linear row
    (image, z, y, x)."""

    def __init__(self, s: WgradSizes, task: Task) -> None:
        g, tile, dtype = task.g, task.tile, task.dtype
        self.s, self.task, self.tile, self.dtype, self.planes = s, task, tile, dtype, task.planes
        self.rows, self.columns = const(tile.rows), const(tile.columns)
        self.tile_size = const(tile.rows * tile.columns)
        self.split, rest = g % s.splits, g // s.splits
        self.first_image, rest = rest % s.image_tasks * s.batch, rest // s.image_tasks
        self.first_channel = rest % s.panel_tasks * (s.panels_per_task * self.columns)
        self.group = rest // s.panel_tasks
        self.count = ir.minimum(s.batch, s.images - self.first_image)
        outputs = s.out_channels - self.first_channel + (self.columns - 1)
        self.panels = ir.minimum(s.panels_per_task, outputs // self.columns)
        self.pixels = planes.volume(s.out_size)
        self.area = s.block[0] * s.block[1]  # taps of a block
        # of this block: the last ones may be smaller
        self.height, self.width = ir.var("height"), ir.var("width")

        def scratch(name: str, dtype: DType, size: Expr) -> ir.Buffer:
            return ir.Buffer(name, dtype, "scratch", size)

        self.offsets = scratch("offsets", ir.INDEX, s.row_tiles * self.rows)
        self.packed = scratch("packed", dtype, self.area * s.panels_per_task * self.columns)
        self.acc = scratch("acc", dtype, s.panels_per_task * s.row_tiles * self.tile_size)
        self.scratch = [self.planes.buffer, self.packed, self.offsets, self.acc]

    def body(self) -> list[Stmt]:
        s, u = self.s, ir.var("block")
        first = self.split * s.blocks_per_split
        stop = ir.minimum(first + s.blocks_per_split, s.num_blocks)
        blocks = ir.For(u, first, stop, "serial", self._block(u))
        k, size = ir.var("acc_k"), self.panels * s.row_tiles * self.tile_size
        clear = ir.For(k, ZERO, size, "lanes", [ir.Store(self.acc, k, const(0, self.dtype))])
        return [*self._table(), clear, blocks, *self._epilogue()]

    def _table(self) -> list[Stmt]:
        """Offsets of the rows of a tile; rows past the end read the first."""
        s, row = self.s, ir.var("row")
        pixel = planes.delinearize(row % self.pixels, s.out_size)
        displacement = [p * t for p, t in zip(pixel, s.stride, strict=True)]
        image = row // self.pixels * self.planes.channel_size
        offset = image + self.planes.offset(displacement)
        offset = ir.select(row < self.count * self.pixels, offset, ZERO)
        return loop_nest([ir.Store(self.offsets, row, offset)], (row, s.row_tiles * self.rows))

    def _epilogue(self) -> list[Stmt]:
        panel, r, j = (ir.var(f"out_{name}") for name in ("panel", "row", "j"))
        first = panel * self.s.row_tiles * self.tile_size
        value = ir.load(self.acc, first + r * self.columns + j)
        start = self.first_channel + panel * self.columns
        row = self.first_image * self.pixels + r
        store = self.task.store(self.split, self.group, row, start + j, value)
        stop = ir.minimum(self.columns, self.s.out_channels - start)
        columns = ir.For(j, ZERO, stop, "lanes", store)
        return loop_nest([columns], (panel, self.panels), (r, self.count * self.pixels))

    # -- one block of taps ------------------------------------------------------------------------

    def _block(self, u: Expr) -> list[Stmt]:
        s = self.s
        per_channel = s.taps[0] * s.blocks[0] * s.blocks[1]
        c, first, origin = (
            ir.var("channel"),
            planes.triple_vars("block_"),
            planes.triple_vars("origin_"),
        )
        block = mod(u, per_channel)
        lets: list[Stmt] = [
            ir.Let(c, floordiv(u, per_channel)),
            ir.Let(first[0], floordiv(block, s.blocks[0] * s.blocks[1])),
            ir.Let(first[1], mod(floordiv(block, s.blocks[1]), s.blocks[0]) * s.block[0]),
            ir.Let(first[2], mod(block, s.blocks[1]) * s.block[1]),
            ir.Let(self.height, ir.minimum(s.block[0], s.taps[1] - first[1])),
            ir.Let(self.width, ir.minimum(s.block[1], s.taps[2] - first[2])),
        ]
        for v, k, d, low in zip(origin, first, s.dilation, s.padding_low, strict=True):
            lets.append(ir.Let(v, k * d - low))

        def read(image: Expr, *at: Expr) -> Expr:
            return self.task.data(self.first_image + image, self.group, c, *at)

        fill = self.planes.fill(self.count, origin, s.in_size, read)
        return [*lets, *fill, *self._pack(c, *first), *self._multiply()]

    def _pack(self, c: Expr, kz: Expr, ky0: Expr, kx0: Expr) -> list[Stmt]:
        """The weights of a block, in panels of output channels."""
        panel, j, y, x = (ir.var(f"pack_{name}") for name in ("panel", "j", "y", "x"))
        to = (panel * self.area + (y * self.width + x)) * self.columns + j
        o = self.first_channel + (panel * self.columns + j)
        o = ir.minimum(o, self.s.out_channels - 1)
        weight = self.task.weights(self.group, o, c, kz, ky0 + y, kx0 + x)
        store = ir.Store(self.packed, to, weight.cast(self.dtype))
        columns = ir.For(j, ZERO, self.columns, "lanes", [store])
        return loop_nest([columns], (panel, self.panels), (y, self.height), (x, self.width))

    def _multiply(self) -> list[Stmt]:
        s, tile = self.s, self.tile
        panel, t, y, x = (ir.var(f"sum_{name}") for name in ("panel", "tile", "y", "x"))
        starts = [ir.var(f"start{i}") for i in range(tile.rows)]
        names = [ir.Let(v, ir.load(self.offsets, t * self.rows + i)) for i, v in enumerate(starts)]

        def step(lane: Expr) -> planes.Factors:
            base = panel * self.area * self.columns + (y * self.width + x) * self.columns
            lets, vectors = planes.load_vectors("dy", self.packed, base + lane, tile)
            at = y * self.planes.size[2] + x
            return lets, [ir.load(self.planes.buffer, v + at) for v in starts], vectors

        def index(lane: Expr, i: int, v: int) -> Expr:
            start = (panel * s.row_tiles + t) * self.tile_size
            return start + lane + (i * tile.columns + v * tile.width)

        taps = [(y, ZERO, self.height), (x, ZERO, self.width)]
        multiply = planes.register_tile(
            tile, self.dtype, taps, step, planes.add_to(self.acc, index)
        )
        return loop_nest([*names, *multiply], (panel, self.panels), (t, s.row_tiles))
