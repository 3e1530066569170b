"""Householder QR (LAPACK's geqr2 and org2r) of interleaved matrices, by tiles of columns."""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.lanes import LaneMatrix, LaneProgram
from numus.kernels.factor.program import (
    ONE,
    ZERO,
    Number,
    chosen,
    conjugate,
    inverse,
    minus_product,
    negligible_square,
    plus_product,
    product,
    real,
    scaled,
    squared,
    zero,
)


def qr(
    p: LaneProgram,
    x: LaneMatrix,
    r: LaneMatrix,
    taus: LaneMatrix,
    extents: tuple[Expr, Expr],
    tile: int,
) -> None:
    """Q in place of x (m, n), whose columns are padded by zeros to a whole tile, and R."""
    m, n = extents
    with p.loop(ZERO, n) as k:
        tau = reflector(p, x, k, m)
        taus[ZERO, k] = tau
        reflect(p, x, k, extents, conjugate(tau), tile)
    with p.loop(ZERO, n) as i, p.loop(ZERO, n) as j:
        upper = i <= j
        r[i, j] = chosen(upper, x[i, j], zero(p))
        x[i, j] = chosen(upper, zero(p), x[i, j])
    with p.loop(ZERO, n) as step:
        k = p.let(ir.sub(ir.sub(n, ONE), step))
        tau = p.number(taus[ZERO, k])
        reflect(p, x, k, extents, tau, tile)
        one = real(p, p.constant(1.0))
        x[k, k] = tuple(a - b for a, b in zip(one, tau, strict=True))
        with p.loop(ir.add(k, ONE), m) as i:
            x[i, k] = minus_product(zero(p), tau, x[i, k])


def reflector(p: LaneProgram, x: LaneMatrix, k: Expr, m: Expr) -> Number:
    """That of column k, below the diagonal (its first element is 1); its factor tau."""
    after = p.let(ir.add(k, ONE))
    (below,) = p.reduced("add", after, m, lambda i: [squared(x[i, k])], p.constant(0.0))
    alpha = p.number(x[k, k])
    rest = below if p.components == 1 else below + alpha[1] * alpha[1]
    trivial = p.let(rest < negligible_square(p))
    size = ir.sqrt(squared(alpha) + below)
    beta = p.let(select(trivial, alpha[0], -ir.binary("copysign", size, alpha[0])))
    one = p.constant(1.0)
    by = p.let(one / select(trivial, one, beta))
    tau = scaled((beta - alpha[0], *(-part for part in alpha[1:])), by)
    tau = p.number(chosen(trivial, zero(p), tau))
    distance = p.number(chosen(trivial, real(p, one), (alpha[0] - beta, *alpha[1:])))
    factor = inverse(p, distance)
    with p.loop(after, m) as i:
        x[i, k] = chosen(trivial, zero(p), product(x[i, k], factor))
    x[k, k] = real(p, beta)
    return tau


def reflect(
    p: LaneProgram, x: LaneMatrix, k: Expr, extents: tuple[Expr, Expr], tau: Number, tile: int
) -> None:
    """Columns after k less tau v (vᴴ column), tile by tile; the first may hold columns before."""
    m, n = extents
    after = p.let(ir.add(k, ONE))
    tiles = ir.idiv(ir.add(n, const(tile - 1)), const(tile))
    with p.loop(p.let(ir.idiv(after, const(tile))), p.let(tiles)) as number:
        left = p.let(ir.mul(number, const(tile)))
        columns = [p.let(ir.add(left, const(s))) for s in range(tile)]
        sums = [[p.register() for _ in tau] for _ in columns]
        for total, j in zip(sums, columns, strict=True):
            p.do(*ir.sets(total, x[k, j]))
        with p.loop(after, m) as i:
            v = p.number(conjugate(x[i, k]))
            for total, j in zip(sums, columns, strict=True):
                new = p.number(plus_product(tuple(ir.reads(total)), v, x[i, j]))
                p.do(*ir.sets(total, new))
        weights: list[Number] = []
        for total, j in zip(sums, columns, strict=True):
            w = product(tau, tuple(ir.reads(total)))
            weights.append(p.number(chosen(j > k, w, zero(p))))
            x[k, j] = tuple(a - b for a, b in zip(x[k, j], weights[-1], strict=True))
        with p.loop(after, m) as i:
            v = p.number(x[i, k])
            for w, j in zip(weights, columns, strict=True):
                x[i, j] = minus_product(x[i, j], v, w)
