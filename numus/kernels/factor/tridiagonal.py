"""Eigenvalues of real symmetric matrices: Householder tridiagonalisation and implicit QL steps
(Bowdler, Martin, Reinsch & Wilkinson 1968), on one matrix per block with lanes along its rows.
"""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.program import INT, ONE, ZERO, Matrix, Program, Read, Span

MAX_STEPS = 60  # per eigenvalue; 2 are usual
PENDING = 12  # sweeps of rotations that eigenvectors go through at once
_D, _E, _TAU, _V, _W, _P = (const(i) for i in range(6))
ROTATIONS = 6  # from that row on: cosines and sines of pending sweeps, each with a bound at its end
VECTORS = ROTATIONS + 2 * PENDING  # rows of length n that the work takes


def eigh(p: Program, out: Matrix, a: Read, t: Matrix, work: Matrix, n: Expr) -> None:
    """Eigenvalues in row 0, in no order, and a row with the eigenvector of each below; NaN where
    the steps did not converge. `t` is memory for a matrix."""
    with p.each((ZERO, n), (ZERO, n)) as (i, j):
        t[i, j] = a(i, j)
    reduce(p, t, work, n)
    vectors = Below(out)
    accumulate(p, vectors, t, (work, work), n, (ZERO, n))
    with p.loop(ONE, n) as i, p.loop(ZERO, i) as j:
        lower, upper = p.number(vectors[i, j]), p.number(vectors[j, i])
        vectors[i, j] = upper
        vectors[j, i] = lower
    iterate(p, vectors, work, n, (ZERO, n))
    values(p, out, work, (ZERO, n))


class Below(Matrix):
    """The rows of a matrix below its first."""

    def __init__(self, x: Matrix) -> None:
        self._p, self._x, self.buffer = x._p, x, x.buffer

    def _at(self, i: Expr, j: Expr) -> list[Expr]:
        return self._x._at(ir.add(i, ONE), j)


def start(p: Program, work: Matrix, given: Matrix, n: Expr) -> None:
    """The tridiagonal matrix of a work into another one."""
    with p.lanes(ZERO, n) as j:
        for row in (_D, _E):
            work[row, j] = given[row, j]


def values(p: Program, out: Matrix, work: Matrix, columns: Span) -> None:
    with p.lanes(*columns) as j:
        out[ZERO, j] = work[_D, j]


def _reflector(p: Program, t: Matrix, work: Matrix, k: Expr, n: Expr) -> None:
    """Of row k: the vector into the row, its factor, the elements of the tridiagonal matrix."""
    after, second = p.let(ir.add(k, ONE)), p.let(ir.add(k, const(2)))
    (rest,) = p.reduced("add", second, n, lambda j: [t[k, j][0] * t[k, j][0]], p.constant(0.0))
    alpha = p.let(t[k, after][0])
    trivial = p.let(rest.eq(0.0))
    size = ir.sqrt(ir.fma(alpha, alpha, rest, allow_unfused=True))
    beta = p.let(select(trivial, alpha, -ir.binary("copysign", size, alpha)))
    one = p.constant(1.0)
    tau = select(trivial, p.constant(0.0), (beta - alpha) / select(trivial, one, beta))
    factor = p.let(one / select(trivial, one, alpha - beta))
    work[_D, k] = t[k, k]
    work[_E, k] = (beta,)
    work[_TAU, k] = (p.let(tau),)
    with p.lanes(second, n) as j:
        t[k, j] = (t[k, j][0] * factor,)
    t[k, after] = (one,)


def reduce(p: Program, t: Matrix, work: Matrix, n: Expr) -> None:
    """T = Qᵀ A Q. The rank-two update of a step and the product A v of the next are one pass."""
    last = p.let(ir.sub(n, ONE))
    with p.lanes(ZERO, n) as j:
        for row in (_V, _W, _E, _TAU):
            work[row, j] = (p.constant(0.0),)
    with p.loop(ZERO, last) as k:
        after = p.let(ir.add(k, ONE))
        _update_row(p, t, work, k, k, n)
        _reflector(p, t, work, k, n)
        with p.lanes(after, n) as j:
            work[_P, j] = (p.constant(0.0),)
        with p.loop(after, n) as i:
            v, w = p.let(work[_V, i][0]), p.let(work[_W, i][0])
            own = p.let(t[k, i][0])
            with p.lanes(after, n) as j:
                x = ir.fma(-v, work[_W, j][0], t[i, j][0], allow_unfused=True)
                x = p.let(ir.fma(-w, work[_V, j][0], x, allow_unfused=True))
                t[i, j] = (x,)
                work[_P, j] = (ir.fma(own, x, work[_P, j][0], allow_unfused=True),)
        tau = p.let(work[_TAU, k][0])
        (inner,) = p.reduced(
            "add", after, n, lambda j: [work[_P, j][0] * t[k, j][0]], p.constant(0.0)
        )
        half = p.let(p.constant(-0.5) * tau * tau * inner)
        with p.lanes(after, n) as j:
            work[_V, j] = t[k, j]
            work[_W, j] = (ir.fma(half, t[k, j][0], tau * work[_P, j][0], allow_unfused=True),)
    with p.when(p.let(n > ZERO)):
        _update_row(p, t, work, last, last, n)
        work[_D, last] = t[last, last]


