"""Special functions in kernel IR, by primitive name, for every backend; see kernels/math."""

from __future__ import annotations

from collections.abc import Callable

from numus.ir import Expr
from numus.kernels.special import (
    bessel,
    elliptic,
    error,
    gamma,
    incomplete,
    integrals,
    parameter_slopes,
    zeta,
)

FUNCTIONS: dict[str, Callable[..., Expr]] = {
    f.__name__: f
    for f in (
        *(error.erfcx, error.erfi, error.dawsn, error.ndtri, error.erfcinv, error.log_ndtr),
        *(gamma.gamma, gamma.rgamma, zeta.zeta, zeta.expn),
        *(incomplete.gammainc, incomplete.gammaincc, incomplete.gammaincinv),
        *(incomplete.betainc, incomplete.betaincinv, incomplete.betaln),
        *(parameter_slopes.gammainc_by_a,),
        *(parameter_slopes.betainc_by_a, parameter_slopes.betainc_by_b),
        *(integrals.exp1, integrals.expi, integrals.si, integrals.ci, integrals.shi),
        *(integrals.chi, integrals.spence, integrals.fresnel_s, integrals.fresnel_c),
        *(bessel.j0, bessel.j1, bessel.y0, bessel.y1, bessel.i0, bessel.i1, bessel.i0e),
        *(elliptic.elliprf, elliptic.elliprd, elliptic.elliprj, elliptic.ellipkm1),
        *(elliptic.ellipk, elliptic.ellipe, elliptic.ellipkinc, elliptic.ellipeinc),
        *(elliptic.lambertw_0, elliptic.lambertw_lower),
        *(bessel.i1e, bessel.k0, bessel.k1, bessel.k0e, bessel.k1e),
    )
}
