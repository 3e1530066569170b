"""Parameters and gradients all at once: clipped, or as one vector."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numus as nm
from numus.tensor import Tensor

__all__ = [
    "clip_grad_norm_", "clip_grad_value_", "get_total_norm", "parameters_to_vector",
    "vector_to_parameters",
]  # fmt: skip


def _with_gradients(parameters: Any) -> list[Tensor]:
    if hasattr(parameters, "parameters"):
        parameters = parameters.parameters()
    given: Iterable[Tensor] = [parameters] if isinstance(parameters, Tensor) else parameters
    if not isinstance(given, Iterable):
        raise TypeError(f"takes a module, or parameters, not {type(given).__name__}")
    return [p for p in given if p.grad is not None]


def get_total_norm(tensors: Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all elements of all tensors, as if they were one."""
    wide = [x.astype(nm.float32) if x.dtype.is_low_precision else x for x in tensors]
    if not wide:
        return nm.asarray(0.0)
    if norm_type == math.inf:
        return nm.max(nm.stack([nm.max(nm.abs(x)) for x in wide]))
    if norm_type == 2.0:
        return nm.sqrt(nm.sum(nm.stack([nm.sum(x * x) for x in wide])))
    powers = nm.stack([nm.sum(nm.abs(x) ** norm_type) for x in wide])
    return nm.sum(powers) ** (1.0 / norm_type)


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale all gradients by one number so that their norm is at most max_norm; gives the old norm.

    Args:
        parameters: a module, tensors, or one.
        error_if_nonfinite: look at the norm, and raise where it is inf or NaN.
    """
    with nm.no_grad():
        found = _with_gradients(parameters)
        total = get_total_norm([p.grad for p in found if p.grad is not None], norm_type)
        if error_if_nonfinite and not math.isfinite(total.item()):
            raise ValueError(f"clip_grad_norm_: the norm of the gradients is {total.item()}")
        scale = nm.minimum(max_norm / (total + 1e-6), 1.0)
        for p in found:
            if p.grad is not None:
                p.grad = (p.grad * scale).astype(p.grad.dtype, copy=False)
    return total


def clip_grad_value_(parameters: Any, clip_value: float) -> None:
    """Hold every element of every gradient between -clip_value and clip_value."""
    with nm.no_grad():
        for p in _with_gradients(parameters):
            if p.grad is not None:
                p.grad = nm.clip(p.grad, -clip_value, clip_value)


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements of all parameters, one after the other; gradients flow through."""
    return nm.concat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vector: Tensor, parameters: Iterable[Tensor]) -> None:
    """Give parameters the elements of a vector, in place."""
    found = list(parameters)
    count = sum(p.size for p in found)
    if vector.shape != (count,):
        raise nm.errors.ShapeError(
            f"vector_to_parameters: a vector of shape {vector.shape} for {count} elements"
        )
    start = 0
    with nm.no_grad():
        for p in found:
            p.assign(vector[start : start + p.size].reshape(p.shape))
            start += p.size
