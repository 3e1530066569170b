"""Choices among classes: categorical, one-hot and multinomial."""

from __future__ import annotations

from typing import Any, ClassVar

import numus as nm
from numus.distributions import constraints
from numus.distributions.distribution import (
    Distribution,
    Key,
    check_constraint,
    derived,
    floats,
    one_of,
)
from numus.errors import ShapeError
from numus.functions.creation.conversion import asarray
from numus.shapes import Shape, as_int
from numus.shapes import broadcast as broadcast_shapes
from numus.special import lgamma
from numus.tensor import Tensor

__all__ = [
    "Categorical", "Multinomial", "OneHotCategorical", "OneHotCategoricalStraightThrough",
]  # fmt: skip


class Classes(Distribution):
    """Probabilities of classes along the last axis, held as `probs` or `logits`, normalised."""

    arg_constraints: ClassVar = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def _set_classes(self, probs: Any, logits: Any, validate_args: bool | None) -> None:
        op = type(self).__name__
        self._set_validation(validate_args)
        ((name, given),) = one_of(op, probs=probs, logits=logits).items()
        (x,) = floats(op, given)
        if not x.ndim or not x.shape[-1]:
            raise ShapeError(f"{op}: {name} must be a vector or a stack, not of shape {x.shape}")
        if name == "logits":
            self.__dict__[name] = x - nm.logsumexp(x, axis=-1, keepdims=True)
            return
        if self._validate_args:
            shares = constraints.independent(constraints.nonnegative, 1)
            check_constraint(op, name, x, shares)
        self.__dict__[name] = x / nm.sum(x, axis=-1, keepdims=True)

    @derived
    def probs(self) -> Tensor:
        """The probabilities of the classes."""
        return nm.exp(self.logits)

    @derived
    def logits(self) -> Tensor:
        """The logarithms of the probabilities, finite at 0."""
        tiny = float(nm.finfo(self.dtype).eps)
        return nm.log(nm.clip(self.probs, tiny, 1 - tiny))

    @property
    def param_shape(self) -> Shape:
        """The shape of the parameter, classes included."""
        return self._first()[1].shape

    def _choices(self, sample_shape: Any, key: Key) -> Tensor:
        """Classes as integers, of shape sample + batch."""
        logits = self.__dict__.get("logits")
        logits = nm.log(self.probs) if logits is None else logits
        count = len(self._draw_shape(sample_shape)) - len(self.batch_shape + self.event_shape)
        leading = self._draw_shape(sample_shape)[:count]
        whole = nm.broadcast_to(logits.detach(), leading + self.param_shape)
        return nm.random.categorical(whole, key=key)

    def _class_entropy(self) -> Tensor:
        if "logits" in self.__dict__:
            # a probability of 0 adds nothing, whatever its logarithm
            logits = nm.maximum(self.logits, float(nm.finfo(self.dtype).min))
            return -nm.sum(self.probs * logits, axis=-1)
        return nm.sum(nm.special.entr(self.probs), axis=-1)


