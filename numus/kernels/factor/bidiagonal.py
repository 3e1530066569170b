"""Singular values of real upper bidiagonal matrices by implicit QR steps (Golub & Reinsch 1970)."""

from __future__ import annotations

from collections.abc import Callable

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.program import INT, ONE, ZERO, Matrix, Program, least_size
from numus.kernels.factor.rotations import plane_turn

MAX_STEPS = 60  # per singular value on average; 2 are usual
MAX_ERRORS = 8.0  # rounding errors that are as good as zero where steps are many
_D, _E = ZERO, ONE


# of rows k and k + 1 of the vectors of the right, then of the left, by cosines and sines
Rotated = Callable[[Expr, tuple[Expr, Expr], tuple[Expr, Expr]], None]


def iterate(
    p: Program,
    b: Matrix,
    n: Expr,
    rotated: Rotated | None = None,
) -> None:
    """Singular values, some with a minus, in row 0 of `b`, of a matrix with that diagonal and row 1
    above it: NaN where steps do not converge. `rotated` is called for each pair of rotations."""
    largest = p.reduced(
        "max",
        ZERO,
        n,
        lambda i: [ir.unary("abs", b[row, i][0]) for row in (_D, _E)],
        p.constant(0.0),
    )
    # what is smaller than rounding errors of the largest element is as good as zero
    least = ir.maximum(*largest) * p.constant(2.0**-p.real.mantissa)
    least = p.let(ir.maximum(least, least_size(p)))
    bound, row = p.register(), p.register(ir.INDEX)
    p.do(ir.Set(bound, least), ir.Set(row, ir.maximum(ir.sub(n, ONE), ZERO)))
    with p.loop(ZERO, ir.mul(n, const(MAX_STEPS))), p.when(p.let(ir.read(row) > ZERO)):
        last = p.let(ir.read(row))
        first = _start(p, b, last, p.let(ir.read(bound)))
        with p.when(first.eq(last)):
            p.do(ir.Set(row, ir.sub(last, ONE)), ir.Set(bound, least))
        with p.when(last > first):
            # rounding may bring back a little more where values are equal
            grown = ir.read(bound) + least
            p.do(ir.Set(bound, ir.minimum(grown, least * p.constant(MAX_ERRORS))))
            _step(p, b, (first, last), least, rotated)
    with p.when(p.let(ir.read(row) > ZERO)):
        b[_D, ir.read(row)] = (p.constant(float("nan")),)


def _start(p: Program, b: Matrix, last: Expr, least: Expr) -> Expr:
    """The row after the last negligible element above the diagonal, or one that is NaN."""

    def starts(i: Expr) -> list[Expr]:
        large = ir.unary("abs", b[_E, i][0]) > least
        return [select(large, const(0, INT), ir.add(i, ONE).cast(INT))]

    (found,) = p.reduced("max", ZERO, last, starts, const(0, INT))
    return p.let(found.cast(ir.INDEX))


def _step(
    p: Program,
    b: Matrix,
    block: tuple[Expr, Expr],
    least: Expr,
    rotated: Rotated | None,
) -> None:
    """A sweep of rotations from the first to the last row of a block."""
    first, last = block
    one = p.constant(1.0)
    # a zero on the diagonal would end the chase: an error as small as rounding's moves it away
    with p.lanes(first, p.let(ir.add(last, ONE))) as k:
        d = p.let(b[_D, k][0])
        tiny = ir.unary("abs", d) < least
        b[_D, k] = (select(tiny, ir.binary("copysign", least, d), d),)
    above = p.let(ir.sub(last, ONE))
    f, g = (p.let(ir.unary("abs", b[at, above][0])) for at in (_D, _E))
    h = p.let(ir.unary("abs", b[_D, last][0]))
    wide, narrow, square = p.let(f + h), p.let(f - h), p.let(g * g)
    largest = ir.sqrt(ir.fma(wide, wide, square, allow_unfused=True))
    largest = largest + ir.sqrt(ir.fma(narrow, narrow, square, allow_unfused=True))
    shift = p.let(f * h / (largest * p.constant(0.5)))  # the smaller value of two rows
    start = p.let(b[_D, first][0])
    y, z, diagonal, offdiagonal = (p.register() for _ in range(4))
    p.do(
        ir.Set(
            y,
            (ir.unary("abs", start) - shift) * (ir.binary("copysign", one, start) + shift / start),
        ),
        *(
            ir.Set(z, b[_E, first][0]),
            ir.Set(diagonal, start),
            ir.Set(offdiagonal, b[_E, first][0]),
        ),
    )
    with p.loop(first, last) as k:
        after = p.let(ir.add(k, ONE))
        d_after, e_after = p.let(b[_D, after][0]), p.let(b[_E, after][0])
        cosine, sine, r = plane_turn(p, p.let(ir.read(y)), p.let(ir.read(z)))
        with p.when(p.let(k > first)):
            b[_E, p.let(ir.sub(k, ONE))] = (r,)
        right = cosine, sine
        old_d, old_e = p.let(ir.read(diagonal)), p.let(ir.read(offdiagonal))
        new_y = p.let(ir.fma(cosine, old_d, sine * old_e, allow_unfused=True))
        new_e = p.let(ir.fma(cosine, old_e, -(sine * old_d), allow_unfused=True))
        new_d = p.let(cosine * d_after)
        cosine, sine, r = plane_turn(p, new_y, p.let(sine * d_after))
        if rotated is not None:
            rotated(k, right, (cosine, sine))
        b[_D, k] = (r,)
        coming = p.let(ir.fma(cosine, new_e, sine * new_d, allow_unfused=True))
        p.do(
            ir.Set(diagonal, ir.fma(cosine, new_d, -(sine * new_e), allow_unfused=True)),
            *(ir.Set(offdiagonal, cosine * e_after), ir.Set(y, coming), ir.Set(z, sine * e_after)),
        )
    b[_D, last] = (ir.read(diagonal),)
    b[_E, above] = (ir.read(y),)
