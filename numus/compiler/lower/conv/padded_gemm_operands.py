"""Operands of padded implicit GEMM: input and weights repacked to the zero-padded grid."""

from __future__ import annotations

from collections.abc import Sequence

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.conv.geometry import Geometry
from numus.compiler.lower.conv.padded_gemm_plan import PaddedGemmPlan, transposed_taps
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.matmul.gpu_operands import contiguous_along
from numus.compiler.lower.relayout import Relayout, materialize, padded, permuted, reshaped, view
from numus.ir import Expr, Stmt
from numus.kernels.common.smem_tiles import VECTOR, round_up
from numus.kernels.conv.gpu.implicit_gemm import delinearize, u32
from numus.kernels.matmul.gpu import repack
from numus.shapes import Shape, size_of
from numus.target import Target

_ZERO = ir.const(0)


def forward_operands(
    conv: Value, g: Geometry, plan: PaddedGemmPlan, layouts: Layouts, target: Target
) -> tuple[Relayout, Relayout]:
    """Input: pixels × channels. Weights: out_channels × (tap, channel), or its transpose."""
    x, w = conv.inputs
    f = plan.geometry
    v = reshaped(x, f.batch, f.groups, f.in_channels, *g.in_size)
    data = _pad_input(v, (0, 1, 2), plan, f.stride, g.padding_low[2], layouts, target)
    v = reshaped(w, f.groups, plan.merged, g.out_channels, g.in_channels, *g.taps)
    v = reshaped(_block_diagonal(v), f.groups, f.out_channels, f.in_channels, *g.taps)
    v = _weights(v, f, plan)
    v = reshaped(v, f.groups, plan.n, plan.k)
    if plan.engine.mn_major_smem:
        v = permuted(v, 0, 2, 1)
        v = padded(v, (*v.shape[:2], round_up(plan.n, VECTOR)))
    return data, materialize(v, layouts, target)


def _block_diagonal(v: Value) -> Value:
    """Weights (groups, merged, outputs, channels, *taps) as (groups, merged, outputs, merged,
    channels, *taps), zero off the diagonal."""
    groups, merged, outputs, channels, *taps = v.shape
    if merged == 1:
        return v
    size = size_of(v.shape[2:])
    v = reshaped(v, groups, merged, size)
    v = padded(v, (groups, merged, (merged + 1) * size))  # shifted by one size per row
    v = reshaped(v, groups, merged * (merged + 1) * size)
    whole = (groups, merged * merged * size)
    v = view("slice", v, ((0, 0), (1, 1)), whole)
    v = reshaped(v, groups, merged, merged, outputs, channels, *taps)
    return permuted(v, 0, 1, 3, 2, 4, 5, 6, 7)


def _weights(v: Value, g: Geometry, plan: PaddedGemmPlan) -> Value:
    """(groups, outputs, taps, channels); phases of lhs_dilation become outermost outputs."""
    if size_of(g.lhs_dilation) == 1:
        v = permuted(v, 0, 1, 3, 4, 5, 2)
        v = padded(v, (*v.shape[:-1], plan.row_width))
        rows, width = size_of(v.shape[2:-1]) // plan.span, plan.span * plan.row_width
        v = reshaped(v, *v.shape[:2], rows, width)
        return padded(v, (*v.shape[:-1], plan.k_per_tap))
    return phased_weights(v, g, tuple(axis.taps for axis in plan.axes), plan.k_per_tap)


def phased_weights(v: Value, g: Geometry, phase_taps: Shape, channels: int) -> Value:
    """(groups, phases, outputs, taps of a phase, channels), zero where there are none."""
    whole, before = [*v.shape[:2], channels], [0, 0, 0]
    split: list[int] = []
    axes = zip(phase_taps, g.taps, g.lhs_dilation, g.padding_low, strict=True)
    for in_phase, taps, d, low in axes:
        whole.append(in_phase * d)
        before.append(transposed_taps(taps, d, low)[2] if d > 1 else 0)
        split += [in_phase, d]
    v = reshaped(padded(v, tuple(whole), tuple(before)), *whole[:3], *split)
    return permuted(v, 0, 4, 6, 8, 1, 3, 5, 7, 2)


def wgrad_operands(
    conv: Value, g: Geometry, plan: PaddedGemmPlan, layouts: Layouts, target: Target
) -> tuple[Relayout, Relayout]:
    """Input: (channel, pixel) × images. Weights: (channel, pixel) × out_channels. K-major: their
    transposes."""
    x, w = conv.inputs
    f = plan.geometry
    data = reshaped(x, g.batch, f.groups, plan.merged, g.in_channels, *g.in_size)
    data = permuted(data, 2, 0, 1, 3, 4, 5, 6)
    data = reshaped(data, f.batch, f.groups, f.in_channels, *f.in_size)
    weights = reshaped(w, f.groups, f.out_channels, f.in_channels, *f.taps)
    if plan.engine.needs_k_major:
        data = _k_major_rows(permuted(data, 1, 0, 2, 3, 4, 5), plan.grid, f.dilation)
        weights = _k_major_rows(weights, plan.grid, (1, 1, 1))
        return materialize(data, layouts, target), materialize(weights, layouts, target)
    width = round_up(f.out_channels, VECTOR)
    right = _pad_channels_last(weights, (2, 0, 1), plan.grid, (1, 1, 1), width, layouts)
    left = _pad_input(data, (2, 1, 0), plan, f.dilation, g.padding_low[2], layouts, target)
    return left, right


