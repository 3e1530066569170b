"""nm.linalg: products and builders, factorisations, solvers, matrix functions."""

import numpy as np
import scipy.linalg

import numus as nm
from ops.row import (
    COMPLEX,
    DTYPE,
    FLOATS,
    INT64,
    NUMBERS,
    SOME_INTEGERS,
    case,
    counting,
    fraction,
    op,
    real,
    x,
)

EXACT = {"dtypes": NUMBERS, "relative": False, "ulps": 16}


def cross(a, b, axis=-1, axisc=-1):
    a, b = np.moveaxis(a, axis, -1), np.moveaxis(b, axis, -1)
    if a.shape[-1] == b.shape[-1] == 2:
        return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    a, b = (np.pad(v, [(0, 0)] * (v.ndim - 1) + [(0, 3 - v.shape[-1])]) for v in (a, b))
    a, b = np.broadcast_arrays(a, b)
    axis = axisc if axis == -1 else axis
    turned = a[..., [1, 2, 0]] * b[..., [2, 0, 1]] - a[..., [2, 0, 1]] * b[..., [1, 2, 0]]
    return np.moveaxis(turned, -1, axis)


def khatri_rao(a, b):
    return np.stack([np.kron(p, q) for p, q in zip(a.T, b.T, strict=True)], axis=-1)


def semiring(a, b, semiring="min_plus"):
    total, times = {
        "min_plus": (np.min, np.add),
        "max_plus": (np.max, np.add),
        "max_min": (np.max, np.minimum),
        "min_max": (np.min, np.maximum),
        "max_times": (np.max, np.multiply),
    }[semiring]
    return total(times(a[..., :, :, None], b[..., None, :, :]), axis=-2)


def batched(f):
    """A function of vectors or matrices of SciPy's, over a leading axis."""

    def function(*arrays, **kwargs):
        if max(a.ndim for a in arrays) > 1:
            return np.stack([f(*each, **kwargs) for each in zip(*arrays, strict=True)])
        return f(*arrays, **kwargs)

    return function


def hilbert(n, dtype):
    return scipy.linalg.hilbert(n) if n else np.zeros((0, 0))


PRODUCTS = [
    op("linalg.diagonal", lambda a, offset=0: np.diagonal(a, offset, -2, -1),
       case(x(2, 3, 4)), case(x(3, 3), offset=1), case(x(0, 2)), dtypes=NUMBERS),
    op("linalg.trace", lambda a, offset=0: np.trace(a, offset, -2, -1),
       case(x(2, 3, 4)), case(x(3, 3), offset=-1), dtypes=NUMBERS, out=counting, relative=False),
    op("vdot", np.vdot, case(x(2, 3), x(6)), case(x(0), x(0)), **EXACT),
    op("cross", cross, case(x(2, 3), x(4, 1, 3)), case(x(3, 2), x(3, 1), axis=0),
       case(x(4, 3), x(4, 2), axisc=0), case(x(2), x(3)), case(x(5, 2), x(2)), **EXACT),
    op("linalg.cross", cross, case(x(2, 3), x(4, 1, 3)), case(x(3, 2), x(3, 1), axis=-2), **EXACT),
    op("linalg.outer", np.outer, case(x(3), x(4)), case(x(0), x(2)), **EXACT),
    op("linalg.khatri_rao", khatri_rao, case(x(2, 3), x(4, 3)), case(x(1, 3), x(2, 3)),
       **EXACT),
    op("linalg.multi_dot", np.linalg.multi_dot, case([x(2, 7), x(7, 3), x(3, 4)]),
       case([x(5), x(5, 2), x(2)]), case([x(2, 3), x(3)]), **EXACT),
    op("linalg.semiring_matmul", semiring, case(x(4, 5), x(5, 3)),
       case(x(2, 1, 3), x(3, 2), semiring="max_plus"), case(x(3, 4), x(4, 2), semiring="max_min"),
       case(x(3, 4), x(4, 2), semiring="min_max"), case(x(3, 4), x(4, 2), semiring="max_times"),
       dtypes=(*FLOATS, *SOME_INTEGERS)),
]  # fmt: skip

