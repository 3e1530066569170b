"""Grouped-query attention (Ainslie et al. 2023): the queries of heads that share keys, as the rows
of one matrix, so that a block reads keys and values once for all of them.

Heads share keys where the views of keys and values map consecutive matrices to the same memory.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.emitter import Emitter
from numus.ir import Expr, const
from numus.kernels.attention.gpu.block import FwdOperands
from numus.kernels.common.smem_tiles import Matrix, RowUpdate
from numus.shapes import row_major

_ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
_ARITHMETIC |= {"idiv": np.floor_divide, "irem": np.remainder}


def sharing(x: Value, layouts: Layouts) -> int:
    """How many consecutive matrices of a view are the same."""
    base = x
    while base.kind == "view" and base not in layouts and len(base.inputs) == 1:
        base = base.inputs[0]
    e = Emitter({base: layouts.get(base) or row_major(base.shape)})
    e.static = True
    n, count = e.variable("n", const(x.shape[0])), x.shape[0]
    index = tuple(const(0) if m == 1 or i else n for i, m in enumerate(x.shape))
    found = e.value(x, index)
    if count == 1 or not isinstance(found, Expr) or found.op != "load" or len(found.args) > 1:
        return 1
    places = _evaluate(found.args[0], n, np.arange(count))
    if places is None:
        return 1
    places = np.broadcast_to(places, count)
    changes = np.flatnonzero(np.diff(places))
    group = math.gcd(count, *(int(c) + 1 for c in changes))
    return group if (places.reshape(-1, group) == places[::group, None]).all() else 1


def _evaluate(e: Expr, n: Expr, numbers: np.ndarray) -> np.ndarray | None:
    """An index for all of these numbers; None if it is more than arithmetic."""
    if e is n:
        return numbers
    if e.op == "const":
        return np.asarray(e.attr)
    if e.op not in _ARITHMETIC:
        return None
    a, b = (_evaluate(x, n, numbers) for x in e.args)
    return None if a is None or b is None else np.asarray(_ARITHMETIC[e.op](a, b))


def as_rows(o: FwdOperands, heads: int, queries: int) -> FwdOperands:
    """Operands of matrices with the queries of `heads` heads each."""
    if heads == 1:
        return o

    def head(n: Expr, row: Expr) -> Expr:
        return n * heads + row // queries

    def query(row: Expr) -> Expr:
        return row % queries

    def shared(x: Matrix) -> Matrix:
        memory, update = x.memory, x.update
        if memory is not None:
            offset, aligned = memory.offset, memory.aligned
            memory = replace(
                memory, offset=lambda n: offset(n * heads), aligned=lambda n: aligned(n * heads)
            )
        if update is not None:
            place, new = update.place, update.read
            update = RowUpdate(
                update.position,
                lambda n, row: place(n * heads, row),
                lambda n, column: new(n * heads, column),
            )
        read = x.read
        return Matrix(lambda n, *at: read(n * heads, *at), x.columns, memory, update)

    read_query, bias, keep = o.q.read, o.bias, o.keep
    write, write_lse = o.write, o.write_lse
    by_query = Matrix(
        lambda n, row, *at: read_query(head(n, row), query(row), *at), o.q.columns, None
    )
    return replace(
        o,
        q=by_query,
        k=shared(o.k),
        v=None if o.v is None else shared(o.v),
        bias=bias and (lambda n, row, key: bias(head(n, row), query(row), key)),
        keep=keep and (lambda n, row, key: keep(head(n, row), query(row), key)),
        write=lambda n, row, *rest: write(head(n, row), query(row), *rest),
        write_lse=lambda n, row, x: write_lse(head(n, row), query(row), x),
        position=query,
    )
