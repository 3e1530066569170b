"""Householder tridiagonalisation of Hermitian matrices in blocks, A = Q T Qᴴ (LAPACK's hetrd).

The matrix is X + Xᴴ of a block upper triangular X, whose blocks of the diagonal may be any: a
product with a vector is one pass over half of the matrix. A panel of reflectors V updates it by
A - V Wᴴ - W Vᴴ.
"""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, const
from numus.kernels.factor.blocked import panels
from numus.kernels.factor.blocked.tiles import Planes, TileProgram, update_tiles
from numus.kernels.factor.program import (
    ONE,
    ZERO,
    Matrix,
    Span,
    conjugate,
    plus_product,
    product,
    real,
    scaled,
    zero,
)

DIAGONAL, OFFDIAGONAL, TAU = (const(i) for i in range(3))
FOUND = 3  # rows: the elements of T and the factors of reflectors


def reduce(
    p: TileProgram,
    x: Planes,
    panel: tuple[Planes, Planes],
    found: Planes,
    inner: Matrix,
    at: Span,
    end: Expr,
    block: int,
) -> None:
    """The rows of V and W of a panel, from row `first` on; `inner` has memory for two rows. Blocks
    of X have `block` rows."""
    (first, count), (v, w) = at, panel
    whole, size = (first, end), const(block)
    _take_upper(p, x, (first, p.let(ir.add(first, count))))
    with p.loop(ZERO, count) as c:
        k = p.let(ir.add(first, c))
        after = p.let(ir.add(k, ONE))
        with p.lanes(*whole) as i:
            v[c, i] = conjugate(x[k, i])
        terms = [(v, lambda s: conjugate(w[s, k])), (w, lambda s: conjugate(v[s, k]))]
        panels.subtract(p, (v, c), whole, c, terms)
        diagonal = p.let(v[c, k][0] + x[k, k][0])  # X has half of it
        beta, tau, _ = panels.reflector(p, (v, c), after, whole)
        found[DIAGONAL, k], found[OFFDIAGONAL, k] = real(p, diagonal), real(p, beta)
        found[TAU, k] = tau
        with p.lanes(*whole) as i:
            w[c, i] = zero(p)
        panels.both(
            *(p, x, (v, c), (w, c), (after, end)),
            lambda top: (p.let(ir.mul(ir.idiv(top, size), size)), end),
        )
        panels.inner_products(p, (v, c), whole, c, [w, v], inner)
        terms = [(v, lambda s: inner[ZERO, s]), (w, lambda s: inner[ONE, s])]
        panels.subtract(p, (w, c), whole, c, terms)
        panels.scale(p, (w, c), tau, after, whole)
        overlap = p.reduced(
            "add", *whole, lambda i: product(conjugate(v[c, i]), w[c, i]), p.constant(0.0)
        )
        half = scaled(product(conjugate(tau), p.number(overlap)), p.constant(-0.5))
        half = p.number(half)
        with p.lanes(*whole) as i:
            w[c, i] = plus_product(w[c, i], half, v[c, i])


def _take_upper(p: TileProgram, x: Planes, span: Span) -> None:
    """A block of the diagonal: X becomes its upper triangle, half of the diagonal included."""
    first, last = span
    with p.loop(first, last) as i:
        with p.loop(first, i) as j:
            x[j, i] = tuple(a + b for a, b in zip(x[j, i], conjugate(x[i, j]), strict=True))
            x[i, j] = zero(p)
        x[i, i] = real(p, x[i, i][0])


def update(
    p: TileProgram,
    x: Planes,
    panel: tuple[tuple[Planes, Planes], tuple[Planes, Planes]],
    spans: tuple[Span, Span],
    count: Expr,
) -> None:
    """A block of X less what a panel takes from it: of V and W for its rows, and for its columns.
    A block of the diagonal has half of it, as the other half is its adjoint's."""
    (rows, columns), ((v, w), (v_across, w_across)) = spans, panel
    own, height = x.moved(rows[0], columns[0]), p.let(ir.sub(rows[1], rows[0]))
    extents = height, p.let(ir.sub(columns[1], columns[0])), count
    update_tiles(p, own, (lambda i, k: v[k, i], lambda k, j: conjugate(w_across[k, j])), extents)
    with p.when(p.let(rows[0].ne(columns[0]))):
        update_tiles(
            p, own, (lambda i, k: w[k, i], lambda k, j: conjugate(v_across[k, j])), extents
        )