BUILDERS = [
    op("linalg.block_diag", scipy.linalg.block_diag, case(x(2, 3), x(1), x(3, 0), x(2, 2)),
       dtypes=NUMBERS),
    op("linalg.toeplitz", batched(scipy.linalg.toeplitz), case(x(3), x(4)), case(x(3)), case(x(1)),
       case(x(2, 3), x(2, 2)), dtypes=NUMBERS),
    op("linalg.hankel", batched(scipy.linalg.hankel), case(x(3), x(4)), case(x(3)),
       case(x(2, 3), x(2, 2)), dtypes=NUMBERS),
    op("linalg.circulant", batched(scipy.linalg.circulant), case(x(4)), case(x(2, 3)), case(x(0)),
       dtypes=NUMBERS),
    op("vander", np.vander, case(x(4)), case(x(3), 5, increasing=True), case(x(3), 0),
       dtypes=(*FLOATS, "int64", "int32", *COMPLEX), out=lambda d: d if d.is_inexact else
       counting(d), ulps=16),
    op("linalg.companion", batched(scipy.linalg.companion), case(x(4, low=1.0, high=2.0)),
       case(x(2, 3, low=1.0, high=2.0)), dtypes=(*FLOATS, "int32", *COMPLEX), out=fraction),
    op("linalg.hilbert", hilbert, case(5, dtype=DTYPE), case(0, dtype=DTYPE),
       dtypes=(*FLOATS, *COMPLEX), orders=0),
]  # fmt: skip


def adjoint(a):
    return np.conj(np.swapaxes(a, -1, -2)) if isinstance(a, np.ndarray) else a.mT.conj()


def unit(a):
    """The identity, in the dtype and order of an array or tensor."""
    return np.eye(a.shape[-1]).astype(a.dtype if isinstance(a, np.ndarray) else a.dtype.np)


def positive(a):
    """A well-conditioned Hermitian matrix."""
    return a @ adjoint(a) + unit(a)


def dominant(a):
    return a + 4 * unit(a)


def general(a):
    """A well-conditioned matrix whose pivots are elsewhere than on the diagonal."""
    return a + np.roll(2 * len(unit(a)) * unit(a), 1, -1).astype(unit(a).dtype)


def of(made, name, *rest):
    """A call of a function on `made(first argument)`."""
    return lambda a, *args, **kwargs: getattr(nm.linalg, name)(made(a), *args, **kwargs)


def no_info(a):
    return np.zeros(a.shape[:-2], np.int64)


def each(f):
    """A function of SciPy's for one matrix (and right-hand side), over leading axes."""

    def function(a, *args, **kwargs):
        if a.ndim == 2:
            return f(a, *args, **kwargs)
        made = [function(m, *(b[i] for b in args), **kwargs) for i, m in enumerate(a)]
        if isinstance(made[0], tuple):
            return tuple(np.stack(parts) for parts in zip(*made, strict=True))
        return np.stack(made)

    return function


def lu(a, **options):
    if options.get("p_indices"):
        p, lower, upper = scipy.linalg.lu(a)
        return np.argmax(p, axis=1), lower, upper
    return scipy.linalg.lu(a, **options)


def pivots(a):
    if 0 in a.shape:
        return a, np.zeros(min(a.shape), np.int64)
    packed, swaps = scipy.linalg.lu_factor(a)
    return packed, swaps.astype(np.int64)


def solve_triangular(a, b, **options):
    n = a.shape[-1]
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if b.size == 0:
        return b
    a, b2 = np.broadcast_to(a, (*lead, n, n)), np.broadcast_to(b, (*lead, *b.shape[-2:]))
    return each(scipy.linalg.solve_triangular)(a, b if b.ndim == 1 else b2, **options)


# 16-bit floats and complex64 take the same way in all: a few rows have them too
SOME = ("float32", "float64", "complex128")
LINALG = {"dtypes": SOME, "relative": False, "ulps": 128}
EVERY = {**LINALG, "dtypes": (*FLOATS, *COMPLEX)}

