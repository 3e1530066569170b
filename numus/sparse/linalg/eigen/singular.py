"""Singular values of sparse matrices: Golub–Kahan–Lanczos bidiagonalisation with thick restarts
(Baglama & Reichel 2005)."""

from __future__ import annotations

from typing import Any

import numpy as np

import numus as nm
from numus import dtypes as dt
from numus.errors import LinAlgError
from numus.graph import grad_mode
from numus.shapes import as_int
from numus.sparse.linalg.eigen.krylov_schur import first_vector, inexact, known_operator
from numus.sparse.linalg.iterative.basis import Basis
from numus.tensor import Tensor


def svds(
    a: Any, k: int = 6, *, ncv: int | None = None, v0: Any = None, tol: float = 0.0,
    maxiter: int = 1000,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The k largest singular values, descending, with their vectors: u, s, vh.

    Args:
        a: a sparse or dense matrix, or a LinearOperator.
        k: how many.
        ncv: vectors of the Krylov spaces.
        v0: the first right vector.
        tol: relative error of singular values; 0 is that of the dtype.
        maxiter: the most restarts.

    >>> import numus as nm
    >>> from numus.sparse.linalg import svds
    >>> u, s, vh = svds(nm.sparse.diags([1.0, 2.0, 5.0, 9.0]), 2)
    >>> nm.round(s).tolist(), u.shape, vh.shape
    ([9.0, 5.0], (4, 2), (2, 4))
    """
    op = "svds"
    system = known_operator(op, a, square=False)
    m, n = system.shape
    least = min(m, n)
    k = as_int(k, "k", op)
    if not 0 < k <= least:
        raise ValueError(f"{op}: k={k} is not between 1 and {least}, the smaller side")
    count = min(least, max(2 * k + 1, 20) if ncv is None else as_int(ncv, "ncv", op))
    if count < min(least, k + 2):
        raise ValueError(f"{op}: ncv={ncv} is below k + 2 = {k + 2}")
    dtype, device = inexact(system.dtype), getattr(a, "device", None)
    with grad_mode(False):
        start = first_vector(v0, n, dtype, device, op)
        left, right = Basis(count, m, start), Basis(count + 1, n, start)
        right.begin(start)
        b = np.zeros((count, count), np.complex128 if dtype.is_complex else np.float64)
        eps = max(tol, float(np.finfo(dtype.np).eps))
        p = done = 0
        for _ in range(maxiter):
            for j in range(p, count):
                w = system.apply(right[j][:, None])[:, 0]
                found, size, w = left.orthogonalised(w, 2)
                if not np.isfinite(size):
                    raise LinAlgError(f"{op}: a product with the matrix is not finite")
                b[:j, j] = found
                b[j, j] = left.extend(w, size, float(np.abs(found).max(initial=size)))
                w = system.apply_adjoint(left[j][:, None])[:, 0]
                found, size, w = right.orthogonalised(w, 2)
                last = right.extend(w, size, float(np.abs(found).max(initial=size)))
            u, s, vh = np.linalg.svd(b)
            good = last * np.abs(u[count - 1]) <= eps * max(s[0], np.finfo(np.float64).tiny)
            done = int(np.cumprod(good[:k]).sum())
            if done == k:
                real = dt.real_of(dtype)
                lefts, rights = (
                    basis.combined(nm.asarray(mix, dtype=dtype, device=start.device))
                    for basis, mix in ((left, u[:, :k].T), (right, vh[:k].conj()))
                )
                values = nm.asarray(s[:k], dtype=real, device=start.device)
                return lefts.mT, values, nm.conj(rights) if dtype.is_complex else rights
            p = min(k + max(done, (count - k) // 2), count - 2)
            right.restart(vh[:p].conj().T, count)
            left.restart(u[:, :p])
            b = np.zeros_like(b)
            b[:p, :p] = np.diag(s[:p])
    raise LinAlgError(
        f"{op}: {done} of {k} singular values converged in {maxiter} restarts; raise maxiter or ncv"
    )
