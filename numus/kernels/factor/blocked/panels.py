"""Panels of reductions to condensed form (Dongarra, Hammarling & Sorensen 1989): vectors that are
rows of their memory, reflectors among them, and products with those found before.

A panel is not applied to the rest of the matrix before its last vector is known: columns, rows and
products are taken of the matrix as it was, and corrected by what the panel has found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.blocked.tiles import Planes, TileProgram
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
    negligible_square,
    plus_product,
    product,
    squared,
    zero,
)

UNROLL = 4  # vectors of a combination, whose sums are chains

Row = tuple[Planes, Expr]  # a vector: a row of a panel


def reflector(p: TileProgram, x: Row, k: Expr, span: Span) -> tuple[Expr, Number, Number]:
    """The vector v of a reflector 1 - τ v vᴴ whose adjoint takes the elements of x from k on to
    (β, 0, …), in their place; zeros before. Gives β, τ, and the factor that takes elements of x
    after k to those of v; where τ is 0, v is 0, too."""
    panel, c = x
    first, end = span
    after = p.let(ir.add(k, ONE))
    inside = p.let(k < end)
    alpha = p.number(chosen(inside, panel[c, k], zero(p)))
    (rest,) = p.reduced("add", after, end, lambda i: [squared(panel[c, i])], p.constant(0.0))
    others = rest if len(alpha) == 1 else rest + alpha[1] * alpha[1]
    # below that, digits of the sum are lost to underflow; matrices have elements of about 1
    trivial = others < negligible_square(p)
    trivial = p.let(trivial)
    size = ir.sqrt(squared(alpha) + rest)
    beta = p.let(select(trivial, alpha[0], -ir.binary("copysign", size, alpha[0])))
    none, one = zero(p), p.constant(1.0)
    safe = p.let(select(trivial, one, beta))
    tau = ((beta - alpha[0]) / safe, *(-part / safe for part in alpha[1:]))
    tau = p.number(chosen(trivial, none, tau))
    distance = (select(trivial, one, alpha[0] - beta), *alpha[1:])
    factor = p.number(chosen(trivial, none, inverse(p, p.number(distance))))
    with p.lanes(first, k) as i:
        panel[c, i] = none
    with p.lanes(after, end) as i:
        panel[c, i] = product(panel[c, i], factor)
    with p.when(inside):
        panel[c, k] = (select(trivial, p.constant(0.0), one), *none[1:])
    return beta, tau, factor


def subtract(
    p: TileProgram,
    x: Row,
    span: Span,
    count: Expr,
    terms: Sequence[tuple[Planes, Callable[[Expr], Number]]],
) -> None:
    """x less the first `count` rows of panels, each times a factor."""
    panel, c = x
    with p.lanes(*span, unroll=UNROLL) as i:
        sums = [[p.register(lanes=True) for _ in range(p.components)] for _ in terms]
        for number, registers in enumerate(sums):
            p.do(*ir.sets(registers, zero(p) if number else panel[c, i]))
        with p.loop(ZERO, count) as k:
            for (rows, factor), registers in zip(terms, sums, strict=True):
                old = tuple(ir.reads(registers))
                new = minus_product(old, factor(k), rows[k, i])
                p.do(*ir.sets(registers, new if len(new) == 1 else p.number(new)))
        found = tuple(ir.reads(sums[0]))
        for registers in sums[1:]:
            found = tuple(x + ir.read(y) for x, y in zip(found, registers, strict=True))
        panel[c, i] = found


def inner_products(
    p: TileProgram, x: Row, span: Span, count: Expr, panels: Sequence[Planes], out: Matrix
) -> None:
    """uᴴ x of the first `count` rows u of panels: in a row of `out` each."""
    panel, c = x
    with p.loop(ZERO, count) as k:

        def terms(i: Expr, k: Expr = k) -> list[Expr]:
            value = p.number(panel[c, i])
            return [part for rows in panels for part in product(conjugate(rows[k, i]), value)]

        sums = p.reduced("add", *span, terms, p.constant(0.0))
        for number in range(len(panels)):
            at = number * p.components
            out[const(number), k] = tuple(sums[at : at + p.components])


def scale(p: TileProgram, x: Row, by: Number, k: Expr, span: Span) -> None:
    """x times a number from k on, zeros before."""
    panel, c = x
    first, end = span
    with p.lanes(first, k) as i:
        panel[c, i] = zero(p)
    with p.lanes(k, end, unroll=UNROLL) as i:
        panel[c, i] = product(panel[c, i], by)


def down(
    p: TileProgram, a: Planes, x: Row, out: Row, rows: Span, columns: Callable[[Expr], Span]
) -> None:
    """out += Aᴴ x, by tiles of rows: `columns` are those of the tile from a row on."""
    _multiply(p, a, (x, None), (None, out), rows, columns)


def across(
    p: TileProgram, a: Planes, x: Row, out: Row, rows: Span, columns: Callable[[Expr], Span]
) -> None:
    """out += A x."""
    _multiply(p, a, (None, x), (out, None), rows, columns)


def both(
    p: TileProgram, a: Planes, x: Row, out: Row, rows: Span, columns: Callable[[Expr], Span]
) -> None:
    """out += (A + Aᴴ) x."""
    _multiply(p, a, (x, x), (out, out), rows, columns)


def _multiply(
    p: TileProgram,
    a: Planes,
    given: tuple[Row | None, Row | None],
    outs: tuple[Row | None, Row | None],
    rows: Span,
    columns: Callable[[Expr], Span],
) -> None:
    """One pass over tiles of rows of A: Aᴴ times the first vector is added to the second result,
    A times the second vector to the first."""
    (left, right), (sums_to, down_to) = given, outs
    start = p.let(ir.idiv(rows[0], const(p.rows)))
    with p.loop(start, p.let(ir.idiv(rows[1], const(p.rows)))) as tile:
        top = p.let(ir.mul(tile, const(p.rows)))
        down_all = [p.let(ir.add(top, const(r))) for r in range(p.rows)]
        own = [p.number(left[0][left[1], i]) for i in down_all] if left else []
        sums = [
            [p.register(lanes=True) for _ in range(p.components)]
            for _ in (down_all if right else ())
        ]
        for registers in sums:
            p.do(*ir.sets(registers, zero(p)))
        with p.lanes(*columns(top)) as j:
            value = p.number(right[0][right[1], j]) if right else ()
            total = p.number(down_to[0][down_to[1], j]) if down_to else ()
            for r, i in enumerate(down_all):
                element = p.number(a[i, j])
                if right:
                    new = plus_product(tuple(ir.reads(sums[r])), element, value)
                    p.do(*ir.sets(sums[r], p.number(new)))
                if down_to:
                    total = p.number(plus_product(total, conjugate(element), own[r]))
            if down_to:
                down_to[0][down_to[1], j] = total
        if sums_to:
            for i, registers in zip(down_all, sums, strict=True):
                found = tuple(p.let(ir.lanes_reduce("add", r)) for r in registers)
                old = sums_to[0][sums_to[1], i]
                found = tuple(x + y for x, y in zip(old, found, strict=True))
                sums_to[0][sums_to[1], i] = found


def triangle(
    p: TileProgram,
    panel: Planes,
    t: Planes,
    taus: Callable[[Expr], Number],
    span: Span,
    count: Expr,
) -> None:
    """The inverse of T, for the product 1 - V T Vᴴ of a panel's reflectors: 1 / τ on the diagonal,
    above it what Vᴴ V has there (Puglisi 1992)."""
    one = p.constant(1.0)
    with p.loop(ZERO, count) as c:
        tau = p.number(taus(c))
        size = squared(tau)
        none = p.let(size.eq(0.0))
        whole = p.number((select(none, one, tau[0]), *tau[1:]))
        t[c, c] = inverse(p, whole)
        inner_products(p, (panel, c), span, c, [panel], _Column(t, c))


class _Column(Matrix):
    """A column of a matrix as a row."""

    def __init__(self, x: Planes, column: Expr) -> None:
        self._x, self._column = x, column
        self._p, self.buffer = x._p, x.buffer

    def _at(self, i: Expr, j: Expr) -> list[Expr]:
        return self._x._at(j, self._column)
