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

ROWS = [
    op("linalg.eig", scipy.linalg.expm, case(x(3, 3)), values=[case(x(2, 4, 4))], call=eig,
       **{**LINALG, "out": as_complex, "ulps": 4096}),
    op("linalg.eig_ex", lambda a: (scipy.linalg.expm(a), no_info(a)), case(x(2, 2)),
       call=lambda a: (eig(a), nm.linalg.eig_ex(a)[2]),
       **{**REALS, "out": (as_complex, INT64), "ulps": 4096, "orders": 1}),
    op("linalg.eigvals", lambda a: np.stack([np.trace(a, axis1=-2, axis2=-1),
                                             np.trace(a @ a, axis1=-2, axis2=-1)]),
       case(x(3, 3)), case(x(0, 0)), values=[case(x(2, 5, 5))], call=power_sums,
       **{**LINALG, "out": as_complex, "ulps": 512}),
    op("linalg.schur", pieces, case(x(3, 3)), case(x(2, 2, 2)), call=rebuilt("schur"), **LINALG),
    op("linalg.schur", pieces, case(x(3, 3), output="complex"), call=rebuilt("schur"),
       **{**REALS, "out": as_complex, "orders": 1}),
    op("linalg.schur_ex", lambda a: (*pieces(a), no_info(a)), case(x(2, 2)),
       call=rebuilt("schur_ex"), **{**REALS, "out": (fraction, fraction, INT64), "orders": 1}),
    op("linalg.hessenberg", lambda a: (np.abs(each(scipy.linalg.hessenberg)(a)), a),
       case(x(4, 4)), case(x(2, 3, 3)), case(x(1, 1)), call=sizes, **LINALG),
    op("linalg.solve_sylvester", lambda a, b, c: scipy.linalg.solve_sylvester(
        shifted(a), shifted(b), c), case(x(3, 3), x(2, 2), x(3, 2)),
       call=lambda a, b, c: nm.linalg.solve_sylvester(shifted(a), shifted(b), c), **LINALG),
    op("linalg.solve_lyapunov", lambda a, q: scipy.linalg.solve_continuous_lyapunov(
        shifted(a), q), case(x(3, 3), x(3, 3)), call=of(shifted, "solve_lyapunov"), **REALS),
    op("linalg.solve_discrete_lyapunov", lambda a, q: scipy.linalg.solve_discrete_lyapunov(
        shifted(a), q), case(x(2, 2), x(2, 2)), call=of(shifted, "solve_discrete_lyapunov"),
       **{**REALS, "orders": 1}),
    primary("sqrtm", dtypes=SOME),
    primary("logm", orders=1),
    primary("cosm", orders=1),
    primary("sinm", orders=1),
    op("linalg.fractional_matrix_power", power, case(x(2, 2), 1.3),
       values=[case(x(3, 3), -0.5), case(x(3, 3), 2.0)],
       call=of(shifted, "fractional_matrix_power"), **{**REALS, "ulps": 4096, "orders": 1}),
    op("linalg.signm", lambda a: scipy.linalg.signm(a - shifted(a) / 3), case(x(3, 3)),
       call=lambda a: nm.linalg.signm(a - shifted(a) / 3), **{**REALS, "ulps": 2048}),
    op("linalg.polar", lambda a, **options: each(scipy.linalg.polar)(a, **options), case(x(4, 3)),
       case(x(2, 2, 3), side="left"), case(x(3, 3)), **{**LINALG, "ulps": 512}),
]  # fmt: skip