SOLVERS = [
    op("linalg.cholesky", lambda a, upper=False: adjoint(np.linalg.cholesky(positive(a))) if upper
       else np.linalg.cholesky(positive(a)),
       case(x(5, 5)), case(x(2, 3, 3), upper=True), case(x(0, 0)), case(x(2, 0, 3, 3)),
       call=of(positive, "cholesky"), **EVERY),
    op("linalg.cholesky_ex", lambda a: (np.linalg.cholesky(positive(a)), no_info(a)),
       case(x(2, 3, 3)), call=of(positive, "cholesky_ex"), **{**LINALG, "out": (fraction, INT64)}),
    op("linalg.cho_solve", lambda a, b: np.linalg.solve(positive(a), b), case(x(4, 4), x(4)),
       case(x(2, 3, 3), x(3, 2)),
       call=lambda a, b: nm.linalg.cho_solve((nm.linalg.cholesky(positive(a)), True), b), **LINALG),
    op("linalg.solve_triangular", lambda a, b, **more: solve_triangular(dominant(a), b, **more),
       case(x(4, 4), x(4, 3)), case(x(3, 3), x(3), lower=True), case(x(2, 3, 3), x(3, 2), trans=1),
       case(x(3, 3), x(2, 3, 2), lower=True, trans="C"), case(x(3, 3), x(3, 2), unit_diagonal=True),
       case(x(3, 3), x(3, 0)), case(x(0, 0), x(0, 2)),
       values=[case(x(70, 70, low=-0.1, high=0.1), x(70, 65))],
       call=of(dominant, "solve_triangular"), **LINALG),
    op("linalg.lu", lambda a, **options: each(lu)(general(a), **options), case(x(4, 4)),
       case(x(2, 3, 3), permute_l=True), call=of(general, "lu"), **LINALG),
    op("linalg.lu", lambda a, **options: each(lu)(general(a), **options),
       case(x(2, 3, 3), p_indices=True), call=of(general, "lu"),
       **{**LINALG, "out": (INT64, fraction, fraction)}),
    op("linalg.lu_factor", each(pivots), case(x(2, 4, 4)), case(x(5, 3)), case(x(3, 5)),
       case(x(0, 3)), case(x(1, 1)), values=[case(x(40, 70)), case(x(70, 40)), case(x(2, 80, 80))],
       **{**LINALG, "out": (fraction, INT64), "ulps": 1024}),
    op("linalg.lu_factor_ex", lambda a: (*each(pivots)(a), no_info(a)), case(x(2, 4, 4)),
       **{**LINALG, "out": (fraction, INT64, INT64), "ulps": 1024}),
    op("linalg.lu_solve", lambda a, b, trans=0: np.linalg.solve(
        (general(a), np.swapaxes(general(a), -1, -2), adjoint(general(a)))[trans], b),
       case(x(4, 4), x(4)), case(x(2, 3, 3), x(3, 2), trans=1), case(x(3, 3), x(3, 2), trans=2),
       call=lambda a, b, **more: nm.linalg.lu_solve(nm.linalg.lu_factor(general(a)), b, **more),
       **LINALG),
    op("linalg.solve", lambda a, b: np.linalg.solve(general(a), b), case(x(4, 4), x(4)),
       case(x(2, 1, 3, 3), x(2, 3, 2)), case(x(0, 0), x(0, 2)), case(x(3, 3), x(3, 0)),
       values=[case(x(90, 90), x(90, 3))], call=of(general, "solve"), **LINALG),
    op("linalg.solve_ex", lambda a, b: (np.linalg.solve(general(a), b), no_info(a)),
       case(x(4, 4), x(4)), call=of(general, "solve_ex"), **{**LINALG, "out": (fraction, INT64)}),
    op("linalg.inv", lambda a: np.linalg.inv(general(a)), case(x(4, 4)), case(x(2, 3, 3)),
       case(x(0, 0)), call=of(general, "inv"), **EVERY),
    op("linalg.inv_ex", lambda a: (np.linalg.inv(general(a)), no_info(a)),
       case(x(2, 3, 3)), call=of(general, "inv_ex"), **{**LINALG, "out": (fraction, INT64)}),
    op("linalg.det", np.linalg.det, case(x(2, 4, 4)), case(x(3, 3)), case(x(0, 0)), case(x(1, 1)),
       **LINALG),
    op("linalg.slogdet", np.linalg.slogdet, case(x(2, 4, 4)), case(x(3, 3)), case(x(0, 0)),
       values=[case(x(2, 2, values=(1.0, 2.0, 2.0, 4.0)))], **{**LINALG, "out": (fraction, real)}),
]  # fmt: skip


def hermitian(a):
    return a + adjoint(a)


def eigh(a, **options):
    """Eigenvalues, and a function of the matrix that does not depend on the phases of vectors."""
    values, vectors = nm.linalg.eigh(hermitian(a), **options)
    return values, (vectors * (values**2)[..., None, :].astype(vectors.dtype)) @ adjoint(vectors)


def polar_of(u, s, vh):
    """Singular values and the unitary polar factor, which does not depend on phases either."""
    k = s.shape[-1]
    return s, u[..., :k] @ vh[..., :k, :]


def svd(a, **options):
    return polar_of(*nm.linalg.svd(a, **options))


def svd_ex(a, **options):
    *factors, info = nm.linalg.svd_ex(a, **options)
    return (*polar_of(*factors), info)


def polar(a, **options):
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    return s, u @ vh


def lstsq(a, b):
    if b.ndim == 1:
        x, r, k, s = lstsq(a, b[:, None])
        return x[:, 0], r[0], k, s
    x = np.linalg.pinv(a) @ b
    misses = np.sum(np.abs(a @ x - b) ** 2, axis=-2)
    return x, misses, np.linalg.matrix_rank(a), np.linalg.svd(a, compute_uv=False)


