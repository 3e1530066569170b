"""Random numbers without state: a key and a counter give the bits (Threefry-2x32, 20 rounds).

A key is a uint32 tensor of shape (2,). `key(seed)` makes one, `split` and `fold_in` make more of
it; the same key gives the same numbers on every device and with any number of threads. Every
function takes `key=`; without it, it draws from a generator of this process, which `seed(n)` starts
anew: draw i after `seed(n)` uses `fold_in(key(n), i)`.

Layout. Counter i gives two words of 32 bits. N numbers that need one word each
take ceil(N / 2) counters: the first words of all counters make the first half of the (row-major)
result, the second words the other half. So they depend on N, and not on the shape. Numbers that
need 64 bits (float64, uint64, integers from a range that is no power of two) take a counter each.
Normals come in pairs by Box and Muller: r cos φ in the first half, r sin φ in the second; in
float32 a pair takes one counter, in float64 two.
"""

import importlib
from typing import TYPE_CHECKING, Any

from numus.random import _fills as _fills  # methods of Tensor
from numus.random._distributions import categorical, exponential, gumbel, truncated_normal
from numus.random._keys import fold_in, get_state, key, seed, set_state, split
from numus.random._permutation import choice, permutation, shuffle
from numus.random._sampling import (
    bernoulli,
    bits,
    dropout,
    dropout_mask,
    integers,
    normal,
    rand,
    randint,
    randn,
    uniform,
)

# Imported when they are first asked for: draws that need more than uniform and normal numbers.
_LAZY = {
    "_continuous": """
        beta chisquare f gamma laplace logistic lognormal noncentral_chisquare noncentral_f pareto
        power rayleigh standard_t triangular vonmises wald weibull
    """,
    "_discrete": """
        binomial geometric hypergeometric logseries negative_binomial poisson zipf
    """,
    "_generator": "Generator default_rng",
    "_quasirandom": "halton lattice latin_hypercube sobol",
    "_multivariate": """
        dirichlet multinomial multivariate_hypergeometric multivariate_normal permuted wishart
    """,
}
_MODULES = {name: module for module, names in _LAZY.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'numus.random' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"numus.random.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


if TYPE_CHECKING:
    from numus.random._continuous import *  # noqa: F403
    from numus.random._discrete import *  # noqa: F403
    from numus.random._generator import *  # noqa: F403
    from numus.random._multivariate import *  # noqa: F403
    from numus.random._quasirandom import *  # noqa: F403

__all__ = [
    "bernoulli", "bits", "categorical", "choice", "dropout", "dropout_mask", "exponential",
    "fold_in", "get_state", "gumbel", "integers", "key", "normal", "permutation", "rand", "randint",
    "randn", "seed", "set_state", "shuffle", "split", "truncated_normal", "uniform",
    *_MODULES,
]  # fmt: skip
