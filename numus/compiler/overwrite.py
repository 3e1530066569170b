"""Which inputs of a kernel may be overwritten by its results.

A result may take the memory of an input where every element is read only to compute the very
element that takes its place: then the read comes first, whatever order the machine prefers. That is
so in maps over contiguous memory, as updates of parameters are, and in what follows a product.
"""

from __future__ import annotations

from collections.abc import Iterator

from numus.compiler import ir
from numus.compiler.emit import Step
from numus.compiler.local import Val

WORTH_SHARING = 1 << 16  # bytes


def takeovers(step: Step, stored: set[Val], held: set[Val]) -> list[tuple[Val, Val]]:
    """Pairs of temporaries of which a kernel may write the first over the second. What is `held` is
    none; what is `stored` is the outcome of its group.
    """
    pairs = list(zip(step.kernel.buffers, step.buffers, strict=False))  # scratch comes after them
    large = [
        (at, buffer.access, v)
        for at, (buffer, v) in enumerate(pairs)
        if v not in held and v.size * v.dtype.itemsize >= WORTH_SHARING
    ]
    once = step.kernel.name in ("contraction", "convolution")
    return [
        (v, s)
        for at, access, v in large
        if access == "write"
        for source, how, s in large
        if how == "read" and s.size == v.size
        if may_overwrite(step.kernel, source, at, once and v in stored)
    ]


def may_overwrite(kernel: ir.Kernel, source: int, target: int, once: bool = False) -> bool:
    """Whether the buffer at `target` may be the one at `source`. `once`: this kernel is known to
    store each element of its results a single time, as the tiles of a product do.
    """
    read, written = kernel.buffers[source], kernel.buffers[target]
    if read.dtype is not written.dtype or kernel.group:
        return False
    stores: list[ir.Store] = []
    lanes: set[ir.Expr] = set()  # variables of loops over elements, each of which is met once
    values: dict[ir.Expr, ir.Expr] = {}
    loads: set[ir.Expr] = set()
    for s in _statements(kernel.body):
        if isinstance(s, ir.For) and s.kind == "lanes":
            lanes.add(s.var)
        if isinstance(s, ir.Let):
            values[s.var] = s.value
        found = {e for root in _roots(s) for e in _below(root, {}) if _loads(e, read)}
        if found and not isinstance(s, (ir.Let, ir.Store)):
            return False
        loads |= found
        if isinstance(s, ir.Store) and s.buffer is written:
            stores.append(s)
    if not stores or not loads:
        return False
    if not once:
        once = (
            len(stores) == 1
            and stores[0].index in lanes
            and _depth(kernel.body) == ["grid", "lanes"]
        )
    feeding: set[ir.Expr] = set()
    for store in stores:
        used = {e for e in _below(store.value, values) if _loads(e, read)}
        if any(e.args[0] is not store.index for e in used):
            return False
        feeding |= used
    return once and loads <= feeding


def _loads(e: ir.Expr, buffer: ir.Buffer) -> bool:
    return e.op == "load" and e.attr is buffer


def _statements(body: list[ir.Stmt]) -> Iterator[ir.Stmt]:
    for s in body:
        yield s
        if isinstance(s, (ir.For, ir.If)):
            yield from _statements(s.body)


def _depth(body: list[ir.Stmt]) -> list[str]:
    """The kinds of the loops of a kernel that has one inside the other and nothing else."""
    loops = [s for s in body if isinstance(s, (ir.For, ir.If))]
    if not loops:
        return []
    if len(loops) > 1 or not isinstance(loops[0], ir.For):
        return ["several"]
    return [loops[0].kind, *_depth(loops[0].body)]


def _roots(s: ir.Stmt) -> list[ir.Expr]:
    """What a statement evaluates."""
    if isinstance(s, ir.For):
        return [s.start, s.stop, s.step]
    if isinstance(s, ir.If):
        return [s.condition]
    if isinstance(s, (ir.Let, ir.Set)):
        return [s.value]
    if isinstance(s, ir.Store):
        return [s.index, s.value, *([] if s.mask is None else [s.mask])]
    if isinstance(s, (ir.Combine, ir.Scan)):
        return list(s.merged)
    return []


def _below(root: ir.Expr, values: dict[ir.Expr, ir.Expr]) -> Iterator[ir.Expr]:
    """What an expression is computed from, through the names that `Let` gives."""
    seen: set[ir.Expr] = set()
    stack = [root]
    while stack:
        e = stack.pop()
        if e not in seen:
            seen.add(e)
            yield e
            stack.extend(e.args)
            if e in values:
                stack.append(values[e])
