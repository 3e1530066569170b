"""Traversals: statements of a body, expressions of a statement, operands of an expression."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from numus.ir.expressions import Expr
from numus.ir.grid_sync import (
    AtomicAdd,
    ClusterGather,
    ClusterStore,
    SetFlag,
    SpinWait,
    WarpMultisplit,
)
from numus.ir.statements import BlockReduce, BlockScan, For, If, Let, Prefetch, Set, Stmt, Store
from numus.ir.tensor_core import MmaSync
from numus.ir.warp_roles import Arrive, AwaitPhase, WarpRoles


def split_constant(index: Expr) -> tuple[Expr, int]:
    """An index without its constant term, and that term."""
    is_sum = index.op == "add" and index.args[1].op == "const"
    return (index.args[0], int(index.args[1].attr)) if is_sum else (index, 0)


def statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """All statements in pre-order."""
    for s in body:
        yield s
        if isinstance(s, (For, If, WarpRoles)):
            yield from statements(s.body)


def expressions_of(s: Stmt) -> list[Expr]:
    """Expressions that a statement itself evaluates, its body excluded."""
    if isinstance(s, (Let, Set)):
        return [s.value]
    if isinstance(s, (AtomicAdd, SetFlag)):
        return [s.index, s.value]
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
        return [*s.a, *s.b]
    if isinstance(s, Arrive):
        return [s.index]
    if isinstance(s, AwaitPhase):
        return [s.index, s.parity]
    if isinstance(s, WarpMultisplit):
        return [s.offset, s.bucket]
    if isinstance(s, ClusterGather):
        return [s.start]
    if isinstance(s, ClusterStore):
        return [s.rank, s.index, s.value]
    return [e for r in s.reads for e in (r.index, r.count)] if isinstance(s, SpinWait) else []


def walk(e: Expr, descend: Callable[[Expr], bool]) -> Iterator[Expr]:
    """An expression and its transitive operands, each once, below those to `descend` into."""
    seen: set[Expr] = set()
    stack = [e]
    while stack:
        x = stack.pop()
        if x not in seen:
            seen.add(x)
            yield x
            if descend(x):
                stack.extend(x.args)


def post_order(roots: Iterable[Expr], seen: set[Expr]) -> Iterator[Expr]:
    """Expressions not seen before, operands first. Iterative: chains may be thousands deep."""
    for root in roots:
        stack: list[tuple[Expr, bool]] = [(root, False)]
        while stack:
            e, expanded = stack.pop()
            if expanded:
                yield e
            elif e not in seen:
                seen.add(e)
                stack.append((e, True))
                stack.extend((a, False) for a in e.args)


def body_expressions(body: Iterable[Stmt], seen: set[Expr] | None = None) -> Iterator[Expr]:
    """Every expression of a body not seen before, operands first."""
    seen = set() if seen is None else seen
    for s in statements(body):
        yield from post_order(expressions_of(s), seen)


def loads(body: Iterable[Stmt]) -> list[Expr]:
    """Every load of a body, once."""
    return [e for e in body_expressions(body) if e.op == "load"]


def loop_invariant(loop: For, varies: Callable[[Expr], bool]) -> list[Expr]:
    """Loop-invariant expressions of a body, operands first. `varies`: leaves that may change from
    iteration to iteration, besides the loop's own variables."""
    inner = list(statements(loop.body))
    own = {loop.var, *(s.var for s in inner if isinstance(s, (For, Let)))}
    for s in inner:
        if isinstance(s, (BlockReduce, BlockScan)):
            own |= {*s.left, *s.right, *s.results}
    invariant: dict[Expr, None] = {}
    for e in body_expressions(loop.body):
        inside = e.op == "carry" or e in own  # of a loop
        if not inside and not varies(e) and all(a in invariant for a in e.args):
            invariant[e] = None
    return list(invariant)
