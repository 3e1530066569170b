"""Padded implicit GEMM (`kernels/conv/gpu/padded_gemm.py`): GEMM shapes and their cost model.

Forward, M is pixels, N output channels and K (tap, input channel). For weight gradients, whose
windows are larger than their outputs, there is a GEMM for each tap, with K the pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd
from typing import Literal

from numus import dtypes as dt
from numus.compiler.graph.value import Value
from numus.compiler.lower.conv import tuning
from numus.compiler.lower.conv.geometry import Geometry
from numus.kernels.common.smem_tiles import VECTOR, round_up
from numus.kernels.conv.gpu.padded_gemm import Axis
from numus.kernels.matmul.gpu import mma_sync, simt_async, wgmma
from numus.shapes import Shape, size_of
from numus.target import Target

ROW_ALIGNMENT = 16  # bytes
INT32_LIMIT = 1 << 31  # elements and rows are counted in 32 bits
# Engines that load overlapping rows. TMA with strides shorter than rows is not documented.
OVERLAPPING_ROWS: tuple[str, ...] = ("mma_sync", "simt")

Kind = Literal["wgmma", "mma_sync", "simt"]


@dataclass(frozen=True, slots=True)
class Engine:
    """The unit on which a GEMM runs: wgmma, mma.sync or SIMT."""

    kind: Kind
    itemsize: int
    k_tile: int  # elements
    min_m_tile: int
    min_n_tile: int
    macs_per_byte: int  # done in the time of a byte of memory traffic

    @property
    def mn_major_smem(self) -> bool:
        """Operands are MN-major in shared memory, however they are loaded."""
        return self.kind == "simt"

    @property
    def needs_k_major(self) -> bool:
        """wgmma multiplies float32 (TF32) from K-major operands only."""
        return self.kind == "wgmma" and self.itemsize == 4


def engine_of(conv: Value, target: Target) -> Engine | None:
    a, b = (x.dtype for x in conv.inputs)
    if a is not b or conv.dtype is not a or a.kind != "float":
        return None
    half = a in (dt.bfloat16, dt.float16)
    tf32 = a is dt.float32 and conv.params[2] == "tf32"
    speed = tuning.GPU.tf32_macs_per_byte if tf32 else tuning.GPU.simt_macs_per_byte
    speed = tuning.GPU.half_macs_per_byte if half else speed
    if target.wgmma and (half or tf32):
        return Engine("wgmma", a.itemsize, wgmma.tile_k(a), wgmma.TILE_M, 64, speed)
    if a.name in target.mma and (tf32 or a is not dt.float32):
        k_tile = mma_sync.TILE_K_WORDS * max(1, 4 // a.itemsize)
        return Engine("mma_sync", a.itemsize, k_tile, 64, 64, speed)
    if a is dt.float32 and target.async_copy:
        return Engine("simt", a.itemsize, simt_async.TILE_K, 64, 32, speed)
    return None


@dataclass(frozen=True, slots=True)
class PaddedGemmPlan:
    """A batch of GEMMs over the padded grid."""

    engine: Engine
    geometry: Geometry  # after merging groups
    merged: int  # groups merged into one: block-diagonal weights, or outputs that are dropped
    axes: tuple[Axis, ...]  # of wgrad, taps and outputs are exchanged
    matrices: int
    m: int
    n: int
    k: int
    grid_rows: int  # of the input, for each group
    row_width: int  # elements of such a row
    wgrad: bool
    # Overlapping rows: each spans a row of taps (or outputs), and the next is `step` pixels on.
    span: int = 1
    step: int = 1

    @property
    def k_per_tap(self) -> int:
        return round_up(self.span * self.row_width, self.engine.k_tile)

    @property
    def grid(self) -> Shape:
        return tuple(a.grid for a in self.axes)

    @property
    def phases(self) -> int:
        return size_of(self.geometry.lhs_dilation)

    @property
    def cost(self) -> float:
        """Multiply-accumulates, those of padding included, and repacking in their unit."""
        engine, groups = self.engine, self.geometry.groups
        tiles = round_up(self.m, engine.min_m_tile) * round_up(self.n, engine.min_n_tile)
        repacked = groups * (self.grid_rows * self.row_width + self.n * self.k)
        traffic = engine.macs_per_byte * 2 * engine.itemsize * repacked
        return self.matrices * tiles * round_up(self.k, engine.k_tile) + traffic


Direct = PaddedGemmPlan | Literal["implicit_gemm", "depthwise"]


def choose(g: Geometry, engine: Engine) -> Direct:
    """The schedule of minimum cost among those that compute all products."""
    costs: dict[Direct, float] = {p: p.cost for p in plans(g, engine)}
    costs["implicit_gemm"] = _implicit_gemm_cost(g, engine)
    costs["depthwise"] = depthwise_cost(g, engine)
    return min(costs, key=lambda schedule: costs[schedule])


def _implicit_gemm_cost(g: Geometry, engine: Engine) -> float:
    macs = g.macs * size_of(g.lhs_dilation)
    if engine.kind == "wgmma" and not engine.needs_k_major:
        m, k = g.batch * size_of(g.out_size), round_up(g.in_channels, VECTOR) * size_of(g.taps)
        tiles = round_up(m, engine.min_m_tile) * round_up(k, engine.k_tile)
        padded = tiles * round_up(g.out_channels, 32)
        return tuning.GPU.implicit_gemm_slowdown * g.groups * padded
    simt = engine.macs_per_byte / tuning.GPU.simt_macs_per_byte
    return tuning.GPU.simt_slowdown * macs * simt * round_up(g.out_channels, 64) / g.out_channels


def depthwise_cost(g: Geometry, engine: Engine) -> float:
    """A multiply-accumulate, with its loads from caches, takes about as long as a byte of memory
    traffic."""
    return engine.macs_per_byte * g.macs


def plans(g: Geometry, engine: Engine) -> list[PaddedGemmPlan]:
    """All plans whose indices fit in 32 bits."""
    found = [_forward(g, engine, merged) for merged in _merges(g, g.in_channels)]
    found += [_forward_rows(g, engine, merged) for merged in _merges(g, g.in_channels)]
    found += [_wgrad(g, engine, merged) for merged in _merges(g, g.batch)]
    found += [_wgrad_rows(g, engine, merged) for merged in _merges(g, g.batch)]
    return [plan for plan in found if plan is not None and _fits_int32(plan)]


def _fits_int32(plan: PaddedGemmPlan) -> bool:
    groups = plan.geometry.groups
    sizes = (groups * plan.grid_rows * plan.row_width, groups * plan.k * plan.n)
    return max(*sizes, plan.m * plan.n) < INT32_LIMIT


def _merges(g: Geometry, channels: int) -> Iterator[int]:
    """Numbers of groups that may be merged, of `channels` rows of the other operand each."""
    merged = 1
    while merged == 1 or (
        g.groups % merged == 0
        and merged * max(channels, g.out_channels) <= tuning.GPU.max_merged_channels
    ):
        yield merged
        merged *= 2


def transposed_taps(taps: int, lhs_dilation: int, padding_low: int) -> tuple[int, int, int]:
    """Taps of a transposed convolution, by phases: outputs `lhs_dilation` apart share their inputs,
    and become output channels. The taps that a phase sees, the padding before the first, and zero
    taps in front of the real ones.
    """
    first = -(padding_low // lhs_dilation)
    front = lhs_dilation - 1 - padding_low - lhs_dilation * first
    return -(-(front + taps) // lhs_dilation), -first, front


def _forward(g: Geometry, engine: Engine, merged: int) -> PaddedGemmPlan | None:
    """A tap shifts the pixels."""
    phases = size_of(g.lhs_dilation)
    if phases > 1 and size_of(g.stride) * size_of(g.dilation) > 1:
        return None
    out_channels, in_channels = merged * g.out_channels, merged * g.in_channels
    g = replace(g, groups=g.groups // merged, out_channels=out_channels, in_channels=in_channels)
    axes = []
    for axis in range(3):
        taps, dilation, low = g.taps[axis], g.lhs_dilation[axis], g.padding_low[axis]
        if dilation > 1:
            taps, low, _ = transposed_taps(taps, dilation, low)
        sizes = (g.in_size[axis], taps, g.phase_size[axis])
        axes.append(Axis(*sizes, g.stride[axis], g.dilation[axis], low))
    width = round_up(g.in_channels, engine.k_tile)
    m = g.batch * size_of(tuple(a.grid for a in axes))
    gemm = (g.groups, m, phases * g.out_channels, width * size_of(tuple(a.taps for a in axes)))
    rows = size_of(g.stride) * m
    return PaddedGemmPlan(engine, g, merged, tuple(axes), *gemm, rows, width, False)


def _forward_rows(g: Geometry, engine: Engine, merged: int) -> PaddedGemmPlan | None:
    """Overlapping rows: the taps of a window's row share K tiles, where channels are few."""
    span, step = g.taps[2], g.stride[2]
    if size_of(g.lhs_dilation) * g.dilation[2] > 1 or span == 1 or g.padding_low[2] < 0:
        return None
    if engine.kind not in OVERLAPPING_ROWS:
        return None
    row = _padded_row(g.padding_low[2] + g.in_size[2], g.out_size[2], span, step)
    plan = _forward(g, engine, merged)
    assert plan is not None
    axes = (*plan.axes[:2], Axis(row // step, 1, g.out_size[2], 1, 1, 0))
    m = g.batch * size_of(tuple(a.grid for a in axes))
    rows = size_of(g.stride[:2]) * m * step
    width = _row_width(merged * g.in_channels, step, engine)
    plan = replace(plan, axes=axes, m=m, grid_rows=rows, span=span, step=step, row_width=width)
    return replace(plan, k=plan.k_per_tap * size_of(g.taps[:2]))


def _padded_row(in_size: int, out_size: int, taps: int, step: int) -> int:
    """Pixels of a row of the input and of all that windows reach, in whole steps."""
    return round_up(max(in_size, (out_size - 1) * step + taps), step)


def _row_width(channels: int, step: int, engine: Engine) -> int:
    """Channels of a pixel with which rows `step` pixels apart are aligned."""
    return round_up(channels, ROW_ALIGNMENT // gcd(step * engine.itemsize, ROW_ALIGNMENT))


def _wgrad(g: Geometry, engine: Engine, merged: int) -> PaddedGemmPlan | None:
    """An output shifts the windows, where these are the larger."""
    if size_of(g.lhs_dilation) > 1 or size_of(g.out_size) > size_of(g.taps):
        return None
    batch, out_channels = merged * g.batch, merged * g.out_channels
    g = replace(g, groups=g.groups // merged, batch=batch, out_channels=out_channels)
    parts = zip(g.in_size, g.out_size, g.taps, g.dilation, g.stride, g.padding_low, strict=True)
    axes = tuple(Axis(*n) for n in parts)
    k = g.in_channels * size_of(tuple(a.grid for a in axes))
    gemm = (g.groups * size_of(g.out_size), g.batch, g.out_channels, k)
    rows = size_of(g.dilation) * k
    return PaddedGemmPlan(engine, g, merged, axes, *gemm, rows, round_up(g.batch, VECTOR), True)


def _wgrad_rows(g: Geometry, engine: Engine, merged: int) -> PaddedGemmPlan | None:
    """Overlapping rows: the outputs of a row share M tiles, where images are few."""
    span, step = g.out_size[2], g.dilation[2]
    plan = _wgrad(g, engine, merged)
    if plan is None or engine.needs_k_major or engine.kind not in OVERLAPPING_ROWS:
        return None
    if span == 1 or g.stride[2] > 1 or g.padding_low[2] < 0:
        return None
    row = _padded_row(g.padding_low[2] + g.in_size[2], g.taps[2], span, step)
    axes = (*plan.axes[:2], Axis(row // step, 1, g.taps[2], 1, 1, 0))
    k = g.in_channels * size_of(tuple(a.grid for a in axes))
    width = _row_width(merged * g.batch, step, engine)
    return replace(
        plan,
        axes=axes,
        matrices=plan.matrices // span,
        m=span * width,
        k=k,
        grid_rows=size_of(g.dilation[:2]) * k * step,
        row_width=width,
        span=span,
        step=step,
    )
