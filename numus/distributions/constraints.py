"""Constraints: the sets that parameters and values lie in, with PyTorch's names.

`check(value)` tells for every event whether it lies in the set; `event_dim` is the number of axes
of one event.

>>> nm.distributions.constraints.positive.check(nm.asarray([-1.0, 2.0]))
tensor([False,  True])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numus as nm
from numus.tensor import Tensor

__all__ = [
    "Constraint", "boolean", "cat", "corr_cholesky", "dependent", "greater_than", "greater_than_eq",
    "half_open_interval", "independent", "integer_interval", "interval", "less_than",
    "lower_cholesky", "lower_triangular", "multinomial", "nonnegative", "nonnegative_integer",
    "one_hot", "positive", "positive_definite", "positive_integer", "positive_semidefinite", "real",
    "real_vector", "simplex", "square", "stack", "symmetric", "unit_interval",
]  # fmt: skip


class Constraint:
    """A set that numbers, vectors or matrices lie in."""

    is_discrete = False
    event_dim = 0

    def check(self, value: Tensor) -> Tensor:
        """Whether each event of `value` lies in the set."""
        raise NotImplementedError(f"{self!r} cannot check values")

    def __repr__(self) -> str:
        return type(self).__name__.removeprefix("_")


class _Simple(Constraint):
    """A set given by its name and a test."""

    def __init__(
        self,
        name: str,
        test: Callable[[Tensor], Tensor],
        event_dim: int = 0,
        is_discrete: bool = False,
    ) -> None:
        self.name, self.test = name, test
        self.event_dim, self.is_discrete = event_dim, is_discrete

    def check(self, value: Tensor) -> Tensor:
        return self.test(value)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        return self.name  # pickled by reference: each stands in this module under its name


class _Interval(Constraint):
    """Numbers between two bounds, either of which may be open, closed or missing."""

    def __init__(
        self,
        low: Any = None,
        high: Any = None,
        closed: tuple[bool, bool] = (True, True),
        integer: bool = False,
    ) -> None:
        self.lower_bound, self.upper_bound, self.closed = low, high, closed
        self.is_discrete = integer

    def check(self, value: Tensor) -> Tensor:
        inside = value == value  # NaN lies nowhere
        if self.lower_bound is not None:
            low = self.lower_bound
            inside = inside & ((value >= low) if self.closed[0] else (value > low))
        if self.upper_bound is not None:
            high = self.upper_bound
            inside = inside & ((value <= high) if self.closed[1] else (value < high))
        return inside & (value == nm.floor(value)) if self.is_discrete else inside

    def __repr__(self) -> str:
        low, high = self.lower_bound, self.upper_bound
        kind = "integers" if self.is_discrete else "numbers"
        if high is None:
            return f"{kind} {'>=' if self.closed[0] else '>'} {_bound(low)}"
        if low is None:
            return f"{kind} {'<=' if self.closed[1] else '<'} {_bound(high)}"
        left, right = "[" if self.closed[0] else "(", "]" if self.closed[1] else ")"
        return f"{kind} in {left}{_bound(low)}, {_bound(high)}{right}"


def _bound(x: Any) -> str:
    return f"a tensor of shape {x.shape}" if isinstance(x, Tensor) and x.ndim else f"{x}"


def interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """Numbers from a lower to an upper bound, both included.

    >>> nm.distributions.constraints.interval(0.0, 1.0)
    numbers in [0.0, 1.0]
    """
    return _Interval(lower_bound, upper_bound)


def half_open_interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """Numbers from a lower bound up to an upper one, which is not included."""
    return _Interval(lower_bound, upper_bound, (True, False))


def integer_interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """Whole numbers from a lower to an upper bound, both included."""
    return _Interval(lower_bound, upper_bound, integer=True)


def greater_than(lower_bound: Any) -> Constraint:
    """Numbers above a bound."""
    return _Interval(lower_bound, closed=(False, True))


def greater_than_eq(lower_bound: Any) -> Constraint:
    """Numbers that are a bound or above."""
    return _Interval(lower_bound)


def less_than(upper_bound: Any) -> Constraint:
    """Numbers below a bound."""
    return _Interval(None, upper_bound, (True, False))


class independent(Constraint):  # noqa: N801
    """A constraint whose rightmost batch axes are taken as axes of an event."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims
        self.is_discrete = base_constraint.is_discrete

    def check(self, value: Tensor) -> Tensor:
        inside = self.base_constraint.check(value)
        axes = tuple(range(-self.reinterpreted_batch_ndims, 0))
        return nm.all(inside, axis=axes) if axes else inside

    def __repr__(self) -> str:
        return f"{self.base_constraint} in {self.reinterpreted_batch_ndims} axes"


class multinomial(Constraint):  # noqa: N801
    """Vectors of counts that add up to `upper_bound`."""

    is_discrete = True
    event_dim = 1

    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        counts = nm.all((value >= 0) & (value == nm.floor(value)), axis=-1)
        return counts & (nm.sum(value, axis=-1) == self.upper_bound)

    def __repr__(self) -> str:
        return f"vectors of counts that add up to {_bound(self.upper_bound)}"


