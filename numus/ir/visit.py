"""Ways through a kernel: its statements, what each evaluates, what that is computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from numus.ir.expressions import Expr
from numus.ir.grid_sync import operands_of
from numus.ir.statements import BlockReduce, BlockScan, For, If, Let, Prefetch, Set, Stmt, Store
from numus.ir.tensor_core import MmaSync


def statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """All statements, outer ones first."""
    for s in body:
        yield s
        if isinstance(s, (For, If)):
            yield from statements(s.body)


def expressions_of(s: Stmt) -> list[Expr]:
    """What a statement itself evaluates, its body left out."""
    if isinstance(s, (Let, Set)):
        return [s.value]
    if isinstance(s, Store):
        return [s.index, s.value] if s.mask is None else [s.index, s.value, s.mask]
    if isinstance(s, For):
        return [s.start, s.stop, s.step]
    if isinstance(s, If):
        return [s.condition]
    if isinstance(s, BlockReduce):
        return list(s.merged)
    if isinstance(s, BlockScan):
        return [*s.merged, *s.initial]
    if isinstance(s, Prefetch):
        return [s.index]
    if isinstance(s, MmaSync):
        return [*s.left, *s.right]
    return operands_of(s)


def walk(e: Expr, past: Callable[[Expr], bool]) -> Iterator[Expr]:
    """An expression and what it is computed from, each once, going on past those that say so."""
    seen: set[Expr] = set()
    stack = [e]
    while stack:
        x = stack.pop()
        if x not in seen:
            seen.add(x)
            yield x
            if past(x):
                stack.extend(x.args)


def post_order(roots: Iterable[Expr], seen: set[Expr]) -> Iterator[Expr]:
    """Expressions not seen before, operands first. Iterative: chains may be thousands deep."""
    for root in roots:
        stack: list[tuple[Expr, bool]] = [(root, False)]
        while stack:
            e, ready = stack.pop()
            if ready:
                yield e
            elif e not in seen:
                seen.add(e)
                stack.append((e, True))
                stack.extend((a, False) for a in e.args)


def loop_invariant(loop: For, changing: Callable[[Expr], bool]) -> list[Expr]:
    """What a loop's body computes to the same in all turns, operands first. `changing`: what may
    come to something else each time, beside the variables that the loop itself has."""
    inner = list(statements(loop.body))
    own = {loop.var, *(s.var for s in inner if isinstance(s, (For, Let)))}
    for s in inner:
        if isinstance(s, (BlockReduce, BlockScan)):
            own |= {*s.left, *s.right, *s.results}
    same: dict[Expr, None] = {}
    seen: set[Expr] = set()
    for s in inner:
        for e in post_order(expressions_of(s), seen):
            if e not in own and not changing(e) and all(a in same for a in e.args):
                same[e] = None
    return list(same)
