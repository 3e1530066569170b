"""Special functions, against SciPy in float64."""

import math

import numpy as np
import scipy.special as sp

import numus as nm
from ops.row import case, exactly, op, x

DTYPES = ("float32", "float64", "bfloat16")


def owens_t(h, a):
    """Its integral over the angle by Gauss and Legendre: SciPy loses two digits at (3.4, 0.5)."""
    nodes, weights = np.polynomial.legendre.leggauss(100)
    end = np.arctan(a) / 2
    with np.errstate(all="ignore"):
        slope = np.tan(end[..., None] * (nodes + 1))
        inside = np.exp(-0.5 * (h[..., None] * slope) ** 2)
        return np.exp(-0.5 * h * h) * (inside @ weights) * end / (2 * np.pi)


def row(name, reference, *domains, values=(), ulps=16, dtypes=DTYPES, **options):
    """A function of as many operands as there are domains (low, high)."""
    drawn = [x(2, 3, low=low, high=high) for low, high in domains]
    cases = [case(*drawn)]
    if name in ("gammainc", "xlogy"):
        shapes = ((3,), (2, 1))
        pairs = zip(shapes, domains, strict=True)
        cases.append(case(*(x(*s, low=low, high=high) for s, (low, high) in pairs)))
    return op(
        f"special.{name}",
        reference,
        *cases,
        values=[case(*map(_exactly, values))] if values else (),
        ulps=ulps,
        dtypes=dtypes,
        **options,
    )


def _exactly(values):
    return exactly(*values)


INF, NAN = math.inf, math.nan

