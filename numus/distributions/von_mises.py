"""The von Mises distribution of angles, with its cdf and implicit gradients by quadrature."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

import numus as nm
from numus.distributions import constraints
from numus.distributions.distribution import Distribution, Key
from numus.special import i0e, i1e
from numus.tensor import Tensor

__all__ = ["VonMises"]

_POINTS = 48  # of Gauss and Legendre: 1e-12 over the widths below
_WIDTHS = 9.0  # standard deviations, beyond which there is less than float64 resolves
_DECAY = 40.0  # exponents, the same


def _nodes(like: Tensor) -> tuple[Tensor, Tensor]:
    """Points and weights of Gauss-Legendre quadrature on [0, 1]."""
    points, weights = np.polynomial.legendre.leggauss(_POINTS)
    return tuple(
        nm.asarray(x, dtype=like.dtype, device=like.device) for x in ((points + 1) / 2, weights / 2)
    )  # type: ignore[return-value]


def one_less_ratio(k: Tensor) -> Tensor:
    """1 - I1(k) / I0(k), which cancels at large k."""
    large = k > 50
    near = nm.where(large, 1.0, k)
    r = 1 / nm.where(large, k, 50.0)
    series = (
        0.5 + r * (1 / 8 + r * (1 / 8 + r * (25 / 128 + r * (13 / 32 + r * 1073 / 1024))))
    ) * r
    return nm.where(large, series, (i0e(near) - i1e(near)) / i0e(near))


def _central_mass(angle: Tensor, k: Tensor) -> Tensor:
    """The probability of angles from 0 to one in [0, pi]."""
    points, weights = _nodes(angle)
    width = nm.minimum(angle, _WIDTHS / nm.sqrt(nm.maximum(k, 1e-6)) * (math.pi / 2))
    t = width[..., None] * points
    density = nm.exp(-2 * k[..., None] * nm.sin(0.5 * t) ** 2)
    return width * nm.sum(weights * density, axis=-1) / (2 * math.pi * i0e(k))


def _slope(angle: Tensor, k: Tensor) -> Tensor:
    """d angle / dk at fixed cdf, for angles from 0 to pi: -(dF/dk) / density.

    dF/dk is the integral of density (cos t - A), A = I1(k) / I0(k), from 0 to the angle, or less
    that from the angle to pi. The one whose integrand has one sign is taken: nothing cancels.
    """
    points, weights = _nodes(angle)
    less = one_less_ratio(k)
    rise = 2 * nm.sin(0.5 * angle) ** 2  # 1 - cos
    inner = rise < less
    decay = nm.maximum(k * nm.sin(angle), nm.sqrt(nm.maximum(k, 1e-6)))
    outwards = nm.minimum(math.pi - angle, _DECAY / decay)
    start, width = nm.where(inner, 0.0, angle), nm.where(inner, angle, outwards)
    t = start[..., None] + width[..., None] * points
    here = 2 * nm.sin(0.5 * t) ** 2
    # cos t - cos(angle), the exponent relative to the density at the angle, as a product
    gap = 2 * nm.sin(0.5 * (angle[..., None] + t)) * nm.sin(0.5 * (angle[..., None] - t))
    terms = weights * nm.exp(k[..., None] * gap) * (less[..., None] - here)
    total = width * nm.sum(terms, axis=-1)
    return nm.where(inner, -total, total)


class VonMises(Distribution):
    """Angles in [-pi, pi] about `loc` with `concentration`: the normal distribution of a circle.

    Draws are differentiable by implicit reparametrisation.

    >>> d = nm.distributions.VonMises(0.0, 4.0)
    >>> d.cdf(0.0)
    tensor(0.5)
    >>> d.variance
    tensor(0.13647753)
    """

    arg_constraints: ClassVar = {"loc": constraints.real, "concentration": constraints.positive}
    support = constraints.real
    has_rsample = True
    loc: Tensor
    concentration: Tensor

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, loc=loc, concentration=concentration)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        shape, k = self._draw_shape(sample_shape), self.concentration
        fixed = k.detach()
        angle = nm.random.vonmises(shape, 0.0, fixed, dtype=self.dtype, device=self.device, key=key)
        if k.requires_grad:
            slope = nm.sign(angle) * _slope(nm.abs(angle), nm.broadcast_to(fixed, shape))
            angle = angle + slope.detach() * (k - fixed)
        return _wrapped(angle + self.loc)

    def log_prob(self, value: Any) -> Tensor:
        k = self.concentration
        rise = 2 * nm.sin(0.5 * (self._value(value) - self.loc)) ** 2
        return -k * rise - nm.log(2 * math.pi * i0e(k))

    def cdf(self, value: Any) -> Tensor:
        """The probability of angles from loc - pi to `value`, which is taken within a turn."""
        z = _wrapped(self._value(value) - self.loc)
        k = nm.broadcast_to(self.concentration, z.shape)
        return 0.5 + nm.sign(z) * _central_mass(nm.abs(z), k)

    @property
    def mean(self) -> Tensor:
        """The circular mean."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The circular variance 1 - I1(k) / I0(k)."""
        return one_less_ratio(self.concentration)

    def entropy(self) -> Tensor:
        k = self.concentration
        return nm.log(2 * math.pi * i0e(k)) + k * one_less_ratio(k)


def _wrapped(angle: Tensor) -> Tensor:
    """An angle in [-pi, pi]."""
    return angle - (2 * math.pi) * nm.round(angle.detach() * (0.5 / math.pi))
