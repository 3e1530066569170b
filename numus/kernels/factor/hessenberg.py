"""Householder reduction to Hessenberg form (LAPACK's gehd2) of one matrix per task."""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.program import (
    ONE,
    ZERO,
    Matrix,
    Number,
    Program,
    Read,
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
from numus.kernels.factor.reflector import reflector


def hessenberg(p: Program, out: Matrix, a: Read, n: Expr) -> None:
    """H in rows 0 … n, Qᵀ in rows n … 2n with a = Q H Qᴴ; row 2n is scratch. The subdiagonal is
    real, the last element too."""
    with p.each((ZERO, n), (ZERO, n)) as (i, j):
        out[i, j] = a(i, j)
    identity(p, out, n, n)
    reduce(p, out, n)


def identity(p: Program, out: Matrix, top: Expr, n: Expr) -> None:
    """In rows from `top` on."""
    with p.each((ZERO, n), (ZERO, n)) as (i, j):
        out[ir.add(top, i), j] = real(p, select(i.eq(j), p.constant(1.0), p.constant(0.0)))


def reduce(p: Program, out: Matrix, n: Expr) -> None:
    """`hessenberg` in place, of a matrix and an identity below it."""
    scratch = p.let(ir.add(n, n))
    with p.lanes(ZERO, n) as j:
        out[scratch, j] = zero(p)
    with p.loop(ZERO, ir.maximum(ir.sub(n, ONE), ZERO)) as k:
        _step(p, out, n, k, scratch)
    with p.lanes(ZERO, n) as j:
        out[scratch, j] = zero(p)


def _step(p: Program, out: Matrix, n: Expr, k: Expr, scratch: Expr) -> None:
    """Column k becomes zero below the subdiagonal."""
    first = p.let(ir.add(k, ONE))
    after = p.let(ir.add(k, const(2)))
    (below,) = p.reduced("add", after, n, lambda i: [squared(out[i, k])], p.constant(0.0))
    alpha = p.number(out[first, k])
    trivial, beta, tau = reflector(p, alpha, below)
    distance = (alpha[0] - beta, *alpha[1:])
    factor = inverse(p, p.number(chosen(trivial, real(p, p.constant(1.0)), distance)))
    out[scratch, first] = real(p, p.constant(1.0))
    with p.loop(after, n) as i:
        out[scratch, i] = product(out[i, k], factor)
        out[i, k] = zero(p)
    out[first, k] = real(p, beta)
    with p.when(~trivial):
        with p.lanes(first, n) as j:  # Hᴴ from the left
            _column(p, out, scratch, (first, n), ZERO, j, conjugate(tau), conjugated=True)
        with p.loop(ZERO, n) as i:
            _row(p, out, scratch, first, n, i, tau)
        with p.lanes(ZERO, n) as j:
            _column(p, out, scratch, (first, n), n, j, tau, conjugated=False)


def _column(
    p: Program,
    out: Matrix,
    scratch: Expr,
    span: tuple[Expr, Expr],
    base: Expr,
    j: Expr,
    factor: Number,
    conjugated: bool,
) -> None:
    """Column j of rows base + span less factor v (vᴴ column), or with the conjugate of v."""

    def vector(i: Expr, flip: bool) -> Number:
        v = out[scratch, i]
        return conjugate(v) if flip else v

    registers = [p.register(lanes=True) for _ in factor]
    p.do(*(ir.Set(r, p.constant(0.0)) for r in registers))
    with p.loop(*span) as i:
        term = plus_product(
            tuple(ir.reads(registers)), vector(i, conjugated), out[ir.add(base, i), j]
        )
        p.do(*ir.sets(registers, p.number(term)))
    w = p.number(product(factor, tuple(ir.reads(registers))))
    with p.loop(*span) as i:
        at = p.let(ir.add(base, i))
        out[at, j] = minus_product(out[at, j], vector(i, not conjugated), w)


def _row(
    p: Program, out: Matrix, scratch: Expr, first: Expr, n: Expr, i: Expr, tau: Number
) -> None:
    """Row i less tau (row v) vᴴ."""
    total = p.reduced(
        "add",
        first,
        n,
        lambda j: list(product(p.number(out[i, j]), p.number(out[scratch, j]))),
        p.constant(0.0),
    )
    w = p.number(product(tau, tuple(total)))
    with p.lanes(first, n) as j:
        out[i, j] = minus_product(out[i, j], w, conjugate(out[scratch, j]))
