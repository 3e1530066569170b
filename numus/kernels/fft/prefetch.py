"""Prefetches of what the next iteration of a loop accesses (software prefetching, Callahan 1991).

Points of columns lie whole rows apart: hardware prefetchers follow no such stream, and a core waits
for each of its few outstanding misses. Where data does not stay in the caches, each access of a
point comes with a prefetch of the one that follows it there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, split_constant
from numus.ir.visit import post_order
from numus.kernels.fft.indices import quotient, remainder

LINE_NBYTES = 64
READ_LEVEL, WRITE_LEVEL = 2, 1  # of caches; points read are of few sets of L1, which they overflow


def _once(places: Iterable[tuple[ir.Buffer, Expr]], write: bool) -> list[Stmt]:
    """Both parts of a number, and its neighbours, share their lines. Past the last iteration places
    may be past the end of memory, as those of prefetches may, but not of loads that tell them."""
    found: dict[tuple[ir.Buffer, Expr], Expr] = {}
    for buffer, index in places:
        if buffer.access != "scratch" and not _is_loaded(index):
            found.setdefault((buffer, split_constant(index)[0]), index)
    level = WRITE_LEVEL if write else READ_LEVEL
    return [ir.Prefetch(b, at, write, level, lanes=True) for (b, _), at in found.items()]


def _is_loaded(index: Expr) -> bool:
    return any(e.op == "load" for e in post_order([index], set()))


def fetch_operands(values: Sequence[Expr]) -> list[Stmt]:
    """Of the elements that these values are computed from."""
    return _once(((e.attr, e.args[0]) for e in post_order(values, set()) if e.op == "load"), False)


def fetch_results(stores: Iterable[Stmt]) -> list[Stmt]:
    """Of the elements that are stored, unless they go around the caches."""
    found = [s for s in stores if isinstance(s, ir.Store) and not s.streams]
    return _once(((s.buffer, s.index) for s in found), True)


def spread_rows(
    length: int,
    rows: int,
    dtype: DType,
    read: Callable[[tuple[Expr, Expr], Expr], tuple[Expr, Expr]],
    write: Callable[[tuple[Expr, Expr], Expr, tuple[Expr, Expr]], list[Stmt]],
    loops: Sequence[Stmt],
    turns: Sequence[tuple[int, int]],
) -> None:
    """Adds prefetches of the next `rows` transforms to these loops over a vector of them, whose
    iterations and points of each are `turns`: of operands to the first half of the loops, of
    results to the others.

    All that a vector of short rows reads comes at once, and so does all that it stores; a core has
    few misses outstanding, and nothing to wait for while it computes. Lines of memory at
    regular distances among the instructions keep both busy.
    """
    zero, per_line = const(0.0, dtype), max(1, LINE_NBYTES // (2 * dtype.itemsize))
    lines = -(-length // per_line)

    def fetch(number: Expr, is_write: bool) -> list[Stmt]:
        row = ir.add(const(rows), quotient(number, lines))
        w, at = (row, const(0)), ir.mul(remainder(number, lines), const(per_line))
        if is_write:
            return fetch_results(write(w, at, (zero, zero)))
        return fetch_operands(read(w, at))

    middle = len(loops) // 2
    for is_write, part in ((False, slice(middle)), (True, slice(middle, None))):
        whole, first = sum(math.prod(turn) for turn in turns[part]), 0
        for loop, (count, points) in zip(loops[part], turns[part], strict=True):
            each = -(-rows * lines * points // whole)  # lines per iteration
            lanes, iteration = _innermost(loop)
            start = ir.add(ir.mul(iteration, const(each)), const(first))
            for j in reversed(range(each)):
                lanes.body[:0] = fetch(ir.add(start, const(j)), is_write)
            first += each * count


def _innermost(loop: Stmt) -> tuple[ir.For, Expr]:
    """The loop over lanes in these, and the number of the iteration it is in."""
    assert isinstance(loop, ir.For)
    iteration = const(0)
    while loop.kind != "lanes":
        iteration = ir.add(ir.mul(iteration, loop.stop), loop.var)
        loop = loop.body[0]
        assert isinstance(loop, ir.For)
    return loop, iteration
