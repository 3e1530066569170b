"""Depthwise convolution: direct sums, for groups too small for a GEMM.

Forward, a thread has a few outputs: adjacent ones, whose windows overlap, or the same pixel of
several images. For weight gradients, whose outputs are few and windows large, a thread block has
all pixels of one image and some output channels, and reduces over (a split of) the window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from numus import ir
from numus.dtypes import DType, bool_
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.gpu.implicit_gemm import (
    ConvSizes,
    Epilogue,
    Triple,
    delinearize,
    u32,
    volume,
)

THREADS = 256
THREAD_OUTPUTS = 4
ZERO, TRUE = const(0), const(True, bool_)


@dataclass(frozen=True, slots=True)
class DepthwiseTuning:
    """Measured on one H200."""

    max_unrolled: int = 64  # taps of the last axis, or pixels
    max_block_outputs: int = 40  # of a block with several output channels
    min_split_k: int = 4096  # elements that are worth a thread block
    max_blocks_per_sm: int = 8


TUNING = DepthwiseTuning()

Data = Callable[[Expr, Expr, Triple, Expr], Expr]  # (image, channel, position, mask)
# (output channel, channel of the group, tap, mask)
Weights = Callable[[Expr, Expr, Triple, Expr | None], Expr]
StoreOutput = Callable[[Expr, Expr, Triple, Expr], list[Stmt]]  # (image, channel, pixel, value)


@dataclass(frozen=True, slots=True)
class Operands:
    """Elements of both operands, in the dtype of the arithmetic."""

    dtype: DType
    data: Data
    weights: Weights


def _is_const(e: Expr) -> bool:
    return e.op == "const"


def _position(s: ConvSizes, axis: int, pixel: Expr, offset: Expr) -> tuple[Expr, Expr]:
    """Input position at an offset from a pixel's first tap, and whether it is in bounds."""
    at = pixel * s.stride[axis] + offset - s.padding_low[axis]
    in_bounds = at >= 0
    if not _is_const(s.lhs_dilation[axis]):
        in_bounds = in_bounds & (at % s.lhs_dilation[axis]).eq(0)
        at = at // s.lhs_dilation[axis]
    return at, in_bounds & (at < s.in_size[axis])


def outputs_are_adjacent(s: ConvSizes) -> bool:
    """A thread's outputs are adjacent where it is known which elements their windows share."""
    return _is_const(s.lhs_dilation[2]) and _is_const(s.stride[2]) and _is_const(s.dilation[2])


