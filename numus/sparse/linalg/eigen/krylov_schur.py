"""Eigenvalues of sparse matrices and operators: Krylov–Schur (Stewart 2001), which for Hermitian
matrices is the Lanczos method with thick restarts (Wu & Simon 2000).

Vectors are where the matrix is; the small projected problem is solved on the host, which drives the
iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import numus as nm
from numus import dtypes as dt
from numus.errors import LinAlgError, ShapeError
from numus.evaluation.evaluate import is_known
from numus.graph import grad_mode
from numus.shapes import as_int
from numus.sparse.construct import eye
from numus.sparse.linalg.direct.lu import splu
from numus.sparse.linalg.iterative.basis import Basis
from numus.sparse.linalg.operators import System, as_operator
from numus.sparse.pattern import Array
from numus.sparse.tensor import SparseTensor
from numus.tensor import Tensor
from numus.transforms import tree

Apply = Callable[[Tensor], Tensor]  # of a vector

_HERMITIAN: dict[str, Callable[[Array], Array]] = {
    "LM": lambda x: -np.abs(x),
    "SM": np.abs,
    "LA": lambda x: -x,
    "SA": lambda x: x,
}
_GENERAL: dict[str, Callable[[Array], Array]] = {
    "LM": lambda x: -np.abs(x),
    "SM": np.abs,
    "LR": lambda x: -x.real,
    "SR": lambda x: x.real,
    "LI": lambda x: -np.abs(x.imag),
    "SI": lambda x: np.abs(x.imag),
}


def known_operator(op: str, a: Any, square: bool = True) -> System:
    """An operator whose parameters are known, without derivatives."""
    system = as_operator(a)
    if square and system.shape[0] != system.shape[1]:
        raise ShapeError(f"{op}: a matrix of shape {system.shape} is not square")
    for x in tree.leaves(system.parameters):
        if isinstance(x, Tensor) and not is_known(x._node):
            raise LinAlgError(f"{op}: is driven by the host, and cannot be traced")
    return system.with_parameters(tree.map(nm.detach, system.parameters))


def inexact(dtype: Any) -> Any:
    if dtype is None:
        return dt.default_float
    return dtype if dtype.is_inexact else dt.default_float


def first_vector(v0: Any, n: int, dtype: Any, device: Any, op: str) -> Tensor:
    """The start of an iteration: given, or the same random one each time."""
    if v0 is None:
        rng = np.random.default_rng(n)
        start = rng.standard_normal(n)
        if dtype.is_complex:
            start = start + 1j * rng.standard_normal(n)
        return nm.asarray(start, dtype=dtype, device=device)
    found = nm.asarray(v0, device=device).astype(dtype).reshape(-1)
    if found.shape != (n,):
        raise ShapeError(f"{op}: a first vector of shape {tuple(found.shape)} for {n} unknowns")
    return found


def _subspace(theta: Array, vectors: Array, chosen: Array, is_real: bool, hermitian: bool) -> Array:
    """An orthonormal basis of chosen eigenvectors, real where the matrix is."""
    if hermitian:
        return vectors[:, chosen]
    x = vectors[:, chosen]
    if is_real:
        up = theta[chosen].imag > 0
        x = np.concatenate([x.real[:, theta[chosen].imag >= 0], x.imag[:, up]], 1)
    q, _ = np.linalg.qr(x)
    return np.asarray(q)


def krylov_schur(
    op: str, apply: Apply, start: Tensor, k: int, ncv: int, order: Callable[[Array], Array],
    tol: float, maxiter: int, hermitian: bool,
) -> tuple[Array, Tensor]:  # fmt: skip
    """k eigenvalues, the first by an order, and their vectors as rows."""
    dtype = start.dtype
    is_real = not dtype.is_complex
    wide = np.float64 if is_real else np.complex128
    basis = Basis(ncv + 1, start.shape[0], start)
    basis.begin(start)
    h = np.zeros((ncv + 1, ncv), wide)
    eps = max(tol, float(np.finfo(dtype.np).eps))
    p = 0
    for cycle in range(maxiter):
        for j in range(p, ncv):
            w = apply(basis[j])
            three_terms = hermitian and j > p
            along: Tensor | None = None
            if three_terms:  # first the two vectors before, so that one pass over all suffices
                along, w = basis.recurred(w, j, float(h[j, j - 1].real))
            found, size, w = basis.orthogonalised(w, 1 if three_terms else 2)
            h[: j + 1, j] = found
            if along is not None:
                h[j - 1, j] += h[j, j - 1].real
                h[j, j] += float(along)
            if not np.isfinite(size):
                raise LinAlgError(f"{op}: a product with the matrix is not finite")
            h[j + 1, j] = basis.extend(w, size, float(np.abs(found).max(initial=size)))
        block = h[:ncv]
        if hermitian:
            theta, vectors = np.linalg.eigh((block + block.conj().T) / 2)
        else:
            theta, vectors = np.linalg.eig(block)
        ranked = np.argsort(order(theta), kind="stable")
        error = np.abs(h[ncv, ncv - 1] * vectors[ncv - 1])
        # of small eigenvalues no more than rounding of the matrix allows
        unit = float(np.finfo(dtype.np).eps)
        floor = max(unit ** (2 / 3), unit / eps * float(np.abs(theta).max()))
        good = error <= eps * np.maximum(np.abs(theta), floor)
        done = int(np.cumprod(good[ranked[:k]]).sum())
        if done == k:
            mix = nm.asarray(
                vectors[:, ranked[:k]].T,
                dtype=dtype if hermitian or not is_real else dt.promote(dtype, dt.complex64),
                device=start.device,
            )
            return theta[ranked[:k]], basis.combined(mix)
        keep = min(k + max(done, (ncv - k) // 3), ncv - 2)
        chosen = ranked[:keep]
        if is_real and not hermitian:  # conjugate pairs stay together
            partner = np.isin(theta, theta[chosen].conj()) | np.isin(np.arange(ncv), chosen)
            chosen = np.flatnonzero(partner)
        q = _subspace(theta, vectors, chosen, is_real, hermitian)
        if cycle + 1 < maxiter:
            p = q.shape[1]
            basis.restart(q, ncv)
            smaller = np.zeros_like(h)
            smaller[:p, :p] = q.conj().T @ block @ q
            smaller[p, :p] = h[ncv] @ q
            h = smaller
    raise LinAlgError(
        f"{op}: {done} of {k} eigenvalues converged in {maxiter} restarts; raise maxiter or ncv"
    )


def _prepared(
    op: str, a: Any, k: int, sigma: Any, ncv: int | None, v0: Any, least: int, is_complex: bool
) -> tuple[Apply, Tensor, int]:  # fmt: skip
    system = known_operator(op, a)
    n = system.shape[0]
    k = as_int(k, "k", op)
    if not 0 < k < n:
        raise ValueError(f"{op}: k={k} is not between 1 and {n - 1}; for all of them use nm.linalg")
    dtype = inexact(system.dtype)
    if is_complex:
        dtype = dt.promote(dtype, dt.complex64)
    count = max(2 * k + 1, least) if ncv is None else as_int(ncv, "ncv", op)
    count = min(n, count)
    if count < min(n, k + 2):
        raise ValueError(f"{op}: ncv={ncv} is below k + 2 = {k + 2}")
    start = first_vector(v0, n, dtype, getattr(a, "device", None), op)

    def product(x: Tensor) -> Tensor:
        return system.apply(x[:, None])[:, 0]

    if sigma is None:
        return product, start, count
    if not isinstance(a, SparseTensor):
        raise TypeError(f"{op}: sigma needs a sparse matrix, which is factorised")
    shifted = a.map(nm.detach).astype(dtype) - sigma * eye(n, dtype=dtype, device=a.device)
    lu = splu(shifted)
    return lambda x: lu.solve(x, refine=0), start, count


def eigsh(
    a: Any, k: int = 6, *, sigma: float | None = None, which: str = "LM", ncv: int | None = None,
    v0: Any = None, tol: float = 0.0, maxiter: int = 1000,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Some eigenvalues, ascending, and eigenvectors of a Hermitian matrix or operator.

    Eigenvalues are differentiable by the values of a sparse matrix.

    Args:
        a: a Hermitian sparse or dense matrix, or a LinearOperator.
        k: how many.
        sigma: find those near it: the Krylov space is that of (a - sigma)⁻¹, by `splu`.
        which: "LM" (largest magnitude), "SM" (smallest), "LA" (largest), "SA" (smallest); of
            1 / (λ - sigma) where there is one.
        ncv: vectors of the Krylov space.
        v0: the first one.
        tol: relative error of eigenvalues; 0 is that of the dtype.
        maxiter: the most restarts.

    >>> import numus as nm
    >>> from numus.sparse.linalg import eigsh
    >>> w, v = eigsh(nm.sparse.diags([1.0, 2.0, 5.0, 9.0]), 2)
    >>> nm.round(w).tolist(), v.shape
    ([5.0, 9.0], (4, 2))
    """
    op = "eigsh"
    if which not in _HERMITIAN:
        raise ValueError(f"{op}: which={which!r} must be one of {tuple(_HERMITIAN)}")
    with grad_mode(False):
        apply, start, count = _prepared(op, a, k, sigma, ncv, v0, 20, False)
        theta, rows = krylov_schur(
            op, apply, start, k, count, _HERMITIAN[which], tol, maxiter, True
        )
        found = theta if sigma is None else sigma + 1 / theta
        order = np.argsort(found)
        vectors = rows[nm.asarray(order, device=rows.device)].mT
    if isinstance(a, SparseTensor):
        # Rayleigh quotients: their derivative is that of the eigenvalues (Hellmann & Feynman)
        adjoint = nm.conj(vectors) if vectors.dtype.is_complex else vectors
        quotients = nm.real(nm.sum(adjoint * (a.astype(vectors.dtype) @ vectors), axis=0))
        return quotients / nm.sum(nm.square(nm.abs(vectors)), axis=0), vectors
    real = dt.real_of(vectors.dtype)
    return nm.asarray(found[order], dtype=real, device=vectors.device), vectors


