"""Schur form of real Hessenberg matrices by multishift QR with aggressive early deflation (Braman,
Byers & Mathias 2002; LAPACK's laqr0)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from numus import ir
from numus.ir import INDEX, Expr, const, select
from numus.kernels.factor import schur
from numus.kernels.factor.blocked.tiles import Planes, TileProgram
from numus.kernels.factor.multishift import chains, deflation
from numus.kernels.factor.program import INT, ONE, ZERO, Matrix, Span

EXCEPTIONAL_EVERY = 6  # windows without a deflation (LAPACK's)


@dataclass(frozen=True)
class MultishiftTuning:
    """Measured on a 2-core x86-64 (Cascade Lake)."""

    min_order: int = 65  # of matrices that take several shifts at once
    window: int = 32  # rows in which eigenvalues are sought to be deflated
    last: int = 40  # rows of an active block that is a window by itself
    nibble: int = 14  # percent of a window: if more are deflated, the next one follows at once

    @property
    def rows(self) -> int:
        return max(self.window, self.last)


TUNING = MultishiftTuning()


class Memory(NamedTuple):
    """Of a worker: H and Zᵀ, and what chains and windows need."""

    h: Planes
    z: Planes
    above: Planes
    reflectors: Matrix
    window: deflation.Window


def iterate(p: TileProgram, m: Memory, n: Expr) -> Expr:
    """T in place of H; the number of rows that have not converged."""
    epsilon = p.constant(2.0**-p.real.mantissa)
    bounds = epsilon, schur.largest(p, m.h, n)
    high, tries = p.register(INT), p.register(INT)
    p.do(ir.Set(high, ir.sub(n, ONE).cast(INT)), ir.Set(tries, const(0, INT)))
    limit = ir.mul(const(schur.ITERATIONS_PER_ROW), n)
    with p.loop(ZERO, limit), p.when(p.let(ir.read(high) >= 0)):
        hi = p.let(ir.read(high).cast(INDEX))
        lo = p.let(schur.active_start(p, m.h, hi, bounds))
        with p.when(lo > 0):
            m.h[lo, ir.sub(lo, ONE)] = (p.constant(0.0),)
        _pass(p, m, n, (lo, hi), (high, tries), bounds)
    return p.let(ir.read(high) + const(1, INT))


def _pass(
    p: TileProgram,
    m: Memory,
    n: Expr,
    active: Span,
    state: tuple[ir.Register, ir.Register],
    bounds: tuple[Expr, Expr],
) -> None:
    """A window, and a sweep where it deflates little."""
    (lo, hi), (high, tries) = active, state
    rows = p.let(ir.add(ir.sub(hi, lo), ONE))
    size = p.let(select(rows <= TUNING.last, rows, const(TUNING.window)))
    first = p.let(ir.sub(ir.add(hi, ONE), size))
    found = deflation.deflate(p, m.h, m.z, m.window, (lo, first, size), n, bounds)
    gone = p.let(ir.sub(size, found.kept))
    p.do(ir.Set(high, (hi - gone).cast(INT)))
    none = p.let(gone.eq(0))
    p.do(ir.Set(tries, select(none, ir.read(tries) + const(1, INT), const(0, INT))))
    few = ir.mul(gone, const(100)) <= ir.mul(size, const(TUNING.nibble))
    left = p.let(ir.sub(rows, gone))
    with p.when(p.let(few & (left > TUNING.last))):
        last = p.let(ir.sub(hi, gone))
        turn = ir.irem(ir.read(tries).cast(INDEX), const(EXCEPTIONAL_EVERY))
        with p.when(p.let(none & turn.eq(0))):
            _make_up(p, m, last, found.pairs)
        # a chain that is much longer than the rest of its rows is of little use
        fitting = p.let(ir.minimum(found.pairs, ir.idiv(left, const(6))))
        chase = chains.Chase(m.h, m.z, m.window.shifts, m.reflectors, m.above, n)
        chains.sweep(p, chase, (lo, last), fitting)


def _make_up(p: TileProgram, m: Memory, last: Expr, pairs: Expr) -> None:
    """Shifts where those of windows have not helped: of blocks (x + d, -7/16 x; x, x + d), for the
    elements d of the diagonal and 3/4 of x below and beside it (LAPACK's)."""
    h, shifts = m.h, m.window.shifts
    with p.loop(ZERO, pairs) as at:
        i = p.let(ir.sub(last, at))
        before = p.let(ir.sub(i, ONE))
        beyond = h[before, ir.sub(before, ONE)][0]
        size = p.let(ir.unary("abs", h[i, before][0]) + ir.unary("abs", beyond))
        middle = p.let(size * p.constant(0.75) + h[i, i][0])
        imaginary = p.let(size * p.constant(0.4375**0.5))
        for row, value in enumerate((middle, middle, imaginary)):
            shifts[const(row), at] = (value,)
