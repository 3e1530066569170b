"""One-sided Jacobi rotations (Hestenes 1958) in a round-robin order, on one matrix per block.

Pairs of rows are rotated until all rows are orthogonal. The pairs of a step are disjoint: threads
of a GPU rotate one each, a CPU one after the other with lanes along the rows.
"""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.program import (
    INT,
    ONE,
    ZERO,
    Matrix,
    Number,
    Program,
    Read,
    conjugate,
    minus_product,
    plus_product,
    product,
    scaled,
    squared,
)

MAX_SWEEPS = 40  # quadratic convergence takes 5 to 12


def orthogonalize(p: Program, out: Matrix, a: Read, rows: Expr, width: Expr, total: Expr) -> None:
    """Unitary combinations of rows, orthogonal in their first `width` columns of `total`."""
    with p.matrices(), p.each((ZERO, rows), (ZERO, total)) as (i, j):
        out[i, j] = a(i, j)
    players = p.let(ir.add(rows, ir.irem(rows, const(2))))  # an odd one sits out
    others = p.let(ir.maximum(ir.sub(players, ONE), ONE))
    epsilon = 2.0**-p.real.mantissa
    bound = p.let(p.constant(epsilon) * ir.sqrt(width.cast(p.real)))  # of rounding errors
    again, rotated = ir.Register("again", INT), p.register(INT, lanes=p.simt)
    p.do(ir.Set(again, const(1, INT)))
    with p.loop(ZERO, const(MAX_SWEEPS)), p.when(p.let(ir.read(again)).ne(0)):
        p.do(ir.Set(rotated, const(0, INT)))
        with (
            p.matrices(),
            p.loop(ZERO, others) as step,
            p.loop(ZERO, ir.idiv(players, const(2)), "lanes" if p.simt else "serial") as pair,
        ):
            ahead = ir.irem(ir.add(step, pair), others)
            behind = ir.irem(ir.add(ir.sub(step, pair), others), others)
            last = ir.sub(players, ONE)
            behind = select(pair.eq(0), last, behind)
            first, second = p.let(ir.minimum(ahead, behind)), p.let(ir.maximum(ahead, behind))
            with p.when(second < rows):
                _rotate(p, out, (first, second), (width, total), bound, rotated)
        p.do(ir.Set(again, p.let(p.any_lane(rotated))))


def _rotate(
    p: Program,
    out: Matrix,
    pair: tuple[Expr, Expr],
    extents: tuple[Expr, Expr],
    bound: Expr,
    rotated: ir.Register,
) -> None:
    (x, y), (width, total) = pair, extents
    size_x, size_y, *inner = _products(p, out, x, y, width)
    length = p.let(_length(p, inner))
    # below that, digits of the sums are lost to underflow; matrices have elements of about 1
    least = p.constant(2.0 ** (p.real.mantissa + 2 - (1 << (p.real.exponent - 1))))
    overlapping = length > ir.maximum(bound * ir.sqrt(size_x) * ir.sqrt(size_y), least)
    overlapping = p.let(overlapping)
    with p.skip_unless(overlapping):
        turn = select(overlapping, const(1, INT), const(0, INT))
        p.do(ir.Set(rotated, ir.read(rotated) + turn))
        zeta = p.let((size_y - size_x) / (length + length))
        one = p.constant(1.0)
        root = ir.sqrt(ir.fma(zeta, zeta, one, allow_unfused=True))
        tangent = p.let(ir.binary("copysign", one, zeta) / (ir.unary("abs", zeta) + root))
        cosine = one / ir.sqrt(ir.fma(tangent, tangent, one, allow_unfused=True))
        cosine = p.let(select(overlapping, cosine, one))
        factor = select(overlapping, cosine * tangent / length, p.constant(0.0))
        sine = p.number(scaled(tuple(inner), p.let(factor)))
        with p.loop(ZERO, total) if p.simt else p.lanes(ZERO, total) as j:
            u, v = p.number(out[x, j]), p.number(out[y, j])
            out[x, j] = minus_product(scaled(u, cosine), sine, v)
            out[y, j] = plus_product(scaled(v, cosine), conjugate(sine), u)


def _length(p: Program, x: list[Expr]) -> Expr:
    """|x|, whose square may underflow."""
    sizes = [ir.unary("abs", part) for part in x]
    if len(x) == 1:
        return sizes[0]
    largest = p.let(ir.maximum(*sizes))
    divisor = p.let(select(largest > p.constant(0.0), largest, p.constant(1.0)))
    return largest * ir.sqrt(squared(tuple(part / divisor for part in x)))


def _products(p: Program, out: Matrix, x: Expr, y: Expr, width: Expr) -> list[Expr]:
    """|x|², |y|² and <x, y> of two rows."""

    def terms(j: Expr) -> tuple[Expr, Expr, Number, Number]:
        u, v = p.number(out[x, j]), p.number(out[y, j])
        return squared(u), squared(v), u, v

    if not p.simt:

        def each(j: Expr) -> list[Expr]:
            a, b, u, v = terms(j)
            return [a, b, *product(u, conjugate(v))]

        return p.reduced("add", ZERO, width, each, p.constant(0.0))
    registers = [p.register(lanes=True) for _ in range(2 + p.components)]
    p.do(*(ir.Set(r, p.constant(0.0)) for r in registers))
    with p.loop(ZERO, width) as j:
        a, b, u, v = terms(j)
        inner = plus_product(tuple(ir.reads(registers[2:])), u, conjugate(v))
        new = p.number([ir.read(registers[0]) + a, ir.read(registers[1]) + b, *inner])
        p.do(*ir.sets(registers, new))
    return [p.let(ir.read(r)) for r in registers]
