"""One-sided Jacobi rotations (Hestenes 1958) in a round-robin order, on one matrix per block.

Pairs of rows are rotated until all rows are orthogonal. The pairs of a step are disjoint: threads
of a GPU rotate one each, a CPU one after the other with lanes along the rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.program import (
    INT,
    ONE,
    ZERO,
    Matrix,
    Program,
    Read,
    conjugate,
    minus_product,
    negligible_square,
    plus_product,
    product,
    scaled,
    squared,
)

MAX_SWEEPS = 40  # quadratic convergence takes 5 to 12
SUBGROUP = 32  # threads that exchange registers
UNROLL = 4  # columns of a thread whose loads are under way together

Part = tuple[Expr, int]  # of so many threads that share a pair, one


def orthogonalize(
    p: Program, out: Matrix, a: Read, rows: Expr, width: Expr, total: Expr, sharing: int = 1
) -> None:
    """Unitary combinations of rows, orthogonal in their first `width` columns of `total`; on GPUs,
    `sharing` threads of a subgroup have parts of the columns of a pair."""
    with p.matrices(), p.each((ZERO, rows), (ZERO, total)) as (i, j):
        out[i, j] = a(i, j)
    players = p.let(ir.add(rows, ir.irem(rows, const(2))))  # an odd one sits out
    others = p.let(ir.maximum(ir.sub(players, ONE), ONE))
    pairs = p.let(ir.idiv(players, const(2)))
    bound, rotated = rounding_bound(p, width), p.register(INT, lanes=p.simt)
    with sweeps(p, rotated):
        p.do(ir.Set(rotated, const(0, INT)))
        with p.matrices(), p.loop(ZERO, others) as step:
            if sharing > 1:  # by whole subgroups, whose threads exchange sums
                groups = const(SUBGROUP // sharing)
                rounded = ir.idiv(ir.add(pairs, ir.sub(groups, ONE)), groups)
                with p.lanes(ZERO, p.let(ir.mul(rounded, const(SUBGROUP)))) as thread:
                    number = p.let(ir.idiv(thread, const(sharing)))
                    pair = p.let(ir.minimum(number, ir.sub(pairs, ONE)))
                    first, second = _opponents(p, step, pair, players, others)
                    plays = p.let((number < pairs) & (second < rows))
                    second = p.let(ir.minimum(second, ir.sub(rows, ONE)))
                    part = p.let(ir.irem(thread, const(sharing))), sharing
                    _rotate(p, out, (first, second), (width, total), bound, rotated, part, plays)
            else:
                with p.loop(ZERO, pairs, "lanes" if p.simt else "serial") as pair:
                    first, second = _opponents(p, step, pair, players, others)
                    with p.when(second < rows):
                        _rotate(p, out, (first, second), (width, total), bound, rotated)


def rounding_bound(p: Program, width: Expr) -> Expr:
    """The cosine up to which rows of `width` columns count as orthogonal."""
    return p.let(p.constant(2.0**-p.real.mantissa) * ir.sqrt(width.cast(p.real)))


@contextlib.contextmanager
def sweeps(p: Program, rotated: ir.Register) -> Iterator[None]:
    """A sweep over all pairs, and others as long as one has rotated some."""
    again = ir.Register("again", INT)
    p.do(ir.Set(again, const(1, INT)))
    with p.loop(ZERO, const(MAX_SWEEPS)), p.when(p.let(ir.read(again)).ne(0)):
        yield
        p.do(ir.Set(again, p.let(p.any_lane(rotated))))


def _opponents(
    p: Program, step: Expr, pair: Expr, players: Expr, others: Expr
) -> tuple[Expr, Expr]:
    """The rows of a pair in a step of the round robin, the smaller number first."""

    def wrapped(i: Expr) -> Expr:  # below twice as many
        i = p.let(i)
        return select(i < others, i, ir.sub(i, others))

    ahead = wrapped(ir.add(step, pair))
    behind = wrapped(ir.add(ir.sub(step, pair), others))
    behind = select(pair.eq(0), ir.sub(players, ONE), behind)
    return p.let(ir.minimum(ahead, behind)), p.let(ir.maximum(ahead, behind))


def _rotate(
    p: Program,
    out: Matrix,
    pair: tuple[Expr, Expr],
    extents: tuple[Expr, Expr],
    bound: Expr,
    rotated: ir.Register,
    part: Part | None = None,
    plays: Expr | None = None,
) -> None:
    """The pair made orthogonal, if it `plays`."""
    (x, y), (width, total) = pair, extents
    size_x, size_y, *inner = _products(p, out, x, y, width, part)
    length = p.let(_length(p, inner))
    # below that, digits of the sums are lost to underflow; matrices have elements of about 1
    least = negligible_square(p)
    overlapping = length > ir.maximum(bound * ir.sqrt(size_x) * ir.sqrt(size_y), least)
    overlapping = p.let(overlapping if plays is None else overlapping & plays)
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
        with _columns(p, total, part) as j:
            u, v = p.number(out[x, j]), p.number(out[y, j])
            out[x, j] = minus_product(scaled(u, cosine), sine, v)
            out[y, j] = plus_product(scaled(v, cosine), conjugate(sine), u)


@contextlib.contextmanager
def _columns(p: Program, total: Expr, part: Part | None) -> Iterator[Expr]:
    """All columns, or those of a thread of several."""
    if part is None:
        with p.loop(ZERO, total) if p.simt else p.lanes(ZERO, total) as j:
            yield j
        return
    own, sharing = part
    rounds = p.let(ir.idiv(ir.add(total, const(sharing - 1)), const(sharing)))
    with p.loop(ZERO, rounds, unroll=UNROLL) as i:
        j = p.let(ir.add(own, ir.mul(i, const(sharing))))
        with p.when(p.let(j < total)):
            yield j


def _length(p: Program, x: list[Expr]) -> Expr:
    """|x|, whose square may underflow."""
    sizes = [ir.unary("abs", part) for part in x]
    if len(x) == 1:
        return sizes[0]
    largest = p.let(ir.maximum(*sizes))
    divisor = p.let(select(largest > p.constant(0.0), largest, p.constant(1.0)))
    return largest * ir.sqrt(squared(tuple(part / divisor for part in x)))


def _products(
    p: Program, out: Matrix, x: Expr, y: Expr, width: Expr, part: Part | None
) -> list[Expr]:
    """|x|², |y|² and <x, y> of two rows."""
    if not p.simt:

        def each(j: Expr) -> list[Expr]:
            u, v = p.number(out[x, j]), p.number(out[y, j])
            return [squared(u), squared(v), *product(u, conjugate(v))]

        return p.reduced("add", ZERO, width, each, p.constant(0.0))
    registers = [p.register(lanes=True) for _ in range(2 + p.components)]
    p.do(*(ir.Set(r, p.constant(0.0)) for r in registers))
    with _columns(p, width, part) as j:
        u, v = p.number(out[x, j]), p.number(out[y, j])
        sizes = [ir.read(r) for r in registers[:2]]
        for a, b in zip(u, v, strict=True):
            sizes = [
                ir.fma(z, z, s, allow_unfused=True) for z, s in zip((a, b), sizes, strict=True)
            ]
        inner = plus_product(tuple(ir.reads(registers[2:])), u, conjugate(v))
        new = p.number([*sizes, *inner])
        p.do(*ir.sets(registers, new))
    sums = [p.let(ir.read(r)) for r in registers]
    mask = part[1] // 2 if part else 0
    while mask:
        sums = [p.let(x + ir.lanes_xor(x, mask)) for x in sums]
        mask //= 2
    return sums
