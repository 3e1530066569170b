"""nm.linalg: non-symmetric eigenproblems, their equations and matrix functions."""

import numpy as np
import scipy.linalg

import numus as nm
from numus import dtypes as dt
from ops.linalg import LINALG, SOME, adjoint, each, no_info, of, unit
from ops.row import INT64, case, fraction, op, x


def as_complex(d):
    return dt.complex_of(fraction(d))


def spread(a):
    """A matrix with real eigenvalues, or at least distinct ones."""
    n = a.shape[-1]
    return 0.1 * a + unit(a) * np.arange(1, 2 * n, 2).astype(unit(a).dtype)


def eig(a):
    """A function of the matrix, which depends on neither phases nor order."""
    values, vectors = nm.linalg.eig(a)
    return (vectors * nm.exp(values)[..., None, :]) @ nm.linalg.inv(vectors)


def power_sums(a):
    values = nm.linalg.eigvals(a)
    return nm.stack([values.sum(axis=-1), (values**2).sum(axis=-1)])


def rebuilt(name):
    def call(a, **options):
        middle, outer, *info = getattr(nm.linalg, name)(spread(a), **options)
        return outer @ middle @ adjoint(outer), adjoint(outer) @ outer, *info

    return call


def pieces(a, **_):
    return spread(a), np.broadcast_to(np.eye(a.shape[-1]), a.shape)


def sizes(a):
    h, q = nm.linalg.hessenberg(a)
    return nm.abs(h).astype(a.dtype), q @ h @ adjoint(q)


def shifted(a):
    """No negative eigenvalues."""
    return a + 6 * unit(a)


def primary(name, **options):
    function = each(getattr(scipy.linalg, name))
    return op(
        f"linalg.{name}", lambda a: function(shifted(a)) if a.size else a, case(x(3, 3)),
        case(x(0, 0)), call=of(shifted, name), **{**REALS, "ulps": 2048, **options},
    )  # fmt: skip


def power(a, t):
    found = scipy.linalg.fractional_matrix_power(shifted(a), t)
    return found if np.iscomplexobj(a) else np.real(found)


REALS = {**LINALG, "dtypes": ("float32", "float64")}

SPECTRA = [
    op("linalg.eig", scipy.linalg.expm, case(x(3, 3)), values=[case(x(2, 4, 4))], call=eig,
       **{**LINALG, "out": as_complex, "ulps": 4096}),
    op("linalg.eig_ex", lambda a: (scipy.linalg.expm(a), no_info(a)), case(x(2, 2)),
       call=lambda a: (eig(a), nm.linalg.eig_ex(a)[2]),
       **{**REALS, "out": (as_complex, INT64), "ulps": 4096, "slow_second": True}),
    op("linalg.eigvals", lambda a: np.stack([np.trace(a, axis1=-2, axis2=-1),
                                             np.trace(a @ a, axis1=-2, axis2=-1)]),
       case(x(3, 3)), case(x(0, 0)), values=[case(x(2, 5, 5))], call=power_sums,
       **{**LINALG, "out": as_complex, "ulps": 512}),
    op("linalg.schur", pieces, case(x(3, 3)), case(x(2, 2, 2)), call=rebuilt("schur"), **LINALG),
    op("linalg.schur", pieces, case(x(3, 3), output="complex"), call=rebuilt("schur"),
       **{**REALS, "out": as_complex, "slow_second": True}),
    op("linalg.schur_ex", lambda a: (*pieces(a), no_info(a)), case(x(2, 2)),
       call=rebuilt("schur_ex"),
       **{**REALS, "out": (fraction, fraction, INT64), "slow_second": True}),
    op("linalg.hessenberg", lambda a: (np.abs(each(scipy.linalg.hessenberg)(a)), a),
       case(x(4, 4)), case(x(2, 3, 3)), case(x(1, 1)), call=sizes, **LINALG),
    op("linalg.solve_sylvester", lambda a, b, c: scipy.linalg.solve_sylvester(
        shifted(a), shifted(b), c), case(x(3, 3), x(2, 2), x(3, 2)),
       call=lambda a, b, c: nm.linalg.solve_sylvester(shifted(a), shifted(b), c), **LINALG),
    op("linalg.solve_lyapunov", lambda a, q: scipy.linalg.solve_continuous_lyapunov(
        shifted(a), q), case(x(3, 3), x(3, 3)), call=of(shifted, "solve_lyapunov"), **REALS),
    op("linalg.solve_discrete_lyapunov", lambda a, q: scipy.linalg.solve_discrete_lyapunov(
        shifted(a), q), case(x(2, 2), x(2, 2)), call=of(shifted, "solve_discrete_lyapunov"),
       **{**REALS, "slow_second": True}),
    primary("sqrtm", dtypes=SOME),
    primary("logm", slow_second=True),
    primary("cosm", slow_second=True),
    primary("sinm", slow_second=True),
    op("linalg.fractional_matrix_power", power, case(x(2, 2), 1.3),
       values=[case(x(3, 3), -0.5), case(x(3, 3), 2.0)],
       call=of(shifted, "fractional_matrix_power"), **{**REALS, "ulps": 4096, "slow_second": True}),
    op("linalg.signm", lambda a: scipy.linalg.signm(a - shifted(a) / 3), case(x(3, 3)),
       call=lambda a: nm.linalg.signm(a - shifted(a) / 3), **{**REALS, "ulps": 2048}),
    op("linalg.polar", lambda a, **options: each(scipy.linalg.polar)(a, **options), case(x(4, 3)),
       case(x(2, 2, 3), side="left"), case(x(3, 3)), **{**LINALG, "ulps": 512}),
]  # fmt: skip


