"""Householder QR of interleaved matrices: panels of a tile of columns in compact WY form (LAPACK's
geqrf and orgqr), columns one by one (geqr2, org2r) where there are few."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Work:
    """A matrix (m, n) in x, whose columns are padded by zeros to a whole tile; room for R (n, n), a
    row of factors tau, and T of each of the first `panels` tiles of columns."""

    x: LaneMatrix
    r: LaneMatrix
    taus: LaneMatrix
    triangles: LaneMatrix
    extents: tuple[Expr, Expr]
    tile: int
    panels: Expr

    def at(self, number: Expr, p: LaneProgram) -> list[Expr]:
        """The columns of a panel."""
        first = p.let(ir.mul(number, const(self.tile)))
        return [p.let(ir.add(first, const(s))) for s in range(self.tile)]


def qr(p: LaneProgram, w: Work) -> None:
    """Q in place of x, and R."""
    n, x, r = w.extents[1], w.x, w.r
    tiles = p.let(ir.idiv(ir.add(n, const(w.tile - 1)), const(w.tile)))
    after = p.let(ir.mul(w.panels, const(w.tile)))
    with p.loop(ZERO, w.panels) as number:
        _reflect_panel(p, w, number)
        _apply_panel(p, w, number, tiles, adjoint=True)
    with p.loop(after, n) as k:
        _reflect_column(p, w, k, tiles)
    with p.loop(ZERO, n) as i, p.loop(ZERO, n) as j:
        r[i, j] = chosen(i <= j, x[i, j], zero(p))
    with p.loop(after, n) as step:
        k = p.let(ir.sub(ir.sub(ir.add(n, after), ONE), step))
        _expand_column(p, w, k, tiles)
    with p.loop(ZERO, w.panels) as step:
        number = p.let(ir.sub(ir.sub(w.panels, ONE), step))
        _apply_panel(p, w, number, tiles, adjoint=False)
        for k in reversed(w.at(number, p)):
            _expand_column(p, w, k, p.let(ir.add(number, ONE)))


def _reflect_column(p: LaneProgram, w: Work, k: Expr, tiles: Expr) -> None:
    """The reflector of column k, and columns after it, before that number of tiles."""
    tau = reflector(p, w.x, k, w.extents[0])
    w.taus[ZERO, k] = tau
    reflect(p, w.x, k, w.extents[0], tiles, conjugate(tau), w.tile)


def _expand_column(p: LaneProgram, w: Work, k: Expr, tiles: Expr) -> None:
    """Column k of Q in place of its reflector, applied to the columns after it."""
    x, (m, _) = w.x, w.extents
    tau = p.number(w.taus[ZERO, k])
    with p.loop(ZERO, ir.add(k, ONE)) as i:
        x[i, k] = zero(p)
    reflect(p, x, k, m, tiles, tau, w.tile)
    one = real(p, p.constant(1.0))
    x[k, k] = tuple(a - b for a, b in zip(one, tau, strict=True))
    with p.loop(ir.add(k, ONE), m) as i:
        x[i, k] = minus_product(zero(p), tau, x[i, k])


def _reflect_panel(p: LaneProgram, w: Work, number: Expr) -> None:
    """The reflectors of a panel, and T such that their product is 1 - V T Vᴴ (LAPACK's larft)."""
    at, x = w.at(number, p), w.x
    for k in at:
        _reflect_column(p, w, k, p.let(ir.add(number, ONE)))
    pairs = [(s, t) for t in range(w.tile) for s in range(t)]
    gram = {pair: [p.register() for _ in range(p.components)] for pair in pairs}
    for s, t in pairs:  # rows of the triangle: column t begins with 1
        total = p.number(conjugate(x[at[t], at[s]]))
        for row in range(t + 1, w.tile):
            v = conjugate(x[at[row], at[s]])
            total = p.number(plus_product(total, v, x[at[row], at[t]]))
        p.do(*ir.sets(gram[s, t], total))
    with p.loop(ir.add(at[-1], ONE), w.extents[0]) as i:
        along = [p.number(x[i, k]) for k in at]
        for s, t in pairs:
            new = plus_product(tuple(ir.reads(gram[s, t])), conjugate(along[s]), along[t])
            p.do(*ir.sets(gram[s, t], p.number(new)))
    found: dict[tuple[int, int], Number] = {}
    for t in range(w.tile):
        tau = found[t, t] = p.number(w.taus[ZERO, at[t]])
        for s in range(t):
            total = zero(p)
            for inner in range(s, t):
                across = tuple(ir.reads(gram[inner, t]))
                total = p.number(minus_product(total, found[s, inner], across))
            found[s, t] = p.number(product(total, tau))
        for s in range(t + 1):
            w.triangles[const(s), at[t]] = found[s, t]


def _apply_panel(p: LaneProgram, w: Work, number: Expr, tiles: Expr, adjoint: bool) -> None:
    """Columns after a panel less V T (Vᴴ C), or less V Tᴴ (Vᴴ C)."""
    at, x, size = w.at(number, p), w.x, range(w.tile)
    after = p.let(ir.add(at[-1], ONE))
    with p.loop(p.let(ir.add(number, ONE)), tiles) as other:
        columns = w.at(other, p)
        sums = [[[p.register() for _ in range(p.components)] for _ in size] for _ in size]
        for s in size:
            for c, j in enumerate(columns):
                total = x[at[s], j]
                for row in range(s + 1, w.tile):
                    v = conjugate(x[at[row], at[s]])
                    total = p.number(plus_product(total, v, x[at[row], j]))
                p.do(*ir.sets(sums[s][c], total))
        with p.loop(after, w.extents[0]) as i:
            along = [p.number(conjugate(x[i, k])) for k in at]
            for c, j in enumerate(columns):
                value = p.number(x[i, j])
                for s in size:
                    new = plus_product(tuple(ir.reads(sums[s][c])), along[s], value)
                    p.do(*ir.sets(sums[s][c], p.number(new)))
        weights = _weights(p, w, at, sums, adjoint)
        for row in size:
            for c, j in enumerate(columns):
                value = tuple(a - b for a, b in zip(x[at[row], j], weights[row][c], strict=True))
                for s in range(row):
                    value = p.number(minus_product(value, x[at[row], at[s]], weights[s][c]))
                x[at[row], j] = value
        with p.loop(after, w.extents[0]) as i:
            along = [p.number(x[i, k]) for k in at]
            for c, j in enumerate(columns):
                value = x[i, j]
                for s in size:
                    value = p.number(minus_product(value, along[s], weights[s][c]))
                x[i, j] = value


def _weights(
    p: LaneProgram, w: Work, at: list[Expr], sums: list[list[list[ir.Register]]], adjoint: bool
) -> list[list[Number]]:
    """T or Tᴴ times Vᴴ C."""
    size = range(w.tile)
    weights = []
    for s in size:
        row = []
        for c in size:
            total = zero(p)
            for t in range(s + 1) if adjoint else range(s, w.tile):
                factor = w.triangles[const(min(s, t)), at[max(s, t)]]
                factor = conjugate(factor) if adjoint else factor
                total = p.number(plus_product(total, factor, tuple(ir.reads(sums[t][c]))))
            row.append(total)
        weights.append(row)
    return weights


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
    p: LaneProgram, x: LaneMatrix, k: Expr, m: Expr, tiles: Expr, tau: Number, tile: int
) -> None:
    """Columns after k less tau v (vᴴ column), tile by tile; the first may hold columns before."""
    after = p.let(ir.add(k, ONE))
    with p.loop(p.let(ir.idiv(after, const(tile))), tiles) as number:
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
