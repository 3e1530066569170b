"""Householder QR in blocks, in place, by compact WY forms (Schreiber & Van Loan 1989).

A panel of columns is factorised transposed, so that its columns are contiguous. Its reflectors are
Q = 1 - V T Vᴴ, of which the inverse of T is kept: 1 / tau on the diagonal, and above it what Vᴴ V
has there (Puglisi 1992).
"""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.blocked.tiles import (
    Chunks,
    Planes,
    TileProgram,
    plus_product_of,
    update_tiles,
)
from numus.kernels.factor.program import (
    ONE,
    ZERO,
    Number,
    Span,
    chosen,
    conjugate,
    divided,
    inverse,
    minus_product,
    product,
    real,
    squared,
    zero,
)

DOTS = 4  # of a vector with several at a time


def factorise(p: TileProgram, panel: Planes, t: Planes, at: Span, end: Expr) -> None:
    """The columns of a panel, which are its rows, from row `first` on: R and the reflectors.

    On the diagonal of `t` is 1 / tau, and 0 for a reflector that is none.
    """
    first, count = at
    with p.loop(ZERO, count) as c:
        k = p.let(ir.add(first, c))
        after = p.let(ir.add(k, ONE))
        size = _largest(p, panel, c, k, end)  # of columns whose squares may underflow
        size = p.let(select(size.eq(0.0), p.constant(1.0), size))

        def scaled_down(i: Expr) -> Number:
            return tuple(part / size for part in panel[c, i])

        (below,) = p.reduced(
            "add", after, end, lambda i: [squared(scaled_down(i))], p.constant(0.0)
        )
        alpha = p.number(scaled_down(k))
        trivial = below.eq(0.0)
        if p.components == 2:
            trivial = trivial & alpha[1].eq(0.0)
        trivial = p.let(trivial)
        norm = ir.sqrt(squared(alpha) + below)
        beta = p.let(select(trivial, alpha[0], -ir.binary("copysign", norm, alpha[0])))
        safe = p.let(select(trivial, p.constant(1.0), beta))
        tau = p.number([(beta - alpha[0]) / safe, *(-x / safe for x in alpha[1:])])
        tau = p.number(chosen(trivial, zero(p), tau))
        distance = (alpha[0] - beta, *alpha[1:])
        one = real(p, p.constant(1.0))
        factor = inverse(p, p.number(chosen(trivial, one, distance)))
        whole = p.number(chosen(trivial, one, tau))
        t[c, c] = chosen(trivial, zero(p), inverse(p, whole))
        with p.lanes(after, end) as i:
            panel[c, i] = product(scaled_down(i), factor)
        panel[c, k] = real(p, beta * size)
        right = p.let(ir.add(c, ONE))
        tiles = p.let(ir.idiv(ir.sub(count, right), const(DOTS)))
        with p.loop(ZERO, tiles) as number:
            others = [p.let(right + (number * DOTS + u)) for u in range(DOTS)]
            _reflect(p, panel, (c, k, after, end), others, conjugate(tau))
        with p.loop(p.let(ir.add(right, ir.mul(tiles, const(DOTS)))), count) as other:
            _reflect(p, panel, (c, k, after, end), [other], conjugate(tau))


def _largest(p: TileProgram, panel: Planes, c: Expr, k: Expr, end: Expr) -> Expr:
    def sizes(i: Expr) -> list[Expr]:
        return [ir.unary("abs", part) for part in panel[c, i]]

    found = p.reduced("max", k, end, sizes, p.constant(0.0))
    return found[0] if len(found) == 1 else ir.maximum(*found)


def _reflect(
    p: TileProgram,
    panel: Planes,
    at: tuple[Expr, Expr, Expr, Expr],
    others: list[Expr],
    factor: Number,
) -> None:
    """Columns less factor v (vᴴ column), v having 1 in row k."""
    c, k, after, end = at

    def terms(i: Expr) -> list[Expr]:
        v = p.number(conjugate(panel[c, i]))
        return [part for other in others for part in product(v, panel[other, i])]

    sums = p.reduced("add", after, end, terms, p.constant(0.0))
    weights: list[Number] = []
    for u, other in enumerate(others):
        inner = sums[u * p.components : (u + 1) * p.components]
        top = p.number(panel[other, k])
        total = tuple(x + y for x, y in zip(top, inner, strict=True))
        weights.append(p.number(product(factor, p.number(total))))
        panel[other, k] = tuple(x - y for x, y in zip(top, weights[u], strict=True))
    with p.lanes(after, end) as i:
        v = p.number(panel[c, i])
        for other, weight in zip(others, weights, strict=True):
            panel[other, i] = minus_product(panel[other, i], v, weight)


def complete(p: TileProgram, panel: Planes, t: Planes, at: Span, end: Expr) -> None:
    """The vectors with their ones and zeros, and the rest of the inverse of T."""
    first, count = at
    with p.loop(ZERO, count) as c:
        k = p.let(ir.add(first, c))
        inverse_tau = p.number(t[c, c])
        none = inverse_tau[0].eq(0.0)
        if p.components == 2:
            none = none & inverse_tau[1].eq(0.0)
        none = p.let(none)
        with p.lanes(first, k) as i:
            panel[c, i] = zero(p)
        one = real(p, p.constant(1.0))
        panel[c, k] = chosen(none, zero(p), one)
        with p.when(none), p.lanes(p.let(ir.add(k, ONE)), end) as i:
            panel[c, i] = zero(p)
        t[c, c] = chosen(none, one, inverse_tau)
        with p.loop(ZERO, c) as other:
            t[other, c] = _inner(p, panel, (other, c), k, end)


def _inner(p: TileProgram, panel: Planes, pair: tuple[Expr, Expr], k: Expr, end: Expr) -> Number:
    """vᴴ w of two reflectors."""
    v, w = pair
    return tuple(
        p.reduced(
            "add",
            k,
            end,
            lambda i: product(conjugate(panel[v, i]), panel[w, i]),
            p.constant(0.0),
        )
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
    with p.loop(ZERO, count) as step:
        k = step if adjoint else p.let(ir.sub(ir.sub(count, ONE), step))
        pivot = p.number(conjugate(t[k, k]) if adjoint else t[k, k])
        reciprocal = inverse(p, pivot)
        with p.lanes(ZERO, width, unroll=p.vectors) as j:
            near[k, j] = divided(near[k, j], pivot, reciprocal)
        rest = (p.let(ir.add(k, ONE)), count) if adjoint else (ZERO, k)
        with p.loop(*rest) as i:
            factor = p.number(conjugate(t[k, i]) if adjoint else t[i, k])
            with p.lanes(ZERO, width, unroll=p.vectors) as j:
                near[i, j] = minus_product(near[i, j], factor, near[k, j])