ROWS = [
    row("erfcx", sp.erfcx, (-2, 6), values=[(0.0, 30.0, INF, -INF, NAN)]),
    row("erfi", sp.erfi, (-2, 2), values=[(0.0, INF, NAN)]),
    row("dawsn", sp.dawsn, (-4, 6), values=[(0.0, 1e30, -INF, NAN)]),
    row("erfcinv", sp.erfcinv, (0.1, 1.8), values=[(0.0, 2.0, 1.0, -1.0, NAN)]),
    row("ndtri", sp.ndtri, (0.05, 0.9), values=[(0.0, 1.0, 0.5, 2.0, NAN)]),
    row("log_ndtr", sp.log_ndtr, (-6, 2), values=[(0.0, -40.0, -INF, INF, NAN)]),
    row("gamma", sp.gamma, (0.3, 6), values=[(0.0, -0.5, 12.5, INF, NAN)], aliases=[]),
    row("rgamma", sp.rgamma, (0.3, 6), values=[(0.0, -1.0, -2.5, INF, NAN)]),
    row("trigamma", lambda a: sp.polygamma(1, a), (0.3, 6), orders=1),
    row("exp1", sp.exp1, (0.2, 6), values=[(0.0, 30.0, INF, NAN)]),
    row("expi", sp.expi, (-3, 7), values=[(0.0, INF, NAN)], relative=False),
    row("si", lambda a: sp.sici(a)[0], (-3, 9), values=[(0.0, INF, -INF, NAN)]),
    row("ci", lambda a: sp.sici(a)[1], (0.2, 9), values=[(1e-3, NAN)], relative=False),
    row("shi", lambda a: sp.shichi(a)[0], (-2, 5), values=[(0.0, NAN)]),
    row("chi", lambda a: sp.shichi(a)[1], (0.2, 5), values=[(1e-3, NAN)], relative=False),
    row("spence", sp.spence, (0.2, 4), values=[(0.0, 1.0, 100.0, -1.0, NAN)]),
    row("fresnel", sp.fresnel, (-2, 3), values=[(0.0, 50.0, INF, NAN)], out=(lambda d: d,) * 2),
    row("j0", sp.j0, (-3, 12), values=[(0.0, 1e4, NAN)], relative=False),
    row("j1", sp.j1, (-3, 12), values=[(0.0, 1e4, NAN)], relative=False),
    row("y0", sp.y0, (0.3, 12), values=[(0.0, -1.0, NAN)], relative=False),
    row("y1", sp.y1, (0.3, 12), values=[(0.0, -1.0, NAN)], relative=False),
    row("i0", sp.i0, (-3, 12), values=[(0.0, NAN)]),
    row("i1", sp.i1, (0.3, 12), values=[(0.0, -2.0, NAN)]),
    row("i0e", sp.i0e, (0.3, 12), values=[(0.0, -2.0, INF, NAN)]),
    row("i1e", sp.i1e, (0.3, 12), values=[(0.0, -2.0, NAN)]),
    row("k0", sp.k0, (0.3, 8), values=[(0.0, -2.0, INF, NAN)]),
    row("k1", sp.k1, (0.3, 8), values=[(0.0, -2.0, INF, NAN)]),
    row("k0e", sp.k0e, (0.3, 8), values=[(0.0, -2.0, NAN)]),
    row("k1e", sp.k1e, (0.3, 8), values=[(0.0, -2.0, NAN)]),
    # -- several operands
    row(
        "gammainc",
        sp.gammainc,
        (0.5, 4),
        (0.5, 6),
        orders=1,
        ulps=64,
        values=[(0.0, 1.0, 1.0, 2.0, -1.0, 50.0), (1.0, 0.0, INF, NAN, 1.0, 55.0)],
    ),
    row(
        "gammaincc",
        sp.gammaincc,
        (0.5, 4),
        (0.5, 6),
        orders=1,
        ulps=64,
        values=[(0.0, 1.0, 1.0, 2.0, 0.01, 50.0), (1.0, 0.0, INF, NAN, 0.1, 55.0)],
    ),
    row(
        "gammaincinv",
        sp.gammaincinv,
        (0.5, 4),
        (0.1, 0.9),
        orders=1,
        ulps=64,
        values=[(1.0, 1.0, 1.0), (0.0, 1.0, 2.0)],
    ),
    row(
        "betainc",
        sp.betainc,
        (0.5, 4),
        (0.5, 4),
        (0.1, 0.9),
        orders=1,
        ulps=64,
        values=[(1.0, 2.0, 2.0, 20.0), (2.0, 2.0, -1.0, 30.0), (0.0, 1.0, 0.5, 0.4)],
    ),
    row(
        "betaincinv",
        sp.betaincinv,
        (0.5, 4),
        (0.5, 4),
        (0.1, 0.9),
        orders=1,
        ulps=64,
        values=[(1.0, 2.0, 2.0), (2.0, 2.0, -1.0), (0.0, 1.0, 0.5)],
    ),
    row("beta", sp.beta, (0.5, 4), (0.5, 4), values=[(2.0, 40.0), (30.0, 50.0)], ulps=64, orders=1),
    row(
        "betaln",
        sp.betaln,
        (0.5, 4),
        (0.5, 4),
        relative=False,
        ulps=64,
        orders=1,
        aliases=["special.lbeta"],
    ),
    row(
        "zeta",
        sp.zeta,
        (1.5, 5),
        (0.5, 4),
        values=[(1.0, 2.0, 0.5), (1.0, INF, 1.0)],
        orders=0,
        ulps=32,
        dtypes=("float32",),
    ),
    op(
        "special.zeta",
        lambda s, q: sp.zeta(s, q),
        case(3.5, x(2, 3, low=0.5, high=4)),
        dtypes=("float64", "float32"),
        ulps=32,
    ),
    op(
        "special.expn",
        sp.expn,
        case(2, x(2, 3, low=0.2, high=4)),
        case(0, x(3, low=0.2, high=4)),
        dtypes=DTYPES,
        ulps=64,
        orders=1,
    ),
    op(
        "special.polygamma",
        sp.polygamma,
        case(2, x(2, 3, low=0.5, high=4)),
        case(0, x(3, low=0.5, high=4)),
        dtypes=DTYPES,
        ulps=64,
        orders=1,
        relative=False,
    ),
    op(
        "special.multigammaln",
        lambda a, d: np.vectorize(lambda v: sp.multigammaln(v, d))(a),
        case(x(2, 3, low=2, high=5), 3),
        dtypes=DTYPES,
        ulps=64,
        relative=False,
        orders=1,
    ),
    row("poch", sp.poch, (0.5, 4), (0.5, 4), values=[(3.0, 100.0), (2.0, 0.5)], ulps=256, orders=1),
    row("binom", sp.binom, (2, 6), (0.5, 1.9), ulps=64, orders=1),
    op(
        "special.comb",
        sp.comb,
        case(np.array([5, 10, 3, -2]), np.array([2, 3, 4, 1])),
        dtypes=("float32",),
        orders=0,
        out=lambda d: d,
    ),
    op(
        "special.perm",
        sp.perm,
        case(np.array([5, 10, 3, -2]), np.array([2, 3, 4, 1])),
        dtypes=("float32",),
        orders=0,
        out=lambda d: d,
    ),
    op(
        "special.factorial",
        sp.factorial,
        case(np.array([5, 10, 3, -2])),
        dtypes=("float32",),
        orders=0,
        out=lambda d: d,
    ),
    # -- entropies, logistic functions, power transforms
    row("xlogy", sp.xlogy, (0.2, 2), (0.2, 2), values=[(0.0, 0.0, 0.0, 1.0), (0.0, NAN, INF, 0.0)]),
    row("xlog1py", sp.xlog1py, (0.2, 2), (-0.5, 2), values=[(0.0, 0.0, 1.0), (-1.0, NAN, -1.0)]),
    row("entr", sp.entr, (0.1, 2), values=[(0.0, -1.0, NAN, INF)], relative=False),
    row(
        "rel_entr",
        sp.rel_entr,
        (0.2, 2),
        (0.2, 2),
        values=[(0.0, 1.0, 0.0, NAN), (0.0, 0.0, -1.0, 1.0)],
        relative=False,
    ),
    row(
        "kl_div",
        sp.kl_div,
        (0.2, 2),
        (0.2, 2),
        values=[(0.0, 1.0, 0.0, NAN), (0.0, 0.0, -1.0, 1.0)],
        relative=False,
    ),
    row("logit", sp.logit, (0.05, 0.95), values=[(0.0, 1.0, 0.5, 2.0, NAN)]),
    row("log_expit", sp.log_expit, (-3, 3), values=[(0.0, 90.0, -1e4, INF, -INF, NAN)]),
    row("boxcox", sp.boxcox, (0.3, 3), (0.3, 2), values=[(2.0, 0.5), (0.0, -1.0)], relative=False),
    row("boxcox1p", sp.boxcox1p, (-0.5, 3), (0.3, 2), relative=False),
    row("inv_boxcox", sp.inv_boxcox, (0.3, 3), (0.3, 2), values=[(2.0, 0.5), (0.0, -1.0)], ulps=32),
    row("inv_boxcox1p", sp.inv_boxcox1p, (0.3, 3), (0.3, 2), ulps=32),
]


