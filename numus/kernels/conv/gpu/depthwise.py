"""Convolutions as plain sums: of so few channels and outputs in a group that there is nothing to
share, as where every channel has a window of its own.

Where windows are small, a thread has a few results (`sums`): neighbours along the last axis, whose
windows overlap, or else those at one place of several images. Where windows are large and results
few, as gradients by weights have them, a group of threads has all places of one image and of some
outputs, or of a piece of what they are sums of (`gathered`): a thread takes elements of the window,
each for all of these. Taps of the last axis, and results, are written out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from numus import ir
from numus.dtypes import DType, bool_
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.gpu.implicit_gemm import Finish, Sizes, Triple, apart, small, times

THREADS = 256
EACH = 4  # results of a thread
MOST = 64  # taps of the last axis, or places, that are written out
RESULTS = 40  # of a group, where it has several outputs
LEAST = 4096  # elements that are worth a group of threads
ZERO, YES = const(0), const(True, bool_)

Data = Callable[[Expr, Expr, Triple, Expr], Expr]  # (image, channel, place, mask)
# (output, channel of a group, tap, mask)
Weights = Callable[[Expr, Expr, Triple, Expr | None], Expr]
Done = Callable[[Expr, Expr, Triple, Expr], list[Stmt]]  # (image, output, place, value)


@dataclass(frozen=True, slots=True)
class Reads:
    """The elements of both operands, in the dtype of the computation."""

    dtype: DType
    data: Data
    weights: Weights


def _fixed(e: Expr) -> bool:
    return e.op == "const"


def _where(s: Sizes, axis: int, place: Expr, away: Expr) -> tuple[Expr, Expr]:
    """Where something so far from the first tap of a place falls, and whether there is data."""
    where = ir.sub(ir.add(ir.mul(place, s.stride[axis]), away), s.low[axis])
    inside = where >= 0
    if not _fixed(s.gap[axis]):
        inside = inside & ir.irem(where, s.gap[axis]).eq(0)
        where = ir.idiv(where, s.gap[axis])
    return where, inside & (where < s.space[axis])


def neighbours(s: Sizes) -> bool:
    """Whether a thread's results are neighbours: then it is known which elements they share."""
    return _fixed(s.gap[2]) and _fixed(s.stride[2]) and _fixed(s.dilation[2])


def sums(g: Expr, s: Sizes, taps: int, reads: Reads, done: Done) -> list[Stmt]:
    """The work of group g, with so many taps along the last axis. Gaps are 1 or not fixed."""
    dtype, near = reads.dtype, neighbours(s)
    lane, c, a, b = (ir.var(name) for name in ("lane", "c", "tap_d", "tap_h"))
    number = small(ir.add(ir.mul(g, const(THREADS)), lane))
    across = ir.idiv(ir.add(s.extents[2], const(EACH - 1)), const(EACH)) if near else s.extents[2]
    shape = (s.extents[0], s.extents[1], across)
    places, every = small(times(shape)), small(ir.mul(s.groups, s.outputs))
    rest = ir.idiv(number, places)
    output, image = (i.cast(ir.INDEX) for i in (ir.irem(rest, every), ir.idiv(rest, every)))
    d, h, w = (i.cast(ir.INDEX) for i in apart(ir.irem(number, places), shape))
    shift = range(EACH)
    if near:
        own = [(image, ir.add(ir.mul(w, const(EACH)), const(u))) for u in shift]
        there = [at < s.extents[2] for _, at in own]
    else:
        own = [(ir.add(ir.mul(image, const(EACH)), const(u)), w) for u in shift]
        there = [of < s.batch for of, _ in own]
    there[0] = YES
    total = [ir.Register(f"sum{u}", dtype, lanes=True) for u in shift]
    channel = ir.add(ir.mul(ir.idiv(output, s.outputs), s.channels), c)
    at_d, in_d = _where(s, 0, d, ir.mul(a, s.dilation[0]))
    at_h, in_h = _where(s, 1, h, ir.mul(b, s.dilation[1]))
    values: dict[tuple[int, int], Expr] = {}  # by image, and by how far from the first tap
    body: list[Stmt] = []
    for t in range(taps):
        factor = ir.var(f"weight{t}", dtype)
        body.append(ir.Let(factor, reads.weights(output, c, (a, b, const(t)), None)))
        for u in shift:
            key = (0, u * s.stride[2].attr + t * s.dilation[2].attr) if near else (u, t)
            if key not in values:
                away = const(key[1]) if near else ir.mul(s.dilation[2], const(t))
                at_w, in_w = _where(s, 2, own[0][1], away)
                inside = in_d & in_h & in_w
                inside = inside if near else inside & there[u]
                found = reads.data(own[u][0], channel, (at_d, at_h, at_w), inside)
                values[key] = ir.var(f"value{key[0]}_{key[1]}", dtype)
                body.append(ir.Let(values[key], ir.select(inside, found, const(0, dtype))))
            more = ir.fma(values[key], factor, ir.read(total[u]), allow_unfused=True)
            body.append(ir.Set(total[u], more))
    for tap, count in ((b, s.taps[1]), (a, s.taps[0]), (c, s.channels)):
        body = [ir.For(tap, ZERO, count, "serial", body)]
    work: list[Stmt] = [*(ir.Set(register, const(0, dtype)) for register in total), *body]
    for u, (of, at) in enumerate(own):
        work.append(ir.If(there[u], done(of, output, (d, h, at), ir.read(total[u]))))
    images = s.batch if near else ir.idiv(ir.add(s.batch, const(EACH - 1)), const(EACH))
    count = ir.mul(ir.mul(small(images), every), places)
    return [ir.For(lane, ZERO, const(THREADS), "lanes", [ir.If(number < count, work)])]


