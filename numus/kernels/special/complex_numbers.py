"""Complex numbers as pairs of expressions, for functions whose parts are primitives."""

from __future__ import annotations

import math

from numus.ir import Expr, fma, select, sqrt
from numus.kernels.math import _tools as fp
from numus.kernels.math.exponential import exp
from numus.kernels.math.inverse_trig import atan2
from numus.kernels.math.logarithm import log, log1p
from numus.kernels.math.trigonometry import cos, sin


class Complex:
    """x + i y."""

    def __init__(self, x: Expr, y: Expr) -> None:
        self.x, self.y = x, y

    def __add__(self, other: Complex | float) -> Complex:
        if isinstance(other, Complex):
            return Complex(self.x + other.x, self.y + other.y)
        return Complex(self.x + other, self.y)

    def __sub__(self, other: Complex | float) -> Complex:
        if isinstance(other, Complex):
            return Complex(self.x - other.x, self.y - other.y)
        return Complex(self.x - other, self.y)

    def __neg__(self) -> Complex:
        return Complex(-self.x, -self.y)

    def __mul__(self, other: Complex | float) -> Complex:
        if isinstance(other, Complex):
            return Complex(
                fma(self.x, other.x, -(self.y * other.y)), fma(self.x, other.y, self.y * other.x)
            )
        return Complex(self.x * other, self.y * other)

    def __truediv__(self, other: Complex) -> Complex:
        """By Smith's algorithm: nothing overflows on the way."""
        wide = fp.absolute(other.x) >= fp.absolute(other.y)
        large, small = select(wide, other.x, other.y), select(wide, other.y, other.x)
        ratio = small / large
        below = fma(small, ratio, large)
        p, q = select(wide, self.x, self.y), select(wide, self.y, self.x)
        real = fma(q, ratio, p) / below
        imaginary = fma(-p, ratio, q) / below
        return Complex(real, select(wide, imaginary, -imaginary))

    def squared(self) -> Expr:
        """|z|**2."""
        return fma(self.x, self.x, self.y * self.y)

    def where(self, condition: Expr, other: Complex) -> Complex:
        """This where the condition holds, the other elsewhere."""
        return Complex(select(condition, self.x, other.x), select(condition, self.y, other.y))

    def exp(self) -> Complex:
        size = exp(self.x)
        return Complex(size * cos(self.y), size * sin(self.y))

    def log(self) -> Complex:
        """The principal logarithm."""
        a, b = fp.absolute(self.x), fp.absolute(self.y)
        swap = b > a
        large, small = select(swap, b, a), select(swap, a, b)
        near = (large > 0.5) & (large < 2.0)
        # log |z|**2 = log1p((large - 1) (large + 1) + small**2)
        safe = select(near, large, fp.like(a, 1.0))
        close = log1p(fma(safe - 1.0, safe + 1.0, select(near, small * small, safe - safe))) * 0.5
        ratio = small / select(large.eq(0.0), fp.like(a, 1.0), large)
        apart = log(large) + 0.5 * log1p(ratio * ratio)
        return Complex(select(near, close, apart), atan2(self.y, self.x))

    def sqrt(self) -> Complex:
        """The root with a real part that is not negative."""
        size = sqrt(self.squared())
        root = sqrt((size + fp.absolute(self.x)) * 0.5)
        other = fp.absolute(self.y) * 0.5 / select(root.eq(0.0), fp.like(root, 1.0), root)
        right = self.x >= 0.0
        return Complex(select(right, root, other), fp.copysign(select(right, other, root), self.y))

    def polynomial(self, coefficients: tuple[float, ...] | list[float]) -> Complex:
        """Horner's rule."""
        total = Complex(fp.like(self.x, coefficients[-1]), fp.like(self.x, 0.0))
        for c in reversed(coefficients[:-1]):
            total = total * self + c
        return total


TURN = 2 * math.pi