class _Parts(Constraint):
    """Parts along an axis, each with a constraint of its own."""

    def __init__(
        self, constraints: Sequence[Constraint], dim: int, lengths: Sequence[int] | None
    ) -> None:
        self.constraints, self.dim, self.lengths = list(constraints), dim, lengths
        self.event_dim = max(c.event_dim for c in self.constraints)
        self.is_discrete = any(c.is_discrete for c in self.constraints)

    def check(self, value: Tensor) -> Tensor:
        if self.lengths is None:
            pieces = nm.unstack(value, axis=self.dim)
            checks = [c.check(x) for c, x in zip(self.constraints, pieces, strict=True)]
            return nm.stack(checks, axis=self.dim)
        checks, start = [], 0
        for constraint, length in zip(self.constraints, self.lengths, strict=True):
            part = nm.narrow(value, self.dim, start, length)
            checks.append(constraint.check(part))
            start += length
        return nm.concat(checks, axis=self.dim)


def cat(
    constraints: Sequence[Constraint], dim: int = 0, lengths: Sequence[int] | None = None
) -> Constraint:
    """A constraint for each of the parts of the given lengths (by default 1) along an axis."""
    return _Parts(constraints, dim, lengths or [1] * len(constraints))


def stack(constraints: Sequence[Constraint], dim: int = 0) -> Constraint:
    """A constraint for each entry along an axis."""
    return _Parts(constraints, dim, None)


def _tolerance(x: Tensor) -> float:
    return 1e-5 if x.dtype.itemsize >= 4 else 1e-2


def _all(inside: Tensor, axes: int) -> Tensor:
    return nm.all(inside, axis=tuple(range(-axes, 0)))


def _near(x: Tensor, y: Any) -> Tensor:
    return nm.abs(x - y) < _tolerance(x)


def _square(x: Tensor) -> Tensor:
    return nm.full(x.shape[:-2], x.shape[-1] == x.shape[-2], dtype=nm.bool, device=x.device)


def _symmetric(x: Tensor) -> Tensor:
    if x.shape[-1] != x.shape[-2]:
        return _square(x)
    return _all(nm.abs(x - x.mT) <= 1e-6 + _tolerance(x) * nm.abs(x), 2)


def _definite(x: Tensor) -> Tensor:
    if x.shape[-1] != x.shape[-2]:
        return _square(x)
    return _symmetric(x) & (nm.linalg.cholesky_ex(x)[1] == 0)


def _semidefinite(x: Tensor) -> Tensor:
    if x.shape[-1] != x.shape[-2]:
        return _square(x)
    values = nm.linalg.eigvalsh(x)
    return _symmetric(x) & nm.all(values >= -_tolerance(x) * nm.max(nm.abs(values)), axis=-1)


def _lower(x: Tensor) -> Tensor:
    return _all(nm.tril(x) == x, 2)


def _lower_cholesky(x: Tensor) -> Tensor:
    return _lower(x) & nm.all(nm.diagonal(x, axis1=-2, axis2=-1) > 0, axis=-1)


def _corr_cholesky(x: Tensor) -> Tensor:
    # rounding grows with the length of a row
    error = nm.abs(nm.sum(x * x, axis=-1) - 1)
    return _lower_cholesky(x) & nm.all(error <= 10 * x.shape[-1] * _tolerance(x), axis=-1)


def _one_hot(x: Tensor) -> Tensor:
    bits = nm.all((x == 0) | (x == 1), axis=-1)
    return bits & (nm.sum(x, axis=-1) == 1)


def _simplex(x: Tensor) -> Tensor:
    return nm.all(x >= 0, axis=-1) & _near(nm.sum(x, axis=-1), 1)


def _is_number(x: Tensor) -> Tensor:
    return x == x


dependent = _Simple("dependent", _is_number)
real = _Simple("real", _is_number)
boolean = _Simple("boolean", lambda x: (x == 0) | (x == 1), is_discrete=True)
positive = greater_than(0.0)
nonnegative = greater_than_eq(0.0)
unit_interval = interval(0.0, 1.0)
nonnegative_integer = _Interval(0, integer=True)
positive_integer = _Interval(1, integer=True)
real_vector = independent(real, 1)
simplex = _Simple("simplex", _simplex, 1)
one_hot = _Simple("one_hot", _one_hot, 1, is_discrete=True)
square = _Simple("square", _square, 2)
symmetric = _Simple("symmetric", _symmetric, 2)
positive_definite = _Simple("positive_definite", _definite, 2)
positive_semidefinite = _Simple("positive_semidefinite", _semidefinite, 2)
lower_triangular = _Simple("lower_triangular", _lower, 2)
lower_cholesky = _Simple("lower_cholesky", _lower_cholesky, 2)
corr_cholesky = _Simple("corr_cholesky", _corr_cholesky, 2)
