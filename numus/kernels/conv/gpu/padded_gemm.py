"""Cells: a grid on which windows are displacements.

Data lies on a grid of cells, a line of channels in each, so wide that zeros follow every row and
every image. Results are counted by the same cells. Then every tap of a window lies one fixed number
of lines away from the cell it is for, before it or behind, and what falls outside of the data falls
on zeros. With a stride, every so-many-th cell is a grid of its own, a `phase`: of a tap, the
displacement tells both the phase and the cell. Cells of no result are multiplied in vain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.dtypes import bool_, uint32
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.gpu.implicit_gemm import Triple, apart, small, times
from numus.kernels.matmul.gpu.mainloop import Accumulators

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
    width: Expr  # elements along k of a tap
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

    def apart(self, matrix: Expr) -> tuple[Expr, Expr]:
        """The group and the tap (32 bits) of a matrix, where there is one for each of both."""
        taps = small(times(self.taps))
        return ir.idiv(small(matrix), taps).cast(ir.INDEX), ir.irem(small(matrix), taps)

    def split(self, number: Expr) -> tuple[Expr, Expr]:
        """The tap (32 bits) and the block of channels of a slice."""
        return ir.idiv(small(number), small(self.blocks)), ir.irem(number, self.blocks)

    def hop(self, tap: Expr) -> Expr:
        """How many lines a tap (32 bits) lies behind its result."""
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
        return ir.add(hop.cast(ir.INDEX) - back, ir.mul(phase.cast(ir.INDEX), self.phase))


Done = Callable[[Expr, Expr], list[Stmt]]  # (column, value)
Row = Callable[[Expr], tuple[Expr, Done]]


def leave(total: Accumulators, columns: Expr, room: int, row_of: Row) -> list[Stmt]:
    """Sums on their way out, by the group's memory: rows are neighbours, and a thread has few.
    `row_of(m)` tells whether a row is a result's, and what becomes of its sum in a column. As many
    columns at a time as there are bytes for.
    """
    rows, wide = total.shape
    _, m0, n0 = total.origin
    memory, kind = total.scratch[0], total.registers[0].dtype
    pitch = rows + SPARE
    strips, room = 1, max(room, total.smem_words * memory.dtype.itemsize)
    while wide // strips * pitch * kind.itemsize > room:
        strips *= 2
    width = wide // strips
    words = -(-width * pitch * kind.itemsize // memory.dtype.itemsize)
    memory.size = const(max(total.smem_words, words))
    stage = ir.Buffer("stage", kind, "scratch", const(width * pitch), aliases=memory)
    total.scratch.append(stage)
    abreast = max(1, total.threads // rows)
    each = min(EACH, width // abreast)
    out = list(total.body)
    for strip in range(strips):
        lane = ir.var(f"lay{strip}")
        lay: list[Stmt] = []
        for number, c in enumerate(total.registers):
            row, column = total.coordinates(lane, number)
            column = ir.add(column, const(-strip * width))
            keep = ir.Store(stage, ir.add(ir.mul(column, const(pitch)), row), ir.read(c))
            mine = (column >= 0) & (column < const(width))
            lay.append(keep if strips == 1 else ir.If(mine, [keep]))
        out.append(ir.For(lane, ZERO, const(total.threads), "lanes", lay))
        for first in range(0, rows, total.threads):
            thread, j = ir.var(f"out{strip}_{first}"), ir.var(f"columns{strip}_{first}")
            row = ir.add(ir.irem(thread, const(rows)), const(first))
            turn = ir.idiv(thread, const(rows))
            inside, done = row_of(ir.add(m0, row))
            loads: list[Stmt] = []
            stores: list[Stmt] = []
            for u in range(each):
                value = ir.var(f"v{strip}_{first}_{u}", kind)
                nth = ir.add(ir.mul(j, const(each)), const(u))
                column = ir.add(ir.mul(nth, const(abreast)), turn)
                at = ir.add(ir.mul(column, const(pitch)), row)
                loads.append(ir.Let(value, ir.load(stage, at)))
                n = ir.add(ir.add(n0, column), const(strip * width))
                stores.append(ir.If(n < columns, done(n, value)))
            turns = const(width // abreast // each)
            every = ir.For(j, ZERO, turns, "serial", [*loads, *stores])
            body: list[Stmt] = [ir.If(inside, [every])]
            out.append(ir.For(thread, ZERO, const(total.threads), "lanes", body))
    return out
