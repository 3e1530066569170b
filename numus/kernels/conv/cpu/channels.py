"""Direct convolution, NCHWc: vectors along output channels (`planes.py`).

No vector is wasted on padding or small images, strides cost nothing, and the phases of transposed
convolutions meet before anything is stored; outputs are transposed in the epilogue. The reduction
is blocked so that the weights of a block stay in L1 while all pixels pass by.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.common.register_transpose import transpose_registers
from numus.kernels.conv.cpu.planes import (
    ZERO,
    Read,
    Task,
    Tile,
    Triple,
    delinearize,
    floordiv,
    load_vectors,
    mod,
    register_tile,
    volume,
)
from numus.kernels.conv.cpu.taps import TapSizes, for_each_tap

TRANSPOSE_PIXELS = 256  # of a transposed chunk


@dataclass(slots=True, kw_only=True)
class ChannelSizes(TapSizes):
    """Launch arguments; blocks are of whole rows."""

    blocks: tuple[Expr, Expr]  # along z and y
    k_block: Expr
    panels: Expr  # of output channels


def pack_weights(
    s: ChannelSizes, tile: Tile, dtype: DType, packed: ir.Buffer, g: Expr, weights: Read
) -> list[Stmt]:
    """Panel g of the weights of all groups and phases: [k][out_channel]."""
    columns = const(tile.columns)
    phases = volume(s.lhs_dilation)
    panel, phase = g % s.panels, mod(g // s.panels, phases)
    group = g // (s.panels * phases)
    j = ir.var("pack_j")
    # columns past the last output channel repeat it: their results are not stored
    o = ir.minimum(panel * columns + j, s.out_channels - 1)

    def pack(c: Expr, taps: Triple, _: list[Expr], index: Expr) -> list[Stmt]:
        to = (g * s.k_size + index) * columns + j
        store = ir.Store(packed, to, weights(group, o, c, *taps).cast(dtype))
        return [ir.For(j, ZERO, columns, "lanes", [store])]

    return for_each_tap(s, phase, ir.Register("k_index", ir.INDEX), pack)


def conv_channels(
    s: ChannelSizes, task: Task, packed: ir.Buffer
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Body of a task, and its scratch: `store(n, group, out_channel, z, yx, value)`, where `yx` is
    a linear index. Weights are `packed`."""
    return _Kernel(s, task, packed).lower()