def _update_row(p: Program, t: Matrix, work: Matrix, i: Expr, start: Expr, n: Expr) -> None:
    """The pending update of one row."""
    v, w = p.let(work[_V, i][0]), p.let(work[_W, i][0])
    with p.lanes(start, n) as j:
        x = ir.fma(-v, work[_W, j][0], t[i, j][0], allow_unfused=True)
        t[i, j] = (ir.fma(-w, work[_V, j][0], x, allow_unfused=True),)


def accumulate(
    p: Program, q: Matrix, t: Matrix, works: tuple[Matrix, Matrix], n: Expr, columns: Span
) -> None:
    """A range of columns of Q, by the factors in the first work and with rows of the second."""
    given, work = works
    left, right = columns
    with p.each((ZERO, n), columns) as (i, j):
        q[i, j] = (select(i.eq(j), p.constant(1.0), p.constant(0.0)),)
    last = ir.sub(n, ONE)
    with p.lanes(*columns) as j:
        work[_W, j] = (select(j.eq(last), p.constant(1.0), p.constant(0.0)),)
    with p.loop(ZERO, last) as step:  # a reflection, and vᵀ Q of the next one
        k = p.let(ir.sub(ir.sub(n, const(2)), step))
        after = p.let(ir.add(k, ONE))
        start = p.let(ir.maximum(after, left))
        before = p.let(ir.maximum(ir.sub(k, ONE), ZERO))
        tau = p.let(-given[_TAU, k][0])
        with p.lanes(start, right) as j:
            work[_P, j] = (p.constant(0.0),)
        with p.loop(after, n) as i:
            factor, own = p.let(tau * t[k, i][0]), p.let(t[before, i][0])
            with p.lanes(start, right) as j:
                x = p.let(ir.fma(factor, work[_W, j][0], q[i, j][0], allow_unfused=True))
                q[i, j] = (x,)
                work[_P, j] = (ir.fma(own, x, work[_P, j][0], allow_unfused=True),)
        with p.lanes(start, right) as j:
            work[_W, j] = work[_P, j]
        with p.when(p.let((k >= left) & (k < right))):
            work[_W, k] = (p.constant(1.0),)


def iterate(p: Program, q: Matrix, work: Matrix, n: Expr, columns: Span) -> None:
    """QL steps with shifts, until each element beside the diagonal is negligible; their rotations
    of rows of q in a range of columns."""
    zero = p.constant(0.0)
    end = ir.Register("end", ir.INDEX)  # of the block that is being diagonalised
    pending = ir.Register("pending", ir.INDEX)
    p.do(ir.Set(pending, ZERO))
    with p.when(p.let(n > ZERO)):
        work[_E, ir.sub(n, ONE)] = (zero,)
    least = _least(p, work, n)
    with p.loop(ZERO, n) as first:
        active = ir.Register("active", INT)
        p.do(ir.Set(active, const(1, INT)))
        with p.loop(ZERO, const(MAX_STEPS)), p.when(p.let(ir.read(active)).ne(0)):
            _find_end(p, work, first, n, end, least)
            last = p.let(ir.read(end))
            p.do(ir.Set(active, select(last > first, const(1, INT), const(0, INT))))
            with p.when(p.let(last > first)):
                number = p.let(ir.add(const(ROTATIONS), ir.mul(ir.read(pending), const(2))))
                _step(p, work, first, last, n, number)
                p.do(ir.Set(pending, ir.add(ir.read(pending), ONE)))
                with p.when(p.let(ir.read(pending)).eq(const(PENDING))):
                    _rotate(p, q, work, n, const(PENDING), columns)
                    p.do(ir.Set(pending, ZERO))
        with p.when(p.let(ir.read(active)).ne(0)):
            work[_D, first] = (p.constant(float("nan")),)
    _rotate(p, q, work, n, p.let(ir.read(pending)), columns)