class Categorical(Classes):
    """Classes 0, 1, ... with probabilities proportional to `probs`, or to exp(`logits`).

    >>> d = nm.distributions.Categorical([1.0, 2.0, 1.0])
    >>> d.log_prob(1)
    tensor(-0.6931472)
    >>> d.sample((4,), key=nm.random.key(0)).shape
    (4,)
    """

    has_enumerate_support = True

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self._set_classes(probs, logits, validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """The numbers of the classes."""
        return constraints.integer_interval(0, self.param_shape[-1] - 1)

    def sample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self._choices(sample_shape, key)

    def log_prob(self, value: Any) -> Tensor:
        op = "Categorical.log_prob"
        x = value if isinstance(value, Tensor) else asarray(value, device=self.device)
        if self._validate_args:
            check_constraint(op, "the value", x, self.support)
        shape = broadcast_shapes(x.shape, self.batch_shape, op)
        index = nm.broadcast_to(nm.astype(x, nm.int64), shape)[..., None]
        logits = nm.broadcast_to(self.logits, shape + self.param_shape[-1:])
        return nm.take_along_axis(logits, index, -1)[..., 0]

    def cdf(self, value: Any) -> Tensor:
        x = value if isinstance(value, Tensor) else asarray(value, device=self.device)
        classes = nm.arange(self.param_shape[-1], dtype=self.dtype, device=self.device)
        return nm.sum(nm.where(classes <= x[..., None], self.probs, 0.0), axis=-1)

    @property
    def mean(self) -> Tensor:
        """NaN: classes are names, not numbers."""
        return nm.full(self.batch_shape, nm.nan, dtype=self.dtype, device=self.device)

    @property
    def mode(self) -> Tensor:
        return nm.argmax(self.probs, axis=-1)

    @property
    def variance(self) -> Tensor:
        """NaN: classes are names, not numbers."""
        return nm.full(self.batch_shape, nm.nan, dtype=self.dtype, device=self.device)

    def entropy(self) -> Tensor:
        return self._class_entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self._enumerated(nm.arange(self.param_shape[-1], device=self.device), expand)


class OneHotCategorical(Classes):
    """Classes as vectors with a single 1.

    >>> d = nm.distributions.OneHotCategorical(logits=[0.0, 0.0])
    >>> d.log_prob([0.0, 1.0])
    tensor(-0.6931472)
    """

    support = constraints.one_hot
    has_enumerate_support = True

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self._set_classes(probs, logits, validate_args)

    @property
    def event_shape(self) -> Shape:
        """One vector."""
        return self.param_shape[-1:]

    def _one_hot(self, classes: Tensor) -> Tensor:
        numbers = nm.arange(self.param_shape[-1], device=self.device)
        return nm.astype(classes[..., None] == numbers, self.dtype)

    def sample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self._one_hot(self._choices(sample_shape, key))

    def log_prob(self, value: Any) -> Tensor:
        x = self._value(value)
        return nm.sum(nm.where(x > 0.5, self.logits, 0.0), axis=-1)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return self._one_hot(nm.argmax(self.probs, axis=-1))

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def entropy(self) -> Tensor:
        return self._class_entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        n = self.param_shape[-1]
        rows = nm.eye(n, dtype=self.dtype, device=self.device)
        column = nm.reshape(rows, (n, *(1,) * len(self.batch_shape), n))
        return nm.broadcast_to(column, (n, *self.param_shape)) if expand else column


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """One-hot draws whose gradient is that of the probabilities (Bengio et al. 2013)."""

    has_rsample = True

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        probs = self.probs
        return self.sample(sample_shape, key=key) + (probs - probs.detach())


class Multinomial(Classes):
    """Counts of each class in `total_count` draws.

    >>> d = nm.distributions.Multinomial(10, probs=[0.2, 0.8])
    >>> d.mean
    tensor([2., 8.])
    """

    total_count: int

    def __init__(
        self,
        total_count: int = 1,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        self.total_count = as_int(total_count, "total_count", "Multinomial")
        if self.total_count < 0:
            raise ValueError(f"Multinomial: total_count={total_count} must not be negative")
        self._set_classes(probs, logits, validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """Counts that add up to total_count."""
        return constraints.multinomial(self.total_count)

    @property
    def event_shape(self) -> Shape:
        """One vector."""
        return self.param_shape[-1:]

    def sample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        leading = self._draw_shape(sample_shape)
        leading = leading[: len(leading) - len(self.param_shape)]
        p = self.probs.detach()
        drawn = nm.random.multinomial(leading, self.total_count, p, device=self.device, key=key)
        return nm.astype(drawn, self.dtype)

    def log_prob(self, value: Any) -> Tensor:
        x = self._value(value)
        logits = nm.where((x == 0) & (self.logits == -nm.inf), 0.0, self.logits)
        ways = lgamma(nm.sum(x, -1) + 1) - nm.sum(lgamma(x + 1), -1)
        return ways + nm.sum(x * logits, -1)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.probs

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def entropy(self) -> Tensor:
        from numus.distributions.counts import Binomial

        n = self.total_count
        counts = nm.arange(1, n + 1, dtype=self.dtype, device=self.device)
        counts = nm.reshape(counts, (n, *(1,) * len(self.param_shape)))
        mass = nm.exp(Binomial(n, self.probs, validate_args=False).log_prob(counts))
        repeats = nm.sum(mass * lgamma(counts + 1), axis=(0, -1))
        one = nm.asarray(n + 1.0, dtype=self.dtype, device=self.device)
        return n * self._class_entropy() - lgamma(one) + repeats
