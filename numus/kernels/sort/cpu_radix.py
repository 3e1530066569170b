"""LSD radix sort between two buffers.

Only the bits in which keys differ from their minimum are sorted: small numbers in a wide dtype take
few passes, equal keys none.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.sort.keys import Read, RecordLayout, Write

ZERO, ONE = const(0), const(1)


@dataclass(frozen=True, slots=True)
class DoubleBuffer:
    """The two record buffers, `stride` apart, and the histogram of one digit."""

    buffers: tuple[ir.Buffer, ...]
    counts: ir.Buffer
    stride: Expr
    radix_bits: int


class KeyRange:
    """The minimum and maximum of keys."""

    def __init__(self, name: str, key: DType, lanes: bool = True) -> None:
        self.low, self.high = (ir.Register(f"{name}_{k}", key, lanes) for k in ("low", "high"))
        self.key = key

    def start(self) -> list[Stmt]:
        return ir.sets([self.low, self.high], [const(-1, self.key), const(0, self.key)])

    def update(self, low: Expr, high: Expr | None = None) -> list[Stmt]:
        """Extend the range by a key, or by another range."""
        new = ir.minimum(ir.read(self.low), low), ir.maximum(ir.read(self.high), high or low)
        return ir.sets([self.low, self.high], new)

    def results(self) -> tuple[Expr, Expr]:
        return ir.lanes_reduce("min", self.low), ir.lanes_reduce("max", self.high)


def _digit_range(low: Expr, high: Expr, layout: RecordLayout) -> tuple[Expr, Expr]:
    """The key that digits are relative to, and the significant bits of the differences."""
    base = low & const(-1 << layout.index_bits, layout.key)
    difference = (high - base) >> layout.index_bits
    return base, const(layout.key.bits) - ir.unary("clz", difference).cast(ir.INDEX)


def radix_sort(
    data: DoubleBuffer,
    layout: RecordLayout,
    start: Expr,
    count: Expr,
    low: Expr,
    high: Expr,
    write: Write,
) -> list[Stmt]:
    """Sort records start … start + count of the first buffer, whose keys are in low … high."""
    base = ir.var("base", layout.key)
    bits, passes, width = (ir.var(n) for n in ("bits", "passes", "width"))
    value_base, value_bits = _digit_range(low, high, layout)
    radix_bits = const(data.radix_bits)
    number, source, target, shift = (ir.var(n) for n in ("number", "source", "target", "shift"))

    def digit(key: Expr) -> Expr:
        at = (key - base) >> shift.cast(layout.key)
        return (at.cast(ir.INDEX)) & ((ONE << width) - 1)

    z, c, p, m = (ir.var(n) for n in ("zero_i", "count_i", "prefix_i", "move_i"))
    entries = ONE << width
    counted, moved = ir.var("counted"), ir.var("moved")
    running, before, slot = ir.Register("running", dt.int64), ir.var("before"), ir.var("slot")
    fields = [ir.load(b, ir.add(source, m)) for b in data.buffers]
    histogram: list[Stmt] = [
        ir.Let(counted, digit(ir.load(data.buffers[0], ir.add(source, c)))),
        ir.Store(data.counts, counted, ir.add(ir.load(data.counts, counted), ONE)),
    ]
    scan: list[Stmt] = [
        ir.Let(before, ir.read(running)),
        ir.Set(running, ir.add(before, ir.load(data.counts, p))),
        ir.Store(data.counts, p, before),
    ]
    move = [
        ir.Let(moved, digit(fields[0])),
        ir.Let(slot, ir.load(data.counts, moved)),
        ir.Store(data.counts, moved, ir.add(slot, ONE)),
        *ir.stores(data.buffers, slot, fields),
    ]
    body: list[Stmt] = [
        ir.Let(shift, ir.add(ir.mul(number, width), const(layout.index_bits))),
        ir.Let(source, ir.add(start, select((number & 1).eq(0), ZERO, data.stride))),
        ir.Let(target, ir.add(start, select((number & 1).eq(0), data.stride, ZERO))),
        ir.For(z, ZERO, entries, "lanes", [ir.Store(data.counts, z, ZERO)]),
        ir.For(c, ZERO, count, "serial", histogram),
        ir.Set(running, target),
        ir.For(p, ZERO, entries, "serial", scan),
        ir.For(m, ZERO, count, "serial", move),
    ]
    i, last = ir.var("out_i"), ir.var("last")
    end = ir.add(start, select((passes & 1).eq(0), ZERO, data.stride))
    values = [ir.load(b, ir.add(last, i)) for b in data.buffers]
    return [
        ir.Let(base, value_base),
        ir.Let(bits, value_bits),
        ir.Let(passes, ir.idiv(ir.add(bits, radix_bits - 1), radix_bits)),
        ir.Let(width, ir.idiv(ir.add(bits, passes - 1), ir.maximum(passes, 1))),
        ir.For(number, ZERO, passes, "serial", body),
        ir.Let(last, end),
        ir.For(i, ZERO, count, "lanes", write(i, layout.result(values))),
    ]


def radix_sort_row(
    length: Expr, layout: RecordLayout, radix_bits: int, read: Read, write: Write
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Sort one row in a worker's scratch."""
    buffers = tuple(
        ir.Buffer(f"records{k}", f, "scratch", ir.mul(length, const(2)))
        for k, f in enumerate(layout.fields)
    )
    counts = ir.Buffer("counts", dt.int64, "scratch", const(1 << radix_bits))
    data = DoubleBuffer(buffers, counts, length, radix_bits)
    key_range = KeyRange("row", layout.key)
    i = ir.var("in_i")
    fields = read(i)
    fill = ir.stores(buffers, i, fields)
    out = key_range.start()
    out.append(ir.For(i, ZERO, length, "lanes", [*fill, *key_range.update(fields[0])]))
    out += radix_sort(data, layout, ZERO, length, *key_range.results(), write)
    return out, [*buffers, counts]
