"""Panels of Householder QR, transposed, so that their columns are contiguous.

A few columns are reflected one by one, and their reflectors applied to the rest of the panel
together, by tiles of inner products (Elmroth & Gustavson 2000). Reflectors are Q = 1 - V T Vᴴ, of
which the inverse of T is kept: 1 / tau on the diagonal, and above it what Vᴴ V has there
(Puglisi 1992).
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.blocked.tiles import Planes, TileProgram, less_product
from numus.kernels.factor.program import (
    ONE,
    ZERO,
    Number,
    Span,
    chosen,
    conjugate,
    inverse,
    minus_product,
    negligible_square,
    product,
    real,
    squared,
    zero,
)
from numus.kernels.factor.reflector import reflector

INNER = 8  # columns that are reflected one by one
_DOTS = 4  # columns of a tile of inner products


@dataclass(frozen=True)
class Panel:
    """A panel whose columns are the rows of `v`, from row `first` of the matrix on.

    `weights` is memory for INNER numbers per column.
    """

    v: Planes
    t: Planes
    weights: Planes
    first: Expr
    count: Expr
    end: Expr


def factorise(p: TileProgram, work: Planes, panel: Panel) -> None:
    """R in the workspace, the reflectors with their ones and zeros in the panel, and T⁻¹."""
    v, t, first = panel.v, panel.t, panel.first
    with p.loop(ZERO, ir.idiv(panel.count, const(INNER))) as block:
        left = p.let(ir.mul(block, const(INNER)))
        top, right = p.let(ir.add(first, left)), p.let(ir.add(left, const(INNER)))
        columns = [p.let(ir.add(left, const(s))) for s in range(INNER)]
        taus = [_eliminate(p, panel, columns, top, s) for s in range(INNER)]
        for s, c in enumerate(columns):
            for u in range(s + 1):
                row = p.let(ir.add(top, const(u)))
                work[row, ir.add(first, c)] = v[c, row]
                one = p.constant(1.0) if u == s else p.constant(0.0)
                v[c, row] = chosen(_is_none(t[c, c]), zero(p), real(p, one))
            t[c, c] = chosen(_is_none(t[c, c]), real(p, p.constant(1.0)), t[c, c])
        _multiply(p, panel, columns, top)
        _apply(p, panel, columns, top, taus)
        with p.loop(right, panel.count) as c:
            for s in range(INNER):
                row = p.let(ir.add(top, const(s)))
                work[row, ir.add(first, c)] = v[c, row]
                v[c, row] = zero(p)


def _is_none(inverse_tau: Number) -> Expr:
    """Whether a reflector is none: its 1 / tau is kept as 0."""
    none = inverse_tau[0].eq(0.0)
    return none if len(inverse_tau) == 1 else none & inverse_tau[1].eq(0.0)


def _eliminate(p: TileProgram, panel: Panel, columns: list[Expr], top: Expr, s: int) -> Number:
    """The reflector of column s of an inner block, on the columns of the block after it; tau."""
    v, end, c = panel.v, panel.end, columns[s]
    k = p.let(ir.add(top, const(s)))
    after = p.let(ir.add(k, ONE))
    below, size = _squares_below(p, v, c, (k, end))
    alpha = p.number(v[c, k])
    trivial, beta, tau = reflector(p, alpha, below)
    one = real(p, p.constant(1.0))
    distance = p.number(chosen(trivial, one, (alpha[0] - beta, *alpha[1:])))
    factor = p.number(chosen(trivial, zero(p), inverse(p, distance)))
    whole = p.number(chosen(trivial, one, tau))
    panel.t[c, c] = chosen(trivial, zero(p), inverse(p, whole))
    with p.lanes(after, end) as i:
        v[c, i] = product(v[c, i], factor)
    v[c, k] = real(p, beta * size)
    others = columns[s + 1 :]
    for start in range(0, len(others), _DOTS):
        _reflect(p, v, (c, k, after, end), others[start : start + _DOTS], conjugate(tau))
    return tau


def _squares_below(p: TileProgram, v: Planes, c: Expr, rows: Span) -> tuple[Expr, Expr]:
    """The sum of squares below row k of a column, and what the column was divided by for it: not 1
    for columns whose squares may underflow."""
    k, end = rows
    after = p.let(ir.add(k, ONE))
    total, size = p.register(), p.register()

    def add_up() -> None:
        terms = p.reduced("add", after, end, lambda i: [squared(v[c, i])], p.constant(0.0))
        p.do(ir.Set(total, terms[0]))

    add_up()
    p.do(ir.Set(size, p.constant(1.0)))
    lost = negligible_square(p)
    with p.when(p.let(ir.read(total) < lost)):
        largest = _largest(p, v, c, rows)
        by = p.let(select(largest.eq(0.0), p.constant(1.0), largest))
        p.do(ir.Set(size, by))
        with p.lanes(k, end) as i:
            v[c, i] = tuple(part / by for part in v[c, i])
        add_up()
    return p.let(ir.read(total)), p.let(ir.read(size))


def _largest(p: TileProgram, v: Planes, c: Expr, rows: Span) -> Expr:
    def sizes(i: Expr) -> list[Expr]:
        return [ir.unary("abs", part) for part in v[c, i]]

    found = p.reduced("max", *rows, sizes, p.constant(0.0))
    return found[0] if len(found) == 1 else p.let(ir.maximum(*found))


def _reflect(
    p: TileProgram,
    panel: Planes,
    at: tuple[Expr, Expr, Expr, Expr],
    others: list[Expr],
    factor: Number,
) -> None:
    """Columns less factor v (vᴴ column), v having 1 in row k."""
    c, k, after, end = at
    sums = _inner_products(p, panel, ([c], others), (after, end))
    weights: list[Number] = []
    for inner, other in zip(sums[0], others, strict=True):
        top = p.number(panel[other, k])
        total = tuple(x + y for x, y in zip(top, inner, strict=True))
        weights.append(p.number(product(factor, p.number(total))))
        panel[other, k] = tuple(x - y for x, y in zip(top, weights[-1], strict=True))
    with p.lanes(after, end) as i:
        v = p.number(panel[c, i])
        for other, weight in zip(others, weights, strict=True):
            panel[other, i] = minus_product(panel[other, i], v, weight)


def _inner_products(
    p: TileProgram, panel: Planes, pairs: tuple[list[Expr], list[Expr]], rows: Span
) -> list[list[Number]]:
    """vᴴ w of columns v and w, in ranges of rows."""
    left, right = pairs

    def terms(i: Expr) -> list[Expr]:
        down = [p.number(conjugate(panel[c, i])) for c in left]
        across = [p.number(panel[c, i]) for c in right]
        return [part for x in down for y in across for part in product(x, y)]

    sums = iter(p.reduced("add", *rows, terms, p.constant(0.0)))
    return [[tuple(next(sums) for _ in range(p.components)) for _ in right] for _ in left]


def _tiles(p: TileProgram, columns: list[Expr]) -> list[list[Expr]]:
    """Columns of an inner block in groups whose products with _DOTS others fit in registers."""
    height = max(p.rows // 2, 1)
    return [columns[i : i + height] for i in range(0, INNER, height)]


def _multiply(p: TileProgram, panel: Panel, columns: list[Expr], top: Expr) -> None:
    """Above the diagonal of T⁻¹: Vᴴ V of an inner block with those before, and with itself."""
    v, t = panel.v, panel.t
    with p.loop(ZERO, ir.idiv(columns[0], const(_DOTS))) as number:
        before = [p.let(ir.add(ir.mul(number, const(_DOTS)), const(u))) for u in range(_DOTS)]
        for group in _tiles(p, columns):
            found = _inner_products(p, v, (group, before), (top, panel.end))
            for c, row in zip(group, found, strict=True):
                for other, value in zip(before, row, strict=True):
                    t[other, c] = conjugate(value)
    for s in range(1, INNER):
        for start in range(0, s, _DOTS):
            before = columns[start : min(start + _DOTS, s)]
            (row,) = _inner_products(p, v, ([columns[s]], before), (top, panel.end))
            for other, value in zip(before, row, strict=True):
                t[other, columns[s]] = conjugate(value)


def _apply(
    p: TileProgram, panel: Panel, columns: list[Expr], top: Expr, taus: list[Number]
) -> None:
    """The reflectors of an inner block on the columns of the panel after it: less V Tᴴ Vᴴ."""
    v, weights = panel.v, panel.weights
    right = p.let(ir.add(columns[-1], ONE))
    rest = p.let(ir.sub(panel.count, right))
    with p.loop(ZERO, ir.idiv(rest, const(_DOTS))) as number:
        first = ir.add(right, ir.mul(number, const(_DOTS)))
        others = [p.let(ir.add(first, const(u))) for u in range(_DOTS)]
        sums = [
            row
            for group in _tiles(p, columns)
            for row in _inner_products(p, v, (group, others), (top, panel.end))
        ]
        for u, other in enumerate(others):
            done: list[Number] = []
            for s, (c, tau) in enumerate(zip(columns, taus, strict=True)):
                value: Number = sums[s][u]
                for before, weight in zip(columns[:s], done, strict=True):
                    value = p.number(minus_product(value, conjugate(panel.t[before, c]), weight))
                done.append(p.number(product(conjugate(tau), value)))
                weights[other, const(s)] = done[s]
    factors = (lambda c, k: weights[c, k], lambda k, i: v[ir.add(columns[0], k), i])
    with (
        p.lanes(top, panel.end, unroll=p.vectors) as i,
        p.loop(ZERO, ir.idiv(rest, const(p.rows))) as tile,
    ):
        c = p.let(ir.add(right, ir.mul(tile, const(p.rows))))
        for r, value in enumerate(less_product(p, v, c, i, factors, const(INNER))):
            v[ir.add(c, const(r)), i] = value
