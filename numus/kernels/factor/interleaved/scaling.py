"""Powers of two near the largest element of each interleaved matrix, by which squares neither
overflow nor underflow."""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, select
from numus.kernels.factor.lanes import LaneMatrix, LaneProgram
from numus.kernels.factor.program import (
    ZERO,
    magnitude,
    negligible_square,
    power_near,
    scaled,
)


def power_of_two(p: LaneProgram, x: LaneMatrix, rows: Expr, columns: Expr) -> Expr:
    """1 for matrices of zeros and those that are not finite."""
    largest = p.register()
    p.do(ir.Set(largest, p.constant(0.0)))
    with p.loop(ZERO, rows) as i, p.loop(ZERO, columns) as j:
        size = p.let(magnitude(x[i, j]))
        keep = ir.read(largest) >= size  # NaN is never less
        p.do(ir.Set(largest, select(keep, ir.read(largest), size)))
    return power_near(p, p.let(ir.read(largest)))


def multiply(p: LaneProgram, x: LaneMatrix, rows: Expr, columns: Expr, by: Expr) -> None:
    with p.loop(ZERO, rows) as i, p.loop(ZERO, columns) as j:
        x[i, j] = scaled(x[i, j], by)


def householder(p: LaneProgram, alpha: Expr, rest: Expr) -> tuple[Expr, Expr, Expr]:
    """(beta, tau, factor) of the reflector that takes a vector to (beta, 0, …), of its first
    element and the sum of squares of the others, which `factor` scales to the reflector's."""
    trivial = p.let(rest < negligible_square(p))
    zero, one = p.constant(0.0), p.constant(1.0)
    size = ir.sqrt(ir.fma(alpha, alpha, rest, allow_unfused=True))
    beta = p.let(select(trivial, alpha, -ir.binary("copysign", size, alpha)))
    tau = p.let(select(trivial, zero, (beta - alpha) / select(trivial, one, beta)))
    factor = p.let(select(trivial, zero, one / select(trivial, one, alpha - beta)))
    return beta, tau, factor
