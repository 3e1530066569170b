"""Aggressive early deflation (Braman, Byers & Mathias 2002, II), without reordering.

The Schur form of a trailing window makes its first subdiagonal element a spike. What of it is
negligible, from its end up, is zero: those eigenvalues are found. The others are the next shifts.
"""

from __future__ import annotations

from typing import NamedTuple

from numus import ir
from numus.ir import INDEX, Expr, const, select
from numus.kernels.factor import hessenberg, schur
from numus.kernels.factor.blocked.tiles import Planes, TileProgram
from numus.kernels.factor.multishift import products
from numus.kernels.factor.program import INT, ONE, ZERO, Matrix, Span

TWO = const(2)


class Window(NamedTuple):
    """Memory: a window's T above Vᵀ; a bordered one's H above Qᵀ; V; a copy of rows."""

    form: Matrix
    bordered: Matrix
    vectors: Matrix
    rows: Matrix
    shifts: Matrix


class Found(NamedTuple):
    """Rows that are not deflated, and pairs of shifts."""

    kept: Expr
    pairs: Expr


def deflate(
    p: TileProgram,
    h: Planes,
    z: Planes,
    m: Window,
    at: tuple[Expr, Expr, Expr],
    n: Expr,
    bounds: tuple[Expr, Expr],
) -> Found:
    """Of `size` rows from `first` on, of an active block from row lo on."""
    lo, first, size = at
    t = m.form
    before = p.let(ir.maximum(ir.sub(first, ONE), ZERO))
    spike = p.let(select(first > lo, h[first, before][0], p.constant(0.0)))
    with p.loop(ZERO, size) as i, p.lanes(ZERO, size) as j:
        t[i, j] = h[ir.add(first, i), ir.add(first, j)]
    hessenberg.identity(p, t, size, size)
    left = p.let(schur.iterate(p, t, size, bounds).cast(INDEX))
    kept = _undeflated(p, t, size, spike, left, bounds)
    pairs = _shifts(p, t, m.shifts, kept)
    with p.when(p.let(kept < size)):
        with p.when(p.let(spike.ne(0.0) & (kept > 0))):
            beta = _restored(p, m, size, kept, spike)
            h[first, before] = (beta,)
        with p.when(p.let((first > lo) & kept.eq(0))):
            h[first, before] = (p.constant(0.0),)
        _stored(p, h, z, m, (first, size), n)
    return Found(kept, pairs)


def _undeflated(
    p: TileProgram, t: Matrix, size: Expr, spike: Expr, left: Expr, bounds: tuple[Expr, Expr]
) -> Expr:
    """How many rows are left after those whose part of the spike is negligible."""
    epsilon, least = bounds
    kept, going = p.register(INT), p.register(INT)
    p.do(ir.Set(kept, size.cast(INT)), ir.Set(going, const(1, INT)))
    with p.loop(ZERO, size), p.when(p.let(ir.read(going).ne(0))):
        rows = p.let(ir.read(kept).cast(INDEX))
        p.do(ir.Set(going, const(0, INT)))
        with p.when(p.let(rows > left)):
            last = p.let(ir.sub(rows, ONE))
            above = p.let(ir.maximum(ir.sub(last, ONE), ZERO))
            below = p.let(select(last > above, t[last, above][0], p.constant(0.0)))
            double = p.let(below.ne(0.0))
            across = p.let(t[above, last][0])
            around = ir.unary("abs", t[last, last][0]) + _root_product(p, double, below, across)
            around = p.let(select(around.eq(0.0), least, around))
            parts = [ir.unary("abs", spike * t[ir.add(size, i), ZERO][0]) for i in (last, above)]
            part = ir.maximum(parts[0], select(double, parts[1], p.constant(0.0)))
            with p.when(p.let(part <= epsilon * around)):
                less = select(double, const(2, INT), const(1, INT))
                p.do(ir.Set(kept, ir.read(kept) - less), ir.Set(going, const(1, INT)))
    return p.let(ir.read(kept).cast(INDEX))


def _root_product(p: TileProgram, double: Expr, below: Expr, across: Expr) -> Expr:
    """The imaginary part of the eigenvalues of a standardised block, else 0."""
    size = ir.sqrt(ir.unary("abs", below)) * ir.sqrt(ir.unary("abs", across))
    return p.let(select(double, size, p.constant(0.0)))


