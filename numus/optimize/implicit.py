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
from numus.transforms import tree

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


def custom_root(
    f: Callable[[Any], Any],
    initial_guess: Any,
    solve: Callable[..., Any],
    tangent_solve: Callable[..., Any],
    has_aux: bool = False,
) -> Any:
    """The root of a function by a solver of yours, differentiated with a linear solver of yours: a
    Newton step with the derivative's inverse, whose value is the root itself."""
    found = solve(f, initial_guess)
    root, aux = found if has_aux else (found, None)
    fixed = tree.map(_constant, root)

    def linear(v: Any) -> Any:
        return nm.jvp(f, (fixed,), (v,))[1]

    step = tangent_solve(linear, f(fixed))
    out = tree.map(lambda r, s: r - (s - _constant(s)), fixed, step)
    return (out, aux) if has_aux else out


def _constant(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else x


def custom_linear_solve(
    matvec: Callable[[Any], Any],
    b: Any,
    solve: Callable[..., Any],
    transpose_solve: Callable[..., Any] | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    """The solution of a linear equation by a solver of yours; its gradient solves the transposed
    one."""
    back = solve if symmetric and transpose_solve is None else transpose_solve

    @nm.custom_vjp
    def solution(right: Any) -> Any:
        found = solve(matvec, right)
        return found[0] if has_aux else found

    def forward(right: Any) -> Any:
        return solution(right), right

    def backward(right: Any, g: Any) -> Any:
        if back is None:
            raise TypeError("custom_linear_solve: the gradient needs transpose_solve=")
        pulled = nm.vjp(matvec, tree.map(nm.zeros_like, right))[1]
        found = back(lambda v: pulled(v)[0], g)
        return (found[0] if has_aux else found,)

    solution.defvjp(forward, backward)
    return (solution(b), solve(matvec, b)[1]) if has_aux else solution(b)