def _pad_input(
    v: Value,
    order: tuple[int, int, int],
    plan: PaddedGemmPlan,
    phases: Shape,
    pad_low: int,
    layouts: Layouts,
    target: Target,
) -> Relayout:
    """Input on the grid; with overlapping rows, zeros before every row instead of phases along the
    last axis."""
    if plan.span == 1:
        return _pad_channels_last(v, order, plan.grid, phases, plan.row_width, layouts)
    (a, b), row = plan.grid[:2], plan.grid[2] * plan.step
    p, q = phases[:2]
    if plan.row_width >= repack.TILE and plan.row_width % repack.STORE_VECTOR == 0:
        shape = (a, b, row), (p, q, 1)
        return _pad_channels_last(v, order, *shape, plan.row_width, layouts, pad_low)
    v = permuted(v, *order, 3, 4, 5)
    images, groups = v.shape[:2]
    v = padded(v, (images, groups, plan.row_width, a * p, b * q, row), (0, 0, 0, 0, 0, pad_low))
    v = reshaped(v, images, groups, plan.row_width, a, p, b, q, row)
    return materialize(permuted(v, 1, 4, 6, 0, 3, 5, 7, 2), layouts, target)


def _k_major_rows(v: Value, grid: Shape, phases: Shape) -> Value:
    """(groups, rows, channels, *space) as (groups, rows, phases × channels × grid), aligned."""
    head = v.shape[:3]
    v = padded(v, (*head, *(n * p for n, p in zip(grid, phases, strict=True))))
    v = reshaped(v, *head, *(n for pair in zip(grid, phases, strict=True) for n in pair))
    v = permuted(v, 0, 1, 4, 6, 8, 2, 3, 5, 7)
    v = reshaped(v, *head[:2], size_of(v.shape[2:]))
    return padded(v, (*head[:2], round_up(v.shape[2], 16 // v.dtype.itemsize)))


def _pad_channels_last(
    v: Value,
    order: Sequence[int],
    grid: Shape,
    phases: Shape,
    width: int,
    layouts: Layouts,
    pad_low: int = 0,
) -> Relayout:
    """(groups, *phases, images, *grid, channels), where `order` tells which of the first three axes
    are images, groups and channels; with `pad_low` zeros before every row."""
    split = v.shape
    images, groups, channels = (split[i] for i in order)
    shape = (groups, *phases, images, *grid, width)
    copy = Value.fresh("padded", "barrier", (), None, shape, v.dtype)
    e = Emitter(layouts, block_size=repack.THREADS)
    sizes = tuple(e.dim(n) for n in shape)
    a, b, c = sizes[5:8]

    def input_index(t: Expr, row: Expr) -> tuple[Expr, Expr, list[Expr]]:
        """Image, group and input position of a row of the grid."""
        at = list(delinearize(u32(row), (a, b, c)))
        rest = u32(t)
        for n in sizes[4:0:-1]:
            at.insert(0, rest % u32(n))
            rest = rest // u32(n)
        group, *phase, image, d, h, w = (i.cast(ir.INDEX) for i in (rest, *at))
        axes = zip((d, h, w), sizes[1:4], phase, strict=True)
        *rows, last = (i * n + p for i, n, p in axes)
        return image, group, [*rows, last - e.dim(pad_low)]

    def in_bounds(t: Expr, row: Expr) -> Expr:
        at = input_index(t, row)[2]
        found = at[-1] >= 0 if pad_low else ir.const(True, dt.bool_)
        for i, n in zip(at, split[3:], strict=True):
            found = found & (i < e.dim(n))
        return found

    def read(t: Expr, row: Expr, channel: Expr, mask: Expr | None) -> Expr:
        image, group, at = input_index(t, row)
        index = [_ZERO] * 3
        for i, n in zip(order, (image, group, channel), strict=True):
            index[i] = n
        value: Expr = e.value(v, (*index, *at), mask)
        return value

    def store(t: Expr, row: Expr, channel: Expr, value: Expr) -> list[Stmt]:
        at = (t * rows + row) * sizes[8] + channel
        return [ir.Store(e.buffer(copy, "write"), at, value)]

    block = ir.var("g")
    rows = e.dim(size_of(grid))
    tiles_per_axis = [-(-n // repack.TILE) for n in (size_of(grid), width)]
    tiles = (e.scalar_arg(tiles_per_axis[0]), e.scalar_arg(tiles_per_axis[1]))
    limit = None if channels % repack.TILE == 0 else e.dim(channels)
    contiguous = contiguous_along(v, layouts, order[2], 5)
    body, e.scratch = repack.repack_padded(
        *(block, v.dtype, (rows, sizes[8]), tiles, contiguous, in_bounds, read, limit, store)
    )
    count = groups * size_of(phases) * images * tiles_per_axis[0] * tiles_per_axis[1]
    return copy, [e.grid_kernel("pad_channels_last", block, body, count, ("cast",))]