class _Kernel:
    def __init__(self, s: ChannelSizes, task: Task, packed: ir.Buffer) -> None:
        g, tile, dtype = task.g, task.tile, task.dtype
        self.s, self.tile, self.dtype, self.planes = s, tile, dtype, task.planes
        self.data, self.packed, self.store_output = task.data, packed, task.store
        self.columns = const(tile.columns)
        self.group = g // (s.panel_tasks * s.block_tasks)
        panel_task = g // s.block_tasks % s.panel_tasks
        self.first_panel = panel_task * s.panels_per_task
        self.last_panel = ir.minimum(self.first_panel + s.panels_per_task, s.panels)
        self.first_block = g % s.block_tasks * s.blocks_per_task
        self.phases = volume(s.lhs_dilation)
        self.phase = ir.var("phase")
        self.phase_at = delinearize(self.phase, s.lhs_dilation)
        # outputs of a block, all phases: rows, and planes of rows
        self.row = s.out_size[2]
        self.plane = s.block[1] * s.lhs_dilation[1] * self.row
        self.pixels = s.block[0] * s.lhs_dilation[0] * self.plane
        # whole vectors of pixels are transposed; rows of a tile past the end go behind them
        self.padding_row = self.pixels + tile.width
        self.panel_size = (self.padding_row + 1) * self.columns
        self.acc = ir.Buffer("acc", dtype, "scratch", s.panels_per_task * self.panel_size)
        columns_out = const(tile.width * _pitch(tile))
        self.transposed = ir.Buffer("transposed", dtype, "scratch", columns_out)
        self.offsets = ir.Buffer("offsets", ir.INDEX, "scratch", self.phases * s.k_size)
        self.k_counts = ir.Buffer("k_counts", ir.INDEX, "scratch", self.phases)
        rows = volume(s.block) + tile.rows
        self.pixel_offsets = ir.Buffer("pixel_offsets", ir.INDEX, "scratch", rows)
        self.acc_offsets = ir.Buffer("acc_offsets", ir.INDEX, "scratch", rows)

    def lower(self) -> tuple[list[Stmt], list[ir.Buffer]]:
        s = self.s
        u = ir.var("block")
        stop = ir.minimum(self.first_block + s.blocks_per_task, s.num_blocks)
        body = [*self._tables(), ir.For(u, self.first_block, stop, "serial", self._block(u))]
        buffers = [self.planes.buffer, self.acc, self.transposed]
        return body, [*buffers, self.offsets, self.k_counts, self.pixel_offsets, self.acc_offsets]

    def _tables(self) -> list[Stmt]:
        """Offsets of all taps of all channels from a pixel."""
        k_index = ir.Register("k_index", ir.INDEX)
        table = self.phase * self.s.k_size

        def body(c: Expr, _: Triple, displacement: list[Expr], index: Expr) -> list[Stmt]:
            offset = c * self.planes.channel_size + self.planes.offset(displacement)
            return [ir.Store(self.offsets, table + index, offset)]

        taps = for_each_tap(self.s, self.phase, k_index, body)
        count = ir.Store(self.k_counts, self.phase, ir.read(k_index))
        return [ir.For(self.phase, ZERO, self.phases, "serial", [*taps, count])]

    # -- one block --------------------------------------------------------------------------------

    def _block(self, u: Expr) -> list[Stmt]:
        s = self.s
        n = ir.var("image")
        first: Triple = (ir.var("block_z"), ir.var("block_y"), ZERO)
        per_image = ir.mul(*s.blocks)
        linear = mod(u, per_image)
        at = (floordiv(linear, s.blocks[1]), mod(linear, s.blocks[1]))
        lets: list[Stmt] = [ir.Let(n, floordiv(u, per_image))]
        origin: list[Expr] = []
        for axis in range(3):
            if axis < 2:
                lets.append(ir.Let(first[axis], at[axis] * s.block[axis]))
            origin.append(ir.var(f"origin_{'zyx'[axis]}"))
            start = first[axis] * s.stride[axis] + s.tap_origin[axis]
            lets.append(ir.Let(origin[axis], start))
        fill = self.planes.fill(
            s.in_channels,
            (origin[0], origin[1], origin[2]),
            s.in_size,
            lambda c, *at: self.data(n, self.group, c, *at),
        )
        k = ir.var("clear")
        clear = ir.For(
            k,
            ZERO,
            (self.last_panel - self.first_panel) * self.panel_size,
            "lanes",
            [ir.Store(self.acc, k, const(0, self.dtype))],
        )
        phases = ir.For(self.phase, ZERO, self.phases, "serial", self._phase(first))
        return [*lets, *fill, clear, phases, *self._epilogue(n, first)]

    def _phase(self, first: Triple) -> list[Stmt]:
        """All accumulators of one phase of a block."""
        s, rows = self.s, const(self.tile.rows)
        row = ir.Register("row", ir.INDEX)
        count = ir.var("rows")
        k0, panel, t = ir.var("k_start"), ir.var("panel"), ir.var("tile")
        entries = ir.load(self.k_counts, self.phase)
        k1 = ir.minimum(k0 + s.k_block, entries)
        tiles = ir.For(t, ZERO, count, "serial", self._multiply(panel, t, k0, k1), step=rows)
        panels = ir.For(panel, self.first_panel, self.last_panel, "serial", [tiles])
        return [
            *self._rows(first, row),
            ir.Let(count, ir.read(row)),
            ir.For(k0, ZERO, entries, "serial", [panels], step=s.k_block),
        ]

    def _rows(self, first: Triple, row: ir.Register) -> list[Stmt]:
        """Input and accumulator offsets of each pixel of a phase."""
        s = self.s
        q: Triple = (ir.var("row_z"), ir.var("row_y"), ir.var("row_x"))
        start = self.planes.offset([i * t for i, t in zip(q, s.stride, strict=True)])
        z, y, x = (i * d + r for i, d, r in zip(q, s.lhs_dilation, self.phase_at, strict=True))
        acc_offset = z * self.plane + y * self.row + x
        index = ir.var("row_index")
        body: list[Stmt] = [
            ir.Let(index, ir.read(row)),
            ir.Store(self.pixel_offsets, index, start),
            ir.Store(self.acc_offsets, index, acc_offset * self.columns),
            ir.Set(row, ir.read(row) + 1),
        ]
        for axis in (2, 1, 0):
            dilation = s.lhs_dilation[axis]
            remaining = s.out_size[axis] - self.phase_at[axis] + (dilation - 1)
            stop = ir.minimum(s.block[axis], floordiv(remaining, dilation) - first[axis])
            body = [ir.For(q[axis], ZERO, stop, "serial", body)]
        extra = ir.var("row_extra")
        past_end_at = ir.read(row) + extra
        past_end: list[Stmt] = [
            ir.Store(self.pixel_offsets, past_end_at, ZERO),
            ir.Store(self.acc_offsets, past_end_at, self.padding_row * self.columns),
        ]
        return [
            ir.Set(row, ZERO),
            *body,
            ir.For(extra, ZERO, const(self.tile.rows), "serial", past_end),
        ]

    def _multiply(self, panel: Expr, t: Expr, k0: Expr, k1: Expr) -> list[Stmt]:
        s, tile, k = self.s, self.tile, ir.var("k_index")
        linear = self.group * self.phases + self.phase
        linear = linear * s.panels + panel
        row0 = linear * s.k_size
        table = self.phase * s.k_size
        pixel_offsets = [ir.var(f"start{i}") for i in range(tile.rows)]
        names: list[Stmt] = [
            ir.Let(v, ir.load(self.pixel_offsets, t + i)) for i, v in enumerate(pixel_offsets)
        ]

        def step(lane: Expr) -> tuple[list[Stmt], list[Expr], list[Expr]]:
            base = (row0 + k) * self.columns + lane
            lets, vectors = load_vectors("weights", self.packed, base, tile)
            at = ir.load(self.offsets, table + k)
            return (lets, [ir.load(self.planes.buffer, v + at) for v in pixel_offsets], vectors)

        first = (panel - self.first_panel) * self.panel_size

        def acc_offset(lane: Expr, i: int, v: int) -> Expr:
            row_offset = ir.load(self.acc_offsets, t + i)
            return first + row_offset + lane + v * tile.width

        return [*names, *register_tile(tile, self.dtype, self.acc, [(k, k0, k1)], step, acc_offset)]

    def _epilogue(self, n: Expr, first: Triple) -> list[Stmt]:
        """Epilogue of a block: transposed, a vector of output channels at a time."""
        s, tile = self.s, self.tile
        width, chunk = const(tile.width), const(TRANSPOSE_PIXELS)
        panel, v, z, x0 = (ir.var(f"out_{name}") for name in ("panel", "vector", "z", "x0"))
        p, j, i, x = (ir.var(f"out_{name}") for name in ("pixel", "lane", "i", "x"))
        z0, y0 = (first[axis] * s.lhs_dilation[axis] for axis in (0, 1))
        depth, height = (
            ir.minimum(s.block[axis] * s.lhs_dilation[axis], s.out_size[axis] - start)
            for axis, start in ((0, z0), (1, y0))
        )
        area = height * self.row
        x1 = ir.minimum(x0 + chunk, area)
        base = (panel - self.first_panel) * self.panel_size
        base = base + v * width + j
        at = z * self.plane + p
        rows = [ir.load(self.acc, base + (at + k) * self.columns) for k in range(tile.width)]
        lets, columns_out = transpose_registers(rows, j, self.dtype)
        pitch = const(_pitch(tile))
        index = p - x0 + j
        stores = [
            ir.Store(self.transposed, k * pitch + index, value)
            for k, value in enumerate(columns_out)
        ]
        vector = ir.For(j, ZERO, width, "lanes", [*lets, *stores], width=tile.width)
        transpose = ir.For(p, x0, x1, "serial", [vector], step=width)
        o0 = panel * self.columns + v * width
        value = ir.load(self.transposed, i * pitch + (x - x0))
        yx = y0 * self.row + x
        store = self.store_output(n, self.group, o0 + i, z0 + z, yx, value)
        channels_left = ir.minimum(width, s.out_channels - o0)
        out = ir.For(i, ZERO, channels_left, "serial", [ir.For(x, x0, x1, "lanes", store)])
        body: list[Stmt] = [ir.For(x0, ZERO, area, "serial", [transpose, out], step=chunk)]
        for k, start, stop in (
            (z, ZERO, depth),
            (v, ZERO, const(tile.vectors)),
            (panel, self.first_panel, self.last_panel),
        ):
            body = [ir.For(k, start, stop, "serial", body)]
        return body


def _pitch(tile: Tile) -> int:
    """Row pitch of a transposed chunk: not a power of two, or rows share cache sets."""
    return TRANSPOSE_PIXELS + tile.width
