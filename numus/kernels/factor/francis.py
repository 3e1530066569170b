"""Francis' implicit double-shift QR sweep on a real Hessenberg matrix (Francis 1961)."""

from __future__ import annotations

from numus import ir
from numus.ir import INDEX, Expr, const, select
from numus.kernels.factor.program import ONE, ZERO, Matrix, Program

TWO, THREE = const(2), const(3)
EXCEPTIONAL_EVERY = 10  # sweeps without a deflation


def _abs(x: Expr) -> Expr:
    return ir.unary("abs", x)


def _sign(p: Program, x: Expr) -> Expr:
    return ir.binary("copysign", p.constant(1.0), x)


def combine(p: Program, out: Matrix, at: list[tuple[Expr, Expr]], v: list[Expr], tau: Expr) -> None:
    """(1 - tau v vᵀ) of the numbers at places, v beginning with 1. Places that are the same as
    their predecessor, of weight 0, are written first and so not kept."""
    old = [p.let(out[place][0]) for place in at]
    total = old[0]
    for x, weight in zip(old[1:], v, strict=True):
        total = total + weight * x
    w = p.let(tau * total)
    for place, x, weight in reversed(list(zip(at[1:], old[1:], v, strict=True))):
        out[place] = (x - w * weight,)
    out[at[0]] = (old[0] - w,)


def sweep(p: Program, out: Matrix, active: tuple[Expr, Expr], n: Expr, tries: Expr) -> None:
    lo, hi = active
    start = _first_column(p, out, lo, hi, tries)
    with p.loop(lo, hi) as k:
        first = p.let(k.eq(lo))
        before, after = p.let(ir.maximum(ir.sub(k, ONE), ZERO)), p.let(ir.add(k, ONE))
        third = p.let(ir.minimum(ir.add(k, TWO), hi))
        three = p.let(third > after)
        column = [out[k, before][0], out[after, before][0], out[third, before][0]]
        x, y, z = (p.let(select(first, s, c)) for s, c in zip(start, column, strict=True))
        z = p.let(select(three, z, p.constant(0.0)))
        beta, tau, v = reflector(p, x, y, z)
        with p.when(~first):
            with p.when(three):
                out[third, before] = (p.constant(0.0),)
            out[after, before] = (p.constant(0.0),)
            out[k, before] = (beta,)
        with p.lanes(k, n) as j:
            combine(p, out, [(k, j), (after, j), (third, j)], v, tau)
        with p.lanes(ZERO, ir.add(ir.minimum(ir.add(k, THREE), hi), ONE)) as i:
            combine(p, out, [(i, k), (i, after), (i, third)], v, tau)
        rows = [p.let(ir.add(n, r)) for r in (k, after, third)]
        with p.lanes(ZERO, n) as j:
            combine(p, out, [(r, j) for r in rows], v, tau)


def _first_column(p: Program, out: Matrix, lo: Expr, hi: Expr, tries: Expr) -> list[Expr]:
    """That of (H - s₁)(H - s₂), scaled; the shifts are the eigenvalues of the last block, or made
    up where those have not helped (LAPACK's)."""

    def at(i: Expr, j: Expr) -> Expr:
        return p.let(out[i, j][0])

    one, two = p.let(ir.add(lo, ONE)), p.let(ir.add(lo, TWO))
    end = p.let(ir.sub(hi, ONE))
    a, b, c, d = at(end, end), at(end, hi), at(hi, end), at(hi, hi)
    made_up = p.let(ir.irem(tries.cast(INDEX), const(EXCEPTIONAL_EVERY)).eq(0))
    beyond = at(end, p.let(ir.sub(end, ONE)))
    size = p.let(_abs(c) + _abs(beyond))
    corner = p.let(size * p.constant(0.75) + d)
    a, d = p.let(select(made_up, corner, a)), p.let(select(made_up, corner, d))
    b = p.let(select(made_up, size * p.constant(-0.4375), b))
    c = p.let(select(made_up, size, c))
    scale = p.let(_abs(a) + _abs(b) + _abs(c) + _abs(d))
    scale = p.let(select(scale.eq(0.0), p.constant(1.0), scale))
    a, b, c, d = (p.let(x / scale) for x in (a, b, c, d))
    # real shifts: the nearer to the corner, twice (Ahues & Tisseur's advice against slow ends)
    half = p.let((a - d) * p.constant(0.5))
    square = p.let(half * half + b * c)
    root = p.let(ir.sqrt(_abs(square)))
    near = d + select(half > 0.0, half - root, half + root)
    is_real = p.let(square >= 0.0)
    shift = p.let(select(is_real, near, d + half) * scale)
    imaginary = p.let(select(is_real, p.constant(0.0), root * scale))
    # by differences from the shift, which are small where eigenvalues cluster: products of the
    # elements themselves would cancel to what was rounded
    h00, h01, h10, h11 = (at(i, j) for i in (lo, one) for j in (lo, one))
    h21 = at(two, one)
    distance = p.let(h00 - shift)
    length = p.let(_abs(distance) + imaginary + _abs(h10))
    length = p.let(select(length.eq(0.0), p.constant(1.0), length))
    below = p.let(h10 / length)
    x = below * h01 + distance * (distance / length) + imaginary * (imaginary / length)
    return [p.let(x), p.let(below * (distance + (h11 - shift))), p.let(below * h21)]


