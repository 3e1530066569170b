"""Householder bidiagonalisation in blocks, A = Q B Pᴴ (Golub & Kahan 1965; LAPACK's gebrd).

A panel of reflectors U of the left and V of the right updates the matrix by A - U Yᴴ - X Vᴴ.
Columns come in strips that stay in cache for the products with both vectors of a step (Howell,
Demmel, Fulton, Hammarling & Marmol 2008): the second one is that of the row, of which the reflector
V is a multiple but for its first element.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, const
from numus.kernels.factor.blocked import panels
from numus.kernels.factor.blocked.tiles import Planes, TileProgram, transposed, update_tiles
from numus.kernels.factor.program import (
    ONE,
    ZERO,
    Matrix,
    Number,
    Span,
    chosen,
    conjugate,
    product,
    real,
    zero,
)

DIAGONAL, OFFDIAGONAL, LEFT, RIGHT = (const(i) for i in range(4))
STRIP_BYTES = 1 << 19  # of columns that stay in L2; on a 2-core x86-64 with 1 MiB (Cascade Lake)
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
        beta, tau, _ = panels.reflector(p, (u, c), k, tall)
        found[DIAGONAL, k], found[LEFT, k] = real(p, beta), tau
        panels.inner_products(p, (u, c), tall, c, [u, x], inner)
        with p.lanes(*tall) as i:
            x[c, i] = zero(p)
        _both_products(p, a, panel, inner, (c, k), tau, at, ends)
        beta, tau, factor = panels.reflector(p, (v, c), after, wide)
        found[OFFDIAGONAL, k], found[RIGHT, k] = real(p, beta), tau
        _add_column(p, a, panel, (c, k), factor, at, ends)
        panels.inner_products(p, (v, c), wide, next_, [y, v], inner)
        panels.subtract(p, (x, c), tall, next_, [(u, lambda s: inner[ZERO, s])])
        panels.subtract(p, (x, c), tall, c, [(x, lambda s: inner[ONE, s])])
        panels.scale(p, (x, c), tau, after, tall)


def _both_products(
    p: TileProgram,
    a: Planes,
    panel: Panel,
    inner: Matrix,
    step: tuple[Expr, Expr],
    tau: Number,
    at: Span,
    ends: tuple[Expr, Expr],
) -> None:
    """Y of a step, row k of the matrix in V, and in X the product with what that row has after its
    first element."""
    (c, k), first, (bottom, right) = step, at[0], ends
    u, x, y, v = panel.u, panel.x, panel.y, panel.v
    after, next_ = p.let(ir.add(k, ONE)), p.let(ir.add(c, ONE))
    alpha = [p.register() for _ in range(p.components)]
    p.do(*ir.sets(alpha, zero(p)))
    elements = const(STRIP_BYTES // (p.components * p.real.itemsize) // p.tile)
    fitting = ir.idiv(elements, p.let(ir.sub(bottom, first)))
    size = p.let(ir.mul(ir.maximum(fitting, ONE), const(p.tile)))
    rounded = ir.add(ir.sub(right, first), ir.sub(size, ONE))
    with p.loop(ZERO, p.let(ir.idiv(rounded, size))) as number:
        left = p.let(ir.add(first, ir.mul(number, size)))
        strip = left, p.let(ir.minimum(ir.add(left, size), right))
        start = p.let(ir.minimum(ir.maximum(after, strip[0]), strip[1]))

        def columns(top: Expr, strip: Span = strip) -> Span:
            return strip

        with p.lanes(*strip) as j:
            y[c, j] = zero(p)
        panels.down(p, a, (u, c), (y, c), (k, bottom), columns)
        terms = [(y, lambda s: inner[ZERO, s]), (v, lambda s: inner[ONE, s])]
        panels.subtract(p, (y, c), strip, c, terms)
        panels.scale(p, (y, c), tau, start, strip)
        with p.lanes(*strip) as j:
            v[c, j] = conjugate(a[k, j])
        panels.subtract(p, (v, c), strip, next_, [(y, lambda s: conjugate(u[s, k]))])
        panels.subtract(p, (v, c), strip, c, [(v, lambda s: conjugate(x[s, k]))])
        with p.when(p.let((after >= strip[0]) & (after < strip[1]))):
            p.do(*ir.sets(alpha, v[c, after]))
        with p.lanes(strip[0], p.let(ir.minimum(ir.add(start, ONE), strip[1]))) as j:
            # from the strip of `after` on there is a first element only there
            v[c, j] = chosen(j <= after, zero(p), v[c, j])
        panels.across(p, a, (v, c), (x, c), (after, bottom), columns)
    with p.when(p.let(after < right)):
        v[c, after] = tuple(ir.reads(alpha))


def _add_column(
    p: TileProgram,
    a: Planes,
    panel: Panel,
    step: tuple[Expr, Expr],
    factor: Number,
    at: Span,
    ends: tuple[Expr, Expr],
) -> None:
    """The product with the reflector V from that with the row: its first element is 1. Columns of
    the panel are rows of U."""
    (c, k), (first, count), (bottom, right) = step, at, ends
    x, u = panel.x, panel.u
    after, next_ = p.let(ir.add(k, ONE)), p.let(ir.add(c, ONE))
    with p.lanes(first, bottom) as i:
        x[c, i] = product(x[c, i], factor)
    with p.when(p.let(next_ < count)), p.lanes(first, bottom) as i:
        x[c, i] = tuple(s + t for s, t in zip(x[c, i], u[next_, i], strict=True))
    with p.when(p.let((next_ >= count) & (after < right))), p.loop(after, bottom) as i:
        x[c, i] = tuple(s + t for s, t in zip(x[c, i], a[i, after], strict=True))


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
