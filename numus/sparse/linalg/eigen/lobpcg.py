"""LOBPCG: eigenvalues by locally optimal preconditioned conjugate gradients (Knyazev 2001)."""

from __future__ import annotations

from typing import Any

import numpy as np

import numus as nm
from numus.errors import LinAlgError, ShapeError
from numus.graph import grad_mode
from numus.sparse.linalg.eigen.krylov_schur import inexact, known_operator
from numus.sparse.linalg.operators import preconditioner
from numus.tensor import Tensor


def lobpcg(
    a: Any, X: Any, *, M: Any = None, largest: bool = True, tol: float | None = None,
    maxiter: int = 100,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Extreme eigenvalues and eigenvectors of a Hermitian matrix or operator, from a block of first
    vectors; with a preconditioner, the smallest ones take few iterations.

    Args:
        a: a Hermitian sparse or dense matrix, or a LinearOperator.
        X: first vectors (n, k), of which k eigenvectors come.
        M: a preconditioner, which approximates the inverse.
        largest: or the smallest.
        tol: norm of residuals, against that of the matrix; the square root of the dtype's epsilon
            where it is None.
        maxiter: the most iterations; what has not converged then is an error.

    >>> import numus as nm
    >>> from numus.sparse.linalg import lobpcg
    >>> a = nm.sparse.diags([1.0, 2.0, 5.0, 9.0, 12.0, 20.0])
    >>> w, v = lobpcg(a, nm.eye(6)[:, :1] + 0.1, largest=True)
    >>> nm.round(w).tolist()
    [20.0]
    """
    op = "lobpcg"
    system = known_operator(op, a)
    n = system.shape[0]
    x = nm.asarray(X, device=getattr(a, "device", None))
    if x.ndim != 2 or x.shape[0] != n or not 0 < 3 * x.shape[1] <= n:
        raise ShapeError(
            f"{op}: first vectors of shape {tuple(x.shape)} for {n} unknowns: (n, k), 3 k <= n"
        )
    dtype = inexact(system.dtype)
    x = nm.detach(x).astype(dtype)
    near = preconditioner(M, n, op)
    eps = float(np.finfo(dtype.np).eps)
    tol = eps**0.5 if tol is None else tol
    sign = -1.0 if largest else 1.0
    k = x.shape[1]
    with grad_mode(False):
        x = nm.linalg.qr(x)[0]
        directions: Tensor | None = None
        scale = 0.0
        for _ in range(maxiter + 1):
            products = system.apply(x)
            conjugate = nm.conj(x) if dtype.is_complex else x
            values, mix = _sorted_eigh((conjugate.mT @ products).numpy(), sign)
            there = nm.asarray(mix, dtype=dtype, device=x.device)
            x, products = x @ there, products @ there
            r = products - x * nm.asarray(values, dtype=dtype, device=x.device)
            size = nm.linalg.norm(r, axis=0).numpy()
            scale = max(scale, float(np.abs(values).max()))
            if not np.isfinite(size).all():
                raise LinAlgError(f"{op}: a product with the matrix is not finite")
            if (size <= tol * scale).all():
                return nm.asarray(values, dtype=r.dtype, device=x.device).real, x
            step = r if near is None else near.apply(r)
            parts = [x, step] if directions is None else [x, step, directions]
            space = nm.linalg.qr(nm.concatenate([p / _norms(p, eps) for p in parts], axis=1))[0]
            adjoint = (nm.conj(space) if dtype.is_complex else space).mT
            values, mix = _sorted_eigh((adjoint @ system.apply(space)).numpy(), sign)
            new = space @ nm.asarray(mix[:, :k], dtype=dtype, device=x.device)
            directions = new - x @ ((nm.conj(x) if dtype.is_complex else x).mT @ new)
            x = new
    raise LinAlgError(
        f"{op}: residuals of {size.max():.3g} after {maxiter} iterations, above {tol * scale:.3g}"
    )


def _norms(x: Tensor, eps: float) -> Tensor:
    size = nm.linalg.norm(x, axis=0)
    return nm.maximum(size, nm.full_like(size, eps**2))


def _sorted_eigh(projected: Any, sign: float) -> tuple[Any, Any]:
    """Eigenvalues from the wanted end on."""
    values, vectors = np.linalg.eigh((projected + projected.conj().T) / 2)
    order = np.argsort(sign * values, kind="stable")
    return values[order], vectors[:, order]
