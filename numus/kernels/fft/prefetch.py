"""Prefetches of what the next iteration of a loop accesses (software prefetching, Callahan 1991).

Points of columns lie whole rows apart: hardware prefetchers follow no such stream, and a core waits
for each of its few outstanding misses. Where data does not stay in the caches, each access of a
point comes with a prefetch of the one that follows it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from numus import ir
from numus.ir import Expr, Stmt
from numus.ir.visit import post_order
from numus.kernels.fft.indices import split_constant

READ_LEVEL, WRITE_LEVEL = 2, 1  # of caches; points read are of few sets of L1, which they overflow


def _once(places: Iterable[tuple[ir.Buffer, Expr]], write: bool) -> list[Stmt]:
    """Both parts of a number, and its neighbours, share their lines."""
    found: dict[tuple[ir.Buffer, Expr], Expr] = {}
    for buffer, index in places:
        if buffer.access != "scratch":
            found.setdefault((buffer, split_constant(index)[0]), index)
    level = WRITE_LEVEL if write else READ_LEVEL
    return [ir.Prefetch(b, at, write, level, lanes=True) for (b, _), at in found.items()]


def fetch_operands(values: Sequence[Expr]) -> list[Stmt]:
    """Of the elements that these values are computed from."""
    return _once(((e.attr, e.args[0]) for e in post_order(values, set()) if e.op == "load"), False)


def fetch_results(stores: Iterable[Stmt]) -> list[Stmt]:
    """Of the elements that are stored."""
    return _once(((s.buffer, s.index) for s in stores if isinstance(s, ir.Store)), True)
