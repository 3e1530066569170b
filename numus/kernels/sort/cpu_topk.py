"""The first few of a row in some order, without sorting it.

The best so far lie in order. A row passes by in chunks, whose least record is found by all lanes
together; only a chunk that has a better one than the worst of the best is looked at one by one. A
newcomer goes into its place by comparisons alone: what was there and what came before it, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.sort.cpu import Fields, Order, Read
from numus.kernels.sort.cpu_bitonic import ordered

ZERO, ONE = const(0), const(1)

CHUNK = 64  # records that are looked at together

Write = Callable[[Expr, Fields], list[Stmt]]  # what is done with the record of a rank


@dataclass(frozen=True, slots=True)
class Best:
    """The best so far, twice: at an insertion they move from one copy to the other."""

    order: Order
    count: Expr  # how many are wanted

    def scratch(self) -> tuple[tuple[ir.Buffer, ...], tuple[ir.Buffer, ...]]:
        """Memory for both copies, with a place ahead of each, and for a chunk."""
        room = ir.mul(ir.add(self.count, ONE), const(2))
        fields = list(enumerate(self.order.fields))
        best = tuple(ir.Buffer(f"best{k}", f, "scratch", room) for k, f in fields)
        chunk = tuple(ir.Buffer(f"chunk{k}", f, "scratch", const(CHUNK)) for k, f in fields)
        return best, chunk


def first_few(
    b: Best, start: Expr, stop: Expr, read: Read, write: Write
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The best of the records at start … stop, which come in the order of their places, and the
    memory that this needs."""
    best, chunk = b.scratch()
    order, count = b.order, b.count
    apart = ir.add(count, ONE)
    side, worst = ir.Register("side", ir.INDEX), ir.Register("worst", order.key)
    least = ir.Register("least", order.key, lanes=True)
    c, i, k, p, z = (ir.var(n) for n in ("chunk_c", "i", "k", "p", "blank_p"))
    end, here, there = (ir.var(n) for n in ("chunk_end", "here", "there"))
    fields = read(i)
    look: list[Stmt] = [
        *(ir.Store(m, ir.sub(i, c), v) for m, v in zip(chunk, fields, strict=True)),
        ir.Set(least, ir.minimum(ir.read(least), fields[0])),
    ]
    new = [ir.var(f"new{n}", f) for n, f in enumerate(order.fields)]
    old = [ir.load(m, ir.add(here, p)) for m in best]
    before = [ir.load(m, ir.add(here, ir.sub(p, ONE))) for m in best]
    _, after = ordered(before, new)
    kept, _ = ordered(old, after)
    insert: list[Stmt] = [
        *(ir.Let(n, ir.load(m, k)) for n, m in zip(new, chunk, strict=True)),
        ir.Let(here, ir.add(ir.mul(ir.read(side), apart), ONE)),
        ir.Let(there, ir.sub(ir.add(apart, const(2)), here)),
        ir.For(
            p,
            ZERO,
            count,
            "lanes",
            [ir.Store(m, ir.add(there, p), v) for m, v in zip(best, kept, strict=True)],
        ),
        ir.Set(side, ir.sub(ONE, ir.read(side))),
        ir.Set(worst, ir.load(best[0], ir.add(there, ir.sub(count, ONE)))),
    ]
    # the first ones go in whatever they are: nothing may be better than what stands for nothing
    early = ir.add(start, count)
    better = ir.load(chunk[0], k) < ir.read(worst)
    wanted = better | (ir.add(c, k) < early)
    body: list[Stmt] = [
        ir.Let(end, ir.minimum(ir.add(c, const(CHUNK)), stop)),
        ir.Set(least, const(-1, order.key)),
        ir.For(i, c, end, "lanes", look),
        ir.If(
            (ir.lanes_reduce("min", least) < ir.read(worst)) | (c < early),
            [ir.For(k, ZERO, ir.sub(end, c), "serial", [ir.If(wanted, insert)])],
        ),
    ]
    blank: list[Stmt] = [
        ir.Store(m, z, const(-1, f)) for m, f in zip(best, order.fields, strict=True)
    ]
    ahead: list[Stmt] = [ir.Store(m, at, const(0, m.dtype)) for m in best for at in (ZERO, apart)]
    rank = ir.var("rank")
    found = ir.add(ir.add(ir.mul(ir.read(side), apart), ONE), rank)
    return [
        ir.For(z, ZERO, ir.mul(apart, const(2)), "lanes", blank),
        *ahead,
        ir.Set(side, ZERO),
        ir.Set(worst, const(-1, order.key)),
        ir.For(c, start, stop, "serial", body, step=const(CHUNK)),
        ir.For(rank, ZERO, count, "lanes", write(rank, [ir.load(m, found) for m in best])),
    ], [*best, *chunk]
