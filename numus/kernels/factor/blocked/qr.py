"""Householder QR in blocks, in place, by compact WY forms (Schreiber & Van Loan 1989).

Reflectors of a panel (`qr_panel.py`) are applied to blocks of columns.
"""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, const
from numus.kernels.factor.blocked.tiles import (
    Chunks,
    Planes,
    TileProgram,
    less_product,
    plus_product_of,
    update_tiles,
)
from numus.kernels.factor.program import (
    ZERO,
    Number,
    Span,
    conjugate,
    inverse,
    minus_product,
    product,
    zero,
)


def apply(
    p: TileProgram,
    work: Planes,
    panel: tuple[Chunks, Planes],
    near: Planes,
    spans: tuple[Span, Span, Expr],
    adjoint: bool,
) -> None:
    """A range of columns less V T Vᴴ times it (Tᴴ, for the adjoint), from row `first` on."""
    chunk, t = panel
    (first, count), columns, end = spans
    size, chunks = const(chunk.rows), chunk.count(first, end)
    own, width = work.moved(first, columns[0]), p.let(ir.sub(columns[1], columns[0]))
    with p.loop(ZERO, count) as k, p.lanes(ZERO, width) as j:
        near[k, j] = zero(p)
    for step in (_gather, _spread):
        if step is _spread:
            _solve(p, t, near, count, width, adjoint)
        with p.loop(ZERO, chunks) as number:
            above = p.let(ir.mul(number, size))
            height = p.let(ir.minimum(size, ir.sub(ir.sub(end, first), above)))
            step(p, own.moved(above, ZERO), chunk.at(number), near, (count, height, width))


def _gather(
    p: TileProgram, c: Planes, v: Planes, near: Planes, extents: tuple[Expr, Expr, Expr]
) -> None:
    """near += Vᴴ c."""
    count, height, width = extents
    factors = (lambda k, i: conjugate(v[k, i]), lambda i, j: c[i, j])
    update_tiles(p, near, factors, (count, width, height), plus_product_of)


def _spread(
    p: TileProgram, c: Planes, v: Planes, near: Planes, extents: tuple[Expr, Expr, Expr]
) -> None:
    """c -= V near."""
    count, height, width = extents
    factors = (lambda i, k: v[k, i], lambda k, j: near[k, j])
    update_tiles(p, c, factors, (height, width, count))


def _solve(
    p: TileProgram, t: Planes, near: Planes, count: Expr, width: Expr, adjoint: bool
) -> None:
    """near = T near, or Tᴴ near, by substitution with the inverse of T."""

    def inverse_t(i: Expr, k: Expr) -> Number:
        return conjugate(t[k, i]) if adjoint else t[i, k]

    rows = const(p.rows)
    with (
        p.lanes(ZERO, width, unroll=p.vectors) as j,
        p.loop(ZERO, ir.idiv(count, rows)) as number,
    ):
        done_rows = p.let(ir.mul(number, rows))
        top = done_rows if adjoint else p.let(ir.sub(ir.sub(count, done_rows), rows))
        known = ZERO if adjoint else p.let(ir.add(top, rows))
        factors = (
            lambda i, k: inverse_t(i, ir.add(known, k)),
            lambda k, j: near[ir.add(known, k), j],
        )
        found = less_product(p, near, top, j, factors, done_rows)
        done: dict[int, Number] = {}
        for r in range(p.rows) if adjoint else reversed(range(p.rows)):
            row, value = ir.add(top, const(r)), found[r]
            for s, other in done.items():
                factor = inverse_t(row, ir.add(top, const(s)))
                value = p.number(minus_product(value, factor, other))
            by = inverse(p, p.number(inverse_t(row, row)))
            done[r] = p.number(product(value, by))
            near[row, j] = done[r]
