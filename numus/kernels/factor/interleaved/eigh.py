"""Eigenvalues of interleaved real symmetric matrices: Householder tridiagonalisation and implicit
QL steps (Bowdler, Martin, Reinsch & Wilkinson 1968), each lane at a block of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.interleaved.scaling import householder
from numus.kernels.factor.lanes import LaneMatrix, LaneProgram
from numus.kernels.factor.program import INT, ONE, ZERO, fma, negligible_square

STEPS = 30  # per eigenvalue at most; 2 are usual
_D, _E, _TAU, _V, _W, _P, _U, _C, _S = (const(i) for i in range(9))
VECTORS = 9
SCALE = 2  # the row whose element n is kept for the scale


@dataclass
class Work:
    """Memory of a decomposition. Rows and columns of `a` and `q` beyond n, up to a tile, are there;
    those of `a` and `vectors` are zero."""

    a: LaneMatrix
    q: LaneMatrix | None  # where eigenvectors are wanted
    vectors: LaneMatrix
    n: Expr
    tile: int

    @property
    def end(self) -> Expr:
        return ir.add(self.n, const(self.tile))

    @property
    def last(self) -> Expr:
        return ir.sub(self.n, ONE)


def eigh(p: LaneProgram, w: Work) -> None:
    """Ascending eigenvalues in row 0 of the vectors, eigenvectors in columns of `a`; NaN where
    steps did not converge. Of `a`, the lower triangle is read."""
    n = w.n
    with p.matrices():
        _reduce(p, w, n)
        if w.q is not None:
            _accumulate(p, w, w.q, n)
    _iterate(p, w, n)
    with p.matrices():
        _sort(p, w, n)


# -- tridiagonalisation ---------------------------------------------------------------------------


def _reduce(p: LaneProgram, w: Work, n: Expr) -> None:
    """T = Qᵀ A Q. The rank-two update of a step and the product A u of the next are one pass."""
    x = w.vectors
    last = p.let(w.last)
    with p.loop(ZERO, last) as k:
        after = p.let(ir.add(k, ONE))
        _update_column(p, w, k, n)
        x[_D, k] = w.a[k, k]
        tau = _reflector(p, w, k, n)
        with p.loop(after, w.end) as i:
            x[_P, i] = (p.constant(0.0),)
        _symmetric_pass(p, w, after, n)
        (inner,) = p.reduced(
            "add", after, n, lambda i: [x[_P, i][0] * x[_U, i][0]], p.constant(0.0)
        )
        half = p.let(p.constant(-0.5) * tau * tau * inner)
        with p.loop(after, n) as i:
            u = p.let(x[_U, i][0])
            x[_V, i] = (u,)
            x[_W, i] = (fma(half, u, tau * x[_P, i][0]),)
    _update_column(p, w, last, n)
    x[_D, last] = w.a[last, last]
    x[_E, last] = (p.constant(0.0),)


def _update_column(p: LaneProgram, w: Work, k: Expr, n: Expr) -> None:
    """The pending update of a column, from the diagonal on."""
    x = w.vectors
    v, y = p.let(x[_V, k][0]), p.let(x[_W, k][0])
    with p.loop(k, n) as i:
        value = fma(-x[_V, i][0], y, w.a[i, k][0])
        w.a[i, k] = (fma(-x[_W, i][0], v, value),)


def _reflector(p: LaneProgram, w: Work, k: Expr, n: Expr) -> Expr:
    """Of what is below the diagonal of column k: its vector there, too, and its factor."""
    x, a = w.vectors, w.a
    after, second = p.let(ir.add(k, ONE)), p.let(ir.add(k, const(2)))
    (rest,) = p.reduced("add", second, n, lambda i: [a[i, k][0] * a[i, k][0]], p.constant(0.0))
    alpha = p.let(a[after, k][0])
    beta, tau, factor = householder(p, alpha, rest)
    one = p.constant(1.0)
    x[_E, k] = (beta,)
    x[_TAU, k] = (tau,)
    x[_U, after] = (one,)
    a[after, k] = (one,)
    with p.loop(second, n) as i:
        u = p.let(a[i, k][0] * factor)
        a[i, k] = (u,)
        x[_U, i] = (u,)
    return tau


def _symmetric_pass(p: LaneProgram, w: Work, after: Expr, n: Expr) -> None:
    """A -= v wᵀ + w vᵀ in the lower triangle from `after` on, and P = A u, by tiles of rows."""
    x, a = w.vectors, w.a
    tiles = ir.idiv(ir.add(ir.sub(n, after), const(w.tile - 1)), const(w.tile))
    with p.loop(ZERO, p.let(tiles)) as number:
        top = p.let(ir.add(after, ir.mul(number, const(w.tile))))
        rows = [p.let(ir.add(top, const(r))) for r in range(w.tile)]
        own = [tuple(p.let(x[name, i][0]) for name in (_V, _W, _U)) for i in rows]
        sums = [p.register() for _ in rows]
        p.do(*(ir.Set(total, p.constant(0.0)) for total in sums))

        def column(j: Expr, first: int, diagonal: int | None) -> None:
            v, y, u = (p.let(x[name, j][0]) for name in (_V, _W, _U))
            down = x[_P, j][0]
            for r in range(first, w.tile):
                value = fma(-own[r][0], y, a[rows[r], j][0])
                value = p.let(fma(-own[r][1], v, value))
                a[rows[r], j] = (value,)
                p.do(ir.Set(sums[r], p.let(fma(value, u, ir.read(sums[r])))))
                if r != diagonal:
                    down = p.let(fma(value, own[r][2], down))
            x[_P, j] = (down,)

        with p.loop(after, top) as j:
            column(j, 0, None)
        for s, j in enumerate(rows):
            column(j, s, s)
        for total, i in zip(sums, rows, strict=True):
            x[_P, i] = (x[_P, i][0] + ir.read(total),)


def _accumulate(p: LaneProgram, w: Work, q: LaneMatrix, n: Expr) -> None:
    """Qᵀ in the rows of `q`, by tiles of them."""
    x = w.vectors
    with p.loop(ZERO, w.end) as i, p.loop(ZERO, n) as j:
        q[i, j] = (select(i.eq(j), p.constant(1.0), p.constant(0.0)),)
    with p.loop(ZERO, w.last) as step:
        k = p.let(ir.sub(ir.sub(w.last, ONE), step))
        after = p.let(ir.add(k, ONE))
        tau = p.let(-x[_TAU, k][0])
        with p.loop(after, n) as i:
            x[_U, i] = w.a[i, k]
        tiles = ir.idiv(ir.add(ir.sub(n, after), const(w.tile - 1)), const(w.tile))
        with p.loop(ZERO, p.let(tiles)) as number:
            top = p.let(ir.add(after, ir.mul(number, const(w.tile))))
            rows = [p.let(ir.add(top, const(r))) for r in range(w.tile)]
            sums = [p.register() for _ in rows]
            p.do(*(ir.Set(total, p.constant(0.0)) for total in sums))
            with p.loop(after, n) as i:
                u = p.let(x[_U, i][0])
                for total, j in zip(sums, rows, strict=True):
                    p.do(ir.Set(total, p.let(fma(u, q[j, i][0], ir.read(total)))))
            weights = [p.let(tau * ir.read(total)) for total in sums]
            with p.loop(after, n) as i:
                u = p.let(x[_U, i][0])
                for weight, j in zip(weights, rows, strict=True):
                    q[j, i] = (fma(weight, u, q[j, i][0]),)


# -- QL steps -------------------------------------------------------------------------------------


def _iterate(p: LaneProgram, w: Work, n: Expr) -> None:
    """A step of all lanes at a time, until all elements beside the diagonal are negligible."""
    again = ir.Register("again", INT)
    first, last = p.register(INT), p.register(INT)
    p.do(ir.Set(again, const(1, INT)))
    with p.loop(ZERO, ir.mul(n, const(STEPS))), p.when(p.let(ir.read(again)).ne(0)):
        p.do(ir.Set(first, w.n.cast(INT)), ir.Set(last, const(0, INT)))
        with p.matrices():
            _find_block(p, w, first, last)
        lowest = p.let(ir.lanes_reduce("min", first))
        p.do(ir.Set(again, select(lowest < w.n.cast(INT), const(1, INT), const(0, INT))))
        with p.when(p.let(ir.read(again)).ne(0)):
            highest = p.let(ir.lanes_reduce("max", last))
            span = p.let(lowest.cast(ir.INDEX)), p.let(highest.cast(ir.INDEX))
            with p.matrices():
                _step(p, w, first, last, span)
                if w.q is not None:
                    _rotate(p, w, w.q, span)
    with p.when(p.let(ir.read(again)).ne(0)), p.matrices():
        nan = p.constant(float("nan"))
        failed = p.let(ir.read(first) < w.n.cast(INT))
        w.vectors[_D, ZERO] = (select(failed, nan, w.vectors[_D, ZERO][0]),)


def _find_block(p: LaneProgram, w: Work, first: ir.Register, last: ir.Register) -> None:
    """The uppermost block that is not diagonal, of each lane: none from row n on."""
    x = w.vectors
    end = p.register(INT)
    p.do(ir.Set(end, w.last.cast(INT)))
    with p.loop(ZERO, w.last) as done:
        i = p.let(ir.sub(ir.sub(w.last, ONE), done))
        size = ir.unary("abs", x[_D, i][0]) + ir.unary("abs", x[_D, ir.add(i, ONE)][0])
        size = p.let(size)
        e = p.let(x[_E, i][0])
        large = p.let(((ir.unary("abs", e) + size) > size) & (e * e > negligible_square(p)))
        x[_E, i] = (select(large, e, p.constant(0.0)),)
        here = i.cast(INT)
        p.do(ir.Set(first, select(large, here, ir.read(first))))
        p.do(ir.Set(last, select(large, ir.read(end), ir.read(last))))
        p.do(ir.Set(end, select(large, ir.read(end), here)))


def _step(
    p: LaneProgram, w: Work, first: ir.Register, last: ir.Register, span: tuple[Expr, Expr]
) -> None:
    """A sweep of rotations from `last` up to `first` of each lane; their cosines and sines."""
    x = w.vectors
    zero, one, two = (p.constant(v) for v in (0.0, 1.0, 2.0))
    active = p.let(ir.read(first) < ir.read(last))
    begin = p.let(select(active, ir.read(first), const(0, INT)))
    top = p.let(begin.cast(ir.INDEX))
    end = p.let(select(active, ir.read(last), const(0, INT)))
    start, e_top = p.let(x[_D, top][0]), p.let(x[_E, top][0])
    after_top = p.let(ir.minimum(ir.add(top, ONE), w.last))
    ratio = (x[_D, after_top][0] - start) / (two * select(active, e_top, one))
    ratio = p.let(ratio)
    root = ir.sqrt(fma(ratio, ratio, one))
    below = ratio + ir.binary("copysign", root, ratio)
    g, s, c, shift = (p.register() for _ in range(4))
    p.do(
        ir.Set(g, x[_D, p.let(end.cast(ir.INDEX))][0] - start + e_top / below),
        *(ir.Set(s, one), ir.Set(c, one), ir.Set(shift, zero)),
    )
    with p.loop(ZERO, ir.sub(span[1], span[0])) as done:
        i = p.let(ir.sub(ir.sub(span[1], ONE), done))
        after, here = p.let(ir.add(i, ONE)), i.cast(INT)
        inside = p.let((here >= begin) & (here < end))
        e, d, d_after = p.let(x[_E, i][0]), p.let(x[_D, i][0]), p.let(x[_D, after][0])
        f, b = p.let(ir.read(s) * e), p.let(ir.read(c) * e)
        old = p.let(ir.read(g))
        square = p.let(fma(f, f, old * old))
        none = p.let(square < negligible_square(p))
        r = p.let(select(none, zero, ir.sqrt(square)))
        inverse = p.let(one / select(none, one, r))
        cosine = p.let(select(none, one, old * inverse))
        sine = p.let(select(none, zero, f * inverse))
        rest = p.let(d_after - ir.read(shift))
        r2 = p.let((d - rest) * sine + two * cosine * b)
        moved = p.let(sine * r2)
        # the element at the end of the block is zero, and stays so
        x[_E, after] = (select(inside & (ir.add(i, ONE).cast(INT) < end), r, x[_E, after][0]),)
        x[_D, after] = (select(inside, rest + moved, d_after),)
        for register, new in ((shift, moved), (c, cosine), (s, sine), (g, cosine * r2 - b)):
            p.do(ir.Set(register, p.let(select(inside, new, ir.read(register)))))
        x[_C, i] = (select(inside, cosine, one),)
        x[_S, i] = (select(inside, sine, zero),)
    x[_D, top] = (select(active, start - ir.read(shift), start),)
    x[_E, top] = (select(active, ir.read(g), e_top),)


def _rotate(p: LaneProgram, w: Work, q: LaneMatrix, span: tuple[Expr, Expr]) -> None:
    """The rotations on the rows of q, by tiles of columns that are carried from row to row."""
    x = w.vectors
    with p.loop(ZERO, ir.idiv(ir.add(w.n, const(w.tile - 1)), const(w.tile))) as number:
        left = p.let(ir.mul(number, const(w.tile)))
        columns = [p.let(ir.add(left, const(s))) for s in range(w.tile)]
        carried = [p.register() for _ in columns]
        for register, j in zip(carried, columns, strict=True):
            p.do(ir.Set(register, q[span[1], j][0]))
        with p.loop(ZERO, ir.sub(span[1], span[0])) as done:
            i = p.let(ir.sub(ir.sub(span[1], ONE), done))
            after = p.let(ir.add(i, ONE))
            cosine, sine = p.let(x[_C, i][0]), p.let(x[_S, i][0])
            for register, j in zip(carried, columns, strict=True):
                upper, lower = p.let(q[i, j][0]), p.let(ir.read(register))
                q[after, j] = (fma(sine, upper, cosine * lower),)
                p.do(ir.Set(register, p.let(fma(-sine, lower, cosine * upper))))
        for register, j in zip(carried, columns, strict=True):
            q[span[0], j] = (ir.read(register),)


def _sort(p: LaneProgram, w: Work, n: Expr) -> None:
    """Values in ascending order, vectors to columns of `a`; all NaN where one is."""
    x = w.vectors
    bad = p.register(INT)
    p.do(ir.Set(bad, const(0, INT)))
    with p.loop(ZERO, n) as i:
        d = p.let(x[_D, i][0])
        x[_P, i] = (d,)
        p.do(ir.Set(bad, select(d.eq(d), ir.read(bad), const(1, INT))))
    failed, nan = p.let(ir.read(bad).ne(0)), p.constant(float("nan"))
    with p.loop(ZERO, n) as i:
        value, place = p.let(x[_P, i][0]), p.register(INT)
        p.do(ir.Set(place, const(0, INT)))
        with p.loop(ZERO, n) as j:
            other = p.let(x[_P, j][0])
            before = (other < value) | (other.eq(value) & (j < i))
            p.do(ir.Set(place, ir.read(place) + select(before, const(1, INT), const(0, INT))))
        at = p.let(select(failed, i.cast(INT), ir.read(place)).cast(ir.INDEX))
        x[_D, at] = (select(failed, nan, value),)
        if w.q is not None:
            with p.loop(ZERO, n) as j:
                w.a[j, at] = (select(failed, nan, w.q[i, j][0]),)
