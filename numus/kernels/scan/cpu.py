"""Reduce-then-scan on vector units, with a Hillis-Steele scan inside each vector.

A span of an axis is scanned either with one row per lane (`scan_lanes`) or a vector of contiguous
elements at a time (`scan_vectors`). Long rows are cut into parts of a fixed size: part totals, an
exclusive scan of the totals, then every part with its carry-in. The association depends on shapes
alone, never on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.math import FUNCTIONS

ZERO, ONE = const(0), const(1)
TOTAL_UNROLL = 4  # vectors of partial sums, which hide the latency of an addition

Element = list[Expr]  # in the accumulator's dtype; a pair for complex numbers
Read = Callable[[Expr], Element]
Write = Callable[[Expr, Element], list[Stmt]]


@dataclass(frozen=True, slots=True)
class ScanSpan:
    """A scan of elements start … stop of a row."""

    op: str
    dtype: DType  # of the accumulator
    components: int  # 2 for complex numbers
    start: Expr
    stop: Expr

    @property
    def identity(self) -> Element:
        return identity(self.op, self.dtype, self.components)

    def combine(self, a: Element, b: Element) -> Element:
        return combine(self.op, a, b)

    def registers(self, lanes: bool) -> list[ir.Register]:
        return [ir.Register(f"acc{k}", self.dtype, lanes=lanes) for k in range(self.components)]

    def names(self, name: str) -> Element:
        return [ir.var(f"{name}{k}", self.dtype) for k in range(self.components)]


def scan_lanes(span: ScanSpan, read: Read, write: Write) -> tuple[list[Stmt], Element]:
    """A serial scan per lane, each of its own row; the total."""
    i = ir.var("scan_i")
    registers = span.registers(lanes=True)
    new = span.names("next")
    body = [
        *ir.lets(new, span.combine(ir.reads(registers), read(i))),
        *ir.sets(registers, new),
        *write(i, new),
    ]
    loop = ir.For(i, span.start, span.stop, "serial", body)
    return [*ir.sets(registers, span.identity), loop], ir.reads(registers)


def scan_vectors(
    span: ScanSpan, lanes: int, read: Read, write: Write
) -> tuple[list[Stmt], Element]:
    """A scan by whole vectors and a serial remainder; the total."""
    k = ir.var("rest_i")
    registers = span.registers(lanes=False)
    total = ir.reads(registers)
    new = span.names("next")
    rest = [*ir.lets(new, span.combine(total, read(k))), *ir.sets(registers, new), *write(k, new)]
    start, out = span.start, ir.sets(registers, span.identity)
    if lanes > 1:
        start = ir.sub(span.stop, ir.irem(ir.sub(span.stop, span.start), const(lanes)))
        out.append(_whole_vectors(span, registers, start, lanes, read, write))
    return [*out, ir.For(k, start, span.stop, "serial", rest)], total


def _whole_vectors(
    span: ScanSpan, registers: list[ir.Register], stop: Expr, lanes: int, read: Read, write: Write
) -> Stmt:
    i, j = ir.var("vector_i"), ir.var("lane")
    at = ir.add(i, j)
    prefix = span.names("step0_")
    body = ir.lets(prefix, read(at))
    shift = 1
    while shift < lanes:
        earlier = [
            ir.lanes_shift(x, shift, one) for x, one in zip(prefix, span.identity, strict=True)
        ]
        combined = span.combine(earlier, prefix)
        prefix = span.names(f"step{shift}_")
        body += ir.lets(prefix, combined)
        shift *= 2
    # the register waits for one operation per vector, not for a shuffle of its result as well
    before, last = span.names("before"), [ir.lanes_last(x) for x in prefix]
    body += ir.lets(before, ir.reads(registers))
    body += ir.sets(registers, span.combine(before, last))
    body += write(at, span.combine(before, prefix))
    vector = ir.For(j, ZERO, const(lanes), "lanes", body, width=lanes)
    return ir.For(i, span.start, stop, "serial", [vector], step=const(lanes))


def sum_in_lanes(span: ScanSpan, read: Read) -> tuple[list[Stmt], Element]:
    """The total of a sum alone: a partial sum per lane, which are added at the end."""
    i = ir.var("sum_i")
    registers = span.registers(lanes=True)
    add = ir.sets(registers, span.combine(ir.reads(registers), read(ir.add(span.start, i))))
    loop = ir.For(i, ZERO, ir.sub(span.stop, span.start), "lanes", add, unroll=TOTAL_UNROLL)
    total = [ir.lanes_reduce("add", r) for r in registers]
    return [*ir.sets(registers, span.identity), loop], total


def exclusive_scan(
    op: str, dtype: DType, components: int, count: Expr, read: Read, write: Write
) -> list[Stmt]:
    """The carry-in of each part, from part totals."""
    span = ScanSpan(op, dtype, components, ZERO, count)
    i = ir.var("part_i")
    registers = span.registers(lanes=True)
    old, new = span.names("before"), span.names("next")
    body = [
        *ir.lets(new, read(i)),
        *ir.lets(old, ir.reads(registers)),
        *write(i, old),
        *ir.sets(registers, span.combine(old, new)),
    ]
    return [*ir.sets(registers, span.identity), ir.For(i, ZERO, count, "serial", body)]


def identity(op: str, dtype: DType, components: int) -> Element:
    """The neutral element of an operation."""
    if op in ("sum", "prod"):
        first = const(op == "prod", dtype) if dtype is dt.bool_ else const(int(op == "prod"), dtype)
        return [first, const(0, dtype)][:components]
    if op == "logsumexp":
        return [const(float("-inf"), dtype)]
    if dtype.kind == "float":
        return [const(float("-inf") if op == "max" else float("inf"), dtype)]
    low, high = dt.int_range(dtype)
    return [const(low if op == "max" else high, dtype)]


def combine(op: str, a: Element, b: Element) -> Element:
    """a op b, a being the earlier element."""
    if len(a) == 2:
        if op == "sum":
            return [a[0] + b[0], a[1] + b[1]]
        return [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
    x, y = a[0], b[0]
    if x.dtype is dt.bool_:
        return [x | y if op in ("sum", "max") else x & y]
    if op == "logsumexp":
        return [_log_add_exp(x, y)]
    return [ir.binary({"sum": "add", "prod": "mul"}.get(op, op), x, y)]


def _log_add_exp(a: Expr, b: Expr) -> Expr:
    """log(exp a + exp b), correct for infinities."""
    top = ir.maximum(a, b)
    distance = -ir.unary("abs", a - b)
    return select(
        a.eq(b),
        a + const(0.6931471805599453, a.dtype),
        top + FUNCTIONS["log1p"](FUNCTIONS["exp"](distance)),
    )
