"""Convolutions as sums over single windows: of so few channels and outputs in a group that there is
nothing to share, as where every channel has a window of its own.

A thread has the results at one place of a few images: where their windows lie, which taps fall on
data, and the weights are the same for all. Taps are written out.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from numus.compiler import ir
from numus.compiler.ir import Expr, Stmt, const
from numus.dtypes import DType, bool_
from numus.kernels.windows import Sizes, Triple, apart, small, times

THREADS = 256
IMAGES = 4  # of a thread
MOST_TAPS = 64  # that are written out

Data = Callable[[Expr, Expr, Triple, Expr], Expr]  # (image, channel, place, mask)
Weights = Callable[[Expr, Expr, tuple[int, ...]], Expr]  # (output, channel of a group, tap)
Done = Callable[[Expr, Expr, Triple, Expr], list[Stmt]]  # (image, output, place, value)


def sums(
    g: Expr,
    s: Sizes,
    taps: tuple[int, ...],
    dtype: DType,
    data: Data,
    weights: Weights,
    done: Done,
) -> list[Stmt]:
    """The work of group g; `dtype` is that of the computation."""
    lane, c = ir.var("lane"), ir.var("c")
    number = ir.add(ir.mul(g, const(THREADS)), lane)
    places, every = times(s.extents), ir.mul(s.groups, s.outputs)
    rest, at = ir.idiv(small(number), small(places)), ir.irem(small(number), small(places))
    output = ir.irem(rest, small(every)).cast(ir.INDEX)
    first = ir.mul(ir.idiv(rest, small(every)).cast(ir.INDEX), const(IMAGES))
    d, h, w = (i.cast(ir.INDEX) for i in apart(at, s.extents))
    place = (d, h, w)
    images = [ir.add(first, const(u)) for u in range(IMAGES)]
    total = [ir.Register(f"sum{u}", dtype, lanes=True) for u in range(IMAGES)]
    channel = ir.add(ir.mul(ir.idiv(output, s.outputs), s.channels), c)
    # for every axis and tap, where it falls and whether there is data
    sides: list[list[tuple[Expr, Expr]]] = []
    for axis, extent in enumerate(taps):
        side: list[tuple[Expr, Expr]] = []
        for t in range(extent):
            away = ir.mul(s.dilation[axis], const(t)) - s.low[axis]
            where = ir.add(ir.mul(place[axis], s.stride[axis]), away)
            inside = where >= 0
            if s.gap[axis].op != "const" or s.gap[axis].attr != 1:
                inside = inside & ir.irem(where, s.gap[axis]).eq(0)
                where = ir.idiv(where, s.gap[axis])
            side.append((where, inside & (where < s.space[axis])))
        sides.append(side)
    body: list[Stmt] = []
    for tap in product(*(range(n) for n in taps)):
        (a, there), (b, down), (e, across) = (side[t] for side, t in zip(sides, tap, strict=True))
        inside = there & down & across
        name = "_".join(map(str, tap))
        factor = ir.var(f"weight{name}", dtype)
        values = [ir.var(f"value{name}_{u}", dtype) for u in range(IMAGES)]
        body.append(ir.Let(factor, weights(output, c, tap)))
        for u, (value, image) in enumerate(zip(values, images, strict=True)):
            mask = inside if u == 0 else inside & (image < s.batch)
            found = data(image, channel, (a, b, e), mask)
            body.append(ir.Let(value, ir.select(mask, found, const(0, dtype))))
        for register, value in zip(total, values, strict=True):
            body.append(ir.Set(register, ir.fma(value, factor, ir.read(register), loose=True)))
    work: list[Stmt] = [ir.Set(register, const(0, dtype)) for register in total]
    work.append(ir.For(c, const(0), s.channels, "serial", body))
    for u, (register, image) in enumerate(zip(total, images, strict=True)):
        stored = done(image, output, place, ir.read(register))
        there = const(True, bool_) if u == 0 else image < s.batch
        work.append(ir.If(there, stored))
    groups = ir.idiv(ir.add(s.batch, const(IMAGES - 1)), const(IMAGES))
    count = ir.mul(ir.mul(groups, every), places)
    return [ir.For(lane, const(0), const(THREADS), "lanes", [ir.If(number < count, work)])]
