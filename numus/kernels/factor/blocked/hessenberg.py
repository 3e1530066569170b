"""Householder reduction to Hessenberg form in blocks, A = Q H Qᴴ (LAPACK's gehrd).

A panel of reflectors V makes the matrix (1 - V T Vᴴ)ᴴ (A - Y Vᴴ) with Y = A V T: a product of the
matrix with a vector for each column, and the rest by whole panels.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, const
from numus.kernels.factor.blocked import panels, qr
from numus.kernels.factor.blocked.tiles import (
    Chunks,
    Planes,
    TileProgram,
    transposed,
    update_tiles,
)
from numus.kernels.factor.program import (
    ONE,
    ZERO,
    Matrix,
    Number,
    Span,
    chosen,
    conjugate,
    inverse,
    minus_product,
    plus_product,
    product,
    real,
    squared,
    zero,
)

_TOGETHER = 4  # vectors whose products with the rows above are found in one pass


@dataclass(frozen=True)
class Panel:
    """Rows that are columns of the matrix, of Y and of V; the inverse of T; memory for two rows."""

    u: Planes
    y: Planes
    v: Planes
    t: Planes
    inner: Matrix


def reduce(p: TileProgram, a: Planes, panel: Panel, at: Span, end: Expr) -> None:
    """The columns of a panel and its V and Y, from row and column `first` on."""
    first, count = at
    u, y, v, t, inner = panel.u, panel.y, panel.v, panel.t, panel.inner
    whole, after_first = (ZERO, end), p.let(ir.add(first, ONE))
    below = after_first, end
    transposed(p, a.moved(ZERO, first), u, whole, (ZERO, count))
    with p.loop(ZERO, count) as c:
        k = p.let(ir.add(first, c))
        after = p.let(ir.add(k, ONE))
        panels.subtract(p, (u, c), below, c, [(y, lambda s: conjugate(v[s, k]))])
        panels.inner_products(p, (u, c), below, c, [v], inner)
        _solve_adjoint(p, t, inner, c)
        panels.subtract(p, (u, c), below, c, [(v, lambda s: inner[ZERO, s])])
        with p.lanes(*whole) as i:
            v[c, i] = u[c, i]
        beta, tau, _ = panels.reflector(p, (v, c), after, whole)
        with p.when(p.let(after < end)):
            u[c, after] = real(p, beta)
        with p.lanes(p.let(ir.add(after, ONE)), end) as i:
            u[c, i] = zero(p)
        panels.inner_products(p, (v, c), below, c, [v], inner)
        with p.loop(ZERO, c) as s:
            t[s, c] = inner[ZERO, s]
        none = p.let(squared(tau).eq(0.0))
        t[c, c] = inverse(p, p.number(chosen(none, real(p, p.constant(1.0)), tau)))
        inner[ONE, c] = tau
        with p.lanes(*whole) as i:
            y[c, i] = zero(p)
        panels.across(p, a, (v, c), (y, c), below, lambda top: (after, end))
        panels.subtract(p, (y, c), below, c, [(y, lambda s: inner[ZERO, s])])
        panels.scale(p, (y, c), tau, after_first, whole)
    _rows_above(p, a, panel, at, end)
    transposed(p, u, a.moved(ZERO, first), (ZERO, count), whole)


def _solve_adjoint(p: TileProgram, t: Planes, inner: Matrix, count: Expr) -> None:
    """Row 0 of `inner` times Tᴴ, by the inverse of T."""
    with p.loop(ZERO, count) as c:
        total = [p.register() for _ in range(p.components)]
        p.do(*ir.sets(total, inner[ZERO, c]))
        with p.loop(ZERO, c) as s:
            old = tuple(ir.reads(total))
            new = p.number(minus_product(old, conjugate(t[s, c]), inner[ZERO, s]))
            p.do(*ir.sets(total, new))
        own = p.number(inverse(p, p.number(conjugate(t[c, c]))))
        inner[ZERO, c] = p.number(product(tuple(ir.reads(total)), own))


def _rows_above(p: TileProgram, a: Planes, panel: Panel, at: Span, end: Expr) -> None:
    """Y and the panel's columns in rows up to `first`, which no reflector of the panel changes."""
    (first, count), u, y, v, t = at, panel.u, panel.y, panel.v, panel.t
    above = ZERO, p.let(ir.add(first, ONE))
    _products_above(p, a, panel, at, end)
    with p.loop(ZERO, count) as c:
        panels.subtract(p, (y, c), above, c, [(y, lambda s: t[s, c])])
        with p.lanes(*above) as i:
            y[c, i] = product(y[c, i], panel.inner[ONE, c])
        k = p.let(ir.add(first, c))
        panels.subtract(p, (u, c), above, c, [(y, lambda s: conjugate(v[s, k]))])