def eigs(
    a: Any, k: int = 6, *, sigma: complex | None = None, which: str = "LM",
    ncv: int | None = None, v0: Any = None, tol: float = 0.0, maxiter: int = 1000,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Some eigenvalues and eigenvectors, complex, of any square matrix or operator.

    The arguments are those of `eigsh`; `which` is "LM" or "SM" (magnitude), "LR" or "SR" (real
    part), "LI" or "SI" (size of the imaginary part). The first by it come first.

    >>> import numus as nm
    >>> from numus.sparse.linalg import eigs
    >>> a = nm.sparse.diags([[1.0, 2.0, 5.0, 9.0], 1.0], [0, 1], (4, 4))
    >>> nm.round(nm.real(eigs(a, 1)[0])).tolist()
    [9.0]
    """
    op = "eigs"
    if which not in _GENERAL:
        raise ValueError(f"{op}: which={which!r} must be one of {tuple(_GENERAL)}")
    is_complex = isinstance(sigma, complex) and sigma.imag != 0
    with grad_mode(False):
        apply, start, count = _prepared(op, a, k, sigma, ncv, v0, 20, is_complex)
        theta, rows = krylov_schur(op, apply, start, k, count, _GENERAL[which], tol, maxiter, False)
        found = theta if sigma is None else sigma + 1 / theta
        vectors = rows.mT
        if not vectors.dtype.is_complex:
            vectors = vectors.astype(dt.promote(vectors.dtype, dt.complex64))
        vectors = vectors / nm.linalg.norm(vectors, axis=0)
    return nm.asarray(found, dtype=vectors.dtype, device=vectors.device), vectors
