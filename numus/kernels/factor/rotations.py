"""Plane rotations of QL and QR steps."""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, select
from numus.kernels.factor.program import Program, negligible_square


def plane_turn(p: Program, y: Expr, z: Expr) -> tuple[Expr, Expr, Expr]:
    """Cosine and sine of the rotation of (y, z) to (r, 0), and r. The root and the reciprocal of
    its square are found side by side: steps are a chain of these."""
    one, zero = p.constant(1.0), p.constant(0.0)
    square = p.let(ir.fma(y, y, z * z, allow_unfused=True))
    # squares that underflow: matrices have elements of about 1
    none = square < negligible_square(p)
    none = p.let(none)
    inverse = p.let(one / select(none, one, square))
    r = p.let(select(none, zero, ir.sqrt(square)))
    cosine = select(none, one, y * inverse * r)
    return p.let(cosine), p.let(z * inverse * r), r
