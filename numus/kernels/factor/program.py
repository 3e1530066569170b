"""Kernels on one matrix per block, written once: loops whose inner iterations are lanes.

On a CPU a block is a task, and lanes run along the columns of a row; on a GPU they are the threads
of a block, over all elements of a range. Numbers are tuples of expressions: real and imaginary part
where matrices are complex.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, const, select

ZERO, ONE = const(0), const(1)
VECTOR_BYTES = 16

Number = tuple[Expr, ...]
Read = Callable[[Expr, Expr], Number]
Span = tuple[Expr, Expr]


class Program:
    """Statements as they are made, in the order of the calls."""

    def __init__(self, real: DType, components: int, simt: bool) -> None:
        self.real, self.components, self.simt = real, components, simt
        self.rank = 1  # rows of a factor that update the rest at once
        self.along_rows = not simt  # lanes are the columns of a row
        self.body: list[ir.Stmt] = []
        # columns as rows, where lanes are SIMD: `rank` of them, and a single one
        self.panel: Matrix | None = None
        self.column: Matrix | None = None
        self._count = 0

    def _name(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def do(self, *statements: ir.Stmt) -> None:
        self.body += statements

    def let(self, value: Expr) -> Expr:
        """The value at this point of the program."""
        name = ir.var(self._name(), value.dtype)
        self.do(ir.Let(name, value))
        return name

    def number(self, x: Sequence[Expr]) -> Number:
        return tuple(self.let(part) for part in x)

    def register(self, dtype: DType | None = None, lanes: bool = False) -> ir.Register:
        return ir.Register(self._name(), dtype or self.real, lanes=lanes)

    def variable(self, dtype: DType) -> Expr:
        """One that a statement binds."""
        return ir.var(self._name(), dtype)

    def constant(self, value: float) -> Expr:
        return const(value, self.real)

    def vector_loads(self, parts: Sequence[Expr]) -> list[Expr]:
        """Names of loads of what is side by side in memory, in vectors."""
        width = min(len(parts), VECTOR_BYTES // self.real.itemsize)
        names = [self.variable(self.real) for _ in parts]
        for at, (name, part) in enumerate(zip(names, parts, strict=True)):
            wide = width > 1 and at % width == 0
            self.do(ir.Let(name, part, vector=width if wide else 0))
        return names

    # -- control flow -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _nested(self) -> Iterator[list[ir.Stmt]]:
        outer, self.body = self.body, []
        try:
            yield self.body
        finally:
            self.body = outer

    @contextlib.contextmanager
    def loop(
        self, start: Expr, stop: Expr, kind: str = "serial", unroll: int = 1
    ) -> Iterator[Expr]:
        i = ir.var(self._name())
        with self._nested() as body:
            yield i
        self.do(ir.For(i, start, stop, kind, body, unroll=unroll))

    def lanes(
        self, start: Expr, stop: Expr, unroll: int = 1
    ) -> contextlib.AbstractContextManager[Expr]:
        return self.loop(start, stop, "lanes", 1 if self.simt else unroll)

    @contextlib.contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        with self._nested() as body:
            yield
        self.do(ir.If(condition, body))

    def matrices(self) -> contextlib.AbstractContextManager[None]:
        """A part of the program that all matrices of a block go through together."""
        return contextlib.nullcontext()

    def skip_unless(self, condition: Expr) -> contextlib.AbstractContextManager[None]:
        """What may be left out where a condition does not hold, and changes nothing there."""
        return self.when(condition)

    @contextlib.contextmanager
    def each(self, rows: Span, columns: Span, upper: bool = False) -> Iterator[tuple[Expr, Expr]]:
        """All elements of a range; with `upper`, those with column >= row."""
        (top, bottom), (left, right) = rows, columns
        if not self.simt:
            with self.loop(top, bottom) as i, self.lanes(i if upper else left, right) as j:
                yield i, j
            return
        width = self.let(ir.maximum(ir.sub(right, left), ONE))
        count = self.let(ir.mul(ir.maximum(ir.sub(bottom, top), ZERO), ir.sub(right, left)))
        with self.lanes(ZERO, count) as e:
            i = self.let(ir.add(top, ir.idiv(e, width)))
            j = self.let(ir.add(left, ir.irem(e, width)))
            if upper:
                with self.when(j >= i):
                    yield i, j
            else:
                yield i, j

    def staged(self, x: Matrix, k: Expr, start: Expr, stop: Expr) -> Callable[[Expr], Number]:
        """Column k of a row-major matrix, contiguous where lanes are SIMD."""
        near = self.column
        if near is None:
            return lambda i: x[i, k]
        with self.loop(start, stop) as i:
            near[ZERO, i] = x[i, k]
        return lambda i: near[ZERO, i]

    def store_column(
        self, x: Matrix, k: Expr, start: Expr, stop: Expr, element: Callable[[Expr], Number]
    ) -> Callable[[Expr], Number]:
        """A column computed from a staged one, which gives it again."""
        near = self.column
        if near is None:
            with self.lanes(start, stop) as i:
                x[i, k] = element(i)
            return lambda i: x[i, k]
        with self.lanes(start, stop) as i:
            near[ZERO, i] = element(i)
        with self.loop(start, stop) as i:
            x[i, k] = near[ZERO, i]
        return lambda i: near[ZERO, i]

    def any_lane(self, count: ir.Register) -> Expr:
        """The sum of a count over all lanes that have one."""
        return ir.lanes_reduce("add", count) if count.lanes else ir.read(count)

    def reduced(
        self, op: str, start: Expr, stop: Expr, terms: Callable[[Expr], Sequence[Expr]], first: Expr
    ) -> list[Expr]:
        """Terms of a range reduced over all lanes, each beginning with `first`."""
        made: list[ir.Register] = []
        with self._nested() as body:
            i = ir.var(self._name())
            for term in terms(i):
                made.append(self.register(term.dtype, lanes=True))
                old = ir.read(made[-1])
                self.do(ir.Set(made[-1], ir.binary(op, old, term)))
        self.do(*(ir.Set(r, first) for r in made), ir.For(i, start, stop, "lanes", body))
        return [self.let(ir.lanes_reduce(op, r)) for r in made]


class Matrix:
    """A row-major matrix of a block in memory that the kernel writes."""

    def __init__(self, p: Program, buffer: ir.Buffer, start: Expr, stride: Expr) -> None:
        self._p, self.buffer, self._start, self._stride = p, buffer, start, stride

    def _at(self, i: Expr, j: Expr) -> list[Expr]:
        at = ir.add(self._start, ir.add(ir.mul(i, self._stride), j))
        if self._p.components == 1:
            return [at]
        rest, offset = ir.split_constant(at)  # so that codegen sees which numbers are adjacent
        first = ir.add(ir.mul(rest, const(2)), const(2 * offset))
        return [first, ir.add(first, ONE)]

    def __getitem__(self, at: tuple[Expr, Expr]) -> Number:
        return tuple(ir.load(self.buffer, k) for k in self._at(*at))

    def __setitem__(self, at: tuple[Expr, Expr], x: Number) -> None:
        if len(x) == 2:  # both parts before either is overwritten
            x = self._p.number(x)
        pairs = zip(self._at(*at), x, strict=True)
        self._p.do(*(ir.Store(self.buffer, k, part) for k, part in pairs))


# -- arithmetic -----------------------------------------------------------------------------------


def conjugate(a: Number) -> Number:
    return (a[0], -a[1]) if len(a) == 2 else a


def scaled(a: Number, by: Expr) -> Number:
    return tuple(part * by for part in a)


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    return ir.fma(a, b, c, allow_unfused=True)


def plus_product(c: Number, a: Number, b: Number) -> Number:
    """c + a b."""
    if len(a) == 1:
        return (fma(a[0], b[0], c[0]),)
    return (
        fma(a[0], b[0], fma(-a[1], b[1], c[0])),
        fma(a[0], b[1], fma(a[1], b[0], c[1])),
    )


def minus_product(c: Number, a: Number, b: Number) -> Number:
    """c - a b."""
    return plus_product(c, tuple(-part for part in a), b)


def product(a: Number, b: Number) -> Number:
    if len(a) == 1:
        return (a[0] * b[0],)
    return (fma(a[0], b[0], -(a[1] * b[1])), fma(a[0], b[1], a[1] * b[0]))


def squared(a: Number) -> Expr:
    """|a|²."""
    first = a[0] * a[0]
    return first if len(a) == 1 else fma(a[1], a[1], first)


def magnitude(a: Number) -> Expr:
    """|re| + |im|, by which pivots are compared (LAPACK's cabs1)."""
    sizes = [ir.unary("abs", part) for part in a]
    return sizes[0] if len(a) == 1 else sizes[0] + sizes[1]


def power_near(p: Program, size: Expr) -> Expr:
    """The power of two at or below a size that is not negative, whose reciprocal is a normal number
    (of subnormal sizes it is larger than they are); 1 of 0 and what is not finite."""
    least, greatest = (2.0 ** (sign * ((1 << (p.real.exponent - 1)) - 4)) for sign in (-1, 1))
    bounded = ir.minimum(ir.maximum(size, p.constant(least)), p.constant(greatest / 4))
    bits, mantissa = p.real.bits, p.real.mantissa
    unsigned = dt.uint64 if bits == 64 else dt.uint32
    exponent = const(((1 << bits) - 1) ^ ((1 << mantissa) - 1), unsigned)
    power = (bounded.bitcast(unsigned) & exponent).bitcast(p.real)
    usable = (size > p.constant(0.0)) & (size < p.constant(math.inf))
    return p.let(select(usable, power, p.constant(1.0)))


def least_size(p: Program) -> Expr:
    """Far below a rounding error of 1, with squares far above underflow: parts of a matrix whose
    elements are about 1 are as good as zero where all is smaller."""
    return p.constant(2.0 ** -(p.real.mantissa * 3 // 2))


def least_normal(p: Program) -> float:
    return float(2.0 ** (2 - (1 << (p.real.exponent - 1))))


def negligible_square(p: Program) -> Expr:
    """A sum of squares below which its digits are lost to underflow, of matrices scaled to 1: what
    it is of is far smaller than a rounding error."""
    return p.constant(least_normal(p) * 2.0**p.real.mantissa)


def inverse(p: Program, a: Number) -> Number:
    """1 / a without overflow of |a|²."""
    if len(a) == 1:
        return (p.let(p.constant(1.0) / a[0]),)
    size = p.let(p.constant(1.0) / magnitude(a))
    unit = p.number(scaled(a, size))
    return p.number(scaled(conjugate(unit), size / squared(unit)))


def over_exact_root(p: Program, x: Expr) -> Callable[[Expr], Expr]:
    """Multiplication by 1 / √x, of subnormal numbers, too; by NaN where x is not positive."""
    x = p.let(select(x > p.constant(0.0), x, p.constant(float("nan"))))
    by = p.let(p.constant(1.0) / ir.sqrt(x))
    return lambda a: a * by


def over_root(p: Program, x: Expr) -> Callable[[Expr], Expr]:
    """Multiplication by 1 / √x: by an approximation, whose products are corrected. Of float64, x is
    a normal number. NaN where x is not positive."""
    one, half = p.constant(1.0), p.constant(0.5)
    by = p.let(ir.rough_rsqrt(x))
    root = p.let(x * by)
    if p.real is dt.float32:  # Newton's method
        error, factor = p.let(fma(root, by * -half, half)), None
    else:  # Halley's: thrice the bits
        error = p.let(fma(-root, by, one))
        factor = p.let(fma(error, p.constant(0.375), half))

    def times(a: Expr) -> Expr:
        near = p.let(a * by)
        return p.let(fma(near, error, near) if factor is None else fma(near * error, factor, near))

    return times


def normal_inverse_root(p: Program, x: Expr) -> Expr:
    """1 / √x by an approximation that is refined, of float64 only where x is a normal number."""
    return over_root(p, x)(p.constant(1.0))


def divided(a: Number, by: Number, inverse_of_by: Number) -> Number:
    """a / by: one rounding where numbers are real."""
    return (a[0] / by[0],) if len(a) == 1 else product(a, inverse_of_by)


def division(p: Program, by: Number) -> Callable[[Number], Number]:
    """Division by one number: one rounding where numbers are real. Complex quotients of about 1
    stay finite even if 1 / by overflows."""
    if len(by) == 1:
        return lambda a: (a[0] / by[0],)
    size = p.let(magnitude(by))
    unit = p.number([part / size for part in by])
    rotated = p.number([part / squared(unit) for part in conjugate(unit)])
    return lambda a: product(tuple(part / size for part in a), rotated)


def chosen(condition: Expr, yes: Number, no: Number) -> Number:
    return tuple(select(condition, a, b) for a, b in zip(yes, no, strict=True))


def real(p: Program, x: Expr) -> Number:
    """A real number as one of the matrix."""
    return (x,) if p.components == 1 else (x, p.constant(0.0))


def zero(p: Program) -> Number:
    return real(p, p.constant(0.0))


INT = dt.int32  # of positions that are reduced over lanes
