"""Winograd F(4×4, 3×3) on CPU vectors (Lavin & Gray 2016): vectors along channels.

A block of tiles stays in cache from the input transform to the epilogue: its tiles enter the
Winograd domain as 36 matrices of tiles × input channels, each of which is multiplied by a panel of
transformed filters, and the products are transformed back to the panel's output channels.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.common.register_transpose import transpose_registers
from numus.kernels.conv.cpu import planes
from numus.kernels.conv.cpu.channel_panels import ChannelPanels
from numus.kernels.conv.cpu.planes import ZERO, Read, Task, Tile, Triple
from numus.kernels.conv.winograd import (
    INPUT_TILE,
    MATRICES,
    OUTPUT_TILE,
    filter_transform,
    input_transform,
    output_transform,
    transformed,
)

PACK_CHANNELS = 8  # input channels of a task that transforms filters

Pair = tuple[Expr, Expr]


@dataclass(slots=True, kw_only=True)
class WinogradSizes:
    """Launch arguments. Blocks and tiles are of an image's planes; images are along z."""

    in_channels: Expr  # of a group
    out_channels: Expr
    in_size: Triple
    out_size: Triple
    padding_low: Triple
    block: Triple  # images, and tiles down and across
    tiles: Triple  # images, and tiles of an image
    tile_rows: Expr  # tiles of a block, in whole register tiles
    channel_pitch: Expr  # from tile to tile of the input's matrices
    input_matrix: Expr  # elements
    output_matrix: Expr
    k_block: Expr  # input channels whose filters stay in L1
    panels: Expr  # of output channels
    panels_per_task: Expr
    panel_tasks: Expr
    blocks: Pair  # along images, and down an image


def transform_filters(
    s: WinogradSizes, tile: Tile, dtype: DType, packed: ir.Buffer, g: Expr, weights: Read
) -> list[Stmt]:
    """Filters of a panel and some input channels, packed as [panel][matrix][k][out_channel]."""
    c, j, columns = ir.var("filter_c"), ir.var("filter_j"), const(tile.columns)
    chunks = (s.in_channels + (PACK_CHANNELS - 1)) // PACK_CHANNELS
    panels, first = g // chunks, g % chunks * PACK_CHANNELS
    group, panel = panels // s.panels, panels % s.panels
    # columns past the last output channel repeat it: their results are not stored
    o = ir.minimum(panel * columns + j, s.out_channels - 1)
    body: list[Stmt] = []

    def load(y: int, x: int) -> Expr:
        return weights(group, o, c, ZERO, const(y), const(x)).cast(dtype)

    found = transformed(body, filter_transform(3), load, dtype)
    for i, value in enumerate(found):
        at = ((panels * MATRICES + i) * s.in_channels + c) * columns + j
        body.append(ir.Store(packed, at, value))
    lanes = ir.For(j, ZERO, columns, "lanes", body)
    stop = ir.minimum(first + PACK_CHANNELS, s.in_channels)
    return [ir.For(c, first, stop, "serial", [lanes])]


