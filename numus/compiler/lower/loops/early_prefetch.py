"""Prefetching ahead of a dependent launch: weights come to L2 while the kernel before still runs.

In a chain of small kernels, as the step of a decoder is one, each waits for the last and then for
memory. What no kernel of the chain computes can be on its way before: a block prefetches its rows
of the program's inputs, and then waits. A prefetch is a hint: stale lines do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.compiler.graph.cost_model import nbytes
from numus.compiler.graph.value import Value
from numus.compiler.lower.affine import AffineAnalysis
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.loops.nest import ZERO
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.ir.substitution import substitute
from numus.target import Target


@dataclass(frozen=True)
class EarlyPrefetchTuning:
    """Measured on one H200."""

    line_bytes: int = 128
    min_bytes: int = 1 << 16  # of an input that does not stay in L2 by itself
    l2_share: float = 0.75  # of L2 that an input may take


TUNING = EarlyPrefetchTuning()


def early_prefetch(
    e: Emitter, target: Target, block: Expr, body: list[Stmt], extent: int
) -> list[Stmt]:
    """Prefetches of the rows (`extent` elements) that the lanes of a block load, and the wait."""
    inputs = {buffer for v, buffer in e.buffers.items() if is_fetched(v, target)}
    out: list[Stmt] = []
    for load, lane in _unit_stride_loads(e, body, block):
        if load.attr not in inputs:
            continue
        out.append(fetch_row(load.attr, substitute(load.args[0], {lane: ZERO}), extent, len(out)))
    return [*out, ir.DependencyWait()] if out else []


def is_fetched(v: Value, target: Target) -> bool:
    """An input of the program that may be on its way early."""
    limit = TUNING.l2_share * target.l2_bytes
    small = TUNING.min_bytes <= nbytes(v) <= limit
    return target.dependent_launch and v.kind == "leaf" and small


def line_elements(dtype: DType) -> int:
    """Elements that a prefetch brings."""
    return max(1, TUNING.line_bytes // dtype.itemsize)


def fetch_row(buffer: ir.Buffer, first: Expr, extent: int, number: int) -> Stmt:
    """Prefetches of `extent` adjacent elements by the lanes of a block."""
    per_line = line_elements(buffer.dtype)
    line = ir.var(f"line{number}")
    fetch = ir.Prefetch(buffer, ir.add(first, line * per_line), write=False, level=2)
    return ir.For(line, ZERO, const(-(-extent // per_line)), "lanes", [fetch])


def _unit_stride_loads(e: Emitter, body: list[Stmt], block: Expr) -> list[tuple[Expr, Expr]]:
    """Loads of adjacent elements by the lanes of a loop, at places that follow from the block's
    number; each place once."""
    analysis = AffineAnalysis(e)
    found: dict[tuple[ir.Buffer, Expr], tuple[Expr, Expr]] = {}
    for loop in ir.statements(body):
        if not isinstance(loop, ir.For) or loop.kind != "lanes":
            continue
        for x in ir.body_expressions(loop.body):
            if x.op != "load":
                continue
            at = x.args[0]
            names = {y for y in ir.walk(at, lambda y: True) if y.op in ("var", "load", "read")}
            if not names <= {loop.var, block}:
                continue
            if (analysis.coefficients(at) or {}).get(loop.var) == 1:
                found[x.attr, substitute(at, {loop.var: ZERO})] = x, loop.var
    return list(found.values())
