"""Sylvester and Lyapunov equations by Schur forms (Bartels & Stewart 1972)."""

from __future__ import annotations

from typing import NamedTuple

from numus.errors import ShapeError
from numus.functions.autocast import widens
from numus.functions.creation.dtype_functions import finfo
from numus.functions.elementwise.comparison import where
from numus.functions.reduction.reductions import max as maximum_of
from numus.functions.reduction.reductions import min as minimum_of
from numus.functions.shape.manipulation import broadcast_to, flip
from numus.graph import grad_mode
from numus.linalg._base import (
    Implicit,
    adjoint,
    check,
    differentiated,
    identity,
    operands,
    require_matrices,
    spoiled,
)
from numus.linalg.factor.lu import solve_ex
from numus.linalg.general.host import hosted
from numus.linalg.general.schur import complexified, packed_schur
from numus.linalg.general.triangular_sylvester import triangular_sylvester
from numus.linalg.products import diagonal
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import ArrayLike, Tensor


class _Form(NamedTuple):
    """x = Z T Zᴴ."""

    t: Tensor
    z: Tensor


def _form(a: Tensor) -> _Form:
    n = a.shape[-1]
    a = complexified(a)
    if not a.size:
        return _Form(a.detach(), a.detach())
    packed = packed_schur(a)
    return _Form(packed[..., :n, :].triu(), packed[..., n : 2 * n, :].mT)


def _solved(forms: list[Tensor], c: Tensor, adjoint_: bool) -> Tensor:
    """x with a x + x b = c, or of the adjoint equation aᴴ x + x bᴴ = c."""
    r, u, s, v = forms
    inner = adjoint(u) @ complexified(c) @ v
    if adjoint_:
        r, s, inner = (flip(x, axis=(-2, -1)) for x in (adjoint(r), adjoint(s), inner))
    inner = triangular_sylvester(r, s, inner)
    if adjoint_:
        inner = flip(inner, axis=(-2, -1))
    x = u @ inner @ adjoint(v)
    return x if c.dtype.is_complex else x.real


def _equation(xs: list[Tensor], forms: list[Tensor], adjoint_: bool) -> Tensor:
    def compute(a: Tensor, b: Tensor, c: Tensor, *forms: Tensor) -> Tensor:
        return _solved(list(forms), c, adjoint_)

    return differentiated(_RULES[adjoint_], compute, *xs, *forms)


def _rule(adjoint_: bool) -> Implicit:
    """The same equation with another right-hand side, both ways: by the same Schur forms."""

    def tangent(x: Tensor, given: list[Tensor], tangents: list[Tensor]) -> Tensor:
        (a, b, _, *forms), (da, db, dc, *_) = given, tangents
        if adjoint_:
            da, db = adjoint(da), adjoint(db)
        return _equation([a, b, dc - da @ x - x @ db], forms, adjoint_)

    def pull(x: Tensor, given: list[Tensor], g: Tensor) -> tuple[Tensor | None, ...]:
        a, b, _, *forms = given
        gc = _equation([a, b, g], forms, not adjoint_)
        ga, gb = -(gc @ adjoint(x)), -(adjoint(x) @ gc)
        if adjoint_:
            ga, gb = adjoint(ga), adjoint(gb)
        return ga, gb, gc, None, None, None, None

    return Implicit(tangent, pull)


_RULES = {adjoint_: _rule(adjoint_) for adjoint_ in (False, True)}

_SINGULAR = "has no unique solution: an eigenvalue of the first matrix is minus one of the second"


def _checked(op: str, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The solution of a x + x b = c and info numbers; leading axes broadcast."""
    for x in (a, b):
        require_matrices(op, x, square=True)
    require_matrices(op, c)
    if c.shape[-2:] != (a.shape[-1], b.shape[-1]):
        raise ShapeError(
            f"linalg.{op}: matrices of shapes {a.shape} and {b.shape} need a right-hand side of "
            f"{a.shape[-1]} × {b.shape[-1]}, not shape {c.shape}"
        )
    lead = broadcast_shapes(a.shape[:-2], b.shape[:-2], f"linalg.{op}")
    lead = broadcast_shapes(lead, c.shape[:-2], f"linalg.{op}")
    xs = [broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b, c)]
    if not xs[2].size:
        return xs[2] * 0.0, (xs[2] != 0).sum(axis=(-2, -1))
    with grad_mode(False):
        first, second = _form(xs[0]), _form(xs[1])
        sums = abs(diagonal(first.t)[..., :, None] + diagonal(second.t)[..., None, :])
        size = maximum_of(abs(first.t), axis=(-2, -1)) + maximum_of(abs(second.t), axis=(-2, -1))
        smallest = minimum_of(sums, axis=(-2, -1))
        info = where(smallest <= finfo(size.dtype).eps * size, 1, 0)
    return spoiled(_equation(xs, [*first, *second], False), info), info


@hosted
@widens
def solve_sylvester(a: ArrayLike, b: ArrayLike, q: ArrayLike, /) -> Tensor:
    """x with a x + x b = q, for square matrices a and b; leading axes broadcast.

    No eigenvalue of a may be minus one of b: that is a `LinAlgError`, in `nm.jit` NaN. Tensors of a
    GPU are copied to the host and back.

    >>> a, b, q = nm.asarray([[2.0]]), nm.asarray([[1.0]]), nm.asarray([[6.0]])
    >>> nm.linalg.solve_sylvester(a, b, q).tolist()
    [[2.0]]
    """
    (first, second, right), dtype = operands("solve_sylvester", a, b, q)
    found, info = _checked("solve_sylvester", first, second, right)
    check("solve_sylvester", info, _SINGULAR)
    return found.astype(dtype)


@hosted
@widens
def solve_lyapunov(a: ArrayLike, q: ArrayLike, /) -> Tensor:
    """x with a x + x aᴴ = q: the continuous Lyapunov equation; leading axes broadcast.

    >>> nm.linalg.solve_lyapunov(nm.asarray([[2.0]]), nm.asarray([[8.0]])).tolist()
    [[2.0]]
    """
    (first, right), dtype = operands("solve_lyapunov", a, q)
    require_matrices("solve_lyapunov", first, square=True)
    found, info = _checked("solve_lyapunov", first, adjoint(first), right)
    check("solve_lyapunov", info, _SINGULAR)
    return found.astype(dtype)


@hosted
@widens
def solve_discrete_lyapunov(a: ArrayLike, q: ArrayLike, /) -> Tensor:
    """x with a x aᴴ - x + q = 0: the discrete Lyapunov equation, by a bilinear transformation.

    The products of eigenvalues of a with conjugate ones may not be 1; neither may -1 be one.

    >>> nm.linalg.solve_discrete_lyapunov(nm.asarray([[0.5]]), nm.asarray([[3.0]])).tolist()
    [[4.0]]
    """
    (first, right), dtype = operands("solve_discrete_lyapunov", a, q)
    require_matrices("solve_discrete_lyapunov", first, square=True)
    one = identity(first.shape[-1], first)
    # b = (a + 1)⁻¹ (a - 1): b x + x bᴴ = -2 (a + 1)⁻¹ q (a + 1)⁻ᴴ
    b, info = solve_ex(first + one, first - one)
    check("solve_discrete_lyapunov", info, "has the eigenvalue -1: pivot {} is zero")
    half, _ = solve_ex(first + one, right)
    whole = adjoint(solve_ex(first + one, adjoint(half))[0])
    found, info = _checked("solve_discrete_lyapunov", b, adjoint(b), -2.0 * whole)
    check("solve_discrete_lyapunov", info, _SINGULAR)
    return found.astype(dtype)
