"""Single-shift QR sweep on a complex Hessenberg matrix, with Wilkinson's shift."""

from __future__ import annotations

from numus import ir
from numus.ir import INDEX, Expr, const, select
from numus.kernels.factor.program import (
    ONE,
    ZERO,
    Matrix,
    Number,
    Program,
    chosen,
    conjugate,
    inverse,
    magnitude,
    minus_product,
    plus_product,
    product,
    real,
    scaled,
    squared,
    zero,
)

TWO = const(2)
EXCEPTIONAL_EVERY = 10  # sweeps without a deflation


def sweep(p: Program, out: Matrix, active: tuple[Expr, Expr], n: Expr, tries: Expr) -> None:
    lo, hi = active
    shift = _shift(p, out, hi, tries)
    with p.loop(lo, hi) as k:
        first = p.let(k.eq(lo))
        before, after = p.let(ir.maximum(ir.sub(k, ONE), ZERO)), p.let(ir.add(k, ONE))
        start = [u - s for u, s in zip(out[k, k], shift, strict=True)]
        x = p.number(chosen(first, tuple(start), out[k, before]))
        y = p.number(chosen(first, out[after, k], out[after, before]))
        head, cosine, sine = rotation(p, x, y)
        with p.when(~first):
            out[k, before] = head
            out[after, before] = zero(p)
        with p.lanes(k, n) as j:
            rotate(p, out, (k, j), (after, j), cosine, sine)
        back = p.number(conjugate(sine))
        with p.lanes(ZERO, ir.add(ir.minimum(ir.add(k, TWO), hi), ONE)) as i:
            rotate(p, out, (i, k), (i, after), cosine, back)
        rows = p.let(ir.add(n, k)), p.let(ir.add(n, after))
        with p.lanes(ZERO, n) as j:
            rotate(p, out, (rows[0], j), (rows[1], j), cosine, back)


def rotate(
    p: Program,
    out: Matrix,
    one: tuple[Expr, Expr],
    other: tuple[Expr, Expr],
    cosine: Expr,
    sine: Number,
) -> None:
    """(c x + s y, c y - s̄ x) of the numbers at two places."""
    x, y = p.number(out[one]), p.number(out[other])
    out[one] = plus_product(scaled(x, cosine), sine, y)
    out[other] = minus_product(scaled(y, cosine), conjugate(sine), x)


def rotation(p: Program, x: Number, y: Number) -> tuple[Number, Expr, Number]:
    """r, c and s with c x + s y = r and c y - s̄ x = 0."""
    size = p.let(ir.maximum(magnitude(x), magnitude(y)))
    safe = p.let(select(size.eq(0.0), p.constant(1.0), size))
    u, v = p.number([t / safe for t in x]), p.number([t / safe for t in y])
    length = p.let(ir.sqrt(squared(u)))
    whole = p.let(ir.sqrt(squared(u) + squared(v)))
    only_y = p.let(length.eq(0.0))
    one = p.constant(1.0)
    divisor = p.let(select(only_y, one, length))
    unit = p.number(chosen(only_y, real(p, one), scaled(u, one / divisor)))
    whole = p.let(select(whole.eq(0.0), one, whole))
    idle = p.let(only_y & squared(v).eq(0.0))
    cosine = p.let(select(idle, one, length / whole))
    sine = p.number(scaled(product(unit, conjugate(v)), one / whole))
    head = p.number(plus_product(scaled(x, cosine), sine, y))
    return head, cosine, sine


def square_root(p: Program, z: Number) -> Number:
    """The principal root, whose real part is not negative."""
    x, y = z
    size = p.let(ir.maximum(ir.unary("abs", x), ir.unary("abs", y)))
    trivial = p.let(size.eq(0.0))
    safe = p.let(select(trivial, p.constant(1.0), size))
    u, v = p.let(x / safe), p.let(y / safe)
    length = p.let(ir.sqrt(u * u + v * v))
    half = p.constant(0.5)
    large = p.let(ir.sqrt((ir.unary("abs", u) + length) * half))
    small = p.let(ir.unary("abs", v) * half / select(trivial, p.constant(1.0), large))
    positive = p.let(u >= 0.0)
    scale = p.let(ir.sqrt(safe))
    re = select(positive, large, small) * scale
    im = ir.binary("copysign", select(positive, small, large) * scale, y)
    return p.number(chosen(trivial, zero(p), (re, im)))


def _shift(p: Program, out: Matrix, hi: Expr, tries: Expr) -> Number:
    """The eigenvalue of the last block of order 2 that is nearer to its corner."""
    end = p.let(ir.sub(hi, ONE))
    a, b, c, d = (p.number(out[i, j]) for i in (end, hi) for j in (end, hi))
    half = p.number([(x - y) * p.constant(0.5) for x, y in zip(a, d, strict=True)])
    outer = p.number(product(b, c))
    root = square_root(p, p.number(plus_product(outer, half, half)))
    aligned = p.let((half[0] * root[0] + half[1] * root[1]) >= 0.0)
    far = p.number([x + select(aligned, r, -r) for x, r in zip(half, root, strict=True)])
    none = p.let(magnitude(far).eq(0.0))
    quotient = product(outer, inverse(p, p.number(chosen(none, real(p, p.constant(1.0)), far))))
    near = [x - select(none, p.constant(0.0), q) for x, q in zip(d, quotient, strict=True)]
    made_up = p.let(ir.irem(tries.cast(INDEX), const(EXCEPTIONAL_EVERY)).eq(0))
    exceptional = (d[0] + magnitude(c), d[1])
    return p.number(chosen(made_up, exceptional, tuple(near)))