def projector(name):
    """What a basis spans."""

    def call(a, **options):
        basis = getattr(nm.linalg, name)(a, **options)
        return basis @ adjoint(basis)

    return call


def space(function):
    def reference(a, **_):
        basis = function(a)
        return basis @ adjoint(basis)

    return each(reference)


def rank_two(a, *_):
    return a[..., :2] @ a[..., :2, :]


def toeplitz(c, r, b):
    return scipy.linalg.solve_toeplitz((heavy(c), r), b)


def heavy(c):
    """A column whose first element dominates."""
    first = np.eye(c.shape[-1], 1, dtype=c.dtype if isinstance(c, np.ndarray) else c.dtype.np)
    return c + 8 * first[:, 0]


def pivoted(a, **options):
    q, r, p = nm.linalg.qr(a, pivoting=True, **options)
    return q @ r, nm.abs(r).astype(a.dtype), p


def scipy_pivoted(a, mode="economic"):
    q, r, p = scipy.linalg.qr(a, mode=mode, pivoting=True)
    return q @ r, np.abs(r), p.astype(np.int64)


def householder_product(a, tau):
    found = np.eye(*a.shape, dtype=a.dtype)
    for k in reversed(range(len(tau))):
        v = np.where(np.arange(len(a)) > k, a[:, k], np.arange(len(a)) == k)
        found = found - tau[k] * np.outer(v, np.conj(v) @ found)
    return found


def generalised(a, b):
    values, vectors = nm.linalg.eigh(a + adjoint(a), b @ adjoint(b) + unit(b))
    return values, (vectors * values[..., None, :].astype(vectors.dtype)) @ adjoint(vectors)


def scipy_generalised(a, b):
    values, v = scipy.linalg.eigh(a + adjoint(a), b @ adjoint(b) + np.eye(len(b)))
    return values, (v * values) @ adjoint(v)


def whole(name, *args, **options):
    return lambda x: getattr(nm.linalg, name)(x, *args, **options).full()


def outer(a, b, c):
    return a[:, None, None] * b[None, :, None] * c


def lowrank(name):
    def call(a, *args, **options):
        u, s, vh = getattr(nm.linalg, name)(rank_two(a), *args, **options)
        return (u * s[..., None, :].astype(u.dtype)) @ vh

    return call


def interpolated(a, k):
    idx, proj = nm.linalg.id(rank_two(a), k)
    return nm.linalg.matmul(nm.take_along_axis(rank_two(a), nm.broadcast_to(
        idx[..., None, :], (*a.shape[:-1], k)), axis=-1), proj)  # fmt: skip


def ldl_ex(a):
    lower, d, _, info = nm.linalg.ldl_ex(a + adjoint(a))
    return lower @ d @ adjoint(lower), info


def ldl(a, **options):
    lower, d, _ = nm.linalg.ldl(a + adjoint(a), **options)
    return lower @ d @ adjoint(lower)


def pencil(a, b):
    s, t, q, z = nm.linalg.qz(spread(a), b / 4 + unit(b))
    return q @ s @ adjoint(z), q @ t @ adjoint(z)