SPECTRA = [
    op("linalg.qr", lambda a, mode="reduced": tuple(np.linalg.qr(a, mode)) if mode != "r"
       else np.linalg.qr(a, mode), case(x(5, 3)), case(x(2, 3, 3)), case(x(3, 5)),
       case(x(4, 2), mode="r"), case(x(3, 0)),
       values=[case(x(70, 40)), case(x(4, 2), mode="complete"), case(x(2, 3), mode="complete")],
       **LINALG),
    op("linalg.eigh", lambda a, UPLO="L": (np.linalg.eigvalsh(hermitian(a)),
                                           hermitian(a) @ hermitian(a)),
       case(x(4, 4)), case(x(2, 3, 3), UPLO="U"), case(x(1, 1)), call=eigh,
       **{**LINALG, "out": (real, fraction), "dtypes": SOME}),
    op("linalg.eigh_ex", lambda a: (np.linalg.eigvalsh(hermitian(a)), no_info(a)),
       case(x(2, 3, 3)), call=lambda a: nm.linalg.eigh_ex(hermitian(a))[::2],
       **{**LINALG, "out": (real, INT64), "slow_second": True}),
    op("linalg.eigvalsh", lambda a: np.linalg.eigvalsh(hermitian(a)), case(x(2, 4, 4)),
       case(x(0, 0)), values=[case(x(20, 20))], call=of(hermitian, "eigvalsh"),
       **{**EVERY, "out": real}),
    op("linalg.svd", polar, case(x(4, 3), full_matrices=False), case(x(2, 2, 4)), case(x(3, 3)),
       values=[case(x(30, 12))], call=svd, **{**LINALG, "out": (real, fraction), "ulps": 512}),
    op("linalg.svd_ex", lambda a, **_: (*polar(a), no_info(a)),
       case(x(2, 3, 2), full_matrices=False), call=svd_ex,
       **{**LINALG, "out": (real, fraction, INT64), "slow_second": True, "ulps": 512}),
    op("linalg.svdvals", lambda a: np.linalg.svd(a, compute_uv=False), case(x(2, 4, 3)),
       case(x(2, 5)), case(x(0, 3)), **{**LINALG, "out": real}),
    op("linalg.matrix_rank", np.linalg.matrix_rank, case(x(2, 4, 3)), case(x(0, 3)),
       case(x(3, 3, values=(1, 2, 3, 2, 4, 6, 1, 1, 1))), dtypes=SOME, out=INT64,
       orders=0),
    op("linalg.pinv", np.linalg.pinv, case(x(4, 2)), case(x(2, 2, 3)), case(x(0, 3)), **LINALG),
    op("linalg.lstsq", lstsq, case(x(5, 2), x(5, 3)), case(x(2, 4), x(2)),
       **{**LINALG, "out": (fraction, real, INT64, real), "ulps": 512}),
    op("linalg.cond", lambda a, p=None: np.linalg.cond(dominant(a), p), case(x(2, 3, 3)),
       case(x(3, 3), 1), case(x(3, 3), -2), case(x(3, 3), "nuc"), case(x(3, 3), float("-inf")),
       call=of(dominant, "cond"), **{**LINALG, "out": real}),
    op("linalg.matrix_norm", lambda a, keepdims=False, ord="fro":
       np.linalg.matrix_norm(a, keepdims=keepdims, ord=ord), case(x(2, 3, 4)),
       *(case(x(3, 4), ord=ord) for ord in ("nuc", 1, -1, 2, -2, float("inf"), float("-inf"))),
       case(x(2, 3, 3), keepdims=True, ord="nuc"), case(x(0, 3)),
       **{**LINALG, "out": real}),
    op("linalg.norm", np.linalg.norm, case(x(3, 4)), case(x(5), 3), case(x(3, 4), 2),
       case(x(2, 3, 4), 1, (0, 2), keepdims=True), case(x(2, 3), float("inf"), -1),
       **{**LINALG, "out": real}),
    op("linalg.matrix_power", np.linalg.matrix_power, case(x(3, 3), 5), case(x(2, 3, 3), 0),
       case(x(2, 2), 1), dtypes=(*NUMBERS,), relative=False, ulps=64),
    op("linalg.matrix_power", lambda a, n: np.linalg.matrix_power(dominant(a), n),
       case(x(3, 3), -2), call=of(dominant, "matrix_power"), **LINALG),
    op("linalg.expm", scipy.linalg.expm, case(x(3, 3)), case(x(2, 2, 2, low=-5, high=5)),
       case(x(0, 0)), **{**LINALG, "ulps": 2048}),
]  # fmt: skip

# of these, made of the factorisations of others, all checks are `slow`: they compile many kernels
_COMPOSED = (
    *("cholesky_ex", "cho_solve", "lu_solve", "solve_ex", "inv_ex", "slogdet", "eigvalsh"),
    *("svdvals", "matrix_rank", "pinv", "lstsq", "cond", "matrix_norm", "expm"),
)
ROWS = [
    r.replace(brief=r.name.removeprefix("linalg.") in _COMPOSED)
    for r in (*PRODUCTS, *BUILDERS, *SOLVERS, *SPECTRA)
]
