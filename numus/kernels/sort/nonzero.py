"""Stream compaction on CPUs: the indices of true elements of each row, in order.

Blocks of a row are counted, the counts scanned, then every block compacts itself into scratch,
branch-free (each index overwrites that of the last false element), and copies its indices out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const

ZERO, ONE = const(0), const(1)

BLOCK_ELEMENTS = 1 << 13

Predicate = Callable[[Expr], Expr]
Write = Callable[[Expr, Expr], list[Stmt]]


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """Sizes: elements of a row, indices wanted of it, and its blocks."""

    length: Expr
    wanted: Expr
    blocks: Expr

    def bounds(self, block: Expr) -> tuple[Expr, Expr]:
        return ir.block_range(block, const(BLOCK_ELEMENTS), self.length)


def count(rows: RowBlocks, block: Expr, predicate: Predicate) -> tuple[list[Stmt], Expr]:
    """The true elements of a block."""
    i, total = ir.var("i"), ir.Register("hits", dt.int32, lanes=True)
    add = ir.Set(total, ir.read(total) + predicate(i).cast(dt.int32))
    loop = ir.For(i, *rows.bounds(block), "lanes", [add])
    return [ir.Set(total, const(0, dt.int32)), loop], ir.lanes_reduce("add", total).cast(ir.INDEX)


def scan_counts(rows: RowBlocks, counts: ir.Buffer, first: Expr) -> list[Stmt]:
    """An exclusive scan of a row's block counts, in place; the total comes last."""
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


def compact(
    rows: RowBlocks, block: Expr, before: Expr, total: Expr, predicate: Predicate, write: Write
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Write a block's indices from rank `before` on; the last block pads with the row's length."""
    found = ir.Buffer("found", dt.int32, "scratch", const(BLOCK_ELEMENTS))
    i, k, rest = ir.var("i"), ir.var("k"), ir.var("rest")
    slot = ir.Register("slot", ir.INDEX)
    start, stop = rows.bounds(block)
    body: list[Stmt] = [
        ir.Store(found, ir.read(slot), ir.sub(i, start).cast(dt.int32)),
        ir.Set(slot, ir.add(ir.read(slot), predicate(i).cast(ir.INDEX))),
    ]
    index = ir.add(start, ir.load(found, k).cast(ir.INDEX))
    room = ir.sub(rows.wanted, before)
    return [
        ir.Set(slot, ZERO),
        ir.For(i, start, stop, "serial", body),
        ir.For(k, ZERO, ir.minimum(ir.read(slot), room), "lanes", write(ir.add(before, k), index)),
        ir.If(
            block.eq(rows.blocks - 1),
            [ir.For(rest, total, rows.wanted, "lanes", write(rest, rows.length))],
        ),
    ], [found]
