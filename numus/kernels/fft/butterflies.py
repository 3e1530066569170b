"""Discrete Fourier transforms of a few points in registers: the butterflies of each radix.

Powers of two are split in halves; odd primes use the symmetry of sines and cosines, which halves
their products; coprime factors take no rotations between them (Good 1958, Thomas 1963). The sign of
the exponent is that of the forward transform.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.fft.radices import prime_factors
from numus.kernels.fft.roots import unit_root

Complex = tuple[Expr, Expr]
Point = Callable[[], Complex]  # loads it


class Bindings:
    """Statements under construction, each value bound to a name of its own. Sums and products of
    the transform itself are relaxed: no order of them has smaller errors than another."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.statements: list[Stmt] = []
        self.count = 0

    def bind(self, z: Complex, relaxed: bool = True) -> Complex:
        names = []
        for part in z:
            name = ir.var(f"{self.prefix}_{self.count}", part.dtype)
            self.count += 1
            self.statements.append(ir.Let(name, part, relaxed=relaxed and part.op != "load"))
            names.append(name)
        return names[0], names[1]


def add(a: Complex, b: Complex) -> Complex:
    return a[0] + b[0], a[1] + b[1]


def sub(a: Complex, b: Complex) -> Complex:
    return a[0] - b[0], a[1] - b[1]


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    return ir.fma(a, b, c, allow_unfused=True)


def mul(a: Complex, b: Complex) -> Complex:
    return fma(a[0], b[0], -(a[1] * b[1])), fma(a[0], b[1], a[1] * b[0])


def swap(z: Complex) -> Complex:
    """The inverse transform is the forward one with real and imaginary parts exchanged."""
    return z[1], z[0]


def _rotate(z: Complex, k: int, n: int) -> Complex:
    """z * exp(-2 pi i k / n)."""
    eighth = 8 * k // n if 8 * k % n == 0 else None
    if eighth == 0:
        return z
    if eighth == 2:
        return z[1], -z[0]
    if eighth in (1, 3):
        half = const(math.sqrt(0.5), z[0].dtype)
        if eighth == 1:
            return (z[0] + z[1]) * half, (z[1] - z[0]) * half
        return (z[1] - z[0]) * half, -((z[0] + z[1]) * half)
    c, s = (const(x, z[0].dtype) for x in unit_root(k, n))
    return fma(z[0], c, z[1] * s), fma(z[1], c, -(z[0] * s))


def butterfly(x: Sequence[Point], out: Bindings) -> list[Complex]:
    """The transform of these points."""
    found = dict(butterfly_in_turn(x, out))
    return [found[k] for k in range(len(x))]


def butterfly_in_turn(x: Sequence[Point], out: Bindings) -> Iterator[tuple[int, Complex]]:
    """The results as they are computed, of points that are loaded as they are needed."""
    n = len(x)
    if n == 1:
        yield 0, x[0]()
    elif n & (n - 1):
        yield from _composite_butterfly(x, out)
    else:
        even, odd = butterfly(x[::2], out), butterfly(x[1::2], out)
        for k, (a, b) in enumerate(zip(even, odd, strict=True)):
            rotated = out.bind(_rotate(b, k, n))
            low, high = out.bind(add(a, rotated)), out.bind(sub(a, rotated))
            yield k, low
            yield k + n // 2, high


def butterfly_in_order(x: Sequence[Complex], out: Bindings) -> Iterator[tuple[int, Complex]]:
    """The results as they are computed: those of odd primes in pairs, from the first on."""
    if len(x) % 2 and len(prime_factors(len(x))) == 1:
        yield from _odd_butterfly(x, out)
    else:
        yield from enumerate(butterfly([partial(_known, z) for z in x], out))


def _composite_butterfly(x: Sequence[Point], out: Bindings) -> Iterator[tuple[int, Complex]]:
    """Transforms of q points, then of p, the power of the largest prime, or that of a power."""
    n, primes = len(x), prime_factors(len(x))
    p = primes[-1] ** primes.count(primes[-1])
    if p == n:
        p = primes[0]
    q = n // p
    if q == 1:
        yield from _odd_butterfly([point() for point in x], out)
        return
    is_coprime = math.gcd(p, q) == 1
    if is_coprime:  # the Chinese remainder theorem maps both pairs of indices
        points = [[x[(q * i + p * j) % n] for j in range(q)] for i in range(p)]
    else:
        points = [[x[i + p * j] for j in range(q)] for i in range(p)]
    inner = [butterfly(row, out) for row in points]
    for k in range(q):
        column = [row[k] for row in inner]
        if not is_coprime:
            column = [out.bind(_rotate(z, i * k, n)) for i, z in enumerate(column)]
        for i, z in butterfly_in_order(column, out):
            yield next(m for m in range(i, n, p) if m % q == k) if is_coprime else k + q * i, z


def _known(z: Complex) -> Complex:
    return z


def _odd_butterfly(x: Sequence[Complex], out: Bindings) -> Iterator[tuple[int, Complex]]:
    n = len(x)
    half = range(1, (n + 1) // 2)
    sums = {j: out.bind(add(x[j], x[n - j])) for j in half}
    differences = {j: out.bind(sub(x[j], x[n - j])) for j in half}
    total = x[0]
    for j in half:
        total = add(total, sums[j])
    yield 0, out.bind(total)
    dtype = x[0][0].dtype
    for k in half:
        even_part, odd_part = x[0], None
        for j in half:
            c, s = (const(x, dtype) for x in unit_root(j * k, n))
            t, u = sums[j], differences[j]
            even_part = fma(t[0], c, even_part[0]), fma(t[1], c, even_part[1])
            if odd_part is None:
                odd_part = u[0] * s, u[1] * s
            else:
                odd_part = fma(u[0], s, odd_part[0]), fma(u[1], s, odd_part[1])
        assert odd_part is not None
        a, b = out.bind(even_part), out.bind(odd_part)
        yield k, out.bind((a[0] + b[1], a[1] - b[0]))
        yield n - k, out.bind((a[0] - b[1], a[1] + b[0]))
