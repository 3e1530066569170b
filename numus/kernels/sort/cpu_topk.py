"""Top-k of a row by insertion into a sorted list of k records, for small k.

The row is read in chunks whose minimum all lanes find together; only chunks with a record below the
list's last are inserted element by element. Insertion is branch-free: each position of the new list
is a comparison of the old one, its predecessor and the new record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.sort.cpu_bitonic import ordered
from numus.kernels.sort.keys import Read, Record, RecordLayout

ZERO, ONE = const(0), const(1)

CHUNK_RECORDS = 64

Write = Callable[[Expr, Record], list[Stmt]]  # store the record of a rank


@dataclass(frozen=True, slots=True)
class TopList:
    """The sorted list of the best `count` records, double-buffered."""

    layout: RecordLayout
    count: Expr

    def scratch(self) -> tuple[tuple[ir.Buffer, ...], tuple[ir.Buffer, ...]]:
        """Both lists, with a sentinel ahead of each, and a chunk."""
        room = ir.mul(ir.add(self.count, ONE), const(2))
        fields = list(enumerate(self.layout.fields))
        lists = tuple(ir.Buffer(f"best{k}", f, "scratch", room) for k, f in fields)
        chunk = tuple(ir.Buffer(f"chunk{k}", f, "scratch", const(CHUNK_RECORDS)) for k, f in fields)
        return lists, chunk


def topk_row(
    b: TopList, start: Expr, stop: Expr, read: Read, write: Write
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The least records of start … stop in order, and the scratch buffers."""
    lists, chunk = b.scratch()
    layout, count = b.layout, b.count
    stride = ir.add(count, ONE)
    current, worst = ir.Register("current", ir.INDEX), ir.Register("worst", layout.key)
    least = ir.Register("least", layout.key, lanes=True)
    c, i, k, p, z = (ir.var(n) for n in ("chunk_c", "i", "k", "p", "pad_p"))
    end, here, there = (ir.var(n) for n in ("chunk_end", "here", "there"))
    fields = read(i)
    load: list[Stmt] = [
        *ir.stores(chunk, ir.sub(i, c), fields),
        ir.Set(least, ir.minimum(ir.read(least), fields[0])),
    ]
    new = [ir.var(f"new{n}", f) for n, f in enumerate(layout.fields)]
    old = [ir.load(m, ir.add(here, p)) for m in lists]
    before = [ir.load(m, ir.add(here, ir.sub(p, ONE))) for m in lists]
    _, after = ordered(before, new)
    inserted, _ = ordered(old, after)
    insert: list[Stmt] = [
        *ir.lets(new, [ir.load(m, k) for m in chunk]),
        ir.Let(here, ir.add(ir.mul(ir.read(current), stride), ONE)),
        ir.Let(there, ir.sub(ir.add(stride, const(2)), here)),
        ir.For(p, ZERO, count, "lanes", ir.stores(lists, ir.add(there, p), inserted)),
        ir.Set(current, ir.sub(ONE, ir.read(current))),
        ir.Set(worst, ir.load(lists[0], ir.add(there, ir.sub(count, ONE)))),
    ]
    # the first `count` are inserted unconditionally: padding may equal the largest key
    warm_up = ir.add(start, count)
    better = ir.load(chunk[0], k) < ir.read(worst)
    wanted = better | (ir.add(c, k) < warm_up)
    body: list[Stmt] = [
        ir.Let(end, ir.minimum(ir.add(c, const(CHUNK_RECORDS)), stop)),
        ir.Set(least, const(-1, layout.key)),
        ir.For(i, c, end, "lanes", load),
        ir.If(
            (ir.lanes_reduce("min", least) < ir.read(worst)) | (c < warm_up),
            [ir.For(k, ZERO, ir.sub(end, c), "serial", [ir.If(wanted, insert)])],
        ),
    ]
    padding = ir.stores(lists, z, [const(-1, f) for f in layout.fields])
    sentinels = [ir.Store(m, at, const(0, m.dtype)) for m in lists for at in (ZERO, stride)]
    rank = ir.var("rank")
    found = ir.add(ir.add(ir.mul(ir.read(current), stride), ONE), rank)
    return [
        ir.For(z, ZERO, ir.mul(stride, const(2)), "lanes", padding),
        *sentinels,
        ir.Set(current, ZERO),
        ir.Set(worst, const(-1, layout.key)),
        ir.For(c, start, stop, "serial", body, step=const(CHUNK_RECORDS)),
        ir.For(rank, ZERO, count, "lanes", write(rank, [ir.load(m, found) for m in lists])),
    ], [*lists, *chunk]
