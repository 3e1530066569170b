"""Eigenvalues of real symmetric tridiagonal matrices by implicit QL steps (Bowdler, Martin, Reinsch
& Wilkinson 1968).
"""

from __future__ import annotations

from collections.abc import Callable

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.program import INT, ONE, ZERO, Matrix, Program, least_size
from numus.kernels.factor.rotations import plane_turn

MAX_STEPS = 60  # per eigenvalue; 2 are usual
MAX_ERRORS = 8.0  # rounding errors that are as good as zero where steps are many
_D, _E = ZERO, ONE


Rotated = Callable[[Expr, Expr, Expr], None]  # of rows i and i + 1, by a cosine and a sine


def iterate(p: Program, t: Matrix, n: Expr, rotated: Rotated | None = None) -> None:
    """Eigenvalues in row 0 of `t`, of a matrix with that diagonal and row 1 beside it: NaN where
    steps do not converge. `rotated` is called for each rotation."""
    least, bound = _least(p, t, n), p.register()
    with p.loop(ZERO, n) as first:
        active = ir.Register("active", INT)
        p.do(ir.Set(active, const(1, INT)), ir.Set(bound, least))
        with p.loop(ZERO, const(MAX_STEPS)), p.when(p.let(ir.read(active)).ne(0)):
            last = _end(p, t, first, n, p.let(ir.read(bound)))
            # rounding may bring back a little more where values are equal
            grown = ir.read(bound) + least
            p.do(ir.Set(bound, ir.minimum(grown, least * p.constant(MAX_ERRORS))))
            p.do(ir.Set(active, select(last > first, const(1, INT), const(0, INT))))
            with p.when(p.let(last > first)):
                _step(p, t, first, last, rotated)
        with p.when(p.let(ir.read(active)).ne(0)):
            t[_D, first] = (p.constant(float("nan")),)


def _least(p: Program, t: Matrix, n: Expr) -> Expr:
    """A rounding error of the largest element: what is smaller is as good as zero, and steps would
    not converge where a matrix of low rank leaves nothing else."""
    largest = p.reduced(
        "max",
        ZERO,
        n,
        lambda i: [ir.unary("abs", t[row, i][0]) for row in (_D, _E)],
        p.constant(0.0),
    )
    least = ir.maximum(*largest) * p.constant(2.0**-p.real.mantissa)
    return p.let(ir.maximum(least, least_size(p)))


def _end(p: Program, t: Matrix, first: Expr, n: Expr, least: Expr) -> Expr:
    """The first index from `first` on whose element beside the diagonal is negligible, or NaN."""
    last = p.let(ir.sub(n, ONE))

    def ends(i: Expr) -> list[Expr]:
        size = ir.unary("abs", t[_D, i][0]) + ir.unary("abs", t[_D, ir.add(i, ONE)][0])
        offdiagonal = ir.unary("abs", t[_E, i][0])
        size = p.let(size)
        large = (offdiagonal + size > size) & (offdiagonal > least)
        return [select(large, last.cast(INT), i.cast(INT))]

    (found,) = p.reduced("min", first, last, ends, p.let(last.cast(INT)))
    return p.let(found.cast(ir.INDEX))


def _step(p: Program, t: Matrix, first: Expr, last: Expr, rotated: Rotated | None) -> None:
    """A sweep of rotations from `last` up to `first`."""
    zero, one, two = (p.constant(x) for x in (0.0, 1.0, 2.0))
    g, s, c, shift = (p.register() for _ in range(4))
    start = p.let(t[_D, first][0])
    ratio = p.let((t[_D, ir.add(first, ONE)][0] - start) / (two * t[_E, first][0]))
    root = ir.sqrt(ir.fma(ratio, ratio, one, allow_unfused=True))
    below = ratio + ir.binary("copysign", root, ratio)
    p.do(
        ir.Set(g, t[_D, last][0] - start + t[_E, first][0] / below),
        *(ir.Set(s, one), ir.Set(c, one), ir.Set(shift, zero)),
    )
    with p.loop(ZERO, ir.sub(last, first)) as done:
        i = p.let(ir.sub(ir.sub(last, ONE), done))
        after = p.let(ir.add(i, ONE))
        e = p.let(t[_E, i][0])
        f, b = p.let(ir.read(s) * e), p.let(ir.read(c) * e)
        old = p.let(ir.read(g))
        cosine, sine, r = plane_turn(p, old, f)
        t[_E, after] = (r,)  # the last one is overwritten below
        rest = p.let(t[_D, after][0] - ir.read(shift))
        r2 = (t[_D, i][0] - rest) * sine + two * cosine * b
        r2 = p.let(r2)
        moved = p.let(sine * r2)
        t[_D, after] = (rest + moved,)
        p.do(
            *(ir.Set(shift, moved), ir.Set(c, cosine), ir.Set(s, sine)),
            ir.Set(g, cosine * r2 - b),
        )
        if rotated is not None:
            rotated(i, cosine, sine)
    t[_D, first] = (start - ir.read(shift),)
    t[_E, first] = (ir.read(g),)
    t[_E, last] = (zero,)
