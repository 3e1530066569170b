"""NumPy's random numbers over numus's counter-based generator (Threefry-2x32).

The distributions are NumPy's; the numbers of a seed are numus's own, the same on every device.
"""

from __future__ import annotations

from typing import Any

import numpy as host

from numus import dtypes as dt
from numus import random as _random
from numus.numpy._convert import OfFace
from numus.random._generator import LegacyNames as _Legacy


class Generator(OfFace, _random.Generator):
    """Draws from a key; each one counts. Floats are float64."""

    float_dtype = dt.float64


class RandomState(_Legacy, Generator):
    """NumPy's older generator, with its names."""


def default_rng(seed: Any = None) -> Any:
    """A generator of a seed; a generator is returned as it is."""
    return seed if isinstance(seed, Generator) else Generator(seed)


_global = RandomState()
SeedSequence = host.random.SeedSequence
BitGenerator = PCG64 = PCG64DXSM = MT19937 = Philox = SFC64 = Generator

_FUNCTIONS = [n for n in host.random.__all__ if n.islower() and hasattr(_global, n)]
globals().update({name: getattr(_global, name) for name in _FUNCTIONS})

__all__ = [
    "BitGenerator", "Generator", "MT19937", "PCG64", "PCG64DXSM", "Philox", "RandomState", "SFC64",
    "SeedSequence", "default_rng", *_FUNCTIONS,
]  # fmt: skip
