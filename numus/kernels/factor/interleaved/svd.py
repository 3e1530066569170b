"""Singular values of interleaved real square matrices: Householder bidiagonalisation and implicit
QR steps (Golub & Reinsch 1970), each lane at a block of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.interleaved import qr
from numus.kernels.factor.interleaved.scaling import householder
from numus.kernels.factor.lanes import LaneMatrix, LaneProgram
from numus.kernels.factor.program import INT, ONE, ZERO, fma, negligible_square

STEPS = 30  # per singular value at most; 2 are usual
_D, _E, _LEFT, _RIGHT, _U, _CU, _SU, _CV, _SV, _PLACE = (const(i) for i in range(10))
VECTORS = 10
SCALE = 2  # the row whose element n is kept for the scale


@dataclass
class Work:
    """Memory of a decomposition. Rows and columns of all matrices beyond n, up to a tile, are
    there; those of `a` and `vectors` are zero."""

    a: LaneMatrix
    sides: tuple[LaneMatrix, LaneMatrix] | None  # left and right, where vectors are wanted
    vectors: LaneMatrix
    n: Expr
    tile: int

    @property
    def last(self) -> Expr:
        return ir.sub(self.n, ONE)


def svd(p: LaneProgram, w: Work) -> None:
    """Singular values in row 0 of the vectors, in the places that row `_PLACE` tells, and rows of
    both sides with singular vectors; NaN where steps did not converge."""
    with p.matrices():
        _reduce(p, w)
        if w.sides is not None:
            left, right = w.sides
            _accumulate(p, w, left, _LEFT, ZERO, lambda k, i: w.a[i, k][0])
            _accumulate(p, w, right, _RIGHT, ONE, lambda k, i: w.a[k, i][0])
    _iterate(p, w)
    with p.matrices():
        _rank(p, w)


def placed(p: LaneProgram, w: Work, rows: LaneMatrix) -> None:
    """Rows as columns of `a`, in the order of the singular values."""
    with p.matrices(), p.loop(ZERO, w.n) as i:
        at = p.let(w.vectors[_PLACE, i][0].cast(ir.INDEX))
        with p.loop(ZERO, w.n) as j:
            w.a[j, at] = rows[i, j]


# -- bidiagonalisation ----------------------------------------------------------------------------


def _reduce(p: LaneProgram, w: Work) -> None:
    """B = Qᵀ A P: its diagonal and what is beside it; reflectors stay where A was."""
    x, a, n = w.vectors, w.a, w.n
    tiles = p.let(ir.idiv(ir.add(n, const(w.tile - 1)), const(w.tile)))
    with p.loop(ZERO, n) as k:
        tau = qr.reflector(p, a, k, n)
        x[_LEFT, k] = tau
        x[_D, k] = a[k, k]
        qr.reflect(p, a, k, n, tiles, tau, w.tile)
        with p.when(p.let(k < w.last)):
            _reflect_row(p, w, k)
    x[_E, w.last] = (p.constant(0.0),)


def _reflect_row(p: LaneProgram, w: Work, k: Expr) -> None:
    """What is right of the diagonal of row k, and the rows below it."""
    x, a, n = w.vectors, w.a, w.n
    after, second = p.let(ir.add(k, ONE)), p.let(ir.add(k, const(2)))
    (rest,) = p.reduced("add", second, n, lambda j: [a[k, j][0] * a[k, j][0]], p.constant(0.0))
    alpha = p.let(a[k, after][0])
    beta, tau, factor = householder(p, alpha, rest)
    one = p.constant(1.0)
    x[_E, k] = (beta,)
    x[_RIGHT, k] = (tau,)
    x[_U, after] = (one,)
    with p.loop(second, n) as j:
        u = p.let(a[k, j][0] * factor)
        a[k, j] = (u,)
        x[_U, j] = (u,)
    _reflect_rows(p, w, a, after, after, tau)


def _reflect_rows(
    p: LaneProgram, w: Work, q: LaneMatrix, first: Expr, start: Expr, tau: Expr
) -> None:
    """Rows from `first` on less tau (row u) uᵀ, by tiles of them; u is from `start` on."""
    x, n = w.vectors, w.n
    tiles = ir.idiv(ir.add(ir.sub(n, first), const(w.tile - 1)), const(w.tile))
    with p.loop(ZERO, p.let(tiles)) as number:
        top = p.let(ir.add(first, ir.mul(number, const(w.tile))))
        rows = [p.let(ir.add(top, const(r))) for r in range(w.tile)]
        sums = [p.register() for _ in rows]
        p.do(*(ir.Set(total, p.constant(0.0)) for total in sums))
        with p.loop(start, n) as j:
            u = p.let(x[_U, j][0])
            for total, i in zip(sums, rows, strict=True):
                p.do(ir.Set(total, p.let(fma(u, q[i, j][0], ir.read(total)))))
        weights = [p.let(-tau * ir.read(total)) for total in sums]
        with p.loop(start, n) as j:
            u = p.let(x[_U, j][0])
            for weight, i in zip(weights, rows, strict=True):
                q[i, j] = (fma(weight, u, q[i, j][0]),)


def _accumulate(
    p: LaneProgram,
    w: Work,
    q: LaneMatrix,
    taus: Expr,
    offset: Expr,
    element: Callable[[Expr, Expr], Expr],
) -> None:
    """The product of reflectors, transposed: vector k begins, with 1, at k + offset."""
    x, n = w.vectors, w.n
    count = p.let(ir.sub(n, offset))
    with p.loop(ZERO, ir.add(n, const(w.tile))) as i, p.loop(ZERO, n) as j:
        q[i, j] = (select(i.eq(j), p.constant(1.0), p.constant(0.0)),)
    with p.loop(ZERO, count) as step:
        k = p.let(ir.sub(ir.sub(count, ONE), step))
        start = p.let(ir.add(k, offset))
        x[_U, start] = (p.constant(1.0),)
        with p.loop(ir.add(start, ONE), n) as i:
            x[_U, i] = (element(k, i),)
        _reflect_rows(p, w, q, start, start, p.let(x[taus, k][0]))


# -- QR steps -------------------------------------------------------------------------------------


def _iterate(p: LaneProgram, w: Work) -> None:
    """A step of all lanes at a time, until all elements beside the diagonal are negligible."""
    again = ir.Register("again", INT)
    first, last, least, more = p.register(INT), p.register(INT), p.register(), p.register()
    none = w.n.cast(INT)
    p.do(ir.Set(again, const(1, INT)), ir.Set(least, p.constant(0.0)))
    with p.matrices():
        _find_bound(p, w, least)
        p.do(ir.Set(more, ir.read(least) / w.n.cast(p.real)))
    with p.loop(ZERO, ir.mul(w.n, const(STEPS))), p.when(p.let(ir.read(again)).ne(0)):
        p.do(ir.Set(first, none), ir.Set(last, const(0, INT)))
        with p.matrices():
            _find_block(p, w, first, last, p.let(ir.read(least)))
        lowest = p.let(ir.lanes_reduce("min", first))
        p.do(ir.Set(again, select(lowest < none, const(1, INT), const(0, INT))))
        with p.when(p.let(ir.read(again)).ne(0)):
            highest = p.let(ir.lanes_reduce("max", last))
            span = p.let(lowest.cast(ir.INDEX)), p.let(highest.cast(ir.INDEX))
            with p.matrices():
                _step(p, w, (first, last), span, p.let(ir.read(least)))
                # rounding may bring back a little more where values are equal
                p.do(ir.Set(least, ir.read(least) + ir.read(more)))
                if w.sides is not None:
                    left, right = w.sides
                    _rotate(p, w, right, (_CV, _SV), span)
                    _rotate(p, w, left, (_CU, _SU), span)
    with p.when(p.let(ir.read(again)).ne(0)), p.matrices():
        failed = p.let(ir.read(first) < none)
        value = select(failed, p.constant(float("nan")), w.vectors[_D, ZERO][0])
        w.vectors[_D, ZERO] = (value,)


def _find_bound(p: LaneProgram, w: Work, least: ir.Register) -> None:
    """A rounding error of the largest element: what is smaller is as good as zero."""
    x = w.vectors
    with p.loop(ZERO, w.n) as i:
        size = ir.maximum(ir.unary("abs", x[_D, i][0]), ir.unary("abs", x[_E, i][0]))
        p.do(ir.Set(least, ir.maximum(ir.read(least), p.let(size))))
    by = p.constant(2.0**-p.real.mantissa)
    p.do(ir.Set(least, ir.read(least) * by))


def _find_block(
    p: LaneProgram, w: Work, first: ir.Register, last: ir.Register, least: Expr
) -> None:
    """The uppermost block that is not diagonal, of each lane: none from row n on."""
    x = w.vectors
    end = p.register(INT)
    p.do(ir.Set(end, w.last.cast(INT)))
    with p.loop(ZERO, w.last) as done:
        i = p.let(ir.sub(ir.sub(w.last, ONE), done))
        e = p.let(x[_E, i][0])
        large = p.let(ir.unary("abs", e) > least)
        x[_E, i] = (select(large, e, p.constant(0.0)),)
        here = i.cast(INT)
        p.do(ir.Set(first, select(large, here, ir.read(first))))
        p.do(ir.Set(last, select(large, ir.read(end), ir.read(last))))
        p.do(ir.Set(end, select(large, ir.read(end), here)))


def _turn(p: LaneProgram, y: Expr, z: Expr) -> tuple[Expr, Expr, Expr]:
    """Cosine and sine of the rotation of (y, z) to (r, 0), and r."""
    one, zero = p.constant(1.0), p.constant(0.0)
    square = p.let(fma(y, y, z * z))
    none = p.let(square < negligible_square(p))
    r = p.let(select(none, zero, ir.sqrt(square)))
    inverse = p.let(one / select(none, one, r))
    return p.let(select(none, one, y * inverse)), p.let(select(none, zero, z * inverse)), r


def _step(
    p: LaneProgram,
    w: Work,
    block: tuple[ir.Register, ir.Register],
    span: tuple[Expr, Expr],
    least: Expr,
) -> None:
    """A sweep of rotations from the first to the last row of the block of each lane."""
    x = w.vectors
    zero, one = p.constant(0.0), p.constant(1.0)
    first, last = (ir.read(register) for register in block)
    active = p.let(first < last)
    begin = p.let(select(active, first, const(0, INT)))
    end = p.let(select(active, last, const(0, INT)))
    # a zero on the diagonal would end the chase: an error as small as rounding's moves it away
    with p.loop(*span) as i, p.loop(i, ir.add(i, const(2))) as k:
        d = p.let(x[_D, k][0])
        here = k.cast(INT)
        tiny = (ir.unary("abs", d) < least) & (here >= begin) & (here <= end) & active
        x[_D, k] = (select(tiny, ir.binary("copysign", least, d), d),)
    top, bottom = p.let(begin.cast(ir.INDEX)), p.let(end.cast(ir.INDEX))
    above = p.let(ir.maximum(ir.sub(bottom, ONE), ZERO))
    f, g = (p.let(ir.unary("abs", x[row, above][0])) for row in (_D, _E))
    h = p.let(ir.unary("abs", x[_D, bottom][0]))
    wide, narrow = p.let(f + h), p.let(f - h)
    largest = ir.sqrt(fma(wide, wide, g * g)) + ir.sqrt(fma(narrow, narrow, g * g))
    largest = p.let(largest * p.constant(0.5))
    shift = p.let(f * h / select(active & largest.ne(0.0), largest, one))
    start = p.let(select(active, x[_D, top][0], one))
    size = ir.unary("abs", start)
    y, z = p.register(), p.register()
    p.do(
        ir.Set(y, (size - shift) * (ir.binary("copysign", one, start) + shift / start)),
        ir.Set(z, x[_E, top][0]),
    )
    with p.loop(*span) as k:
        here, after = k.cast(INT), p.let(ir.add(k, ONE))
        inside = p.let((here >= begin) & (here < end) & active)
        d, e, d_after, e_after = (
            p.let(x[row, at][0]) for row, at in ((_D, k), (_E, k), (_D, after), (_E, after))
        )
        cosine, sine, r = _turn(p, p.let(ir.read(y)), p.let(ir.read(z)))
        before = p.let(ir.maximum(ir.sub(k, ONE), ZERO))
        x[_E, before] = (select(inside & (here > begin), r, x[_E, before][0]),)
        x[_CV, k] = (select(inside, cosine, one),)
        x[_SV, k] = (select(inside, sine, zero),)
        new_y = p.let(fma(cosine, d, sine * e))
        new_e = p.let(fma(cosine, e, -(sine * d)))
        new_z = p.let(sine * d_after)
        new_d = p.let(cosine * d_after)
        cosine, sine, r = _turn(p, new_y, new_z)
        x[_CU, k] = (select(inside, cosine, one),)
        x[_SU, k] = (select(inside, sine, zero),)
        superdiagonal = p.let(fma(cosine, new_e, sine * new_d))
        more = p.let(inside & (ir.add(k, ONE).cast(INT) < end))
        x[_D, k] = (select(inside, r, d),)
        x[_E, k] = (select(inside, superdiagonal, p.let(x[_E, k][0])),)
        x[_D, after] = (select(inside, fma(cosine, new_d, -(sine * new_e)), d_after),)
        x[_E, after] = (select(more, cosine * e_after, e_after),)
        p.do(ir.Set(y, p.let(select(inside, superdiagonal, ir.read(y)))))
        p.do(ir.Set(z, p.let(select(inside, sine * e_after, ir.read(z)))))


def _rotate(
    p: LaneProgram, w: Work, q: LaneMatrix, angles: tuple[Expr, Expr], span: tuple[Expr, Expr]
) -> None:
    """The rotations on rows, by tiles of columns that are carried from row to row."""
    x = w.vectors
    tiles = ir.idiv(ir.add(w.n, const(w.tile - 1)), const(w.tile))
    with p.loop(ZERO, tiles) as number:
        left = p.let(ir.mul(number, const(w.tile)))
        columns = [p.let(ir.add(left, const(s))) for s in range(w.tile)]
        carried = [p.register() for _ in columns]
        for register, j in zip(carried, columns, strict=True):
            p.do(ir.Set(register, q[span[0], j][0]))
        with p.loop(*span) as k:
            after = p.let(ir.add(k, ONE))
            cosine, sine = (p.let(x[row, k][0]) for row in angles)
            for register, j in zip(carried, columns, strict=True):
                upper, lower = p.let(ir.read(register)), p.let(q[after, j][0])
                q[k, j] = (fma(sine, lower, cosine * upper),)
                p.do(ir.Set(register, p.let(fma(cosine, lower, -(sine * upper)))))
        for register, j in zip(carried, columns, strict=True):
            q[span[1], j] = (ir.read(register),)


def _rank(p: LaneProgram, w: Work) -> None:
    """Values without signs, which vectors of the right take, in their places in descending order;
    all NaN where one is."""
    x, n = w.vectors, w.n
    bad = p.register(INT)
    p.do(ir.Set(bad, const(0, INT)))
    with p.loop(ZERO, n) as i:
        d = p.let(x[_D, i][0])
        x[_U, i] = (ir.unary("abs", d),)
        p.do(ir.Set(bad, select(d.eq(d), ir.read(bad), const(1, INT))))
    failed = p.let(ir.read(bad).ne(0))
    nan, one = p.constant(float("nan")), p.constant(1.0)
    sign = p.register()
    with p.loop(ZERO, n) as i:
        signed, value = p.let(x[_D, i][0]), p.let(x[_U, i][0])
        p.do(ir.Set(sign, select(failed, nan, select(signed < p.constant(0.0), -one, one))))
        by = p.let(ir.read(sign))
        if w.sides is not None:
            left, right = w.sides
            with p.loop(ZERO, n) as j:
                right[i, j] = (right[i, j][0] * by,)
                left[i, j] = (select(failed, nan, left[i, j][0]),)
        place = p.register(INT)
        p.do(ir.Set(place, const(0, INT)))
        with p.loop(ZERO, n) as j:
            other = p.let(x[_U, j][0])
            before = (other > value) | (other.eq(value) & (j < i))
            p.do(ir.Set(place, ir.read(place) + select(before, const(1, INT), const(0, INT))))
        at = p.let(select(failed, i.cast(INT), ir.read(place)))
        x[_PLACE, i] = (at.cast(p.real),)
    with p.loop(ZERO, n) as i:
        at = p.let(x[_PLACE, i][0].cast(ir.INDEX))
        x[_D, at] = (select(failed, nan, x[_U, i][0]),)
