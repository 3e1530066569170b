"""Convolutions as products over a grid of cells (`kernels/cells.py`): which product it is to be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd
from typing import Literal

from numus import dtypes as dt
from numus.compiler.graph.value import Value
from numus.compiler.lower.conv.geometry import Geometry
from numus.dtypes import DType
from numus.kernels.common.smem_tiles import VECTOR, round_up
from numus.kernels.conv.gpu.padded_gemm import Axis
from numus.kernels.matmul.gpu import mma_sync as warp
from numus.kernels.matmul.gpu import simt_async as threads
from numus.kernels.matmul.gpu import wgmma as tile
from numus.shapes import Shape, size_of
from numus.target import Target

SMALL = 1 << 23  # multiplications that are worth laying operands out
SEARCHING = 10  # multiplications of tiles while one of tiles whose rows are looked for is done
SHARING = 4.5  # those of threads that copy, while one of threads that read is done
WIDEST = 256  # channels, outputs or rows that groups come to together
RUNS = 16  # bytes at which lines begin
# What reads lines that overlap. That the engine which brings tiles takes strides shorter than lines
# is not documented, and has not been tried.
OVERLAPPING = ("warps", "threads")
LARGEST = 1 << 31  # elements, and lines, that are counted in 32 bits
# Other ways than a plan: kernels that look for every element of a window, and plain sums.
Other = Literal["windows", "sums"]
_HALVES = (dt.bfloat16, dt.float16)


@dataclass(frozen=True, slots=True)
class Unit:
    """What multiplies: `tiles` that an engine brings, `warps`, or `threads` by themselves."""

    kind: str
    itemsize: int
    depth: int  # elements along k of a slice
    rows: int  # of the smallest tile
    columns: int
    worth: int  # multiplications that it does while a byte comes from memory

    @property
    def across(self) -> bool:
        """Whether operands lie across k in the group's memory, whichever way they come."""
        return self.kind == "threads"

    @property
    def along(self) -> bool:
        """Whether operands have to lie along k: tile units take no others of float32."""
        return self.kind == "tiles" and self.itemsize == 4


