"""Householder QR (LAPACK's geqr2) of one matrix per block."""

from __future__ import annotations

from collections.abc import Callable

from numus import ir
from numus.ir import Expr
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


def householder(p: Program, out: Matrix, a: Read, m: Expr, n: Expr, steps: Expr) -> None:
    """R above the diagonal, below it the reflectors' vectors (whose first element is 1), and their
    factors tau in row m: Q = (1 - tau_0 v_0 v_0ᴴ) (1 - tau_1 v_1 v_1ᴴ) …"""
    with p.each((ZERO, m), (ZERO, n)) as (i, j):
        out[i, j] = a(i, j)
    with p.lanes(ZERO, n) as j:
        out[m, j] = zero(p)
    with p.loop(ZERO, steps) as k:
        after = p.let(ir.add(k, ONE))
        column = p.staged(out, k, after, m)
        (below,) = p.reduced("add", after, m, lambda i: [squared(column(i))], p.constant(0.0))
        alpha = p.number(out[k, k])
        trivial, beta, tau = reflector(p, alpha, below)
        distance = (alpha[0] - beta, *alpha[1:])
        factor = inverse(p, p.number(chosen(trivial, real(p, p.constant(1.0)), distance)))
        column = p.store_column(out, k, after, m, lambda i: product(column(i), factor))
        out[k, k] = real(p, beta)
        out[m, k] = tau
        with p.lanes(after, n) as j:
            _reflect(p, out, column, k, j, after, m, conjugate(tau))


def _reflect(
    p: Program,
    out: Matrix,
    v: Callable[[Expr], Number],
    k: Expr,
    j: Expr,
    after: Expr,
    m: Expr,
    factor: Number,
) -> None:
    """Column j less factor v (vᴴ column), v having 1 in row k."""
    registers = [p.register(lanes=True) for _ in factor]
    p.do(*ir.sets(registers, out[k, j]))
    with p.loop(after, m) as i:
        total = p.number(plus_product(tuple(ir.reads(registers)), conjugate(v(i)), out[i, j]))
        p.do(*ir.sets(registers, total))
    w = p.number(product(factor, tuple(ir.reads(registers))))
    out[k, j] = tuple(x - y for x, y in zip(out[k, j], w, strict=True))
    with p.loop(after, m) as i:
        out[i, j] = minus_product(out[i, j], v(i), w)
