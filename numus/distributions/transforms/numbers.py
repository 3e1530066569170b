"""Maps of numbers, one by one."""

from __future__ import annotations

import math
from typing import Any

import numus as nm
from numus.distributions import constraints
from numus.distributions.constraints import Constraint
from numus.distributions.transforms.base import Transform, sum_last
from numus.shapes import Shape
from numus.special import log_expit, logit, softplus
from numus.tensor import Tensor

__all__ = [
    "AbsTransform", "AffineTransform", "CumulativeDistributionTransform", "ExpTransform",
    "PowerTransform", "SigmoidTransform", "SoftplusTransform", "TanhTransform",
]  # fmt: skip


class ExpTransform(Transform):
    """y = exp(x)."""

    codomain = constraints.positive

    def __call__(self, x: Tensor) -> Tensor:
        return nm.exp(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return nm.log(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class PowerTransform(Transform):
    """y = x**exponent of positive numbers."""

    domain = constraints.positive
    codomain = constraints.positive

    def __init__(self, exponent: Any) -> None:
        self.exponent = exponent

    @property
    def sign(self) -> Any:
        """That of the exponent."""
        e = self.exponent
        return nm.sign(e) if isinstance(e, Tensor) else math.copysign(1, e)

    def __call__(self, x: Tensor) -> Tensor:
        return x**self.exponent

    def _inverse(self, y: Tensor) -> Tensor:
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return nm.log(nm.abs(self.exponent * y / x))

    def _settings(self) -> tuple[Any, ...]:
        return (self.exponent,)


class SigmoidTransform(Transform):
    """y = 1 / (1 + exp(-x)), kept inside (0, 1)."""

    codomain = constraints.unit_interval

    def __call__(self, x: Tensor) -> Tensor:
        info = nm.finfo(x.dtype)
        return nm.clip(nm.sigmoid(x), float(info.smallest_normal), 1 - float(info.eps) / 2)

    def _inverse(self, y: Tensor) -> Tensor:
        return logit(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return log_expit(x) + log_expit(-x)


class SoftplusTransform(Transform):
    """y = log(1 + exp(x))."""

    codomain = constraints.positive

    def __call__(self, x: Tensor) -> Tensor:
        return softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return y + nm.log(-nm.expm1(-y))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return log_expit(x)


class TanhTransform(Transform):
    """y = tanh(x)."""

    codomain = constraints.interval(-1.0, 1.0)

    def __call__(self, x: Tensor) -> Tensor:
        return nm.tanh(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return nm.atanh(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return 2 * (math.log(2) - x - softplus(-2 * x))


class AbsTransform(Transform):
    """y = |x|, which is no bijection: its inverse gives the positive value."""

    bijective = False
    codomain = constraints.nonnegative

    def __call__(self, x: Tensor) -> Tensor:
        return nm.abs(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class AffineTransform(Transform):
    """y = loc + scale x; of vectors or matrices where `event_dim` is 1 or 2."""

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0) -> None:
        self.loc, self.scale, self.event_dim = loc, scale, event_dim
        self.domain = self.codomain = constraints.independent(constraints.real, event_dim)
        if event_dim == 0:
            self.domain = self.codomain = constraints.real

    @property
    def sign(self) -> Any:
        """That of the scale."""
        s = self.scale
        return nm.sign(s) if isinstance(s, Tensor) else math.copysign(1, s)

    def __call__(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        size = nm.log(nm.abs(nm.asarray(self.scale, dtype=x.dtype, device=x.device)))
        return sum_last(nm.broadcast_to(size, x.shape), self.event_dim)

    def forward_shape(self, shape: Shape) -> Shape:
        given = (getattr(v, "shape", ()) for v in (self.loc, self.scale))
        return tuple(nm.broadcast_shapes(shape, *given))

    inverse_shape = forward_shape

    def _settings(self) -> tuple[Any, ...]:
        return self.loc, self.scale, self.event_dim


class CumulativeDistributionTransform(Transform):
    """y = cdf(x) of a distribution of numbers: uniform where x is drawn from it."""

    codomain = constraints.unit_interval

    def __init__(self, distribution: Any) -> None:
        self.distribution = distribution

    @property
    def domain(self) -> Constraint:
        """The support of the distribution."""
        found: Constraint = self.distribution.support
        return found

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self.distribution.cdf(x)
        return y

    def _inverse(self, y: Tensor) -> Tensor:
        x: Tensor = self.distribution.icdf(y)
        return x

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = self.distribution.log_prob(x)
        return found

    def _settings(self) -> tuple[Any, ...]:
        return (self.distribution,)
