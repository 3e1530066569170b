"""Probability distributions with PyTorch's interface: draws, densities, moments, divergences.

Draws take a `key` as the functions of `nm.random` do. Everything is composed of numus's functions:
it runs on every device, inside `nm.jit` and `nm.vmap`, and differentiates.

>>> d = nm.distributions.Normal(nm.asarray([0.0, 1.0]), 1.0)
>>> d.sample((3,), key=nm.random.key(0)).shape
(3, 2)
"""

# ruff: noqa: F403
from numus.distributions import (
    bernoulli,
    categorical,
    composite,
    constraint_registry,
    constraints,
    counts,
    distribution,
    gamma,
    kl,
    location_scale,
    matrices,
    multivariate_normal,
    normal,
    relaxed,
    simplex,
    tails,
    transforms,
    von_mises,
)
from numus.distributions.bernoulli import *
from numus.distributions.categorical import *
from numus.distributions.composite import *
from numus.distributions.constraint_registry import *
from numus.distributions.counts import *
from numus.distributions.distribution import *
from numus.distributions.gamma import *
from numus.distributions.kl import *
from numus.distributions.location_scale import *
from numus.distributions.matrices import *
from numus.distributions.multivariate_normal import *
from numus.distributions.normal import *
from numus.distributions.relaxed import *
from numus.distributions.simplex import *
from numus.distributions.tails import *
from numus.distributions.transforms import *
from numus.distributions.von_mises import *

__all__ = ["constraints", "transforms"]
for _room in (
    *(bernoulli, categorical, composite, constraint_registry, counts, distribution, gamma, kl),
    *(location_scale, matrices, multivariate_normal, normal, relaxed, simplex, tails),
    *(transforms, von_mises),
):
    __all__ += _room.__all__
