"""NumPy's linear algebra over `numus.linalg`: float64 unless the matrices are float32."""

from __future__ import annotations

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.numpy import _convert
from numus.numpy._array import adopt, result, write_out
from numus.numpy._bind import bind
from numus.numpy._convert import cast, engine_dtype, is_concrete, renamed, to_tensor

LinAlgError = host.linalg.LinAlgError

__all__ = [
    "LinAlgError", "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals",
    "eigvalsh", "inv", "lstsq", "matmul", "matrix_norm", "matrix_power", "matrix_rank",
    "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr", "slogdet", "solve", "svd",
    "svdvals", "tensordot", "tensorinv", "tensorsolve", "trace", "vecdot", "vector_norm",
]  # fmt: skip


def _matrices(*given):
    """Arrays in their common float dtype, of 32 bits at least."""
    tensors = [to_tensor(a) for a in given]
    for t in tensors:
        if t.dtype is dt.float16:
            raise TypeError("array type float16 is unsupported in linalg")
    kinds = [t.dtype.np if t.dtype.is_inexact else host.dtype(float) for t in tensors]
    common = engine_dtype(host.result_type(*kinds))
    return [cast(t, common) for t in tensors]


def _check(x, square=True):
    if x.ndim < 2:
        raise LinAlgError(
            f"{x.ndim}-dimensional array given. Array must be at least two-dimensional"
        )
    if square and x.shape[-1] != x.shape[-2]:
        raise LinAlgError("Last 2 dimensions of the array must be square")


def _finite(x):
    if is_concrete(x) and not nm.all(nm.isfinite(x)).item():
        raise LinAlgError("Array must not contain infs or NaNs")


def _of_square(name):
    engine = getattr(nm.linalg, name)

    def call(a):
        (x,) = _matrices(a)
        _check(x)
        if name in ("eig", "eigvals"):
            _finite(x)
        found = engine(x)
        if name in ("eig", "eigvals") and not x.dtype.is_complex:
            found = _real_if_possible(found)
        return _named(name, found)

    return renamed(call, name)


_RESULTS = {"eig": "EigResult", "eigh": "EighResult", "qr": "QRResult", "slogdet": "SlogdetResult"}
_RESULTS |= {"svd": "SVDResult"}


def _named(name, found):
    if not isinstance(found, tuple):
        return result(found)
    kind = getattr(host.linalg._linalg, _RESULTS[name])
    return kind(*map(result, found))


def _real_if_possible(found):
    """Eigenvalues of real matrices are real where no imaginary part is left."""
    values = found[0] if isinstance(found, tuple) else found
    if not is_concrete(values) or nm.any(nm.not_equal(nm.imag(values), 0)).item():
        return found
    return tuple(map(nm.real, found)) if isinstance(found, tuple) else nm.real(found)


det, inv, slogdet, eig, eigvals = map(_of_square, "det inv slogdet eig eigvals".split())


def _hermitian(name):
    engine = getattr(nm.linalg, name)

    def call(a, UPLO="L"):
        if UPLO.upper() not in ("L", "U"):
            raise ValueError("UPLO argument must be 'L' or 'U'")
        (x,) = _matrices(a)
        _check(x)
        return _named(name, engine(x, UPLO=UPLO.upper()))

    return renamed(call, name)


eigh, eigvalsh = _hermitian("eigh"), _hermitian("eigvalsh")


def cholesky(a, /, *, upper=False):
    """The triangular factor of a positive definite matrix."""
    (x,) = _matrices(a)
    _check(x)
    return result(nm.linalg.cholesky(x, upper=upper))


def solve(a, b):
    """The solution of a linear system."""
    x, y = _matrices(a, b)
    _check(x)
    return result(nm.linalg.solve(x, y))


def qr(a, mode="reduced"):
    """An orthogonal matrix and a triangular one."""
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(f"Unrecognized mode {mode!r}")
    (x,) = _matrices(a)
    _check(x, square=False)
    found = nm.linalg.qr(x, mode="reduced" if mode == "r" else mode)
    return result(found[1]) if mode == "r" else _named("qr", tuple(found))


def svd(a, full_matrices=True, compute_uv=True, hermitian=False):
    """The singular value decomposition."""
    (x,) = _matrices(a)
    _check(x, square=hermitian)
    if not compute_uv:
        return result(nm.linalg.svdvals(x))
    return _named("svd", tuple(nm.linalg.svd(x, full_matrices=full_matrices)))


def svdvals(x, /):
    """The singular values."""
    return svd(x, compute_uv=False)


def lstsq(a, b, rcond=None):
    """The least-squares solution, residuals, rank and singular values."""
    x, y = _matrices(a, b)
    _check(x, square=False)
    m, n = x.shape[-2:]
    if y.shape[0] != m:
        raise LinAlgError("Incompatible dimensions")
    cut = float(host.finfo(x.dtype.np).eps * max(m, n)) if rcond is None else max(float(rcond), 0.0)
    found = nm.linalg.lstsq(x, y, rcond=cut)
    s = nm.linalg.svdvals(x)
    rank = int(nm.sum(s > cut * s[0]).item()) if s.shape[0] else 0
    solution = found[0]
    if rank == n and m > n:
        left = nm.sum(nm.square(nm.abs(y - x @ solution)), axis=0)
        residuals = nm.reshape(left, -1)
    else:
        residuals = nm.zeros((0,), dtype=dt.real_of(x.dtype))
    return (
        result(solution),
        adopt(residuals),
        host.int32(rank),
        adopt(s),
    )


def matrix_power(a, n):
    """A square matrix to an integer power."""
    x = to_tensor(a)
    _check(x)
    if not hasattr(n, "__index__"):
        raise TypeError("exponent must be an integer")
    if n < 0:
        (x,) = _matrices(x)
    return result(nm.linalg.matrix_power(x, int(n)))