def _shifts(p: TileProgram, t: Matrix, shifts: Matrix, kept: Expr) -> Expr:
    """Pairs, from the last eigenvalue up: two real ones, one of which may be alone, or the real
    part twice; and an imaginary part."""
    left, pairs, waits = p.register(INT), p.register(INT), p.register(INT)
    waiting = p.register()
    zero, one = const(0, INT), const(1, INT)
    p.do(ir.Set(left, kept.cast(INT)), ir.Set(pairs, zero), ir.Set(waits, zero))
    p.do(ir.Set(waiting, p.constant(0.0)))

    def put(first: Expr, second: Expr, imaginary: Expr) -> None:
        at = p.let(ir.read(pairs).cast(INDEX))
        for row, value in enumerate((first, second, imaginary)):
            shifts[const(row), at] = (value,)
        p.do(ir.Set(pairs, ir.read(pairs) + one))

    with p.loop(ZERO, kept), p.when(p.let(ir.read(left) > 0)):
        last = p.let(ir.sub(ir.read(left).cast(INDEX), ONE))
        above = p.let(ir.maximum(ir.sub(last, ONE), ZERO))
        below = p.let(select(last > above, t[last, above][0], p.constant(0.0)))
        value, double = p.let(t[last, last][0]), p.let(below.ne(0.0))
        with p.when(double):
            put(value, value, _root_product(p, double, below, p.let(t[above, last][0])))
            p.do(ir.Set(left, ir.read(left) - const(2, INT)))
        with p.when(p.let(~double)):
            had = p.let(ir.read(waits))
            with p.when(p.let(had.ne(0))):
                put(p.let(ir.read(waiting)), value, p.constant(0.0))
            p.do(ir.Set(waiting, value), ir.Set(waits, one - had))
            p.do(ir.Set(left, ir.read(left) - one))
    with p.when(p.let(ir.read(waits).ne(0))):
        alone = p.let(ir.read(waiting))
        put(alone, alone, p.constant(0.0))
    return p.let(ir.read(pairs).cast(INDEX))


def _restored(p: TileProgram, m: Window, size: Expr, kept: Expr, spike: Expr) -> Expr:
    """The rows that are kept become Hessenberg again, the spike its first element: they are what is
    left of a matrix bordered by it. That element."""
    t, bordered = m.form, m.bordered
    order = p.let(ir.add(kept, ONE))
    with p.lanes(ZERO, order) as j:
        bordered[ZERO, j] = (p.constant(0.0),)
    with p.loop(ZERO, kept) as i:
        below = p.let(ir.add(i, ONE))
        with p.lanes(ZERO, kept) as j:
            bordered[below, ir.add(j, ONE)] = t[i, j]
        bordered[below, ZERO] = (spike * t[ir.add(size, i), ZERO][0],)
    hessenberg.identity(p, bordered, order, order)
    hessenberg.reduce(p, bordered, order)

    def q(i: Expr, k: Expr) -> tuple[Expr, ...]:
        return bordered[ir.add(order, ir.add(i, ONE)), ir.add(k, ONE)]

    products.times_rows(p, t, q, (ZERO, kept), (kept, size), m.rows)
    products.times_rows(p, t, q, (size, kept), (ZERO, size), m.rows)
    with p.loop(ZERO, kept) as i, p.lanes(ZERO, kept) as j:
        t[i, j] = bordered[ir.add(i, ONE), ir.add(j, ONE)]
    return p.let(bordered[ONE, ZERO][0])


def _stored(p: TileProgram, h: Planes, z: Planes, m: Window, at: Span, n: Expr) -> None:
    """The window's form, and its vectors on what is beside and above it."""
    (first, size), t, v = at, m.form, m.vectors
    with p.loop(ZERO, size) as i:
        with p.lanes(ZERO, size) as j:
            h[ir.add(first, i), ir.add(first, j)] = t[i, j]
        with p.loop(ZERO, size) as k:
            v[k, i] = t[ir.add(size, i), k]

    def q(i: Expr, k: Expr) -> tuple[Expr, ...]:
        return t[ir.add(size, i), k]

    end = p.let(ir.add(first, size))
    products.times_rows(p, h, q, (first, size), (end, n), m.rows)
    products.times_rows(p, z, q, (first, size), (ZERO, n), m.rows)
    products.rows_times(p, h, v, first, (first, size), m.rows)
