"""Generalised Schur form of complex pencils by single-shift QZ (Moler & Stewart 1973), one pair of
matrices per task."""

from __future__ import annotations

from numus import ir
from numus.ir import INDEX, Expr, const, select
from numus.kernels.factor.program import (
    INT,
    ONE,
    ZERO,
    Matrix,
    Number,
    Program,
    Read,
    chosen,
    conjugate,
    inverse,
    magnitude,
    minus_product,
    plus_product,
    product,
    real,
    zero,
)
from numus.kernels.factor.schur import ITERATIONS_PER_ROW
from numus.kernels.factor.wilkinson import EXCEPTIONAL_EVERY, rotate, rotation, square_root

TWO = const(2)


class Pencil:
    """S, T, Qᵀ and Zᵀ below each other, n rows each."""

    def __init__(self, p: Program, out: Matrix, n: Expr) -> None:
        self.p, self.out, self.n = p, out, n
        self.t, self.q = n, p.let(ir.add(n, n))
        self.z = p.let(ir.add(self.q, n))

    def s_at(self, i: Expr, j: Expr) -> Number:
        return self.out[i, j]

    def t_at(self, i: Expr, j: Expr) -> Number:
        return self.out[ir.add(self.t, i), j]

    def rotate_rows(self, k: Expr, cosine: Expr, sine: Number) -> None:
        """Rows k and k + 1 of S and T, columns of Q."""
        p, after = self.p, self.p.let(ir.add(k, ONE))
        with p.lanes(ZERO, self.n) as j:
            rotate(p, self.out, (k, j), (after, j), cosine, sine)
        self._rows(self.t, k, cosine, sine)
        self._rows(self.q, k, cosine, p.number(conjugate(sine)))

    def _rows(self, base: Expr, k: Expr, cosine: Expr, sine: Number) -> None:
        p = self.p
        first = p.let(ir.add(base, k))
        second = p.let(ir.add(first, ONE))
        with p.lanes(ZERO, self.n) as j:
            rotate(p, self.out, (first, j), (second, j), cosine, sine)

    def rotate_columns(self, k: Expr, cosine: Expr, sine: Number) -> None:
        """Columns k + 1 and k (in this order) of S, T and Z: c x + s y becomes column k + 1."""
        p, after = self.p, self.p.let(ir.add(k, ONE))
        with p.lanes(ZERO, self.q) as i:
            rotate(p, self.out, (i, after), (i, k), cosine, sine)
        first = p.let(ir.add(self.z, k))
        second = p.let(ir.add(first, ONE))
        with p.lanes(ZERO, self.n) as j:
            rotate(p, self.out, (second, j), (first, j), cosine, sine)

    def clear_t(self, k: Expr) -> None:
        """A rotation of columns that makes element (k + 1, k) of T zero."""
        p, after = self.p, self.p.let(ir.add(k, ONE))
        _, cosine, sine = rotation(
            p, p.number(self.t_at(after, after)), p.number(self.t_at(after, k))
        )
        self.rotate_columns(k, cosine, sine)
        self.out[ir.add(self.t, after), k] = zero(p)

    def clear_s(self, k: Expr, column: Expr) -> None:
        """A rotation of rows that makes element (k + 1, column) of S zero."""
        p, after = self.p, self.p.let(ir.add(k, ONE))
        _, cosine, sine = rotation(
            p, p.number(self.s_at(k, column)), p.number(self.s_at(after, column))
        )
        self.rotate_rows(k, cosine, sine)
        self.out[after, column] = zero(p)


def qz(p: Program, out: Matrix, a: Read, b: Read, n: Expr) -> None:
    """From any a and upper triangular b: a = Q S Zᴴ, b = Q T Zᴴ; the last row begins with the
    number of rows that have not converged."""
    pencil = Pencil(p, out, n)
    one = p.constant(1.0)
    with p.each((ZERO, n), (ZERO, n)) as (i, j):
        unit = real(p, select(i.eq(j), one, p.constant(0.0)))
        out[i, j] = a(i, j)
        out[ir.add(pencil.t, i), j] = chosen(p.let(j >= i), b(i, j), zero(p))
        out[ir.add(pencil.q, i), j] = unit
        out[ir.add(pencil.z, i), j] = unit
    last = p.let(ir.add(pencil.z, n))
    with p.lanes(ZERO, n) as j:
        out[last, j] = zero(p)
    with p.loop(ZERO, ir.maximum(ir.sub(n, TWO), ZERO)) as j:  # to Hessenberg and triangular form
        steps = p.let(ir.sub(ir.sub(n, j), TWO))
        with p.loop(ZERO, steps) as r:
            k = p.let(ir.sub(ir.sub(n, TWO), r))
            pencil.clear_s(k, j)
            pencil.clear_t(k)
    high = _iterate(p, pencil)
    left_over = (ir.read(high) + const(1, INT)).cast(p.real)
    out[last, ZERO] = real(p, p.let(left_over))


def _largest(p: Program, pencil: Pencil, base: Expr) -> Expr:
    found = p.register()
    p.do(ir.Set(found, p.constant(0.0)))
    with p.loop(ZERO, pencil.n) as i:
        row = p.let(ir.add(base, i))
        (size,) = p.reduced(
            "max", ZERO, pencil.n, lambda j: [magnitude(pencil.out[row, j])], p.constant(0.0)
        )
        p.do(ir.Set(found, ir.maximum(ir.read(found), size)))
    return p.let(ir.read(found))


