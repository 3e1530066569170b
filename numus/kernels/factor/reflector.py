"""Householder reflectors (LAPACK's larfg): H = 1 - tau v vᴴ turns a column into beta e₁; v₁ = 1."""

from __future__ import annotations

from typing import NamedTuple

from numus import ir
from numus.ir import Expr, select
from numus.kernels.factor.program import (
    Number,
    Program,
    chosen,
    negligible_square,
    squared,
    zero,
)


class Reflector(NamedTuple):
    trivial: Expr  # nothing is to be done: the column has that form but for what is negligible
    beta: Expr
    tau: Number


def reflector(p: Program, alpha: Number, below: Expr) -> Reflector:
    """Of a column of about 1, or of a matrix of that size, by its first element and the sum of the
    squares below it."""
    rest = below if p.components == 1 else ir.fma(alpha[1], alpha[1], below, allow_unfused=True)
    trivial = p.let(rest < negligible_square(p))
    size = ir.sqrt(squared(alpha) + below)
    beta = p.let(select(trivial, alpha[0], -ir.binary("copysign", size, alpha[0])))
    safe = p.let(select(trivial, p.constant(1.0), beta))
    tau = p.number([(beta - alpha[0]) / safe, *(-x / safe for x in alpha[1:])])
    return Reflector(trivial, beta, p.number(chosen(trivial, zero(p), tau)))
