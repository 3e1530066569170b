"""Householder bidiagonalisation in blocks, A = Q B Pᴴ (Golub & Kahan 1965; LAPACK's gebrd).

A panel of reflectors U of the left and V of the right updates the matrix by A - U Yᴴ - X Vᴴ.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, const
from numus.kernels.factor.blocked import panels
from numus.kernels.factor.blocked.tiles import Planes, TileProgram, transposed, update_tiles
from numus.kernels.factor.program import ONE, ZERO, Matrix, Span, conjugate, real, zero

DIAGONAL, OFFDIAGONAL, LEFT, RIGHT = (const(i) for i in range(4))
FOUND = 4  # rows: the elements of B and the factors of reflectors of each side


@dataclass(frozen=True)
class Panel:
    """Rows that are columns of the factors of an update."""

    u: Planes
    x: Planes
    y: Planes
    v: Planes


def reduce(
    p: TileProgram,
    a: Planes,
    panel: Panel,
    found: Planes,
    inner: Matrix,
    at: Span,
    ends: tuple[Expr, Expr],
) -> None:
    """The vectors of a panel, from row and column `first` on; `inner` has memory for two rows."""
    (first, count), (bottom, right) = at, ends
    u, x, y, v = panel.u, panel.x, panel.y, panel.v
    tall, wide = (first, bottom), (first, right)
    transposed(p, a.moved(ZERO, first), u, tall, (ZERO, count))
    with p.loop(ZERO, count) as c:
        k = p.let(ir.add(first, c))
        after, next_ = p.let(ir.add(k, ONE)), p.let(ir.add(c, ONE))
        terms = [(u, lambda s: conjugate(y[s, k])), (x, lambda s: conjugate(v[s, k]))]
        panels.subtract(p, (u, c), tall, c, terms)
        beta, tau = panels.reflector(p, (u, c), k, tall)
        found[DIAGONAL, k], found[LEFT, k] = real(p, beta), tau
        with p.lanes(*wide) as j:
            y[c, j] = zero(p)
        panels.down(p, a, (u, c), (y, c), (k, bottom), lambda top: wide)
        panels.inner_products(p, (u, c), tall, c, [u, x], inner)
        terms = [(y, lambda s: inner[ZERO, s]), (v, lambda s: inner[ONE, s])]
        panels.subtract(p, (y, c), wide, c, terms)
        panels.scale(p, (y, c), tau, after, wide)
        with p.lanes(*wide) as j:
            v[c, j] = conjugate(a[k, j])
        terms = [(y, lambda s: conjugate(u[s, k])), (v, lambda s: conjugate(x[s, k]))]
        panels.subtract(p, (v, c), wide, next_, [terms[0]])
        panels.subtract(p, (v, c), wide, c, [terms[1]])
        beta, tau = panels.reflector(p, (v, c), after, wide)
        found[OFFDIAGONAL, k], found[RIGHT, k] = real(p, beta), tau
        panels.across(p, a, (v, c), (x, c), (after, bottom), lambda top: wide)
        panels.inner_products(p, (v, c), wide, next_, [y, v], inner)
        panels.subtract(p, (x, c), tall, next_, [(u, lambda s: inner[ZERO, s])])
        panels.subtract(p, (x, c), tall, c, [(x, lambda s: inner[ONE, s])])
        panels.scale(p, (x, c), tau, after, tall)


def update(
    p: TileProgram,
    a: Planes,
    factors: tuple[tuple[Planes, Planes], tuple[Planes, Planes]],
    spans: tuple[Span, Span],
    count: Expr,
) -> None:
    """A block less what a panel takes from it: by U and X of its rows, Y and V of its columns."""
    (rows, columns), ((u, x), (y, v)) = spans, factors
    own, height = a.moved(rows[0], columns[0]), p.let(ir.sub(rows[1], rows[0]))
    extents = height, p.let(ir.sub(columns[1], columns[0])), count
    for left, right in ((u, y), (x, v)):
        given = (
            lambda i, k, left=left: left[k, i],
            lambda k, j, right=right: conjugate(right[k, j]),
        )
        update_tiles(p, own, given, extents)