def _iterate(p: Program, pencil: Pencil) -> ir.Register:
    out, n = pencil.out, pencil.n
    epsilon = p.constant(2.0**-p.real.mantissa)
    small_s = p.let(_largest(p, pencil, ZERO) * epsilon)
    small_t = p.let(_largest(p, pencil, pencil.t) * epsilon)
    high, tries = p.register(INT), p.register(INT)
    p.do(ir.Set(high, ir.sub(n, ONE).cast(INT)), ir.Set(tries, const(0, INT)))
    limit = ir.mul(const(ITERATIONS_PER_ROW), ir.maximum(n, const(10)))

    def start(i: Expr) -> list[Expr]:
        kept = magnitude(out[i, ir.sub(i, ONE)]) > small_s
        return [select(kept, const(0, INT), i.cast(INT))]

    with p.loop(ZERO, limit), p.when(p.let(ir.read(high)) >= 0):
        hi = p.let(ir.read(high).cast(INDEX))
        (found,) = p.reduced("max", ONE, ir.add(hi, ONE), start, const(0, INT))
        lo = p.let(found.cast(INDEX))
        with p.when(lo > 0):
            out[lo, ir.sub(lo, ONE)] = zero(p)
        single = p.let(lo.eq(hi))
        with p.when(single):
            p.do(ir.Set(high, ir.read(high) - const(1, INT)), ir.Set(tries, const(0, INT)))
        end = p.let(ir.maximum(ir.sub(hi, ONE), ZERO))
        # infinite eigenvalues: zeros at either end of T's diagonal
        at_end = p.let(~single & (magnitude(pencil.t_at(hi, hi)) <= small_t))
        at_start = p.let(~single & ~at_end & (magnitude(pencil.t_at(lo, lo)) <= small_t))
        with p.when(at_end):
            out[ir.add(pencil.t, hi), hi] = zero(p)
            _, cosine, sine = rotation(p, p.number(out[hi, hi]), p.number(out[hi, end]))
            pencil.rotate_columns(end, cosine, sine)
            out[hi, end] = zero(p)
        with p.when(at_start):
            out[ir.add(pencil.t, lo), lo] = zero(p)
            pencil.clear_s(lo, lo)
        with p.when(p.let(~single & ~at_end & ~at_start)):
            p.do(ir.Set(tries, ir.read(tries) + const(1, INT)))
            _sweep(p, pencil, lo, hi, p.let(ir.read(tries)), small_t)
    return high


def _sweep(p: Program, pencil: Pencil, lo: Expr, hi: Expr, tries: Expr, small_t: Expr) -> None:
    out = pencil.out
    shift = _shift(p, pencil, hi, tries, small_t)
    after = p.let(ir.add(lo, ONE))
    x = p.number(minus_product(out[lo, lo], shift, pencil.t_at(lo, lo)))
    _, cosine, sine = rotation(p, x, p.number(out[after, lo]))
    pencil.rotate_rows(lo, cosine, sine)
    pencil.clear_t(lo)
    with p.loop(after, hi) as k:
        pencil.clear_s(k, p.let(ir.sub(k, ONE)))
        pencil.clear_t(k)


def _shift(p: Program, pencil: Pencil, hi: Expr, tries: Expr, small_t: Expr) -> Number:
    """The eigenvalue of the last block of S T⁻¹ that is nearer to its corner, or the ratio of the
    last elements where T is nearly singular there."""
    end = p.let(ir.sub(hi, ONE))
    a, b, c, d = (p.number(pencil.s_at(i, j)) for i in (end, hi) for j in (end, hi))
    first, corner = p.number(pencil.t_at(end, end)), p.number(pencil.t_at(hi, hi))
    above = p.number(pencil.t_at(end, hi))
    regular = p.let(magnitude(first) > small_t)
    one = real(p, p.constant(1.0))
    by_first = p.number(inverse(p, p.number(chosen(regular, first, one))))
    by_corner = p.number(inverse(p, corner))
    # M = S T⁻¹ of the last rows and columns
    a, c = p.number(product(a, by_first)), p.number(product(c, by_first))
    b = p.number(product(minus_product(b, a, above), by_corner))
    simple = p.number(product(d, by_corner))
    d = p.number(product(minus_product(d, c, above), by_corner))
    half = p.number([(x - y) * p.constant(0.5) for x, y in zip(a, d, strict=True)])
    outer = p.number(product(b, c))
    root = square_root(p, p.number(plus_product(outer, half, half)))
    aligned = p.let((half[0] * root[0] + half[1] * root[1]) >= 0.0)
    far = p.number([x + select(aligned, r, -r) for x, r in zip(half, root, strict=True)])
    none = p.let(magnitude(far).eq(0.0))
    quotient = product(outer, inverse(p, p.number(chosen(none, one, far))))
    near = [x - select(none, p.constant(0.0), q) for x, q in zip(d, quotient, strict=True)]
    made_up = p.let(ir.irem(tries.cast(INDEX), const(EXCEPTIONAL_EVERY)).eq(0))
    exceptional = (d[0] + magnitude(c), d[1])
    shift = p.number(chosen(made_up, exceptional, tuple(near)))
    return p.number(chosen(regular, shift, simple))
