"""Sylvester equations of upper triangular matrices, differentiated implicitly."""

from __future__ import annotations

import functools

from numus.functions._base import wrap
from numus.functions.shape.manipulation import flip
from numus.linalg._base import Implicit, adjoint, differentiated, stacked, unstacked
from numus.primitives.linalg import spectral
from numus.tensor import Tensor


def triangular_sylvester(a: Tensor, b: Tensor, c: Tensor, part: str = "all") -> Tensor:
    """x with a x + x b = c for upper triangular a and b with equal leading axes; with `part`
    "lower" or "upper", the x that is a strict triangle, where this holds."""

    def compute(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        if not c.size:
            return c
        a, b, stack = (stacked(x) for x in (a, b, c))
        found = wrap(spectral.triangular_sylvester(a._node, b._node, stack._node, part))
        return unstacked(found, c.shape[:-2]).mT

    return differentiated(_rule(part), compute, a, b, c)


def _triangle(x: Tensor, part: str) -> Tensor:
    return x if part == "all" else x.tril(-1) if part == "lower" else x.triu(1)


@functools.cache
def _rule(part: str) -> Implicit:
    """a dx + dx b = dc - da x - x db; the adjoint equation has reversed rows and columns."""

    def tangent(x: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
        (a, b, _), (da, db, dc) = operands, tangents
        return triangular_sylvester(a, b, dc - da.triu() @ x - x @ db.triu(), part)

    def pull(x: Tensor, operands: list[Tensor], g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def reverse(y: Tensor) -> Tensor:
            return flip(y, axis=(-2, -1))

        a, b, _ = operands
        other = {"all": "all", "lower": "upper", "upper": "lower"}[part]
        back = reverse(adjoint(a.triu())), reverse(adjoint(b.triu())), reverse(g)
        gc = _triangle(reverse(triangular_sylvester(*back, other)), part)
        return -(gc @ adjoint(x)).triu(), -(adjoint(x) @ gc).triu(), gc

    return Implicit(tangent, pull)