def _tolerance(x, tol, rtol):
    s = nm.linalg.svdvals(x)
    largest = (
        nm.max(s, axis=-1, keepdims=True)
        if s.shape[-1]
        else nm.zeros((*s.shape[:-1], 1), dtype=s.dtype)
    )
    if tol is not None:
        return nm.sum(nm.greater(s, nm.expand_dims(cast(to_tensor(tol), s.dtype), -1)), axis=-1)
    if rtol is None:
        rtol = max(x.shape[-2:]) * float(host.finfo(x.dtype.np).eps)
    limit = cast(to_tensor(rtol), s.dtype)
    limit = nm.expand_dims(limit, -1) if limit.ndim else limit
    return nm.sum(nm.greater(s, largest * limit), axis=-1)


def matrix_rank(A, tol=None, hermitian=False, *, rtol=None):
    """How many singular values are not negligible."""
    if tol is not None and rtol is not None:
        raise ValueError("`tol` and `rtol` can't be both set.")
    (x,) = _matrices(A)
    if x.ndim < 2:
        return int(not nm.all(nm.equal(x, 0)).item())
    return result(cast(_tolerance(x, tol, rtol), dt.int64))


def pinv(a, rcond=None, hermitian=False, *, rtol=host._NoValue):
    """The pseudo-inverse."""
    (x,) = _matrices(a)
    _check(x, square=hermitian)
    if not x.size:
        return adopt(nm.zeros((*x.shape[:-2], x.shape[-1], x.shape[-2]), dtype=x.dtype))
    cut = rcond if rtol is host._NoValue else rtol
    if cut is None:
        cut = (
            1e-15
            if rtol is host._NoValue
            else max(x.shape[-2:]) * float(host.finfo(x.dtype.np).eps)
        )
    cut = float(cut) if host.ndim(cut) == 0 else cast(to_tensor(cut), dt.real_of(x.dtype))
    return result(nm.linalg.pinv(x, rtol=cut))


def cond(x, p=None):
    """The condition number."""
    (m,) = _matrices(x)
    if not m.size:
        raise LinAlgError("cond is not defined on empty arrays")
    _check(m, square=p not in (None, 2, -2))
    return result(nm.linalg.cond(m, p))


def norm(x, ord=None, axis=None, keepdims=False):
    """A norm of vectors or matrices."""
    given = to_tensor(x)
    (m,) = _matrices(given) if given.dtype is not dt.float16 else (given,)
    if axis is not None and not isinstance(axis, tuple):
        try:
            axis = int(axis)
        except TypeError as error:
            raise TypeError("'axis' must be None, an integer or a tuple of integers") from error
    return result(nm.linalg.norm(m, ord, axis, keepdims=keepdims))


def multi_dot(arrays, *, out=None):
    """The product of several matrices, in the cheapest order."""
    if len(arrays) < 2:
        raise ValueError("Expecting at least two arrays.")
    parts = [to_tensor(a) for a in arrays]
    for i, p in enumerate(parts):
        if p.ndim != 2 and not (p.ndim == 1 and i in (0, len(parts) - 1)):
            raise LinAlgError(f"{p.ndim}-dimensional array given. Array must be two-dimensional")
    common = engine_dtype(host.result_type(*(p.dtype.np for p in parts)))
    return write_out(nm.linalg.multi_dot([cast(p, common) for p in parts]), out, "multi_dot")


def tensorsolve(a, b, axes=None):
    """The solution of a linear system of tensors."""
    x, y = _matrices(a, b)
    return result(nm.linalg.tensorsolve(x, y, axes=axes))


def tensorinv(a, ind=2):
    """The inverse of a linear map of tensors."""
    if ind <= 0:
        raise ValueError("Invalid ind argument.")
    return result(nm.linalg.tensorinv(*_matrices(a), ind=ind))


def cross(x1, x2, /, *, axis=-1):
    """The vector product of vectors of three elements."""
    x, y = to_tensor(x1), to_tensor(x2)
    if x.shape[axis] != 3 or y.shape[axis] != 3:
        raise ValueError("Both input arrays must be (arrays of) 3-dimensional vectors")
    return _convert.function("cross")(x, y, axis=axis)


def outer(x1, x2, /):
    """The products of all pairs of two vectors' elements."""
    if to_tensor(x1).ndim != 1 or to_tensor(x2).ndim != 1:
        raise ValueError("Input arrays must be one-dimensional")
    return _convert.function("outer")(x1, x2)


def matmul(x1, x2, /):
    """The matrix product."""
    return _convert.function("matmul")(x1, x2)


def vecdot(x1, x2, /, *, axis=-1):
    """The inner product of vectors."""
    return _convert.function("vecdot")(x1, x2, axis=axis)


def diagonal(x, /, *, offset=0):
    """The diagonals of matrices, a view."""
    return _convert.function("diagonal")(x, offset, -2, -1)


def trace(x, /, *, offset=0, dtype=None):
    """The sums of the diagonals of matrices."""
    return _convert.function("trace")(x, offset, -2, -1, dtype)


def matrix_norm(x, /, *, keepdims=False, ord="fro"):
    """A norm of matrices."""
    return result(nm.linalg.matrix_norm(*_matrices(x), keepdims=keepdims, ord=ord))


def vector_norm(x, /, *, axis=None, keepdims=False, ord=2):
    """A norm of vectors."""
    return result(nm.linalg.vector_norm(*_matrices(x), axis=axis, keepdims=keepdims, ord=ord))


matrix_transpose = bind("linalg.matrix_transpose", "view", nm.matrix_transpose)
tensordot = bind("tensordot", "common")