def _products_above(p: TileProgram, a: Planes, panel: Panel, at: Span, end: Expr) -> None:
    """Y = A V of rows up to `first`; tiles end below it, in rows that are whole already."""
    (first, count), y, v = at, panel.y, panel.v
    together, rows = _TOGETHER // p.components, max(1, p.rows // 2)
    with (
        p.loop(ZERO, ir.idiv(first, const(rows))) as tile,
        p.loop(ZERO, ir.idiv(count, const(together))) as number,
    ):
        top, left = p.let(ir.mul(tile, const(rows))), p.let(ir.mul(number, const(together)))
        sums = _sums(p, a, v, (top, rows), (left, together), (p.let(ir.add(first, ONE)), end))
        for (r, s), found in sums.items():
            y[ir.add(left, const(s)), ir.add(top, const(r))] = found
    with p.loop(ZERO, count) as c:
        sums = _sums(p, a, v, (first, 1), (c, 1), (p.let(ir.add(first, ONE)), end))
        y[c, first] = sums[0, 0]


def _sums(
    p: TileProgram,
    a: Planes,
    v: Planes,
    rows: tuple[Expr, int],
    vectors: tuple[Expr, int],
    columns: Span,
) -> dict[tuple[int, int], Number]:
    """Products of rows of A with vectors."""
    (top, height), (left, width) = rows, vectors
    places = [(r, s) for r in range(height) for s in range(width)]
    sums = {at: [p.register(lanes=True) for _ in range(p.components)] for at in places}
    for registers in sums.values():
        p.do(*ir.sets(registers, zero(p)))
    with p.lanes(*columns) as j:
        elements = [p.number(a[ir.add(top, const(r)), j]) for r in range(height)]
        across = [p.number(v[ir.add(left, const(s)), j]) for s in range(width)]
        for (r, s), registers in sums.items():
            new = plus_product(tuple(ir.reads(registers)), elements[r], across[s])
            p.do(*ir.sets(registers, new if len(new) == 1 else p.number(new)))
    return {
        at: tuple(p.let(ir.lanes_reduce("add", r)) for r in registers)
        for at, registers in sums.items()
    }


def update(
    p: TileProgram,
    a: Planes,
    panel: tuple[Chunks, Chunks, Planes],
    near: Planes,
    spans: tuple[Span, Span, Expr],
    across: Planes,
) -> None:
    """A block of columns as the panel leaves it: less Y times V of the columns, `across`, then
    reflected. Y is in chunks of all rows, V in those from `first` on."""
    y, v, t = panel
    at, columns, end = spans
    size, width = const(y.rows), p.let(ir.sub(columns[1], columns[0]))
    with p.loop(ZERO, y.count(ZERO, end)) as number:
        top = p.let(ir.mul(number, size))
        height = p.let(ir.minimum(size, ir.sub(end, top)))
        own = y.at(number)
        factors = (
            lambda i, k, own=own: own[k, i],
            lambda k, j: conjugate(across[k, ir.add(columns[0], j)]),
        )
        update_tiles(p, a.moved(top, columns[0]), factors, (height, width, at[1]))
    qr.apply(p, a, (v, t), near, (at, columns, end), adjoint=True)
