"""Invertible maps of values with the logarithms of their Jacobians' determinants, and their
composition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numus as nm
from numus.distributions import constraints
from numus.distributions.constraints import Constraint
from numus.errors import ShapeError
from numus.shapes import Shape, as_shape, size_of
from numus.tensor import Tensor

__all__ = [
    "ComposeTransform", "IndependentTransform", "ReshapeTransform", "Transform",
    "identity_transform",
]  # fmt: skip


class Transform:
    """A map from one constraint, `domain`, to another, `codomain`.

    >>> t = nm.distributions.transforms.ExpTransform()
    >>> y = t(nm.asarray(1.0))
    >>> t.inv(y), t.log_abs_det_jacobian(nm.asarray(1.0), y)
    (tensor(1.), tensor(1.))
    """

    bijective = True
    domain: Any = constraints.real
    codomain: Any = constraints.real
    sign: Any = 1  # of the derivative, of monotonic maps of numbers

    def __call__(self, x: Tensor) -> Tensor:
        """The image of x."""
        raise NotImplementedError(f"{type(self).__name__} has no forward map")

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no inverse")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log |dy / dx|, summed over the axes of an event."""
        raise NotImplementedError(f"{type(self).__name__} has no Jacobian: it is no bijection")

    @property
    def inv(self) -> Transform:
        """The inverse map."""
        return _Inverse(self)

    def forward_shape(self, shape: Shape) -> Shape:
        """The shape of the image of a value of a shape."""
        return shape

    def inverse_shape(self, shape: Shape) -> Shape:
        """The shape of the values whose image has a shape."""
        return shape

    def _settings(self) -> tuple[Any, ...]:
        """What tells two transforms of a class apart."""
        return ()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and _equal_settings(self._settings(), other._settings())

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _equal_settings(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Equal settings: tensors are, where they are the same object."""
    for x, y in zip(a, b, strict=True):
        if x is not y and (isinstance(x, Tensor) or isinstance(y, Tensor) or x != y):
            return False
    return True


class _Inverse(Transform):
    def __init__(self, forward: Transform) -> None:
        self._forward = forward
        self.bijective = forward.bijective

    @property
    def domain(self) -> Constraint:
        """The codomain of the other map."""
        return self._forward.codomain

    @property
    def codomain(self) -> Constraint:
        """The domain of the other map."""
        return self._forward.domain

    @property
    def sign(self) -> Any:
        """The same as that of the other map."""
        return self._forward.sign

    @property
    def inv(self) -> Transform:
        return self._forward

    def __call__(self, x: Tensor) -> Tensor:
        return self._forward._inverse(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._forward(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._forward.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Shape) -> Shape:
        return self._forward.inverse_shape(shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        return self._forward.forward_shape(shape)

    def _settings(self) -> tuple[Any, ...]:
        return (self._forward,)

    def __repr__(self) -> str:
        return f"{self._forward!r}.inv"


def sum_last(x: Tensor, count: int) -> Tensor:
    """x summed over its last axes."""
    return nm.sum(x, axis=tuple(range(-count, 0))) if count else x


class ComposeTransform(Transform):
    """One map after the other, the first first."""

    def __init__(self, parts: Sequence[Transform]) -> None:
        self.parts = list(parts)
        self.bijective = all(t.bijective for t in self.parts)

    def _event_dims(self) -> list[int]:
        """The axes of an event before each part, and after the last."""
        dims = [self.domain.event_dim]
        for t in self.parts:
            dims.append(dims[-1] + t.codomain.event_dim - t.domain.event_dim)
        return dims

    @property
    def domain(self) -> Constraint:
        """That of the first part, with as many axes as any part needs."""
        if not self.parts:
            return constraints.real
        needed = self.parts[-1].codomain.event_dim
        for t in reversed(self.parts):
            needed = max(needed + t.domain.event_dim - t.codomain.event_dim, t.domain.event_dim)
        first = self.parts[0].domain
        extra = needed - first.event_dim
        return constraints.independent(first, extra) if extra else first

    @property
    def codomain(self) -> Constraint:
        """That of the last part."""
        if not self.parts:
            return constraints.real
        last = self.parts[-1].codomain
        extra = self._event_dims()[-1] - last.event_dim
        return constraints.independent(last, extra) if extra else last

    @property
    def sign(self) -> Any:
        """The product of those of the parts."""
        return math.prod(t.sign for t in self.parts)

    def __call__(self, x: Tensor) -> Tensor:
        for t in self.parts:
            x = t(x)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for t in reversed(self.parts):
            y = t.inv(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        total: Any = 0.0
        for t, event in zip(self.parts, self._event_dims(), strict=False):
            after = t(x)
            total = total + sum_last(t.log_abs_det_jacobian(x, after), event - t.domain.event_dim)
            x = after
        return total if self.parts else nm.zeros_like(x)

    def forward_shape(self, shape: Shape) -> Shape:
        for t in self.parts:
            shape = t.forward_shape(shape)
        return shape

    def inverse_shape(self, shape: Shape) -> Shape:
        for t in reversed(self.parts):
            shape = t.inverse_shape(shape)
        return shape

    def _settings(self) -> tuple[Any, ...]:
        return tuple(self.parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComposeTransform) and self.parts == other.parts

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"ComposeTransform({self.parts!r})"


identity_transform = ComposeTransform([])


class IndependentTransform(Transform):
    """A map whose rightmost batch axes count as axes of an event."""

    def __init__(self, base_transform: Transform, reinterpreted_batch_ndims: int) -> None:
        self.base_transform = base_transform
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.bijective = base_transform.bijective

    @property
    def domain(self) -> Constraint:
        """The base's, with more axes."""
        return constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims)

    @property
    def codomain(self) -> Constraint:
        """The base's, with more axes."""
        return constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)

    def __call__(self, x: Tensor) -> Tensor:
        return self.base_transform(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.base_transform.inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        found = self.base_transform.log_abs_det_jacobian(x, y)
        return sum_last(found, self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: Shape) -> Shape:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        return self.base_transform.inverse_shape(shape)

    def _settings(self) -> tuple[Any, ...]:
        return self.base_transform, self.reinterpreted_batch_ndims


class ReshapeTransform(Transform):
    """Events of one shape as events of another."""

    def __init__(self, in_shape: Any, out_shape: Any) -> None:
        self.in_shape = as_shape(in_shape, "ReshapeTransform")
        self.out_shape = as_shape(out_shape, "ReshapeTransform")
        if size_of(self.in_shape) != size_of(self.out_shape):
            raise ShapeError(
                f"ReshapeTransform: {self.in_shape} and {self.out_shape} differ in their sizes"
            )
        self.domain = constraints.independent(constraints.real, len(self.in_shape))
        self.codomain = constraints.independent(constraints.real, len(self.out_shape))

    def __call__(self, x: Tensor) -> Tensor:
        return nm.reshape(x, self.forward_shape(x.shape))

    def _inverse(self, y: Tensor) -> Tensor:
        return nm.reshape(y, self.inverse_shape(y.shape))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        batch = x.shape[: x.ndim - len(self.in_shape)]
        return nm.zeros(batch, dtype=x.dtype, device=x.device)

    def _replaced(self, shape: Shape, old: Shape, new: Shape) -> Shape:
        cut = len(shape) - len(old)
        if cut < 0 or shape[cut:] != old:
            raise ShapeError(f"ReshapeTransform: a value of shape {shape} does not end with {old}")
        return shape[:cut] + new

    def forward_shape(self, shape: Shape) -> Shape:
        return self._replaced(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        return self._replaced(shape, self.out_shape, self.in_shape)

    def _settings(self) -> tuple[Any, ...]:
        return self.in_shape, self.out_shape