def _parts(y):
    return y.real, y.imag


_HALF = (0.05, 0.9)
ROWS += [
    *(
        row(name, getattr(sp, name), (0.3, 5), out=(lambda d: d,) * 2, relative=False)
        for name in ("sici", "shichi")
    ),
    # -- elliptic integrals, Lambert's W
    row("ellipk", sp.ellipk, (-2, 0.9), values=[(0.0, 1.0, 2.0, NAN)], orders=1),
    row("ellipkm1", sp.ellipkm1, _HALF, values=[(1e-30, 1.0, 0.0)], orders=1),
    row("ellipe", sp.ellipe, (-2, 0.9), values=[(0.0, 1.0, 2.0, NAN)], orders=1),
    row("ellipkinc", sp.ellipkinc, (-4, 4), _HALF, orders=1),
    row("ellipeinc", sp.ellipeinc, (-4, 4), _HALF, orders=1),
    row("elliprf", sp.elliprf, (0.2, 3), (0.2, 3), (0.2, 3), orders=1),
    row("elliprc", sp.elliprc, (0.2, 3), (0.2, 3), values=[(1.0, 2.0), (-2.0, 2.0)], orders=1),
    row("elliprd", sp.elliprd, (0.2, 3), (0.2, 3), (0.2, 3), orders=0, dtypes=("float32",)),
    row("elliprj", sp.elliprj, *[(0.2, 3)] * 4, orders=0, dtypes=("float32",)),
    row(
        *("ellipj", sp.ellipj, (-2, 2), _HALF),
        out=(lambda d: d,) * 4,
        orders=1,
        ulps=64,
        relative=False,
    ),
    op(
        *("special.lambertw", lambda a, k=0: sp.lambertw(a, k).real),
        case(x(2, 3, low=-0.3, high=5)),
        case(x(3, low=-0.3, high=-0.05), -1),
        dtypes=DTYPES,
        ulps=32,
        orders=1,
    ),
    op(
        *("special.lambertw", sp.lambertw),
        case(x(2, 3, low=0.3, high=5), 2),
        case(x(3, low=0.1, high=2)),
        values=[case(exactly(0j, -1 + 0j, -0.36 + 0j, 1e10j), k) for k in (0, -1)],
        dtypes=("complex64", "complex128"),
        ulps=32,
        relative=False,
        orders=1,
    ),
    op(
        *("special.loggamma", sp.loggamma),
        case(x(3, 2, low=-3, high=5)),
        values=[case(exactly(1 + 0j, -2.5 + 0j, 1e5 + 3j, 0.5 - 20j, 2 + 0.1j))],
        dtypes=("complex64", "complex128"),
        ulps=64,
        relative=False,
        orders=1,
    ),
    row("loggamma", sp.loggamma, (0.2, 9), values=[(-1.5, INF, NAN)], relative=False),
    # -- polynomials
    *(
        op(
            *(f"special.{name}", getattr(sp, name)),
            case(5, *(1.5, 0.5)[:extra], x(2, 3, low=-0.9, high=0.9)),
            case(0, *(1.5, 0.5)[:extra], x(3)),
            dtypes=DTYPES,
            ulps=64,
            relative=False,
            aliases=["special.legendre_p"] if name == "eval_legendre" else [],
        )
        for name, extra in (
            *(("eval_legendre", 0), ("eval_chebyt", 0), ("eval_chebyu", 0), ("eval_hermite", 0)),
            *(("eval_hermitenorm", 0), ("eval_laguerre", 0), ("eval_genlaguerre", 1)),
            *(("eval_gegenbauer", 1), ("eval_jacobi", 2)),
        )
    ),
    op(
        *("special.assoc_legendre_p", lambda n, m, a: sp.assoc_legendre_p(n, m, a)[0]),
        case(3, 2, x(2, 3, low=-0.9, high=0.9)),
        case(4, -3, x(3, low=-0.9, high=0.9)),
        dtypes=DTYPES,
        ulps=64,
        relative=False,
    ),
    op(
        *("special.sph_harm_y", lambda *a: _parts(sp.sph_harm_y(*a))),
        case(3, 2, x(2, 3, low=0.2, high=3), x(2, 3, low=0, high=6)),
        dtypes=("float32", "float64"),
        call=lambda *a: _parts(nm.special.sph_harm_y(*a)),
        out=(lambda d: d,) * 2,
        ulps=64,
        relative=False,
        orders=1,
    ),
]