def outputs_of(outputs: int, places: int) -> int:
    """Outputs that a group has."""
    return max(1, min(outputs, RESULTS // places))


def rows_of(taps: int) -> int:
    """Rows of a window, with so many taps along the last axis, that threads of a group take."""
    return THREADS // min(taps, THREADS)


def gathered(
    g: Expr, s: Sizes, extents: tuple[int, ...], wide: int, reads: Reads, finish: Finish
) -> list[Stmt]:
    """The work of group g: all places, as many as `extents` says, for one image and `wide` outputs
    of a piece, `s.slices` times as many rows of the window as `rows_of` says. There are no gaps."""
    dtype = reads.dtype
    piece, rest = ir.irem(g, s.pieces), ir.idiv(g, s.pieces)
    tile, rest = ir.irem(rest, s.column_tiles), ir.idiv(rest, s.column_tiles)
    image, group = ir.irem(rest, s.batch), ir.idiv(rest, s.batch)
    last = ir.sub(s.outputs, const(1))
    own = [ir.add(ir.mul(tile, const(wide)), const(j)) for j in range(wide)]
    outputs = [ir.add(ir.mul(group, s.outputs), ir.minimum(o, last)) for o in own]
    # threads lie along the last axis of a window, of as many rows as they suffice for
    lane, i, turn = ir.var("lane"), ir.var("i"), ir.var("turn")
    across = ir.minimum(s.taps[2], const(THREADS))
    deep = ir.idiv(const(THREADS), across)
    line = ir.idiv(lane, across)
    row = ir.add(ir.mul(ir.add(ir.mul(piece, s.slices), i), deep), line)
    rest, b = ir.idiv(small(row), small(s.taps[1])), ir.irem(small(row), small(s.taps[1]))
    c, a = ir.idiv(rest, small(s.taps[0])), ir.irem(rest, small(s.taps[0]))
    a, b, c = (t.cast(ir.INDEX) for t in (a, b, c))
    e = ir.add(ir.mul(turn, across), ir.irem(lane, across))
    exists = (line < deep) & (c < s.channels) & (e < s.taps[2])
    channel = ir.add(ir.mul(group, s.channels), c)
    sides = [
        [_where(s, axis, const(at), ir.mul(tap, s.dilation[axis])) for at in range(extents[axis])]
        for axis, tap in enumerate((a, b, e))
    ]
    places = list(product(*(range(n) for n in extents)))
    total = [
        [ir.Register(f"sum{p}_{j}", dtype, lanes=True) for j in range(wide)]
        for p in range(len(places))
    ]
    factors = [ir.var(f"weight{j}", dtype) for j in range(wide)]
    body: list[Stmt] = [
        ir.Let(factor, ir.select(exists, reads.weights(o, c, (a, b, e), exists), const(0, dtype)))
        for factor, o in zip(factors, outputs, strict=True)
    ]
    for p, place in enumerate(places):
        (x, in_x), (y, in_y), (z, in_z) = (sides[axis][at] for axis, at in enumerate(place))
        inside = exists & in_x & in_y & in_z
        value = ir.var(f"value{p}", dtype)
        found = reads.data(image, channel, (x, y, z), inside)
        body.append(ir.Let(value, ir.select(inside, found, const(0, dtype))))
        for register, factor in zip(total[p], factors, strict=True):
            body.append(
                ir.Set(register, ir.fma(value, factor, ir.read(register), allow_unfused=True))
            )
    every = [register for line in total for register in line]
    clear: list[Stmt] = [ir.Set(register, const(0, dtype)) for register in every]
    turns = ir.idiv(ir.add(s.taps[2], ir.sub(across, const(1))), across)
    loop = ir.For(i, ZERO, s.slices, "serial", [ir.For(turn, ZERO, turns, "serial", body)])
    out: list[Stmt] = [ir.For(lane, ZERO, const(THREADS), "lanes", [*clear, loop])]
    left, right, results = (
        [ir.var(f"{name}{n}", dtype) for n in range(len(every))] for name in ("a", "b", "sum")
    )
    merged = [p + q for p, q in zip(left, right, strict=True)]
    out.append(ir.BlockReduce(every, left, right, merged, results))
    for p, place in enumerate(places):
        d, h, w = (const(at) for at in place)
        for j, o in enumerate(own):
            stored = finish(piece, group, image, (d, h, w), o, results[p * wide + j])
            out.append(ir.If(o < s.outputs, stored))
    return out
