"""Low-rank approximation: randomised singular values (Halko, Martinsson & Tropp 2011), principal
components, interpolative decomposition."""

from __future__ import annotations

from typing import Any, NamedTuple

from numus import random
from numus.functions.autocast import widens
from numus.functions.creation.creation import eye
from numus.functions.indexing.gather_scatter import take_along_axis
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import broadcast_to
from numus.linalg._base import adjoint, matrices, real_part
from numus.linalg.factor import triangular
from numus.linalg.factor.pivoting import columns_at, pivot_order
from numus.linalg.factor.qr import reduced
from numus.linalg.factor.svd import SVDResult, svd, thin
from numus.shapes import as_int
from numus.tensor import ArrayLike, Tensor


def _size(op: str, name: str, value: Any, most: int) -> int:
    found = as_int(value, name, f"linalg.{op}")
    if not 0 <= found <= most:
        raise ValueError(f"linalg.{op}: {name}={found} is not between 0 and {most}")
    return found


def _lowrank(op: str, a: Tensor, q: int, niter: Any, key: Any) -> SVDResult:
    turns = as_int(niter, "niter", f"linalg.{op}")
    if turns < 0:
        raise ValueError(f"linalg.{op}: niter must not be negative, not {turns}")
    n = a.shape[-1]
    if not a.size or not q:
        u, s, vh = svd(a, full_matrices=False)
        return SVDResult(u[..., :q], s[..., :q], vh[..., :q, :])
    test = random.normal((n, q), dtype=real_part(a).dtype, device=a.device, key=key)
    basis, _ = reduced(a @ test.astype(a.dtype))
    for _ in range(turns):
        basis, _ = reduced(adjoint(a) @ basis)
        basis, _ = reduced(a @ basis)
    u, s, v = thin(adjoint(basis) @ a)
    return SVDResult(basis @ u, s, adjoint(v))


def _real(s: Tensor, dtype: Any) -> Tensor:
    return s if dtype.is_complex else s.astype(dtype)


@widens
def svd_lowrank(x: ArrayLike, /, q: int = 6, niter: int = 2, *, key: Any = None) -> SVDResult:
    """About the q largest singular values and vectors: U (m, q), S and Vh (q, n), by products with
    random vectors.

    Args:
        q: the rank; a little more than is needed, to be accurate.
        niter: power iterations, which help where singular values fall slowly.
        key: of the random numbers (`nm.random.key`).

    >>> u, s, vh = nm.linalg.svd_lowrank(nm.ones((50, 30)), 2)
    >>> round(s[0].item(), 2), u.shape
    (38.73, (50, 2))
    """
    a, dtype = matrices("svd_lowrank", x)
    u, s, vh = _lowrank(
        "svd_lowrank", a, _size("svd_lowrank", "q", q, min(a.shape[-2:])), niter, key
    )
    return SVDResult(u.astype(dtype), _real(s, dtype), vh.astype(dtype))


@widens
def pca_lowrank(
    x: ArrayLike, /, q: int | None = None, *, center: bool = True, niter: int = 2, key: Any = None
) -> SVDResult:
    """Principal components of rows of samples, by `svd_lowrank`: Vh has them in its q rows.

    Args:
        q: the number of components, min(6, m, n) unless it is given.
        center: take the mean of each column off.
        niter, key: those of `svd_lowrank`.

    >>> u, s, vh = nm.linalg.pca_lowrank(nm.random.normal((100, 5)), 3)
    >>> vh.shape
    (3, 5)
    """
    a, dtype = matrices("pca_lowrank", x)
    most = min(a.shape[-2:])
    count = min(6, most) if q is None else _size("pca_lowrank", "q", q, most)
    if center and a.size:
        a = a - a.mean(axis=-2, keepdims=True)
    u, s, vh = _lowrank("pca_lowrank", a, count, niter, key)
    return SVDResult(u.astype(dtype), _real(s, dtype), vh.astype(dtype))


class IDResult(NamedTuple):
    """What `id` gives: x is about x[..., idx] proj."""

    idx: Tensor
    proj: Tensor


@widens
def id(x: ArrayLike, k: int, /) -> IDResult:
    """The interpolative decomposition: k columns of x, and the (k, n) matrix by which all columns
    are about combinations of them; it has ones and zeros where the columns are themselves.

    >>> idx, proj = nm.linalg.id(nm.asarray([[1.0, 2.0], [0.0, 0.0]]), 1)
    >>> idx.tolist(), proj.tolist()
    ([1], [[0.5, 1.0]])
    """
    a, dtype = matrices("id", x)
    n = a.shape[-1]
    count = _size("id", "k", k, min(a.shape[-2:]))
    order = pivot_order(a)
    if not count:
        return IDResult(order[..., :0], (a[..., :0, :]).astype(dtype))
    chosen, rest = columns_at(a, order[..., :count]), columns_at(a, order[..., count:])
    # of the chosen columns alone: others may depend on them, and R be singular
    q, r = reduced(chosen)
    others = triangular.solve(r, adjoint(q) @ rest, lower=False)
    unit = eye(count, dtype=a.dtype, device=a.device)
    weights = concat([broadcast_to(unit, (*a.shape[:-2], count, count)), others], axis=-1)
    place = order.argsort(axis=-1)
    own = order[..., :count]
    index = broadcast_to(place[..., None, :], (*weights.shape[:-1], n))
    return IDResult(own, take_along_axis(weights, index, axis=-1).astype(dtype))