def unit_of(product: Value, target: Target) -> Unit | None:
    """What there is on a device for a convolution."""
    a, b = (x.dtype for x in product.inputs)
    if a is not b or product.dtype is not a or a.kind != "float":
        return None
    rounds = a is dt.float32 and product.params[2] == "tf32"
    if target.wgmma and (a in _HALVES or rounds):
        return Unit("tiles", a.itemsize, tile.tile_k(a), tile.TILE_M, 64, _worth(a, rounds))
    if a.name in target.mma and (rounds or a is not dt.float32):
        depth = warp.TILE_K_WORDS * max(1, 4 // a.itemsize)
        return Unit("warps", a.itemsize, depth, 64, 64, _worth(a, rounds))
    if a is dt.float32 and target.async_copy:
        return Unit("threads", a.itemsize, threads.TILE_K, 64, 32, _worth(a, rounds))
    return None


def _worth(dtype: DType, rounds: bool) -> int:
    """About the same on all generations since Ampere."""
    if dtype in _HALVES:
        return 80
    return 40 if rounds else 6


@dataclass(frozen=True, slots=True)
class Plan:
    """A product over cells: of so many matrices, by rows, columns and k."""

    unit: Unit
    geometry: Geometry  # with what is merged
    merged: int  # groups that are one: what one has to do with another is zero, or left out
    axes: tuple[Axis, ...]  # what displaces is called a tap, whichever it is
    matrices: int
    rows: int
    columns: int
    k: int
    lines: int  # of data, of a group of channels, a cell in each
    cell: int  # elements of such a line
    by_results: bool
    # Lines that overlap: each has the cells of a whole row of a window (or of results), and the
    # next one begins so many cells on. One line of one cell where they don't.
    span: int = 1
    step: int = 1

    @property
    def width(self) -> int:
        """Elements along k of a tap, where these displace cells."""
        return round_up(self.span * self.cell, self.unit.depth)

    @property
    def grid(self) -> Shape:
        return tuple(a.cells for a in self.axes)

    @property
    def gaps(self) -> int:
        return size_of(self.geometry.gap)

    @property
    def cost(self) -> float:
        """Multiplications, those in vain as well, and what takes as long: laying operands out."""
        unit, groups = self.unit, self.geometry.groups
        tiles = round_up(self.rows, unit.rows) * round_up(self.columns, unit.columns)
        laid = groups * (self.lines * self.cell + self.columns * self.k)
        moving = unit.worth * 2 * unit.itemsize * laid
        return self.matrices * tiles * round_up(self.k, unit.depth) + moving


def spread(taps: int, gap: int, low: int) -> tuple[int, int, int]:
    """Taps on data with gaps, of which a result sees every so-many-th: results that lie `gap` apart
    see the same ones, and are outputs beside each other. How many taps all of these look at, how
    far the first lies before a result, and how many there are beside the real ones in front.
    """
    first = -(low // gap)
    front = gap - 1 - low - gap * first
    return -(-(front + taps) // gap), -first, front


def choose(g: Geometry, unit: Unit) -> Plan | Other:
    """The plan that costs least, or what else does with less."""
    costs: dict[Plan | Other, float] = {p: p.cost for p in plans(g, unit)}
    costs |= {"windows": _by_windows(g, unit), "sums": _by_sums(g, unit)}
    return min(costs, key=lambda way: costs[way])


def plans(g: Geometry, unit: Unit) -> list[Plan]:
    """All there are in which everything can be counted in 32 bits."""
    found = [_by_taps(g, unit, merged) for merged in _merges(g, g.channels)]
    found += [_by_rows(g, unit, merged) for merged in _merges(g, g.channels)]
    found += [_by_results(g, unit, merged) for merged in _merges(g, g.batch)]
    found += [_by_result_rows(g, unit, merged) for merged in _merges(g, g.batch)]
    return [plan for plan in found if plan is not None and _counts(plan)]


def _by_windows(g: Geometry, unit: Unit) -> float:
    """What `group_convolutions` takes, counted as plans are: tiles whose rows are looked for one by
    one, or, where there are none of 16-bit floats, plain arithmetic."""
    work = g.work * size_of(g.gap)
    if unit.kind == "tiles" and not unit.along:
        rows, depth = g.batch * size_of(g.extents), round_up(g.channels, VECTOR) * size_of(g.taps)
        whole = round_up(rows, unit.rows) * round_up(depth, unit.depth) * round_up(g.outputs, 32)
        return SEARCHING * g.groups * whole
    plain = unit.worth / _worth(dt.float32, False)
    return SHARING * work * plain * round_up(g.outputs, 64) / g.outputs


def _by_sums(g: Geometry, unit: Unit) -> float:
    """What plain sums take: a multiplication, with what it reads from the caches, in about the time
    in which a byte comes from memory."""
    return unit.worth * g.work


def _counts(plan: Plan) -> bool:
    """Whether everything can be counted in 32 bits."""
    groups = plan.geometry.groups
    sizes = (groups * plan.lines * plan.cell, groups * plan.k * plan.columns)
    return max(*sizes, plan.rows * plan.columns) < LARGEST


def _merges(g: Geometry, lines: int) -> Iterator[int]:
    """How many groups may be one, each of so many lines of what outputs are multiplied with."""
    yield 1
    merged = 2
    while g.groups % merged == 0 and merged * max(lines, g.outputs) <= WIDEST:
        yield merged
        merged *= 2


def _by_taps(g: Geometry, unit: Unit, merged: int) -> Plan | None:
    """Each tap of a window displaces the cells of results."""
    gaps = size_of(g.gap)
    if gaps > 1 and size_of(g.stride) * size_of(g.dilation) > 1:
        return None
    outputs, channels = merged * g.outputs, merged * g.channels
    g = replace(g, groups=g.groups // merged, outputs=outputs, channels=channels)
    found = [spread(*n) for n in zip(g.taps, g.gap, g.low, strict=True)]
    taps = [t if gap > 1 else n for (t, _, _), n, gap in zip(found, g.taps, g.gap, strict=True)]
    low = [x if gap > 1 else n for (_, x, _), n, gap in zip(found, g.low, g.gap, strict=True)]
    extents = [-(-n // gap) for n, gap in zip(g.extents, g.gap, strict=True)]
    parts = zip(g.space, taps, extents, g.stride, g.dilation, low, strict=True)
    axes = tuple(Axis(*n) for n in parts)
    width = round_up(g.channels, unit.depth)
    rows = g.batch * size_of(tuple(a.cells for a in axes))
    sizes = (g.groups, rows, gaps * g.outputs, width * size_of(tuple(taps)))
    return Plan(unit, g, merged, axes, *sizes, size_of(g.stride) * rows, width, False)


def _by_rows(g: Geometry, unit: Unit, merged: int) -> Plan | None:
    """The same with rows of taps in lines that overlap: few channels fill a slice together."""
    span, step = g.taps[2], g.stride[2]
    if size_of(g.gap) * g.dilation[2] > 1 or span == 1 or g.low[2] < 0:
        return None
    if unit.kind not in OVERLAPPING:
        return None
    row = _row(g.low[2] + g.space[2], g.extents[2], span, step)
    whole = _by_taps(g, unit, merged)
    assert whole is not None
    axes = (*whole.axes[:2], Axis(row // step, 1, g.extents[2], 1, 1, 0))
    rows = g.batch * size_of(tuple(a.cells for a in axes))
    lines = size_of(g.stride[:2]) * rows * step
    found = replace(whole, axes=axes, rows=rows, lines=lines, span=span, step=step)
    found = replace(found, cell=_cell(merged * g.channels, step, unit))
    return replace(found, k=found.width * size_of(g.taps[:2]))


def _row(data: int, extent: int, taps: int, step: int) -> int:
    """Cells of a row of data, and of all that windows reach, in whole steps."""
    return round_up(max(data, (extent - 1) * step + taps), step)


def _cell(channels: int, step: int, unit: Unit) -> int:
    """Elements of a cell with which lines that begin `step` cells apart lie at whole places."""
    return round_up(channels, RUNS // gcd(step * unit.itemsize, RUNS))


def _by_results(g: Geometry, unit: Unit, merged: int) -> Plan | None:
    """Each place of a result displaces the cells of windows, where these are the larger."""
    if size_of(g.gap) > 1 or size_of(g.extents) > size_of(g.taps):
        return None
    batch, outputs = merged * g.batch, merged * g.outputs
    g = replace(g, groups=g.groups // merged, batch=batch, outputs=outputs)
    parts = zip(g.space, g.extents, g.taps, g.dilation, g.stride, g.low, strict=True)
    axes = tuple(Axis(*n) for n in parts)
    k = g.channels * size_of(tuple(a.cells for a in axes))
    sizes = (g.groups * size_of(g.extents), g.batch, g.outputs, k)
    lines = size_of(g.dilation) * k
    return Plan(unit, g, merged, axes, *sizes, lines, round_up(g.batch, VECTOR), True)


def _by_result_rows(g: Geometry, unit: Unit, merged: int) -> Plan | None:
    """The same with rows of results in lines that overlap: few images fill a tile together."""
    span, step = g.extents[2], g.dilation[2]
    whole = _by_results(g, unit, merged)
    if whole is None or unit.along or unit.kind not in OVERLAPPING:
        return None
    if span == 1 or g.stride[2] > 1 or g.low[2] < 0:
        return None
    row = _row(g.low[2] + g.space[2], g.taps[2], span, step)
    axes = (*whole.axes[:2], Axis(row // step, 1, g.taps[2], 1, 1, 0))
    k = g.channels * size_of(tuple(a.cells for a in axes))
    cell = _cell(merged * g.batch, step, unit)
    return replace(
        whole,
        axes=axes,
        matrices=whole.matrices // span,
        rows=span * cell,
        k=k,
        lines=size_of(g.dilation[:2]) * k * step,
        cell=cell,
        span=span,
        step=step,
    )
