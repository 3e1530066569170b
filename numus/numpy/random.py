"""NumPy's random numbers over numus's counter-based generator (Threefry-2x32).

The distributions are NumPy's; the numbers of a seed are numus's own, the same on every device.
"""

from __future__ import annotations

from typing import Any

import numpy as host

from numus import dtypes as dt
from numus import random as _random
from numus.numpy._convert import to_tensor
from numus.numpy._results import result
from numus.tensor import Tensor


class Generator(_random.Generator):
    """Draws from a key; each one counts. Floats are float64."""

    float_dtype = dt.float64

    def _tensor(self, x: Any, dtype: Any = None) -> Tensor:
        return to_tensor(x, dtype)

    def _result(self, x: Tensor) -> Any:
        return result(x)


class RandomState(Generator):
    """NumPy's older generator, with its names."""

    def seed(self, seed: Any = None) -> None:
        """Start anew."""
        Generator.__init__(self, seed)

    def rand(self, *shape: int) -> Any:
        """Uniform numbers in [0, 1)."""
        return self.random(shape or None)

    def randn(self, *shape: int) -> Any:
        """Normal numbers of mean 0 and variance 1."""
        return self.standard_normal(shape or None)

    def randint(self, low: Any, high: Any = None, size: Any = None, dtype: Any = int) -> Any:
        """Integers of a range."""
        return self.integers(low, high, size, dtype)

    def random_integers(self, low: Any, high: Any = None, size: Any = None) -> Any:
        """Integers from low (1) to high, both included."""
        first, last = (1, low) if high is None else (low, high)
        return self.integers(first, last, size, endpoint=True)

    def random_sample(self, size: Any = None) -> Any:
        """Uniform numbers in [0, 1)."""
        return self.random(size)

    def get_state(self, legacy: bool = True) -> Any:
        """The state, for set_state."""
        return self.state

    def set_state(self, state: Any) -> None:
        """Go on from a state."""
        self.state = state

    ranf = sample = tomaxint = random_sample


def default_rng(seed: Any = None) -> Any:
    """A generator of a seed; a generator is returned as it is."""
    return seed if isinstance(seed, Generator) else Generator(seed)


_global = RandomState()
SeedSequence = host.random.SeedSequence
BitGenerator = PCG64 = PCG64DXSM = MT19937 = Philox = SFC64 = Generator

_FUNCTIONS = """
    beta binomial bytes chisquare choice dirichlet exponential f gamma geometric get_state gumbel
    hypergeometric laplace logistic lognormal logseries multinomial multivariate_normal
    negative_binomial noncentral_chisquare noncentral_f normal pareto permutation poisson power
    rand randint randn random random_integers random_sample ranf rayleigh sample seed set_state
    shuffle standard_cauchy standard_exponential standard_gamma standard_normal standard_t
    triangular uniform vonmises wald weibull zipf
""".split()
globals().update({name: getattr(_global, name) for name in _FUNCTIONS})

__all__ = [
    "BitGenerator", "Generator", "MT19937", "PCG64", "PCG64DXSM", "Philox", "RandomState", "SFC64",
    "SeedSequence", "default_rng", *_FUNCTIONS,
]  # fmt: skip
