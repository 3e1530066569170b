"""Polar decomposition by singular values."""

from __future__ import annotations

from typing import NamedTuple

from numus.functions.autocast import widens
from numus.functions.elementwise.comparison import where
from numus.linalg._base import Implicit, adjoint, differentiated, matrices
from numus.linalg.factor.svd import thin
from numus.tensor import ArrayLike, Tensor


class PolarResult(NamedTuple):
    """What `polar` gives."""

    U: Tensor
    P: Tensor


def _inverse(x: Tensor) -> Tensor:
    return where(x == 0, 0.0, 1 / where(x == 0, 1.0, x))


def _tangent(u: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
    """dU = U Ω + what leaves the space of U, Ω P + P Ω = Uᴴ dA - dAᴴ U anti-Hermitian.

    Sums of singular values are inverted, no differences: equal ones do no harm.
    """
    a, s, v = operands
    (da, *_) = tangents
    moved = adjoint(u) @ da
    inner = adjoint(v) @ (moved - adjoint(moved)) @ v
    sums = s[..., :, None] + s[..., None, :]
    turn = v @ (inner * _inverse(sums).astype(a.dtype)) @ adjoint(v)
    out = u @ turn
    if a.shape[-2] > a.shape[-1]:
        left = da - u @ moved
        out = out + ((left @ v) * _inverse(s).astype(a.dtype)[..., None, :]) @ adjoint(v)
    return out


_RULE = Implicit(_tangent)


def _unitary(a: Tensor) -> Tensor:
    """U Vᴴ of matrices with m >= n."""
    u, s, v = thin(a)
    return differentiated(_RULE, lambda *_: u @ adjoint(v), a, s, v)


@widens
def polar(x: ArrayLike, /, *, side: str = "right") -> PolarResult:
    """U and P with x = U P (or P U for `side="left"`): orthonormal columns or rows, and a Hermitian
    matrix whose eigenvalues are not negative.

    >>> u, p = nm.linalg.polar(nm.asarray([[0.0, 2.0], [3.0, 0.0]]))
    >>> nm.round(abs(p)).tolist()
    [[3.0, 0.0], [0.0, 2.0]]
    """
    if side not in ("right", "left"):
        raise ValueError(f"linalg.polar: side={side!r} is neither 'right' nor 'left'")
    a, dtype = matrices("polar", x)
    m, n = a.shape[-2:]
    if a.size:
        unitary = _unitary(a) if m >= n else adjoint(_unitary(adjoint(a)))
    else:
        unitary = a
    product = adjoint(unitary) @ a if side == "right" else a @ adjoint(unitary)
    positive = (product + adjoint(product)) / 2.0
    return PolarResult(unitary.astype(dtype), positive.astype(dtype))