class WinogradKernel:
    """A task: a block of tiles × panels of output channels. Filters are `packed`."""

    def __init__(
        self, s: WinogradSizes, task: Task, packed: ir.Buffer, prefetch_lines: int
    ) -> None:
        self.prefetch_lines = prefetch_lines
        self.s, self.task, self.planes, self.packed = s, task, task.planes, packed
        self.tile, self.dtype = task.tile, task.dtype
        self.width, self.columns = const(task.tile.width), const(task.tile.columns)
        blocks = s.blocks[0] * s.blocks[1]
        self.block, panel_task = task.g % blocks, task.g // blocks % s.panel_tasks
        self.group = task.g // (s.panel_tasks * blocks)
        self.first_panel = panel_task * s.panels_per_task
        self.last_panel = ir.minimum(self.first_panel + s.panels_per_task, s.panels)
        # Outputs beyond the right and lower edges are stored before those that own their places.
        row, plane = s.out_size[2], s.block[1] * OUTPUT_TILE * s.out_size[2]
        beyond = (row + 1) * OUTPUT_TILE
        self.outputs = ChannelPanels(task, row, plane, s.block[0] * plane + beyond)
        self.pixels = planes.volume(self.planes.size)

        def scratch(name: str, dtype: DType, size: Expr) -> ir.Buffer:
            return ir.Buffer(name, dtype, "scratch", size)

        self.channels_last = scratch(
            "channels_last", self.dtype, self.planes.channel_size * self.width
        )
        self.inputs = scratch("inputs", self.dtype, s.input_matrix * MATRICES)
        self.products = scratch("products", self.dtype, s.output_matrix * MATRICES)
        self.acc = scratch("acc", self.dtype, self.outputs.size)
        self.input_offsets = scratch("input_offsets", ir.INDEX, s.tile_rows)
        self.acc_offsets = scratch("acc_offsets", ir.INDEX, s.tile_rows)
        self.scratch = [self.planes.buffer, self.channels_last, self.inputs, self.products]
        self.scratch += [self.acc, self.outputs.transposed, self.input_offsets, self.acc_offsets]

    def body(self) -> list[Stmt]:
        return [*self._tables(), *self._block()]

    def _tables(self) -> list[Stmt]:
        """Offsets of the tiles of a block. Those on the right come first: see `outputs`."""
        s, row = self.s, ir.Register("tile_row", ir.INDEX)
        z, y, x = planes.triple_vars("tile_")
        index, from_left = ir.var("tile_index"), s.block[2] - 1 - x
        y0, x0 = y * OUTPUT_TILE, from_left * OUTPUT_TILE
        acc = z * self.outputs.plane + y0 * self.outputs.row + x0
        body: list[Stmt] = [
            ir.Let(index, ir.read(row)),
            ir.Store(self.input_offsets, index, self.planes.offset([z, y0, x0]) * self.width),
            ir.Store(self.acc_offsets, index, acc * self.columns),
            ir.Set(row, index + 1),
        ]
        return [ir.Set(row, ZERO), *planes.loop_nest(body, *zip((z, y, x), s.block, strict=True))]

    def _block(self) -> list[Stmt]:
        s, panel = self.s, ir.var("panel")
        z0, y0 = ir.var("block_z"), ir.var("block_y")
        depth, down = ir.var("depth"), ir.var("tiles_down")
        self.count = ir.var("tiles")
        lets: list[Stmt] = [
            ir.Let(z0, self.block // s.blocks[1] * s.block[0]),
            ir.Let(y0, self.block % s.blocks[1] * s.block[1]),
            ir.Let(depth, ir.minimum(s.block[0], s.tiles[0] - z0)),
            ir.Let(down, ir.minimum(s.block[1], s.tiles[1] - y0)),
            ir.Let(self.count, depth * down * s.tiles[2]),
        ]
        top = y0 * OUTPUT_TILE
        height = ir.minimum(s.block[1] * OUTPUT_TILE, s.out_size[1] - top)
        origin = (z0, top - s.padding_low[1], ZERO - s.padding_low[2])
        shape = (s.out_channels, s.out_size[1])
        stores = self.outputs.epilogue(
            *(self.acc, ZERO, panel, (ZERO, self.group), (z0, top), (depth, height), shape)
        )
        body = [*self._multiply(panel), *self._output_transform(), *stores]
        panels = ir.For(panel, self.first_panel, self.last_panel, "serial", body)
        return [*lets, *self._input_transform(origin), panels]

    # -- into the Winograd domain -----------------------------------------------------------------

    def _input_transform(self, origin: Triple) -> list[Stmt]:
        """A vector of channels at a time: padded planes, transposed, transformed tile by tile."""
        s, c0, t, j = self.s, ir.var("input_c"), ir.var("input_tile"), ir.var("input_lane")
        row = self.planes.size[2]

        def read(a: Expr, z: Expr, y: Expr, x: Expr) -> Expr:
            return self.task.data(ZERO, self.group, c0 + a, z, y, x)

        fill = self.planes.fill(ir.minimum(self.width, s.in_channels - c0), origin, s.in_size, read)
        at = ir.load(self.input_offsets, t) + j

        def load(y: int, x: int) -> Expr:
            return ir.load(self.channels_last, at + (row * y + x) * self.width)

        body: list[Stmt] = []
        found = transformed(body, input_transform(), load, self.dtype)
        to = t * s.channel_pitch + c0 + j
        body += [ir.Store(self.inputs, s.input_matrix * i + to, v) for i, v in enumerate(found)]
        tiles = planes.loop_nest([self._vector(j, body)], (t, self.count))
        return [
            ir.For(
                c0,
                ZERO,
                s.in_channels,
                "serial",
                [*fill, *self._transpose(), *tiles],
                step=self.width,
            )
        ]

    def _transpose(self) -> list[Stmt]:
        """Planes of a vector of channels to channels-last."""
        p, j, size = ir.var("pixel"), ir.var("pixel_lane"), self.planes.channel_size
        rows = [ir.load(self.planes.buffer, size * k + p + j) for k in range(self.tile.width)]
        body, columns = transpose_registers(rows, j, self.dtype)
        for k, value in enumerate(columns):
            body.append(ir.Store(self.channels_last, (p + k) * self.width + j, value))
        return [ir.For(p, ZERO, self.pixels, "serial", [self._vector(j, body)], step=self.width)]

    def _vector(self, lane: Expr, body: list[Stmt]) -> ir.For:
        return ir.For(lane, ZERO, self.width, "lanes", body, width=self.tile.width)

    # -- products ---------------------------------------------------------------------------------

    def _multiply(self, panel: Expr) -> list[Stmt]:
        """36 products of tiles × input channels × the output channels of a panel."""
        s, tile = self.s, self.tile
        i, k0, t, k = (ir.var(f"product_{name}") for name in ("matrix", "k0", "tile", "k"))
        starts = [ir.var(f"start{r}") for r in range(tile.rows)]
        # rows past the last tile repeat it: their results are not read
        names = [
            ir.Let(v, s.input_matrix * i + ir.minimum(t + r, self.count - 1) * s.channel_pitch)
            for r, v in enumerate(starts)
        ]
        matrix = (self.group * s.panels + panel) * MATRICES + i

        stop = ir.minimum(k0 + s.k_block, s.in_channels)

        def step(lane: Expr) -> planes.Factors:
            at = (matrix * s.in_channels + k) * self.columns + lane
            lets, vectors = planes.load_vectors("filters", self.packed, at, tile)
            ahead = (matrix * s.in_channels + stop) * self.columns
            lets += planes.prefetch_weights(
                *(self.packed, ahead, tile, self.prefetch_lines, t, k - k0, stop - k0)
            )
            return lets, [ir.load(self.inputs, v + k) for v in starts], vectors

        def index(lane: Expr, r: int, v: int) -> Expr:
            return s.output_matrix * i + (t + r) * self.columns + (lane + v * tile.width)

        def finish(lane: Expr, acc: planes.Registers) -> list[Stmt]:
            at = [(index(lane, *x), c) for x, c in acc.items()]
            first: list[Stmt] = [ir.Store(self.products, to, ir.read(c)) for to, c in at]
            add = planes.add_to(self.products, index)(lane, acc)
            return [ir.If(k0.eq(ZERO), first), ir.If(k0 > ZERO, add)]

        multiply = planes.register_tile(tile, self.dtype, [(k, k0, stop)], step, finish)
        tiles = ir.For(t, ZERO, self.count, "serial", [*names, *multiply], step=const(tile.rows))
        blocks = ir.For(k0, ZERO, s.in_channels, "serial", [tiles], step=s.k_block)
        return planes.loop_nest([blocks], (i, const(MATRICES)))

    # -- out of the Winograd domain ---------------------------------------------------------------

    def _output_transform(self) -> list[Stmt]:
        s, t, v, j = self.s, ir.var("output_tile"), ir.var("output_vector"), ir.var("output_lane")
        start = v * self.width + j
        at, to = t * self.columns + start, ir.load(self.acc_offsets, t) + start

        def load(y: int, x: int) -> Expr:
            return ir.load(self.products, s.output_matrix * (y * INPUT_TILE + x) + at)

        body: list[Stmt] = []
        found = transformed(body, output_transform(OUTPUT_TILE), load, self.dtype)
        for i, value in enumerate(found):
            y, x = divmod(i, OUTPUT_TILE)
            body.append(ir.Store(self.acc, to + (self.outputs.row * y + x) * self.columns, value))
        loops = ((t, self.count), (v, const(self.tile.vectors)))
        return planes.loop_nest([self._vector(j, body)], *loops)
