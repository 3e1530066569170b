"""Shifted QR iteration on Hessenberg matrices, one per task: Schur form.

Real matrices take Francis' implicit double shift (LAPACK's lahqr) and end in quasi-triangular form
with standardised blocks of order 2; complex ones a single Wilkinson shift and end triangular.
"""

from __future__ import annotations

from numus import ir
from numus.ir import INDEX, Expr, const, select
from numus.kernels.factor import francis, wilkinson
from numus.kernels.factor.program import INT, ONE, ZERO, Matrix, Program, Read, magnitude, real

ITERATIONS_PER_ROW = 30  # LAPACK's bound; 2 to 3 are usual


def schur(p: Program, out: Matrix, packed: Read, n: Expr) -> None:
    """T in rows 0 … n, Zᵀ in rows n … 2n, from H and Qᵀ; row 2n begins with the number of rows that
    have not converged."""
    last = p.let(ir.add(n, n))
    with p.each((ZERO, ir.add(last, ONE)), (ZERO, n)) as (i, j):
        out[i, j] = packed(i, j)
    bounds = p.constant(2.0**-p.real.mantissa), largest(p, out, n)
    out[last, ZERO] = real(p, p.let(iterate(p, out, n, bounds).cast(p.real)))


def iterate(p: Program, out: Matrix, n: Expr, bounds: tuple[Expr, Expr]) -> Expr:
    """T and Zᵀ in place of H and Qᵀ, and the number of rows that have not converged; `bounds`: a
    rounding error, and the size that one is of where all around is zero."""
    high, tries = p.register(INT), p.register(INT)
    p.do(ir.Set(high, ir.sub(n, ONE).cast(INT)), ir.Set(tries, const(0, INT)))
    limit = ir.mul(const(ITERATIONS_PER_ROW), ir.maximum(n, const(10)))
    with p.loop(ZERO, limit), p.when(p.let(ir.read(high)) >= 0):
        hi = p.let(ir.read(high).cast(INDEX))
        lo = p.let(active_start(p, out, hi, bounds))
        with p.when(lo > 0):
            out[lo, ir.sub(lo, ONE)] = real(p, p.constant(0.0))
        left = p.let(ir.sub(hi, lo))
        done = left.eq(0) if p.components == 2 else left <= 1
        with p.when(p.let(done)):
            if p.components == 1:
                with p.when(left.eq(1)):
                    francis.standardise(p, out, lo, n)
            p.do(ir.Set(high, ir.read(high) - left.cast(INT) - const(1, INT)))
            p.do(ir.Set(tries, const(0, INT)))
        with p.when(p.let(~done)):
            p.do(ir.Set(tries, ir.read(tries) + const(1, INT)))
            sweep = wilkinson.sweep if p.components == 2 else francis.sweep
            sweep(p, out, (lo, hi), n, p.let(ir.read(tries)))
    return p.let(ir.read(high) + const(1, INT))


def largest(p: Program, out: Matrix, n: Expr) -> Expr:
    found = p.register()
    p.do(ir.Set(found, p.constant(0.0)))
    with p.loop(ZERO, n) as i:
        (row,) = p.reduced("max", ZERO, n, lambda j: [magnitude(out[i, j])], p.constant(0.0))
        p.do(ir.Set(found, ir.maximum(ir.read(found), row)))
    return p.let(ir.read(found))


def active_start(p: Program, out: Matrix, hi: Expr, bounds: tuple[Expr, Expr]) -> Expr:
    """The row after the last negligible subdiagonal element up to row hi; NaN is negligible, so
    that what is not finite ends."""
    epsilon, size = bounds

    def start(i: Expr) -> list[Expr]:
        before = ir.sub(i, ONE)
        around = p.let(magnitude(out[i, i]) + magnitude(out[before, before]))
        around = select(around.eq(0.0), size, around)
        kept = magnitude(out[i, before]) > epsilon * around
        return [select(kept, const(0, INT), i.cast(INT))]

    (found,) = p.reduced("max", ONE, ir.add(hi, ONE), start, const(0, INT))
    return found.cast(INDEX)
