"""Relaxed discrete distributions, whose draws are differentiable (the concrete distribution:
Maddison, Mnih and Teh 2017; Gumbel-softmax: Jang, Gu and Poole 2017)."""

from __future__ import annotations

from typing import Any, ClassVar

import numus as nm
from numus.distributions import constraints
from numus.distributions.bernoulli import Odds
from numus.distributions.categorical import Classes
from numus.distributions.distribution import Key, check_constraint, floats, one_of
from numus.shapes import Shape
from numus.shapes import broadcast as broadcast_shapes
from numus.special import lgamma, logit, softplus
from numus.tensor import Tensor

__all__ = [
    "ExpRelaxedCategorical", "LogitRelaxedBernoulli", "RelaxedBernoulli",
    "RelaxedOneHotCategorical",
]  # fmt: skip


class LogitRelaxedBernoulli(Odds):
    """The log odds of a relaxed Bernoulli number.

    >>> nm.distributions.LogitRelaxedBernoulli(0.5, probs=0.5).log_prob(0.0)
    tensor(-2.0794415)
    """

    arg_constraints: ClassVar = {
        "temperature": constraints.positive,
        "probs": constraints.unit_interval,
        "logits": constraints.real,
    }
    support: Any = constraints.real
    has_rsample = True
    temperature: Tensor

    def __init__(
        self,
        temperature: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        given = one_of(type(self).__name__, probs=probs, logits=logits)
        self._set(validate_args, temperature=temperature, **given)

    def _log_odds(self, sample_shape: Any, key: Key) -> Tensor:
        shape = self._draw_shape(sample_shape)
        noise = nm.random.logistic(shape, dtype=self.dtype, device=self.device, key=key)
        return (self.logits + noise) / self.temperature

    def _log_density(self, log_odds: Tensor) -> Tensor:
        rest = self.logits - self.temperature * log_odds
        return nm.log(self.temperature) + rest - 2 * softplus(rest)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self._log_odds(sample_shape, key)

    def log_prob(self, value: Any) -> Tensor:
        return self._log_density(self._value(value))


class RelaxedBernoulli(LogitRelaxedBernoulli):
    """Fractions near 0 or 1, nearer at a lower `temperature`.

    >>> d = nm.distributions.RelaxedBernoulli(0.5, logits=nm.asarray([0.0, 2.0]))
    >>> d.rsample((3,), key=nm.random.key(0)).shape
    (3, 2)
    """

    support = constraints.unit_interval

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        # neither 0 nor 1, where the density has no logarithm
        y = nm.sigmoid(self._log_odds(sample_shape, key))
        info = nm.finfo(self.dtype)
        return nm.clip(y, float(info.smallest_normal), 1 - float(info.eps) / 2)

    def log_prob(self, value: Any) -> Tensor:
        y = self._value(value)
        return self._log_density(logit(y)) - nm.log(y) - nm.log1p(-y)


class ExpRelaxedCategorical(Classes):
    """The logarithms of a relaxed one-hot vector."""

    arg_constraints: ClassVar = {
        "temperature": constraints.positive,
        "probs": constraints.simplex,
        "logits": constraints.real_vector,
    }
    support: Any = constraints.real_vector
    has_rsample = True
    temperature: Tensor

    def __init__(
        self,
        temperature: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        op = type(self).__name__
        self._set_classes(probs, logits, validate_args)
        name = next(n for n in ("probs", "logits") if n in self.__dict__)
        t, x = floats(op, temperature, self.__dict__[name])
        if self._validate_args:
            check_constraint(op, "temperature", t, constraints.positive)
        batch = broadcast_shapes(t.shape, x.shape[:-1], op)
        self.temperature = nm.broadcast_to(t, batch)
        self.__dict__[name] = nm.broadcast_to(x, batch + x.shape[-1:])

    @property
    def param_shape(self) -> Shape:
        """The shape of the parameter, classes included."""
        name = "logits" if "logits" in self.__dict__ else "probs"
        shape: Shape = self.__dict__[name].shape
        return shape

    @property
    def event_shape(self) -> Shape:
        """One vector."""
        return self.param_shape[-1:]

    def _log_shares(self, sample_shape: Any, key: Key) -> Tensor:
        shape = self._draw_shape(sample_shape)
        noise = nm.random.gumbel(shape, dtype=self.dtype, device=self.device, key=key)
        return nm.log_softmax((self.logits + noise) / self.temperature[..., None], axis=-1)

    def _log_density(self, logs: Tensor) -> Tensor:
        n = self.param_shape[-1]
        score = self.logits - logs * self.temperature[..., None]
        score = nm.sum(nm.log_softmax(score, axis=-1), axis=-1)
        count = nm.asarray(float(n), dtype=self.dtype, device=self.device)
        return score + (n - 1) * nm.log(self.temperature) + lgamma(count)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self._log_shares(sample_shape, key)

    def log_prob(self, value: Any) -> Tensor:
        return self._log_density(self._value(value))


class RelaxedOneHotCategorical(ExpRelaxedCategorical):
    """Vectors of fractions that add up to 1, near to one-hot at a low `temperature`.

    >>> d = nm.distributions.RelaxedOneHotCategorical(0.5, probs=[0.2, 0.3, 0.5])
    >>> d.rsample((4,), key=nm.random.key(0)).shape
    (4, 3)
    """

    support = constraints.simplex

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        # not 0, where the density has no logarithm
        y = nm.exp(self._log_shares(sample_shape, key))
        return nm.maximum(y, float(nm.finfo(self.dtype).smallest_normal))

    def log_prob(self, value: Any) -> Tensor:
        logs = nm.log(self._value(value))
        return self._log_density(logs) - nm.sum(logs, axis=-1)