def reflector(p: Program, x: Expr, y: Expr, z: Expr) -> tuple[Expr, Expr, list[Expr]]:
    """beta, tau and the rest of v with (1 - tau v vᵀ) (x, y, z) = (beta, 0, 0)."""
    zero, one = p.constant(0.0), p.constant(1.0)
    size = p.let(_abs(x) + _abs(y) + _abs(z))
    scale = p.let(select(size.eq(0.0), one, size))
    u, v, w = (p.let(t / scale) for t in (x, y, z))
    rest = p.let(v * v + w * w)
    trivial = p.let(rest.eq(0.0))
    beta = p.let(-ir.binary("copysign", ir.sqrt(u * u + rest), u))
    safe = p.let(select(trivial, one, beta))
    tau = p.let(select(trivial, zero, (beta - u) / safe))
    distance = p.let(select(trivial, one, u - beta))
    head = p.let(select(trivial, x, beta * scale))
    return head, tau, [p.let(v / distance), p.let(w / distance)]


def standardise(p: Program, out: Matrix, k: Expr, n: Expr) -> None:
    """The block of rows k and k + 1 becomes triangular, or where its eigenvalues are complex, one
    with equal diagonal elements (LAPACK's lanv2)."""
    after = p.let(ir.add(k, ONE))
    a, b, c, d = (p.let(out[i, j][0]) for i in (k, after) for j in (k, after))
    cosine, sine, triangular = _rotation(p, a, b, c, d)

    def rotate(at: tuple[tuple[Expr, Expr], tuple[Expr, Expr]]) -> None:
        x, y = (p.let(out[place][0]) for place in at)
        out[at[0]] = (cosine * x + sine * y,)
        out[at[1]] = (cosine * y - sine * x,)

    with p.lanes(k, n) as j:
        rotate(((k, j), (after, j)))
    with p.lanes(ZERO, ir.add(after, ONE)) as i:
        rotate(((i, k), (i, after)))
    rows = p.let(ir.add(n, k)), p.let(ir.add(n, after))
    with p.lanes(ZERO, n) as j:
        rotate(((rows[0], j), (rows[1], j)))
    with p.when(triangular):
        out[after, k] = (p.constant(0.0),)
    with p.when(~triangular):
        mean = p.let((out[k, k][0] + out[after, after][0]) * p.constant(0.5))
        out[k, k] = (mean,)
        out[after, after] = (mean,)


def _rotation(p: Program, a: Expr, b: Expr, c: Expr, d: Expr) -> tuple[Expr, Expr, Expr]:
    """Cosine, sine, and whether the block becomes triangular."""
    zero, one, half = p.constant(0.0), p.constant(1.0), p.constant(0.5)
    difference = p.let(a - d)
    middle = p.let(half * difference)
    larger = p.let(ir.maximum(_abs(b), _abs(c)))
    smaller = p.let(ir.minimum(_abs(b), _abs(c)) * _sign(p, b) * _sign(p, c))
    scale = p.let(ir.maximum(_abs(middle), larger))
    safe = p.let(select(scale.eq(0.0), one, scale))
    z = p.let(middle / safe * middle + larger / safe * smaller)
    is_real = p.let(z >= 0.0)
    # real eigenvalues: the first column is the eigenvector (z, c)
    root = ir.sqrt(safe) * ir.sqrt(ir.maximum(z, zero))
    first = p.let(middle + ir.binary("copysign", root, middle))
    length = p.let(_hypot(p, first, c))
    degenerate = p.let(length.eq(0.0))
    length = p.let(select(degenerate, one, length))
    real_pair = (select(degenerate, one, first / length), select(degenerate, zero, c / length))
    # complex ones: make the diagonal equal
    total = p.let(b + c)
    tau = p.let(_hypot(p, total, difference))
    equal = p.let(tau.eq(0.0))  # already, and those beside it opposite: nothing is to be turned
    tau = p.let(select(equal, one, tau))
    cosine = p.let(select(equal, one, ir.sqrt(half * (one + _abs(total) / tau))))
    complex_pair = (cosine, -(middle / (tau * cosine)) * _sign(p, total))
    trivial = p.let(c.eq(0.0))
    pair = [select(is_real, x, y) for x, y in zip(real_pair, complex_pair, strict=True)]
    found_cosine = p.let(select(trivial, one, pair[0]))
    found_sine = p.let(select(trivial, zero, pair[1]))
    return found_cosine, found_sine, p.let(is_real | trivial)


def _hypot(p: Program, x: Expr, y: Expr) -> Expr:
    largest = p.let(ir.maximum(_abs(x), _abs(y)))
    safe = p.let(select(largest.eq(0.0), p.constant(1.0), largest))
    u, v = p.let(x / safe), p.let(y / safe)
    return largest * ir.sqrt(u * u + v * v)
