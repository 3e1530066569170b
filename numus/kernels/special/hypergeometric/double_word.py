"""Series in double-word arithmetic (Dekker): twice the digits, where terms cancel."""

from __future__ import annotations

import math
from collections.abc import Sequence

from numus.ir import Expr, fma, iterate, select
from numus.kernels.math import _tools as fp


class Word:
    """An unevaluated sum of two floats."""

    def __init__(self, high: Expr, low: Expr | None = None) -> None:
        self.high = high
        self.low = fp.like(high, 0.0) if low is None else low

    @classmethod
    def sum(cls, a: Expr, b: Expr) -> Word:
        return cls(*fp.two_sum(a, b))

    def __add__(self, other: Word) -> Word:
        high, low = fp.two_sum(self.high, other.high)
        return Word(*fp.fast_two_sum(high, low + (self.low + other.low)))

    def __neg__(self) -> Word:
        return Word(-self.high, -self.low)

    def __sub__(self, other: Word) -> Word:
        return self + -other

    def __mul__(self, other: Word) -> Word:
        high, low = fp.two_product(self.high, other.high)
        low = fma(self.high, other.low, fma(self.low, other.high, low))
        return Word(*fp.fast_two_sum(high, low))

    def __truediv__(self, other: Word) -> Word:
        high = self.high / other.high
        rest = fma(-high, other.high, self.high) + fma(-high, other.low, self.low)
        return Word(*fp.fast_two_sum(high, rest / other.high))

    def where(self, condition: Expr, other: Word) -> Word:
        """This where the condition holds, the other elsewhere."""
        return Word(
            select(condition, self.high, other.high), select(condition, self.low, other.low)
        )


def series(
    above: Sequence[Word], below: Sequence[Word], x: Word, where: Expr, limit: int
) -> tuple[Expr, Expr]:
    """The sum of (a)_k ... / ((b)_k ... k!) x**k, and x times its derivative."""
    one, zero = fp.like(x.high, 1.0), fp.like(x.high, 0.0)
    least = 2.0**-28 if fp.is32(x.high) else 2.0**-57

    def step(
        k: Expr, term: Expr, term_low: Expr, total: Expr, low: Expr, slope: Expr, slope_low: Expr,
        left: Expr,
    ) -> tuple[Expr, tuple[Expr, ...]]:  # fmt: skip
        size = fp.absolute(total)
        running = (left > size * least) & (size < math.inf)
        top, bottom = x, Word(k + 1.0)
        for a in above:
            top = top * (a + Word(k))
        for b in below:
            bottom = bottom * (b + Word(k))
        ratio = top / bottom
        following = Word(term, term_low) * ratio
        part = following * Word(k + 1.0)
        sum_ = Word(total, low) + following
        slopes = Word(slope, slope_low) + part
        growing = (fp.absolute(ratio.high) > 0.9) & following.high.ne(0.0)
        left = select(growing, fp.like(k, math.inf), fp.absolute(part.high))
        return running, (
            *(k + 1.0, following.high, following.low, sum_.high, sum_.low),
            *(slopes.high, slopes.low, left),
        )

    start = (zero, one, zero, one, zero, zero, zero, select(where, one, zero))
    out = iterate(limit, start, step)
    return out[3] + out[4], out[5] + out[6]
