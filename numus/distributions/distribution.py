"""The interface of distributions (PyTorch's), and what all of them share.

A distribution holds its parameters, broadcast against each other, and nothing that is derived from
them: `nm.jit`, `nm.vmap` and `nm.grad` take it apart and put it together as a container of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

import numus as nm
from numus import dtypes as dt
from numus.distributions import constraints
from numus.distributions.constraints import Constraint
from numus.errors import ShapeError, TracingError
from numus.functions._base import common, device_of, moved, to_float, wrap
from numus.shapes import Shape, as_shape
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import Tensor
from numus.transforms import tree

__all__ = ["Distribution"]

Key = Tensor | None


def floats(op: str, *values: Any) -> list[Tensor]:
    """Parameters in their common floating dtype, on one device; numbers follow the others."""
    device = device_of(*values)
    arrays = (list, tuple, np.ndarray)
    given = [nm.asarray(v, device=device) if isinstance(v, arrays) else v for v in values]
    nodes = [to_float(n) for n in common(op, *given)]
    # numbers alone are moved: tensors of two devices are an error where they meet
    return [wrap(moved(n, device) if device and n.device is None else n) for n in nodes]


def keys(key: Key, count: int) -> Sequence[Key]:
    """Independent keys for the draws that one draw is made of."""
    return [None] * count if key is None else tuple(nm.random.split(key, count))


def require(condition: Tensor, message: str) -> None:
    """Raise where a condition does not hold for every element; inside a trace nothing is known."""
    try:
        holds = bool(nm.all(condition.detach()))
    except TracingError:
        return
    if not holds:
        raise ValueError(message)


def _offender(value: Tensor, inside: Tensor, event_dim: int) -> str:
    """The first event that a constraint refuses, in words."""
    shape = value.shape[: value.ndim - event_dim]
    flags = np.broadcast_to(np.asarray(inside.numpy()), shape)
    place = tuple(int(i) for i in np.argwhere(~flags)[0])
    found = value.detach().numpy()[place]
    where = f" at {place}" if place else ""
    return f"{found.tolist() if found.size <= 8 else f'one of shape {found.shape}'}{where}"


def check_constraint(op: str, name: str, value: Tensor, constraint: Constraint) -> None:
    """Raise where a parameter or a value lies outside a constraint, by name."""
    if value.ndim < constraint.event_dim:
        raise ShapeError(
            f"{op}: {name} has shape {value.shape}, but {constraint} has {constraint.event_dim} "
            "or more axes"
        )
    inside = constraint.check(value.detach())
    try:
        holds = bool(nm.all(inside))
    except TracingError:
        return
    if not holds:
        raise ValueError(
            f"{op}: {name} must be in the set: {constraint}, but there is "
            f"{_offender(value, inside, constraint.event_dim)} "
            f"(shape {value.shape}, {value.dtype.name}); validate_args=False skips this check"
        )


class Distribution:
    """A probability distribution: draws, densities, moments.

    `batch_shape` is the shape of the parameters, `event_shape` that of one draw of one of them.
    Parameters and values are checked where their numbers are known, that is not inside `nm.jit` or
    `nm.vmap`; `validate_args=False` leaves the checks out.
    """

    arg_constraints: ClassVar[Mapping[str, Constraint]] = {}
    support: Any = constraints.real
    has_rsample = False
    has_enumerate_support = False
    _default_validate_args: ClassVar[bool] = True
    _validate_args: bool

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        tree.register(cls, _taken, lambda rest, entries: _made(cls, rest, entries))

    # -- parameters -------------------------------------------------------------------------------

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Whether distributions check their arguments where `validate_args` is not given."""
        Distribution._default_validate_args = bool(value)

    def _set(self, validate_args: bool | None, **parameters: Any) -> None:
        """Set parameters by name: common dtype, batch axes broadcast, constraints checked."""
        op = type(self).__name__
        self._set_validation(validate_args)
        given = floats(op, *parameters.values())
        batch: Shape = ()
        events = [self.arg_constraints[name].event_dim for name in parameters]
        for name, value, event in zip(parameters, given, events, strict=True):
            if value.ndim < event:
                raise ShapeError(
                    f"{op}: {name} has shape {value.shape}, but it needs {event} or more axes"
                )
            batch = broadcast_shapes(batch, value.shape[: value.ndim - event], op)
        for name, value, event in zip(parameters, given, events, strict=True):
            if self._validate_args:
                check_constraint(op, name, value, self.arg_constraints[name])
            self.__dict__[name] = nm.broadcast_to(value, batch + value.shape[value.ndim - event :])

    def _set_validation(self, validate_args: bool | None) -> None:
        default = Distribution._default_validate_args
        self._validate_args = default if validate_args is None else bool(validate_args)

    def _given_parameters(self) -> dict[str, Tensor]:
        """The parameters that this object has, by name."""
        return {n: self.__dict__[n] for n in self.arg_constraints if n in self.__dict__}

    def _first(self) -> tuple[str, Tensor]:
        return next(iter(self._given_parameters().items()))

    @property
    def batch_shape(self) -> Shape:
        """The shape of the parameters."""
        name, value = self._first()
        return value.shape[: value.ndim - self.arg_constraints[name].event_dim]

    @property
    def event_shape(self) -> Shape:
        """The shape of one draw, without the batch."""
        return ()

    @property
    def dtype(self) -> dt.DType:
        """The dtype of the parameters."""
        return self._first()[1].dtype

    @property
    def device(self) -> Any:
        """The device of the parameters."""
        return self._first()[1].device

    def expand(self, batch_shape: Any) -> Self:
        """The same distribution with parameters broadcast to a batch shape.

        >>> nm.distributions.Normal(0.0, 1.0).expand((3, 2)).batch_shape
        (3, 2)
        """
        shape = as_shape(batch_shape, f"{type(self).__name__}.expand")
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        for name, value in self._given_parameters().items():
            event = self.arg_constraints[name].event_dim
            new.__dict__[name] = nm.broadcast_to(value, shape + value.shape[value.ndim - event :])
        return new

    # -- draws ------------------------------------------------------------------------------------

    def _draw_shape(self, sample_shape: Any) -> Shape:
        """The shape of draws: sample, batch, event."""
        given = as_shape(sample_shape, f"{type(self).__name__}.sample")
        return given + self.batch_shape + self.event_shape

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        """Draws that gradients flow through to the parameters."""
        raise NotImplementedError(
            f"{type(self).__name__} has no reparametrised draws; use sample and log_prob "
            "(the score function's estimator), or a relaxed distribution"
        )

    def sample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        """Draws of shape sample_shape + batch_shape + event_shape, without gradients."""
        with nm.no_grad():
            return self.rsample(sample_shape, key=key)

    # -- values -----------------------------------------------------------------------------------

    def _value(self, value: Any) -> Tensor:
        """A value in this distribution's dtype, its shape and (if asked) its support checked."""
        op = f"{type(self).__name__}.log_prob"
        x = self._tensor(value)
        if not x.dtype.is_floating or x.dtype.itemsize < self.dtype.itemsize:
            x = nm.astype(x, self.dtype)
        event = self.event_shape
        if event and x.shape[-len(event) :] != event:
            raise ShapeError(f"{op}: the value has shape {x.shape}, which must end with {event}")
        broadcast_shapes(x.shape[: x.ndim - len(event)], self.batch_shape, op)
        if self._validate_args:
            check_constraint(op, "the value", x, self.support)
        return x

    def _tensor(self, value: Any) -> Tensor:
        """A value as a tensor on this distribution's device."""
        if isinstance(value, Tensor):
            return value
        dtype = None if isinstance(value, (list, tuple, np.ndarray)) else self.dtype
        return nm.asarray(value, dtype=dtype, device=self.device)

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density, or of the probability, of each event of `value`."""
        raise NotImplementedError(f"{type(self).__name__} has no log_prob")

    def cdf(self, value: Any) -> Tensor:
        """The probability of a draw that is `value` or below."""
        raise NotImplementedError(f"{type(self).__name__} has no cdf in closed form")

    def icdf(self, value: Any) -> Tensor:
        """The quantiles: the inverse of cdf."""
        raise NotImplementedError(f"{type(self).__name__} has no icdf in closed form")

    def _fraction(self, value: Any) -> Tensor:
        """A probability, as `icdf` takes it."""
        (p,) = floats(f"{type(self).__name__}.icdf", self._tensor(value))
        p = nm.astype(p, self.dtype) if p.dtype.itemsize < self.dtype.itemsize else p
        if self._validate_args:
            check_constraint(
                f"{type(self).__name__}.icdf", "the value", p, constraints.unit_interval
            )
        return p

    # -- moments ----------------------------------------------------------------------------------

    @property
    def mean(self) -> Tensor:
        """The mean."""
        raise NotImplementedError(f"{type(self).__name__} has no mean in closed form")

    @property
    def mode(self) -> Tensor:
        """The most likely value."""
        raise NotImplementedError(f"{type(self).__name__} has no mode in closed form")

    @property
    def variance(self) -> Tensor:
        """The variance."""
        raise NotImplementedError(f"{type(self).__name__} has no variance in closed form")

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return nm.sqrt(self.variance)

    def entropy(self) -> Tensor:
        """The entropy in nats: the mean of -log_prob."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy in closed form")

    def perplexity(self) -> Tensor:
        """exp of the entropy."""
        return nm.exp(self.entropy())

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values, along a new first axis; with `expand`, broadcast to the batch."""
        raise NotImplementedError(f"{type(self).__name__} has no finite support")

    def _enumerated(self, values: Tensor, expand: bool) -> Tensor:
        """Scalars of a support, as `enumerate_support` gives them."""
        column = nm.reshape(values, (-1, *(1,) * len(self.batch_shape)))
        return nm.broadcast_to(column, (values.size, *self.batch_shape)) if expand else column

    # -- for subclasses ---------------------------------------------------------------------------

    def _uniform(self, shape: Shape, key: Key) -> Tensor:
        """In (0, 1): neither end is drawn."""
        u = nm.random.uniform(shape, dtype=self.dtype, device=self.device, key=key)
        return nm.maximum(u, 2.0 ** -(self.dtype.mantissa + 2))

    def _normal(self, shape: Shape, key: Key) -> Tensor:
        return nm.random.normal(shape, dtype=self.dtype, device=self.device, key=key)

    def _exponential(self, shape: Shape, key: Key) -> Tensor:
        return nm.random.exponential(shape, dtype=self.dtype, device=self.device, key=key)

    def __repr__(self) -> str:
        parts = [
            f"{n}={x.shape}" if x.size != 1 else f"{n}={_shown(x)}"
            for n, x in self._given_parameters().items()
        ]
        return f"{type(self).__name__}({', '.join(parts)})"


def _shown(x: Tensor) -> str:
    try:
        return f"{x.detach().item():.6g}"
    except TracingError:
        return f"{x.shape}"


def _taken(d: Distribution) -> tuple[Sequence[Any], Any]:
    """Attributes that are tensors or distributions are entries, others the rest."""
    held = {n: x for n, x in vars(d).items() if isinstance(x, (Tensor, Distribution))}
    rest = {n: x for n, x in vars(d).items() if n not in held}
    return list(held.values()), (tuple(held), tuple(rest.items()))


def _made(kind: type, rest: Any, entries: Sequence[Any]) -> Any:
    names, others = rest
    new: Any = object.__new__(kind)
    new.__dict__.update(zip(names, entries, strict=True))
    new.__dict__.update(others)
    return new


class derived:  # noqa: N801
    """An attribute that is computed from others, unless the object holds one of its name.

    Nothing is kept: what is computed inside a trace must not outlive it.
    """

    def __init__(self, compute: Callable[[Any], Tensor]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else self.compute(owner)


def one_of(op: str, **given: Any) -> dict[str, Any]:
    """The only one of several parametrisations that is not None."""
    found = {name: x for name, x in given.items() if x is not None}
    if len(found) != 1:
        names = " or ".join(given)
        raise ValueError(f"{op}: give {names}, one of them; {len(found)} were given")
    return found
