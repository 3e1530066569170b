"""Radix sort: records moved to and fro, digit by digit, from the lowest.

Digits are counted from the least key there is and end with the highest bit in which keys differ, so
that small numbers in a large dtype take few passes, and equal ones none.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.sort.cpu import Order, Read, Write

ZERO, ONE = const(0), const(1)


@dataclass(frozen=True, slots=True)
class Space:
    """Two copies of a stretch of records, `apart` from each other, from which a row or bucket is
    moved to and fro; `counts` has room for one digit's counters."""

    buffers: tuple[ir.Buffer, ...]
    counts: ir.Buffer
    apart: Expr
    digit_bits: int


class Limits:
    """The least and largest key among records that pass by."""

    def __init__(self, name: str, key: DType) -> None:
        self.low, self.high = (ir.Register(f"{name}_{k}", key, lanes=True) for k in ("low", "high"))
        self.key = key

    def start(self) -> list[Stmt]:
        return [ir.Set(self.low, const(-1, self.key)), ir.Set(self.high, const(0, self.key))]

    def take(self, key: Expr) -> list[Stmt]:
        return [
            ir.Set(self.low, ir.minimum(ir.read(self.low), key)),
            ir.Set(self.high, ir.maximum(ir.read(self.high), key)),
        ]

    def results(self) -> tuple[Expr, Expr]:
        return ir.lanes_reduce("min", self.low), ir.lanes_reduce("max", self.high)


def base_and_bits(low: Expr, high: Expr, order: Order) -> tuple[Expr, Expr]:
    """What digits are counted from, and how many bits of a key differ between records."""
    base = low & const(-1 << order.low, order.key)
    spread = (high - base) >> order.low
    return base, const(order.key.bits) - ir.unary("clz", spread).cast(ir.INDEX)


def radix(
    space: Space, order: Order, start: Expr, count: Expr, low: Expr, high: Expr, write: Write
) -> list[Stmt]:
    """Sort the records at start … start + count of the space's first copy, whose keys lie between
    low and high."""
    base, bits, passes, width = (
        ir.var("base", order.key),
        ir.var("bits"),
        ir.var("passes"),
        ir.var("width"),
    )
    value_base, value_bits = base_and_bits(low, high, order)
    digit_bits = const(space.digit_bits)
    number, source, target, shift = (ir.var(n) for n in ("number", "source", "target", "shift"))

    def digit(key: Expr) -> Expr:
        at = (key - base) >> shift.cast(order.key)
        return (at.cast(ir.INDEX)) & ((ONE << width) - 1)

    z, c, p, m = (ir.var(n) for n in ("zero_i", "count_i", "prefix_i", "move_i"))
    entries = ONE << width
    counted, moved = ir.var("counted"), ir.var("moved")
    running, before, slot = ir.Register("running", dt.int64), ir.var("before"), ir.var("slot")
    fields = [ir.load(b, ir.add(source, m)) for b in space.buffers]
    body: list[Stmt] = [
        ir.Let(shift, ir.add(ir.mul(number, width), const(order.low))),
        ir.Let(source, ir.add(start, select((number & 1).eq(0), ZERO, space.apart))),
        ir.Let(target, ir.add(start, select((number & 1).eq(0), space.apart, ZERO))),
        ir.For(z, ZERO, entries, "lanes", [ir.Store(space.counts, z, ZERO)]),
        ir.For(
            c,
            ZERO,
            count,
            "serial",
            [
                ir.Let(counted, digit(ir.load(space.buffers[0], ir.add(source, c)))),
                ir.Store(space.counts, counted, ir.add(ir.load(space.counts, counted), ONE)),
            ],
        ),
        ir.Set(running, target),
        ir.For(
            p,
            ZERO,
            entries,
            "serial",
            [
                ir.Let(before, ir.read(running)),
                ir.Set(running, ir.add(before, ir.load(space.counts, p))),
                ir.Store(space.counts, p, before),
            ],
        ),
        ir.For(
            m,
            ZERO,
            count,
            "serial",
            [
                ir.Let(moved, digit(fields[0])),
                ir.Let(slot, ir.load(space.counts, moved)),
                ir.Store(space.counts, moved, ir.add(slot, ONE)),
                *(ir.Store(b, slot, f) for b, f in zip(space.buffers, fields, strict=True)),
            ],
        ),
    ]
    i, last = ir.var("out_i"), ir.var("last")
    end = ir.add(start, select((passes & 1).eq(0), ZERO, space.apart))
    values = [ir.load(b, ir.add(last, i)) for b in space.buffers]
    return [
        ir.Let(base, value_base),
        ir.Let(bits, value_bits),
        ir.Let(passes, ir.idiv(ir.add(bits, digit_bits - 1), digit_bits)),
        ir.Let(width, ir.idiv(ir.add(bits, passes - 1), ir.maximum(passes, 1))),
        ir.For(number, ZERO, passes, "serial", body),
        ir.Let(last, end),
        ir.For(i, ZERO, count, "lanes", write(i, order.result(values))),
    ]


def radix_row(
    length: Expr, order: Order, digit_bits: int, read: Read, write: Write
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Sort one row in a worker's own memory."""
    buffers = tuple(
        ir.Buffer(f"records{k}", f, "scratch", ir.mul(length, const(2)))
        for k, f in enumerate(order.fields)
    )
    counts = ir.Buffer("counts", dt.int64, "scratch", const(1 << digit_bits))
    space = Space(buffers, counts, length, digit_bits)
    limits = Limits("row", order.key)
    i = ir.var("in_i")
    fields = read(i)
    fill: list[Stmt] = [ir.Store(b, i, v) for b, v in zip(buffers, fields, strict=True)]
    out = limits.start()
    out.append(ir.For(i, ZERO, length, "lanes", [*fill, *limits.take(fields[0])]))
    out += radix(space, order, ZERO, length, *limits.results(), write)
    return out, [*buffers, counts]
