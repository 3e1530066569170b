"""Gradients of solutions by the implicit function theorem.

A solver finds x with F(c, x) = 0, by whatever iteration, which is not differentiated. Where the
constants c move, x moves so that F remains zero: dx = -(∂F/∂x)⁻¹ ∂F/∂c dc. That rule is linear in
dc, so that reverse mode follows by transposition, and it can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numus as nm
from numus.tensor import Tensor

Residual = Callable[[Sequence[Tensor], Tensor], Tensor]


def implicit(
    residual: Residual, x: Tensor, constants: Sequence[Tensor], elementwise: bool = False
) -> Tensor:
    """x, a zero of residual(constants, x), as a differentiable function of the constants.

    Args:
        elementwise: every element of x is a zero by itself; else x is a vector.
    """
    if not any(c._node.tracked for c in constants):
        return x
    return _zero(residual, elementwise, x.detach(), tuple(constants))


def _given(residual: Residual, elementwise: bool, x: Tensor, constants: Any) -> Tensor:
    return x


_zero = nm.custom_jvp(_given, nondiff_argnums=(0, 1))


def _rule(residual: Residual, elementwise: bool, primals: Any, tangents: Any) -> Any:
    at, constants = primals
    x = _zero(residual, elementwise, at, constants)
    moving = [i for i, c in enumerate(constants) if c.dtype.is_inexact]

    def by_constants(*given: Tensor) -> Tensor:
        every = dict(zip(moving, given, strict=True))
        return residual([every.get(i, c) for i, c in enumerate(constants)], x)

    primal = tuple(constants[i] for i in moving)
    change = nm.jvp(by_constants, primal, tuple(tangents[1][i] for i in moving))[1]

    def by_x(x: Tensor) -> Tensor:
        return residual(constants, x)

    if elementwise:
        return x, -change / nm.jvp(by_x, (x,), (nm.ones_like(x),))[1]
    return x, -nm.linalg.solve(nm.jacfwd(by_x)(x), change)


_zero.defjvp(_rule)
