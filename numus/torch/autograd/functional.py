"""`torch.autograd.functional`: derivatives of functions."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.torch._owned import transforming

__all__ = ["hessian", "jacobian"]


def _of_all(transform: Any, func: Any, inputs: Any) -> Any:
    if not isinstance(inputs, tuple):
        return transforming(transform)(func)(inputs)
    return transforming(transform)(func, argnums=tuple(range(len(inputs))))(*inputs)


def jacobian(func: Any, inputs: Any, **options: Any) -> Any:
    """The derivatives of all results by all inputs."""
    return _of_all(nm.jacrev, func, inputs)


def hessian(func: Any, inputs: Any, **options: Any) -> Any:
    """The second derivatives of a number by all inputs."""
    return _of_all(nm.hessian, func, inputs)
