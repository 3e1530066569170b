"""A convolution as a product of matrices of which the larger is never stored.

It has a row for each place of the result and, along k, for each tap of the window, the channels at
the place of the data that the tap falls on. Data and weights lie with their channels as neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const

ONE = const(1)

Triple = tuple[Expr, Expr, Expr]
# what becomes of a sum: which piece of k, which group, image, place, output, value
Finish = Callable[[Expr, Expr, Expr, Triple, Expr, Expr], list[Stmt]]


@dataclass(slots=True)
class Sizes:
    """The numbers of a launch, as expressions; `whole`: channels come in whole slices."""

    batch: Expr
    groups: Expr
    channels: Expr  # of a group, as they lie
    outputs: Expr  # of a group
    space: Triple
    taps: Triple
    extents: Triple
    stride: Triple
    dilation: Triple
    gap: Triple
    low: Triple
    row_tiles: Expr
    column_tiles: Expr
    pieces: Expr  # of k, each a sum of its own
    slices: Expr  # of a piece
    whole: bool


def small(e: Expr) -> Expr:
    """Indices are small enough for 32 bits, in which it is cheaper to divide."""
    return e.cast(dt.uint32)


def times(values: Triple) -> Expr:
    a, b, c = values
    return ir.mul(ir.mul(a, b), c)


def apart(number: Expr, extents: Triple) -> Triple:
    """The three parts of a number that counts places (32 bits)."""
    _, height, width = (small(n) for n in extents)
    rest = ir.idiv(number, width)
    return ir.idiv(rest, height), ir.irem(rest, height), ir.irem(number, width)


class Windows:
    """Rows and places along k of the product of one group of channels."""

    def __init__(self, s: Sizes, group: Expr) -> None:
        self.s, self.group = s, group
        self.places = times(s.extents)
        self.rows = ir.mul(s.batch, self.places)
        self.depth = ir.mul(s.channels, times(s.taps))

    def place(self, m: Expr) -> tuple[Expr, Triple]:
        """The image and the place in it of a row (32 bits)."""
        places = small(self.places)
        return ir.idiv(small(m), places), apart(ir.irem(small(m), places), self.s.extents)

    def tap(self, k: Expr) -> tuple[Triple, Expr]:
        """The tap and the channel of a place along k (32 bits)."""
        number, channels = small(k), small(self.s.channels)
        return apart(ir.idiv(number, channels), self.s.taps), ir.irem(number, channels)

    def source(self, m: Expr, taps: Triple, channel: Expr) -> tuple[Expr, Expr]:
        """Where the data of a row, a tap and a channel lies, and whether there is any."""
        s = self.s
        image, at = self.place(m)
        inside = m < self.rows
        index = ir.add(ir.mul(image, small(s.groups)), small(self.group))
        for i, tap, extent, step, dilation, gap, low in zip(
            at, taps, s.space, s.stride, s.dilation, s.gap, s.low, strict=True
        ):
            # below zero is far above every extent
            where = ir.sub(ir.mul(i, small(step)), small(low))
            where = ir.add(where, ir.mul(tap, small(dilation)))
            if gap is not ONE:
                inside = inside & ir.irem(where, small(gap)).eq(0)
                where = ir.idiv(where, small(gap))
            inside = inside & (where < small(extent))
            index = ir.add(ir.mul(index, small(extent)), where)
        index = ir.add(ir.mul(index, small(s.channels)), channel)
        # what is not read must not lie far away either: it would be looked up all the same
        return ir.select(inside, index, const(0, dt.uint32)).cast(ir.INDEX), inside