def ordered(name, reference, orders, domain, values=(), aliases=(), **options):
    """A function of an order, which is not differentiated, and an argument."""
    low, high = domain
    return op(
        f"special.{name}",
        reference,
        *(case(order, x(2, 3, low=low, high=high)) for order in orders),
        values=[case(*map(_exactly, values))] if values else (),
        **{"ulps": 256, "dtypes": DTYPES, "orders": 1, "aliases": aliases, **options},
    )


_SMALL = (0.0, 1.0, 2.0, -1.0, 0.5, 60.0, 3.0)
_POINTS = (0.0, 0.0, NAN, -3.0, 40.0, 55.0, 2.5)
ROWS += [
    ordered(
        *("jv", sp.jv, (0.3,), (0.4, 50), (_SMALL, _POINTS), ["special.jn", "special.jve"]),
        relative=False,
    ),
    ordered(
        *("yv", sp.yv, (2.3,), (0.4, 50)),
        values=((0.0, 1.0, -1.0, 0.5, 3.0), (0.0, NAN, 3.0, 40.0, 2.5)),
        aliases=["special.yn", "special.yve"],
        relative=False,
    ),
    ordered("iv", sp.iv, (1.3,), (0.4, 30), (_SMALL, _POINTS)),
    ordered("ive", sp.ive, (1.3,), (0.4, 30), (_SMALL, _POINTS)),
    ordered("kv", sp.kv, (1.3,), (0.4, 30), aliases=["special.kn"]),
    ordered(
        *("struve", sp.struve, (0.7,), (0.4, 30)),
        values=((0.0, 1.0, -0.5, -1.5, 3.0), (0.0, -2.0, 40.0, 2.0, NAN)),
        relative=False,
    ),
    ordered("kve", sp.kve, (1.3,), (0.4, 30)),
    *(
        row(
            *(name, getattr(sp, name), (low, 7)),
            values=[(0.0, 12.0, NAN)],
            out=(lambda d: d,) * 4,
            relative=False,
        )
        for name, low in (("airy", -9), ("airye", 0.1))
    ),
    op(
        *("special.wofz", sp.wofz, case(x(2, 3, low=-0.5, high=3))),
        values=[case(exactly(0j, 30 + 1e-3j, 2 - 1j, 1e6 + 0j, -1 + 0.2j))],
        dtypes=("complex64", "complex128"),
        ulps=64,
        relative=False,
        orders=1,
    ),
    row(
        *("voigt_profile", sp.voigt_profile, (-2, 4), (0.3, 2), (0.2, 2)),
        values=[(0.0, 1.0, 1.0, 0.0), (0.0, 0.0, 2.0, 0.0), (1.0, 2.0, 0.0, 0.0)],
        ulps=64,
        orders=1,
    ),
    row(
        *("owens_t", owens_t, (-2, 4), (-3, 3)),
        values=[(0.0, 1.0, 2.0, NAN, 30.0), (1.0, 0.0, INF, 1.0, 0.5)],
        ulps=64,
        orders=1,
    ),
    *(
        op(
            *(f"special.{name}", getattr(sp, name)),
            case(*parameters, x(2, 3, low=low, high=high)),
            values=[case(*(exactly(*v) for v in values))],
            dtypes=DTYPES,
            ulps=256,
            relative=False,
            orders=1,
        )
        for name, parameters, (low, high), values in (
            ("hyp0f1", (1.3,), (-9, 9), ((1.5, 2.0, 3.0), (0.0, 300.0, NAN))),
            (
                *("hyp1f1", (1.3, 2.6), (-9, 9)),
                ((1.0, -3.0, -1.5, 2.0), (2.0, 1.5, 2.5, 1.0), (0.0, 2.0, 6.0, NAN)),
            ),
            (
                *("hyp2f1", (0.7, 1.6, 2.3), (-3, 0.9)),
                (
                    (1.0, -2.0, 1.0, 0.5),
                    (2.0, 3.0, 1.0, 1.0),
                    (3.5, 1.5, 2.0, 2.0),
                    (1.0, 2.0, 0.999, NAN),
                ),
            ),
            (
                *("hyperu", (0.7, 1.6), (0.2, 9)),
                ((1.0, -2.0, 2.5, 0.5), (2.0, 1.5, 1.0, 1.0), (4.0, 0.5, 0.1, NAN)),
            ),
        )
    ),
    *(
        ordered(
            *(f"spherical_{name}", getattr(sp, f"spherical_{name}"), (2,), (0.4, 9)),
            ((0, 1, 3), (0.0, 2.0, NAN)),
            relative=name in ("in", "kn"),
        )
        for name in ("jn", "yn", "in", "kn")
    ),
]
ROWS += [
    op(
        *("special.sph_harm", lambda m, n, a, p: _parts(sp.sph_harm_y(n, m, p, a))),
        case(1, 2, x(2, 3, low=0, high=6), x(2, 3, low=0.2, high=3)),
        dtypes=("float32", "float64"),
        call=lambda *a: _parts(nm.special.sph_harm(*a)),
        out=(lambda d: d,) * 2,
        ulps=64,
        relative=False,
        orders=1,
    ),
]

# all checks of rows that share their form with others are `slow`: each compiles kernels of its own
_ALWAYS = ("special.j0", "special.gammainc", "special.betainc", "special.xlogy", "special.gamma")
ROWS = [r if r.name in _ALWAYS else r.replace(brief=True) for r in ROWS]
