"""NumPy's linear algebra over `numus.linalg`: float64 unless the matrices are float32."""

from __future__ import annotations

from typing import Any

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.numpy._bind import bind
from numus.numpy._convert import NoValue, cast, holds_any, to_tensor
from numus.numpy._rules import real_if_possible
from numus.tensor import Tensor

LinAlgError = host.linalg.LinAlgError
_RESULTS = {"eig": "EigResult", "eigh": "EighResult", "qr": "QRResult", "svd": "SVDResult"}
_RESULTS["slogdet"] = "SlogdetResult"
_SQUARE = "det inv slogdet eig eigvals eigh eigvalsh cholesky solve matrix_power".split()
_ANY = "qr svd svdvals lstsq pinv matrix_norm".split()


def _matrices(name: str) -> Any:
    """A function of matrices under NumPy's checks, with the class of its results."""
    engine = _OWN.get(name) or getattr(nm.linalg, name)

    def call(a: Tensor, *rest: Any, **options: Any) -> Any:
        if a.dtype is dt.float16 and name not in ("matrix_norm", "matrix_power"):
            raise TypeError("array type float16 is unsupported in linalg")
        if name.startswith("eig") and holds_any(nm.logical_not(nm.isfinite(a))):
            raise LinAlgError("Array must not contain infs or NaNs")
        found = engine(a, *rest, **options)
        if name in ("eig", "eigvals") and not a.dtype.is_complex:
            found = real_if_possible(found)
        is_named = name in _RESULTS and isinstance(found, tuple)
        return getattr(host.linalg._linalg, _RESULTS[name])(*found) if is_named else found

    return call


def _svd(a: Tensor, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    if not compute_uv:
        return nm.linalg.svdvals(a)
    return tuple(nm.linalg.svd(a, full_matrices=full_matrices))


def _lstsq(a: Tensor, b: Tensor, rcond: Any = None) -> Any:
    m, n = a.shape
    if b.shape[0] != m:
        raise LinAlgError("Incompatible dimensions")
    solution, residuals, rank, s = nm.linalg.lstsq(
        a, b, rcond=None if rcond is None else max(rcond, 0)
    )
    known = int(rank.item())
    kept = nm.reshape(residuals, -1) if known == n and m > n else nm.zeros((0,), dtype=s.dtype)
    return solution, kept, host.int32(known), s


def _matrix_power(a: Tensor, n: Any) -> Tensor:
    if not hasattr(n, "__index__"):
        raise TypeError("exponent must be an integer")
    x = cast(a, dt.float64) if n < 0 and not a.dtype.is_inexact else a
    return nm.linalg.matrix_power(x, int(n))


def _matrix_rank(A: Tensor, tol: Any = None, *, rtol: Any = None) -> Any:
    if tol is not None and rtol is not None:
        raise ValueError("`tol` and `rtol` can't be both set.")
    if A.ndim < 2:
        return int(holds_any(nm.not_equal(A, 0)))
    limits = [None if t is None else cast(to_tensor(t), dt.float64) for t in (tol, rtol)]
    return cast(nm.linalg.matrix_rank(A, tol=limits[0], rtol=limits[1]), dt.int64)


def _pinv(a: Tensor, rcond: Any = None, *, rtol: Any = NoValue) -> Tensor:
    if rcond is not None and rtol is not NoValue:
        raise ValueError("`rtol` and `rcond` can't be both set.")
    cut = rcond if rtol is NoValue else rtol
    if cut is None:
        return nm.linalg.pinv(a, rtol=1e-15 if rtol is NoValue else None)
    cut = cast(to_tensor(cut), dt.real_of(a.dtype))
    return nm.linalg.pinv(a, rtol=cut if cut.ndim else cut.item())


_OWN: dict[str, Any] = {
    "lstsq": _lstsq, "matrix_power": _matrix_power, "matrix_rank": _matrix_rank, "pinv": _pinv,
    "svd": _svd,
}  # fmt: skip
# How `Bound` treats the arrays of those that compute in other dtypes than floats.
_KINDS = dict.fromkeys("matmul vecdot cross outer tensordot multi_dot".split(), "common")
_KINDS |= {"matrix_transpose": "view", "diagonal": "view", "trace": "same", "matrix_power": "same"}
_OTHERS = "cond cross diagonal matmul matrix_rank matrix_transpose multi_dot norm outer tensordot"
_OTHERS += " tensorinv tensorsolve trace vecdot vector_norm"
__all__ = ["LinAlgError", *_SQUARE, *_ANY, *_OTHERS.split()]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'numus.numpy.linalg' has no attribute {name!r}", name=name)
    checked = name in _SQUARE or name in _ANY
    engine = _matrices(name) if checked else _OWN.get(name) or getattr(nm.linalg, name)
    found = bind(name, _KINDS.get(name, "float"), engine, getattr(host.linalg, name), False)
    return globals().setdefault(name, found)