def depthwise_conv(
    g: Expr, s: ConvSizes, taps: int, operands: Operands, store: StoreOutput
) -> list[Stmt]:
    """Body of thread block g, with `taps` (unrolled) along the last axis."""
    dtype, adjacent = operands.dtype, outputs_are_adjacent(s)
    per_thread = const(THREAD_OUTPUTS)

    def threads_for(n: Expr) -> Expr:
        return (n + (THREAD_OUTPUTS - 1)) // per_thread

    lane, c, a, b = (ir.var(name) for name in ("lane", "c", "tap_d", "tap_h"))
    thread = u32(g * THREADS + lane)
    width = threads_for(s.out_size[2]) if adjacent else s.out_size[2]
    shape = (s.out_size[0], s.out_size[1], width)
    pixels, channels = u32(volume(shape)), u32(s.groups * s.out_channels)
    rest = thread // pixels
    output, image = (i.cast(ir.INDEX) for i in (rest % channels, rest // channels))
    d, h, w = (i.cast(ir.INDEX) for i in delinearize(thread % pixels, shape))
    outputs = range(THREAD_OUTPUTS)
    if adjacent:
        indices = [(image, w * per_thread + u) for u in outputs]
        exists = [x < s.out_size[2] for _, x in indices]
    else:
        indices = [(image * per_thread + u, w) for u in outputs]
        exists = [i < s.batch for i, _ in indices]
    exists[0] = TRUE
    acc = [ir.Register(f"sum{u}", dtype, lanes=True) for u in outputs]
    channel = output // s.out_channels * s.in_channels + c
    at_d, in_d = _position(s, 0, d, a * s.dilation[0])
    at_h, in_h = _position(s, 1, h, b * s.dilation[1])
    values: dict[tuple[int, int], Expr] = {}  # by image, and offset from the first tap
    body: list[Stmt] = []
    for t in range(taps):
        weight = ir.var(f"weight{t}", dtype)
        body.append(ir.Let(weight, operands.weights(output, c, (a, b, const(t)), None)))
        for u in outputs:
            key = (0, u * s.stride[2].attr + t * s.dilation[2].attr) if adjacent else (u, t)
            if key not in values:
                offset = const(key[1]) if adjacent else s.dilation[2] * t
                at_w, in_w = _position(s, 2, indices[0][1], offset)
                in_bounds = in_d & in_h & in_w
                in_bounds = in_bounds if adjacent else in_bounds & exists[u]
                loaded = operands.data(indices[u][0], channel, (at_d, at_h, at_w), in_bounds)
                values[key] = ir.var(f"value{key[0]}_{key[1]}", dtype)
                body.append(ir.Let(values[key], ir.select(in_bounds, loaded, const(0, dtype))))
            sum_ = ir.fma(values[key], weight, ir.read(acc[u]), allow_unfused=True)
            body.append(ir.Set(acc[u], sum_))
    for tap, count in ((b, s.taps[1]), (a, s.taps[0]), (c, s.in_channels)):
        body = [ir.For(tap, ZERO, count, "serial", body)]
    work: list[Stmt] = [*(ir.Set(register, const(0, dtype)) for register in acc), *body]
    for u, (i, x) in enumerate(indices):
        work.append(ir.If(exists[u], store(i, output, (d, h, x), ir.read(acc[u]))))
    images = s.batch if adjacent else threads_for(s.batch)
    count = u32(images) * channels * pixels
    return [ir.For(lane, ZERO, const(THREADS), "lanes", [ir.If(thread < count, work)])]


def channels_per_block(out_channels: int, pixels: int) -> int:
    return max(1, min(out_channels, TUNING.max_block_outputs // pixels))


def rows_per_block(taps: int) -> int:
    """Rows of a window, with `taps` along the last axis, of one block iteration."""
    return THREADS // min(taps, THREADS)


def depthwise_wgrad(
    g: Expr,
    s: ConvSizes,
    out_size: tuple[int, ...],
    block_channels: int,
    operands: Operands,
    epilogue: Epilogue,
) -> list[Stmt]:
    """Body of thread block g: all pixels of one image and `block_channels` output channels, over
    `s.k_tiles` × `rows_per_block` rows of the window. lhs_dilation is 1."""
    dtype = operands.dtype
    split, rest = g % s.splits, g // s.splits
    tile, rest = rest % s.n_tiles, rest // s.n_tiles
    image, group = rest % s.batch, rest // s.batch
    last = s.out_channels - 1
    tile0 = tile * block_channels
    channels = [tile0 + j for j in range(block_channels)]
    outputs = [group * s.out_channels + ir.minimum(o, last) for o in channels]
    # threads are along the last axis of the window, and along as many rows as they suffice for
    lane, i, chunk = ir.var("lane"), ir.var("i"), ir.var("chunk")
    columns = ir.minimum(s.taps[2], THREADS)
    rows = const(THREADS) // columns
    thread_row = lane // columns
    row = (split * s.k_tiles + i) * rows + thread_row
    rest, b = u32(row) // u32(s.taps[1]), u32(row) % u32(s.taps[1])
    c, a = rest // u32(s.taps[0]), rest % u32(s.taps[0])
    a, b, c = (t.cast(ir.INDEX) for t in (a, b, c))
    e = chunk * columns + lane % columns
    exists = (thread_row < rows) & (c < s.in_channels) & (e < s.taps[2])
    channel = group * s.in_channels + c
    positions = [
        [_position(s, axis, const(at), tap * s.dilation[axis]) for at in range(n)]
        for axis, (tap, n) in enumerate(zip((a, b, e), out_size, strict=True))
    ]
    pixels = list(product(*(range(n) for n in out_size)))
    acc = [
        [ir.Register(f"sum{p}_{j}", dtype, lanes=True) for j in range(block_channels)]
        for p in range(len(pixels))
    ]
    weights = [ir.var(f"weight{j}", dtype) for j in range(block_channels)]
    zero = const(0, dtype)
    body: list[Stmt] = [
        ir.Let(w, ir.select(exists, operands.weights(o, c, (a, b, e), exists), zero))
        for w, o in zip(weights, outputs, strict=True)
    ]
    for p, pixel in enumerate(pixels):
        (x, in_x), (y, in_y), (z, in_z) = (positions[axis][at] for axis, at in enumerate(pixel))
        in_bounds = exists & in_x & in_y & in_z
        value = ir.var(f"value{p}", dtype)
        loaded = operands.data(image, channel, (x, y, z), in_bounds)
        body.append(ir.Let(value, ir.select(in_bounds, loaded, zero)))
        for register, w in zip(acc[p], weights, strict=True):
            sum_ = ir.fma(value, w, ir.read(register), allow_unfused=True)
            body.append(ir.Set(register, sum_))
    registers = [register for pixel_acc in acc for register in pixel_acc]
    chunks = (s.taps[2] + (columns - 1)) // columns
    loop = ir.For(i, ZERO, s.k_tiles, "serial", [ir.For(chunk, ZERO, chunks, "serial", body)])
    clear: list[Stmt] = [ir.Set(register, zero) for register in registers]
    out: list[Stmt] = [ir.For(lane, ZERO, const(THREADS), "lanes", [*clear, loop])]
    left, right, results = (
        [ir.var(f"{name}{n}", dtype) for n in range(len(registers))] for name in ("a", "b", "sum")
    )
    merged = [p + q for p, q in zip(left, right, strict=True)]
    out.append(ir.BlockReduce(registers, left, right, merged, results))
    for p, pixel in enumerate(pixels):
        d, h, w = (const(at) for at in pixel)
        for j, o in enumerate(channels):
            stored = epilogue(split, group, image, (d, h, w), o, results[p * block_channels + j])
            out.append(ir.If(o < s.out_channels, stored))
    return out