def _rotate(p: Program, q: Matrix, work: Matrix, n: Expr, count: Expr, columns: Span) -> None:
    """Pending sweeps on the eigenvectors: a chunk of columns goes through all of them in cache."""
    end = ir.sub(n, ONE)
    with p.lanes(*columns, unroll=4) as j, p.loop(ZERO, count) as sweep:
        cosines = p.let(ir.add(const(ROTATIONS), ir.mul(sweep, const(2))))
        sines = p.let(ir.add(cosines, ONE))
        first = p.let(work[cosines, end][0].cast(ir.INDEX))
        last = p.let(work[sines, end][0].cast(ir.INDEX))
        carried = p.register(lanes=True)
        p.do(ir.Set(carried, q[last, j][0]))
        with p.loop(ZERO, ir.sub(last, first)) as number:
            i = p.let(ir.sub(ir.sub(last, ONE), number))
            cosine, sine = p.let(work[cosines, i][0]), p.let(work[sines, i][0])
            x, y = p.let(q[i, j][0]), p.let(ir.read(carried))
            q[ir.add(i, ONE), j] = (ir.fma(sine, x, cosine * y, allow_unfused=True),)
            p.do(ir.Set(carried, ir.fma(-sine, y, cosine * x, allow_unfused=True)))
        q[first, j] = (ir.read(carried),)


def _least(p: Program, work: Matrix, n: Expr) -> Expr:
    """Half a rounding error of the largest element: what is smaller is as good as zero, and steps
    would not converge where a matrix of low rank leaves nothing else."""
    largest = p.reduced(
        "max",
        ZERO,
        n,
        lambda i: [ir.unary("abs", work[row, i][0]) for row in (_D, _E)],
        p.constant(0.0),
    )
    return p.let(ir.maximum(*largest) * p.constant(2.0 ** -(p.real.mantissa + 1)))


def _find_end(
    p: Program, work: Matrix, first: Expr, n: Expr, end: ir.Register, least: Expr
) -> None:
    """The first index from `first` on whose element beside the diagonal is negligible."""
    p.do(ir.Set(end, ir.sub(n, ONE)))
    with p.loop(first, ir.sub(n, ONE)) as i, p.when(p.let(ir.read(end)).eq(ir.sub(n, ONE))):
        next_ = ir.add(i, ONE)
        size = ir.unary("abs", work[_D, i][0]) + ir.unary("abs", work[_D, next_][0])
        size = p.let(size)
        offdiagonal = p.let(ir.unary("abs", work[_E, i][0]))
        negligible = (offdiagonal + size).eq(size) | (offdiagonal <= least)
        p.do(ir.Set(end, select(negligible, i, ir.read(end))))


def _step(p: Program, work: Matrix, first: Expr, last: Expr, n: Expr, number: Expr) -> None:
    """A sweep of rotations from `last` up to `first`, recorded in the rows from `number` on."""
    zero, one, two = (p.constant(x) for x in (0.0, 1.0, 2.0))
    g, s, c, shift = (p.register() for _ in range(4))
    start = p.let(work[_D, first][0])
    ratio = p.let((work[_D, ir.add(first, ONE)][0] - start) / (two * work[_E, first][0]))
    root = ir.sqrt(ir.fma(ratio, ratio, one, allow_unfused=True))
    below = ratio + ir.binary("copysign", root, ratio)
    p.do(
        ir.Set(g, work[_D, last][0] - start + work[_E, first][0] / below),
        *(ir.Set(s, one), ir.Set(c, one), ir.Set(shift, zero)),
    )
    with p.loop(ZERO, ir.sub(last, first)) as done:
        i = p.let(ir.sub(ir.sub(last, ONE), done))
        after = p.let(ir.add(i, ONE))
        e = p.let(work[_E, i][0])
        f, b = p.let(ir.read(s) * e), p.let(ir.read(c) * e)
        old = p.let(ir.read(g))
        r = p.let(ir.sqrt(ir.fma(f, f, old * old, allow_unfused=True)))
        none = p.let(r.eq(0.0))
        inverse = one / select(none, one, r)
        inverse = p.let(inverse)
        cosine = p.let(select(none, one, old * inverse))
        sine = p.let(select(none, zero, f * inverse))
        work[_E, after] = (r,)  # the last one is overwritten below
        rest = p.let(work[_D, after][0] - ir.read(shift))
        r2 = (work[_D, i][0] - rest) * sine + two * cosine * b
        r2 = p.let(r2)
        moved = p.let(sine * r2)
        work[_D, after] = (rest + moved,)
        p.do(
            *(ir.Set(shift, moved), ir.Set(c, cosine), ir.Set(s, sine)),
            ir.Set(g, cosine * r2 - b),
        )
        work[number, i] = (cosine,)
        work[ir.add(number, ONE), i] = (sine,)
    work[_D, first] = (start - ir.read(shift),)
    work[_E, first] = (ir.read(g),)
    work[_E, last] = (zero,)
    work[number, ir.sub(n, ONE)] = (first.cast(p.real),)
    work[ir.add(number, ONE), ir.sub(n, ONE)] = (last.cast(p.real),)
