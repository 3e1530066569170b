"""Special functions in kernel IR, by primitive name, for every backend; see kernels/math."""

from __future__ import annotations

from collections.abc import Callable

from numus.ir import Expr
from numus.kernels.special import (
    bessel,
    complex_gamma,
    elliptic,
    error,
    faddeeva,
    gamma,
    incomplete,
    integrals,
    lambert,
    parameter_slopes,
    zeta,
)
from numus.kernels.special.airy import functions as airy
from numus.kernels.special.bessel_order import modified, oscillating, spherical, struve
from numus.kernels.special.hypergeometric import confluent, gauss, tricomi

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
        *(complex_gamma.loggamma_real, complex_gamma.loggamma_imag),
        *(complex_gamma.loggamma_slope_real, complex_gamma.loggamma_slope_imag),
        *(lambert.lambertw_real, lambert.lambertw_imag),
        *(struve.struve,),
        *(gauss.hyp2f1, confluent.hyp1f1, confluent.hyp0f1, tricomi.hyperu),
        *(faddeeva.wofz_real, faddeeva.wofz_imag, faddeeva.owens_t),
        *(airy.airy_ai, airy.airy_ai_slope, airy.airy_bi, airy.airy_bi_slope),
        *(airy.airye_ai, airy.airye_ai_slope, airy.airye_bi, airy.airye_bi_slope),
        *(spherical.spherical_jn, spherical.spherical_yn),
        *(spherical.spherical_in, spherical.spherical_kn),
        *(oscillating.jv, oscillating.yv, modified.iv, modified.ive, modified.kv, modified.kve),
        *(bessel.i1e, bessel.k0, bessel.k1, bessel.k0e, bessel.k1e),
    )
}
