"""`jax.scipy.special`."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus import special
from numus.jax._adapt import forwarder

_NAMES = """
    bernoulli beta betainc betaln digamma ellipeinc ellipkinc entr erf erfc erfcx erfinv exp1 expi
    expit expn factorial fresnel gamma gammainc gammaincc gammaln hyp1f1 hyp2f1 i0 i0e i1 i1e
    kl_div log_ndtr logit logsumexp multigammaln ndtr ndtri owens_t poch polygamma rel_entr sici
    spence wofz xlog1py xlogy zeta comb
"""


def _source(name: str) -> Any:
    return getattr(special, name) if hasattr(special, name) else getattr(nm, name)


__getattr__, __dir__ = forwarder(__name__, [*_NAMES.split(), "softmax", "log_softmax"], _source, {})
