"""Direct convolution, NCHWc: vectors along output channels (`planes.py`).

No vector is wasted on padding or small images, strides cost nothing, and the phases of transposed
convolutions meet before anything is stored; outputs are transposed in the epilogue. The reduction
is blocked so that the weights of a block stay in L1 while all pixels pass by.
"""

from __future__ import annotations

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.cpu import planes
from numus.kernels.conv.cpu.channel_panels import ChannelPanels
from numus.kernels.conv.cpu.planes import ZERO, Read, Task, Tile, Triple, floordiv, mod, volume
from numus.kernels.conv.cpu.taps import TapKernel, TapSizes, for_each_tap

Span = tuple[Expr, Expr]


def pack_weights(
    s: TapSizes, tile: Tile, dtype: DType, packed: ir.Buffer, g: Expr, weights: Read
) -> list[Stmt]:
    """Panel g of the weights of all groups and phases: [k][out_channel]."""
    j, columns, phases = ir.var("pack_j"), const(tile.columns), volume(s.lhs_dilation)
    panel, phase = g % s.panels, mod(g // s.panels, phases)
    group = g // (s.panels * phases)
    # columns past the last output channel repeat it: their results are not stored
    o = ir.minimum(panel * columns + j, s.out_channels - 1)

    def pack(c: Expr, taps: Triple, _: list[Expr], index: Expr) -> list[Stmt]:
        to = (g * s.k_size + index) * columns + j
        store = ir.Store(packed, to, weights(group, o, c, *taps).cast(dtype))
        return [ir.For(j, ZERO, columns, "lanes", [store])]

    return for_each_tap(s, phase, ir.Register("k_index", ir.INDEX), pack)


class ChannelKernel(TapKernel):
    """Weights are `packed`. `sum_blocked`: the sums of some blocks of k are added up before they
    are added to those of all."""

    def __init__(
        self, s: TapSizes, task: Task, packed: ir.Buffer, sum_blocked: bool, prefetch_lines: int
    ) -> None:
        super().__init__(s, task)
        self.prefetch_lines = prefetch_lines
        self.sum_blocked = sum_blocked
        tile, self.packed, self.columns = task.tile, packed, const(task.tile.columns)
        self.first_panel = self.panel_task * s.panels_per_task
        self.last_panel = ir.minimum(self.first_panel + s.panels_per_task, s.panels)
        # outputs of a block, all phases: rows, and planes of rows
        row = s.out_size[2]
        plane = s.block[1] * s.lhs_dilation[1] * row
        self.outputs = ChannelPanels(task, row, plane, s.block[0] * s.lhs_dilation[0] * plane)
        self.panel_size = self.outputs.size

        def scratch(name: str, dtype: DType, size: Expr) -> ir.Buffer:
            return ir.Buffer(name, dtype, "scratch", size)

        self.acc = scratch("acc", self.dtype, s.panels_per_task * self.panel_size)
        self.group_acc = scratch("group_acc", self.dtype, self.panel_size)
        rows = volume(s.block) + tile.rows
        self.pixel_offsets = scratch("pixel_offsets", ir.INDEX, rows)
        self.acc_offsets = scratch("acc_offsets", ir.INDEX, rows)
        self.scratch = [self.planes.buffer, self.acc, self.outputs.transposed]
        self.scratch += [self.offsets, self.k_counts, self.pixel_offsets, self.acc_offsets]
        if sum_blocked:
            self.scratch.append(self.group_acc)

    def _block(self, u: Expr) -> list[Stmt]:
        rows = self.s.blocks[1]
        per_image = self.s.blocks[0] * rows
        block = mod(u, per_image)
        load = self._load_block(u, per_image, (floordiv(block, rows), mod(block, rows)))
        k, size = ir.var("clear"), (self.last_panel - self.first_panel) * self.panel_size
        clear = ir.For(k, ZERO, size, "lanes", [ir.Store(self.acc, k, const(0, self.dtype))])
        return [*load, clear, *self._each_phase(self._phase()), *self._epilogue()]

    def _phase(self) -> list[Stmt]:
        """All accumulators of one phase of a block."""
        row, count = ir.Register("row", ir.INDEX), ir.var("rows")
        k0, panel, t = ir.var("k_start"), ir.var("panel"), ir.var("tile")
        entries, k_block = ir.load(self.k_counts, self.phase), self.s.k_block
        start, stop = ir.var("k_group"), entries
        if self.sum_blocked:
            stop = ir.minimum(start + self.s.k_group, entries)
        multiply = self._multiply(panel, t, (start, stop), (k0, ir.minimum(k0 + k_block, stop)))
        tiles = ir.For(t, ZERO, count, "serial", multiply, step=const(self.tile.rows))
        body: list[Stmt] = [tiles]
        panels = (panel, self.first_panel, self.last_panel)
        if self.sum_blocked:
            body = [ir.For(k0, start, stop, "serial", body, step=k_block)]
            body = [ir.For(*panels, "serial", body)]
            body = [ir.For(start, ZERO, entries, "serial", body, step=self.s.k_group)]
        else:
            body = [ir.For(*panels, "serial", body)]
            body = [ir.For(k0, ZERO, entries, "serial", body, step=k_block)]
        return [*self._rows(row), ir.Let(count, ir.read(row)), *body]

    def _rows(self, row: ir.Register) -> list[Stmt]:
        """Input and accumulator offsets of each pixel of a phase."""
        s, q, index = self.s, planes.triple_vars("row_"), ir.var("row_index")
        start = self.planes.offset([i * t for i, t in zip(q, s.stride, strict=True)])
        z, y, x = (i * d + r for i, d, r in zip(q, s.lhs_dilation, self.phase_at, strict=True))
        acc_offset = z * self.outputs.plane + y * self.outputs.row + x
        body: list[Stmt] = [
            ir.Let(index, ir.read(row)),
            ir.Store(self.pixel_offsets, index, start),
            ir.Store(self.acc_offsets, index, acc_offset * self.columns),
            ir.Set(row, ir.read(row) + 1),
        ]
        loops = [(i, self._phase_outputs(axis)) for axis, i in enumerate(q)]
        extra = ir.var("row_extra")
        at = ir.read(row) + extra
        past_end: list[Stmt] = [
            ir.Store(self.pixel_offsets, at, ZERO),
            ir.Store(self.acc_offsets, at, self.outputs.padding_row * self.columns),
        ]
        pad = planes.loop_nest(past_end, (extra, const(self.tile.rows)))
        return [ir.Set(row, ZERO), *planes.loop_nest(body, *loops), *pad]

    def _multiply(self, panel: Expr, t: Expr, group: Span, block: Span) -> list[Stmt]:
        """A block of k, in a group of blocks, for one register tile."""
        s, tile, k = self.s, self.tile, ir.var("k_index")
        row0 = ((self.group * self.phases + self.phase) * s.panels + panel) * s.k_size
        starts = [ir.var(f"start{i}") for i in range(tile.rows)]
        names = [ir.Let(v, ir.load(self.pixel_offsets, t + i)) for i, v in enumerate(starts)]

        def step(lane: Expr) -> planes.Factors:
            base = (row0 + k) * self.columns + lane
            lets, vectors = planes.load_vectors("weights", self.packed, base, tile)
            if self.sum_blocked:  # the next block of the panel
                lets += planes.prefetch_weights(
                    *(self.packed, (row0 + block[1]) * self.columns, tile, self.prefetch_lines),
                    *(t, k - block[0], block[1] - block[0]),
                )
            at = ir.load(self.offsets, self.table + k)
            return lets, [ir.load(self.planes.buffer, v + at) for v in starts], vectors

        def in_panel(lane: Expr, i: int, v: int) -> Expr:
            return ir.load(self.acc_offsets, t + i) + lane + v * tile.width

        def index(lane: Expr, i: int, v: int) -> Expr:
            return (panel - self.first_panel) * self.panel_size + in_panel(lane, i, v)

        add = planes.add_to(self.acc, index)

        def finish(lane: Expr, acc: planes.Registers) -> list[Stmt]:
            """Add up the blocks of a group; then add that sum to the accumulators."""
            at, partial = {x: in_panel(lane, *x) for x in acc}, self.group_acc
            before: list[Stmt] = [
                ir.Set(c, ir.load(partial, at[x]) + ir.read(c)) for x, c in acc.items()
            ]
            keep: list[Stmt] = [ir.Store(partial, at[x], ir.read(c)) for x, c in acc.items()]
            last = block[1].eq(group[1])
            added = ir.If(block[0] > group[0], before)
            return [added, ir.If(last, add(lane, acc)), ir.If(~last, keep)]

        end = finish if self.sum_blocked else add
        return [*names, *planes.register_tile(tile, self.dtype, [(k, *block)], step, end)]

    def _epilogue(self) -> list[Stmt]:
        s, panel = self.s, ir.var("out_panel")
        z0, y0 = (self.first[axis] * s.lhs_dilation[axis] for axis in (0, 1))
        depth, height = (
            ir.minimum(s.block[axis] * s.lhs_dilation[axis], s.out_size[axis] - start)
            for axis, start in ((0, z0), (1, y0))
        )
        start = (panel - self.first_panel) * self.panel_size
        shape = (s.out_channels, s.out_size[1])
        body = self.outputs.epilogue(
            *(self.acc, start, panel, (self.image, self.group), (z0, y0), (depth, height), shape)
        )
        return [ir.For(panel, self.first_panel, self.last_panel, "serial", body)]
