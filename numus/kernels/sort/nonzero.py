"""Where something holds: the places of the hits in rows, in order.

Blocks of a row are counted; what comes before each follows; then every block writes its own hits,
side by side with the others. They first go to memory of the block's own, each over the place of the
last miss, which takes no branch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const

ZERO, ONE = const(0), const(1)

BLOCK = 1 << 13  # elements of a row that are looked at together

Holds = Callable[[Expr], Expr]
Write = Callable[[Expr, Expr], list[Stmt]]


@dataclass(frozen=True, slots=True)
class Rows:
    """The sizes: elements of a row, how many places are wanted of it, and its blocks."""

    length: Expr
    wanted: Expr
    blocks: Expr

    def bounds(self, block: Expr) -> tuple[Expr, Expr]:
        start = ir.mul(block, const(BLOCK))
        return start, ir.minimum(ir.add(start, const(BLOCK)), self.length)


def count(rows: Rows, block: Expr, holds: Holds) -> tuple[list[Stmt], Expr]:
    """How many hits a block has."""
    i, total = ir.var("i"), ir.Register("hits", dt.int32, lanes=True)
    add = ir.Set(total, ir.read(total) + holds(i).cast(dt.int32))
    loop = ir.For(i, *rows.bounds(block), "lanes", [add])
    return [ir.Set(total, const(0, dt.int32)), loop], ir.lanes_reduce("add", total).cast(ir.INDEX)


def add_up(rows: Rows, counts: ir.Buffer, first: Expr) -> list[Stmt]:
    """The counts of a row's blocks (and one more) become what comes before each of them."""
    b, before = ir.var("b"), ir.var("before")
    total = ir.Register("total", dt.int64)
    at = ir.add(first, b)
    body: list[Stmt] = [
        ir.Let(before, ir.read(total)),
        ir.Set(total, ir.add(before, ir.load(counts, at))),
        ir.Store(counts, at, before),
    ]
    end = ir.Store(counts, ir.add(first, rows.blocks), ir.read(total))
    return [ir.Set(total, ZERO), ir.For(b, ZERO, rows.blocks, "serial", body), end]


def gather_hits(
    rows: Rows, block: Expr, before: Expr, total: Expr, holds: Holds, write: Write
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Write a block's hits behind the `before` of earlier blocks; the last block fills up what the
    row's `total` leaves of what is wanted with a place past the end."""
    found = ir.Buffer("found", dt.int32, "scratch", const(BLOCK))
    i, k, rest = ir.var("i"), ir.var("k"), ir.var("rest")
    slot = ir.Register("slot", ir.INDEX)
    start, stop = rows.bounds(block)
    body: list[Stmt] = [
        ir.Store(found, ir.read(slot), ir.sub(i, start).cast(dt.int32)),
        ir.Set(slot, ir.add(ir.read(slot), holds(i).cast(ir.INDEX))),
    ]
    place = ir.add(start, ir.load(found, k).cast(ir.INDEX))
    room = ir.sub(rows.wanted, before)
    return [
        ir.Set(slot, ZERO),
        ir.For(i, start, stop, "serial", body),
        ir.For(k, ZERO, ir.minimum(ir.read(slot), room), "lanes", write(ir.add(before, k), place)),
        ir.If(
            block.eq(rows.blocks - 1),
            [ir.For(rest, total, rows.wanted, "lanes", write(rest, rows.length))],
        ),
    ], [found]