def pencil_eig(a, b):
    values, vectors = nm.linalg.eig(spread(a), b / 4 + unit(b))
    return (vectors * values[..., None, :]) @ nm.linalg.inv(vectors)


WEAK = {**REALS, "ulps": 4096, "slow_second": True}
SLOW = {**WEAK, "dtypes": ("float32",)}  # derivatives in tests/linalg/test_decompositions.py
SPACES = [
    op("linalg.qr", scipy_pivoted, case(x(4, 3)), case(x(2, 3)), call=pivoted,
       **{**LINALG, "out": (fraction, fraction, INT64)}),
    op("linalg.eigh", scipy_generalised, case(x(3, 3), x(3, 3)), call=generalised,
       **{**REALS, "ulps": 1024, "slow_second": True}),
    op("linalg.ldl_ex", lambda a: (a + adjoint(a), np.zeros(a.shape[:-2], np.int64)),
       case(x(2, 3, 3)), call=ldl_ex, **{**REALS, "out": (fraction, INT64)}),
    op("linalg.ldl", lambda a, **_: a + adjoint(a), case(x(4, 4)), case(x(2, 3, 3), lower=False),
       call=ldl, **REALS),
    op("linalg.qz", lambda a, b: (spread(a), b / 4 + unit(b)), case(x(3, 3), x(3, 3)),
       call=pencil, **{**REALS, "out": as_complex}),
    op("linalg.eig", lambda a, b: np.linalg.solve(b / 4 + unit(b), spread(a)),
       case(x(3, 3), x(3, 3)), call=pencil_eig, **{**REALS, "out": as_complex, "ulps": 2048}),
    op("linalg.solve_banded", lambda band, ab, b: scipy.linalg.solve_banded(band, ab, b),
       case((1, 1), x(3, 5), x(5, 2)), case((2, 1), x(4, 4), x(4)), case((0, 1), x(2, 3), x(3)),
       **{**REALS, "ulps": 8192}),
    op("linalg.orth", space(scipy.linalg.orth), case(x(4, 3), rank=3), case(x(2, 3, 2), rank=2),
       call=projector("orth"), **REALS),
    op("linalg.null_space", space(scipy.linalg.null_space), case(x(2, 4), rank=2),
       case(x(2, 1, 3), rank=1), call=projector("null_space"), **REALS),
    op("linalg.householder_product", householder_product, case(x(4, 3), x(3)), case(x(3, 3), x(2)),
       **LINALG),
    op("linalg.tensorsolve", lambda a, b: np.linalg.tensorsolve(a, b), case(x(2, 2, 4), x(2, 2)),
       **{**REALS, "ulps": 4096}),
    op("linalg.tensorinv", np.linalg.tensorinv, case(x(2, 2, 4)), **{**REALS, "ulps": 4096}),
    op("linalg.solve_toeplitz", toeplitz, case(x(4), x(4), x(4, 2)), case(x(3), x(3), x(3)),
       call=lambda c, r, b: nm.linalg.solve_toeplitz((heavy(c), r), b), **LINALG),
    op("linalg.cp", outer, case(x(2, low=1.0), x(3, low=1.0), x(2, low=1.0)),
       call=lambda *v: whole("cp", 1, iterations=4)(outer(*v)), **SLOW),
    op("linalg.tucker", outer, case(x(2, low=1.0), x(3, low=1.0), x(2, low=1.0)),
       call=lambda *v: whole("tucker", 1, iterations=2)(outer(*v)), **SLOW),
    op("linalg.tensor_train", lambda a: a, case(x(2, 3, 2)), case(x(3)),
       call=whole("tensor_train", 6), **WEAK),
    op("linalg.svd_lowrank", rank_two, case(x(4, 3), 2), call=lowrank("svd_lowrank"),
       **{**WEAK, "vmap": False}),
    op("linalg.pca_lowrank", lambda a, q: rank_two(a) - rank_two(a).mean(axis=-2), case(x(4, 3), 2),
       call=lowrank("pca_lowrank"), **{**WEAK, "vmap": False}),
    op("linalg.id", lambda a, k: rank_two(a), case(x(4, 3), 2), call=interpolated, **WEAK),
]  # fmt: skip

# all checks of the others are `slow`: they are made of these, and compile many kernels
_ALWAYS = ("eig", "schur", "hessenberg", "solve_sylvester", "polar", "qr", "ldl")
ROWS = [r.replace(brief=r.name.removeprefix("linalg.") not in _ALWAYS) for r in (*SPECTRA, *SPACES)]
