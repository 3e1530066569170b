"""Distributions made of others: independent axes, mapped values, mixtures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numus as nm
from numus import dtypes as dt
from numus.distributions import constraints
from numus.distributions.categorical import Categorical
from numus.distributions.constraints import Constraint
from numus.distributions.distribution import Distribution, Key, keys
from numus.distributions.normal import Normal
from numus.distributions.transforms.base import ComposeTransform, Transform, sum_last
from numus.distributions.transforms.vectors import StickBreakingTransform
from numus.errors import ShapeError
from numus.shapes import Shape, as_shape
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import Tensor

__all__ = ["Independent", "LogisticNormal", "MixtureSameFamily", "TransformedDistribution"]


class _OfBase(Distribution):
    """A distribution made of one other, on its device and in its dtype."""

    base_dist: Distribution

    @property
    def dtype(self) -> dt.DType:
        """The base's."""
        return self.base_dist.dtype

    @property
    def device(self) -> Any:
        """The base's."""
        return self.base_dist.device


class Independent(_OfBase):
    """A distribution whose last batch axes are taken as axes of an event.

    >>> rows = nm.distributions.Normal(nm.zeros((3, 4)), 1.0)
    >>> d = nm.distributions.Independent(rows, 1)
    >>> d.batch_shape, d.event_shape, d.log_prob(nm.zeros((3, 4))).shape
    ((3,), (4,), (3,))
    """

    reinterpreted_batch_ndims: int

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        self._set_validation(validate_args)
        if reinterpreted_batch_ndims > len(base_distribution.batch_shape):
            raise ShapeError(
                f"Independent: reinterpreted_batch_ndims={reinterpreted_batch_ndims}, but the "
                f"batch shape is {base_distribution.batch_shape}"
            )
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether the base has."""
        return self.base_dist.has_rsample

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether the base has, if no axes are taken."""
        return not self.reinterpreted_batch_ndims and self.base_dist.has_enumerate_support

    @property
    def support(self) -> Constraint:
        """The base's, with more axes."""
        if not self.reinterpreted_batch_ndims:
            found: Constraint = self.base_dist.support
            return found
        return constraints.independent(self.base_dist.support, self.reinterpreted_batch_ndims)

    @property
    def batch_shape(self) -> Shape:
        """The base's, without the axes that were taken."""
        base = self.base_dist.batch_shape
        return base[: len(base) - self.reinterpreted_batch_ndims]

    @property
    def event_shape(self) -> Shape:
        """The axes that were taken, and the base's."""
        base = self.base_dist.batch_shape
        return base[len(base) - self.reinterpreted_batch_ndims :] + self.base_dist.event_shape

    def expand(self, batch_shape: Any) -> Self:
        shape = as_shape(batch_shape, "Independent.expand")
        event = self.event_shape[: self.reinterpreted_batch_ndims]
        new = type(self)(
            self.base_dist.expand(shape + event),
            self.reinterpreted_batch_ndims,
            validate_args=False,
        )
        new._validate_args = self._validate_args
        return new

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self.base_dist.rsample(sample_shape, key=key)

    def sample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self.base_dist.sample(sample_shape, key=key)

    def log_prob(self, value: Any) -> Tensor:
        return sum_last(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def entropy(self) -> Tensor:
        return sum_last(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        if self.reinterpreted_batch_ndims:
            raise NotImplementedError("Independent: a product of supports is not enumerated")
        return self.base_dist.enumerate_support(expand)

    def __repr__(self) -> str:
        return f"Independent({self.base_dist!r}, {self.reinterpreted_batch_ndims})"


class TransformedDistribution(_OfBase):
    """Values of a distribution, mapped by one transform or several.

    >>> t = nm.distributions.transforms.ExpTransform()
    >>> d = nm.distributions.TransformedDistribution(nm.distributions.Normal(0.0, 1.0), t)
    >>> d.log_prob(1.0)
    tensor(-0.9189385)
    """

    transforms: tuple[Transform, ...]

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:
        self._set_validation(validate_args)
        given = [transforms] if isinstance(transforms, Transform) else list(transforms)
        for t in given:
            if not isinstance(t, Transform):
                raise TypeError(f"TransformedDistribution: {t!r} is no transform")
        self.transforms = tuple(given)
        domain = ComposeTransform(given).domain
        events, batch = len(base_distribution.event_shape), base_distribution.batch_shape
        if len(batch) + events < domain.event_dim:
            raise ShapeError(
                f"TransformedDistribution: the transforms take {domain.event_dim} axes, but the "
                f"draws have shape {batch + base_distribution.event_shape}"
            )
        # parameters of transforms may be of a larger batch
        shape = batch + base_distribution.event_shape
        forward = ComposeTransform(given)
        wider = forward.inverse_shape(forward.forward_shape(shape))
        if wider != shape:
            base_distribution = base_distribution.expand(wider[: len(wider) - events])
        if domain.event_dim > events:
            base_distribution = Independent(base_distribution, domain.event_dim - events)
        self.base_dist = base_distribution

    def _map(self) -> ComposeTransform:
        return ComposeTransform(self.transforms)

    def _event_dim(self) -> int:
        t = self._map()
        extra = t.codomain.event_dim - t.domain.event_dim
        return max(len(self.base_dist.event_shape) + extra, t.codomain.event_dim)

    def _shape(self) -> Shape:
        return self._map().forward_shape(self.base_dist.batch_shape + self.base_dist.event_shape)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether the base has."""
        return self.base_dist.has_rsample

    @property
    def support(self) -> Constraint:
        """The codomain of the last transform."""
        if not self.transforms:
            found: Constraint = self.base_dist.support
            return found
        last = self.transforms[-1].codomain
        extra = self._event_dim() - last.event_dim
        return constraints.independent(last, extra) if extra > 0 else last

    @property
    def batch_shape(self) -> Shape:
        """The shape of the draws without an event."""
        shape = self._shape()
        return shape[: len(shape) - self._event_dim()]

    @property
    def event_shape(self) -> Shape:
        """The shape of an event after the transforms."""
        shape = self._shape()
        return shape[len(shape) - self._event_dim() :]

    def expand(self, batch_shape: Any) -> Self:
        shape = as_shape(batch_shape, "TransformedDistribution.expand")
        whole = self._map().inverse_shape(shape + self.event_shape)
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        new.base_dist = self.base_dist.expand(whole[: len(whole) - len(self.base_dist.event_shape)])
        return new

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self._map()(self.base_dist.rsample(sample_shape, key=key))

    def sample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        with nm.no_grad():
            return self._map()(self.base_dist.sample(sample_shape, key=key))

    def log_prob(self, value: Any) -> Tensor:
        y, event = self._value(value), self._event_dim()
        total: Any = 0.0
        for t in reversed(self.transforms):
            x = t.inv(y)
            event += t.domain.event_dim - t.codomain.event_dim
            jacobian = t.log_abs_det_jacobian(x, y)
            total = total - sum_last(jacobian, event - t.domain.event_dim)
            y = x
        base = self.base_dist.log_prob(y)
        return total + sum_last(base, event - len(self.base_dist.event_shape))

    def cdf(self, value: Any) -> Tensor:
        y = self._map().inv(self._value(value))
        found, sign = self.base_dist.cdf(y), self._map().sign
        return 0.5 + sign * (found - 0.5)

    def icdf(self, value: Any) -> Tensor:
        p, sign = self._fraction(value), self._map().sign
        return self._map()(self.base_dist.icdf(0.5 + sign * (p - 0.5)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_dist!r}, {list(self.transforms)!r})"


class LogisticNormal(TransformedDistribution):
    """Shares of a whole whose log ratios are normal: n normal numbers make n + 1 shares.

    >>> d = nm.distributions.LogisticNormal(nm.zeros(3), nm.ones(3))
    >>> d.sample((5,), key=nm.random.key(0)).shape
    (5, 4)
    """

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args=validate_args)
        if not base.batch_shape:
            base = base.expand((1,))
        super().__init__(base, StickBreakingTransform(), validate_args=validate_args)

    @property
    def _normal_numbers(self) -> Normal:
        base = self.base_dist
        while not isinstance(base, Normal):
            base = base.base_dist  # type: ignore[attr-defined]
        return base

    @property
    def loc(self) -> Tensor:
        """The means of the normal numbers."""
        return self._normal_numbers.loc

    @property
    def scale(self) -> Tensor:
        """The standard deviations of the normal numbers."""
        return self._normal_numbers.scale


class MixtureSameFamily(Distribution):
    """A mixture of the distributions along the last batch axis of one.

    >>> weights = nm.distributions.Categorical([0.5, 0.5])
    >>> parts = nm.distributions.Normal(nm.asarray([-1.0, 1.0]), 1.0)
    >>> nm.distributions.MixtureSameFamily(weights, parts).variance
    tensor(2.)
    """

    mixture_distribution: Categorical
    component_distribution: Distribution

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        op = "MixtureSameFamily"
        self._set_validation(validate_args)
        if not isinstance(mixture_distribution, Categorical):
            raise TypeError(f"{op}: the mixture must be Categorical, not {mixture_distribution!r}")
        if not isinstance(component_distribution, Distribution):
            raise TypeError(f"{op}: the components are no distribution: {component_distribution!r}")
        parts = component_distribution.batch_shape
        count = mixture_distribution.param_shape[-1]
        if not parts or parts[-1] != count:
            raise ShapeError(
                f"{op}: {count} weights for components of batch shape {parts}, whose last axis "
                "must be as long"
            )
        batch = broadcast_shapes(parts[:-1], mixture_distribution.batch_shape, op)
        self.mixture_distribution = mixture_distribution.expand(batch)
        self.component_distribution = component_distribution.expand((*batch, count))

    @property
    def support(self) -> Constraint:
        """The components', whose bounds must not differ."""
        found: Constraint = self.component_distribution.support
        return found

    @property
    def batch_shape(self) -> Shape:
        """The components', without their axis."""
        return self.mixture_distribution.batch_shape

    @property
    def event_shape(self) -> Shape:
        """The components'."""
        return self.component_distribution.event_shape

    @property
    def dtype(self) -> dt.DType:
        """The components'."""
        return self.component_distribution.dtype

    @property
    def device(self) -> Any:
        """The components'."""
        return self.component_distribution.device

    def expand(self, batch_shape: Any) -> Self:
        shape = as_shape(batch_shape, "MixtureSameFamily.expand")
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        count = self.component_distribution.batch_shape[-1]
        new.mixture_distribution = self.mixture_distribution.expand(shape)
        new.component_distribution = self.component_distribution.expand((*shape, count))
        return new

    @property
    def _axis(self) -> int:
        """Of the components, from the end."""
        return -1 - len(self.event_shape)

    def _padded(self, value: Any) -> Tensor:
        x, event = self._tensor(value), self.event_shape
        if event and x.shape[-len(event) :] != event:
            raise ShapeError(
                f"MixtureSameFamily: the value has shape {x.shape}, which must end with {event}"
            )
        return nm.expand_dims(x, self._axis)

    def sample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        first, second = keys(key, 2)
        chosen = self.mixture_distribution.sample(sample_shape, key=first)
        drawn = self.component_distribution.sample(sample_shape, key=second)
        index = nm.reshape(chosen, (*chosen.shape, *(1,) * (1 + len(self.event_shape))))
        shape = list(drawn.shape)
        shape[self._axis] = 1
        found = nm.take_along_axis(drawn, nm.broadcast_to(index, tuple(shape)), self._axis)
        return nm.squeeze(found, axis=self._axis)

    def log_prob(self, value: Any) -> Tensor:
        logs = self.component_distribution.log_prob(self._padded(value))
        return nm.logsumexp(logs + self.mixture_distribution.logits, axis=-1)

    def cdf(self, value: Any) -> Tensor:
        found = self.component_distribution.cdf(self._padded(value))
        return nm.sum(found * self.mixture_distribution.probs, axis=-1)

    def _weighted(self, x: Tensor) -> Tensor:
        probs = self.mixture_distribution.probs
        shape = (*probs.shape, *(1,) * len(self.event_shape))
        return nm.sum(nm.reshape(probs, shape) * x, axis=self._axis)

    @property
    def mean(self) -> Tensor:
        return self._weighted(self.component_distribution.mean)

    @property
    def variance(self) -> Tensor:
        inside = self._weighted(self.component_distribution.variance)
        means = self.component_distribution.mean
        centre = nm.expand_dims(self._weighted(means), self._axis)
        return inside + self._weighted((means - centre) ** 2)

    def __repr__(self) -> str:
        return f"MixtureSameFamily({self.mixture_distribution!r}, {self.component_distribution!r})"
