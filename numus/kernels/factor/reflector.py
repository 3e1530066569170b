"""Householder reflectors (LAPACK's larfg): H = 1 - tau v vᴴ turns a column into beta e₁; v₁ = 1."""

from __future__ import annotations

from typing import NamedTuple

from numus import ir
from numus.ir import Expr, select
from numus.kernels.factor.program import Number, Program, chosen, squared, zero


class Reflector(NamedTuple):
    trivial: Expr  # nothing is to be done: the column has that form
    beta: Expr
    tau: Number


def reflector(p: Program, alpha: Number, below: Expr) -> Reflector:
    """Of a column by its first element and the sum of the squares below it."""
    trivial = below.eq(0.0)
    if p.components == 2:
        trivial = trivial & alpha[1].eq(0.0)
    trivial = p.let(trivial)
    size = ir.sqrt(squared(alpha) + below)
    beta = p.let(select(trivial, alpha[0], -ir.binary("copysign", size, alpha[0])))
    safe = p.let(select(trivial, p.constant(1.0), beta))
    tau = p.number([(beta - alpha[0]) / safe, *(-x / safe for x in alpha[1:])])
    return Reflector(trivial, beta, p.number(chosen(trivial, zero(p), tau)))
