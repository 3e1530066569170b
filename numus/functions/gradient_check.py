"""Gradients checked against central differences, under PyTorch's name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numus.errors import GradientError
from numus.functions import api as nm
from numus.tensor import Tensor
from numus.transforms.reverse import gradients

__all__ = ["gradcheck"]


def gradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Whether the derivatives of a function are those of its values, at some inputs.

    Inputs that require gradients are moved by `eps`, element by element: they should be float64.

    >>> from numus import autograd
    >>> x = nm.asarray([0.5, 2.0], dtype=nm.float64)
    >>> x.requires_grad = True
    >>> autograd.gradcheck(lambda x: x**3, (x,))
    True
    """
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    places = [i for i, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad]
    if not places:
        raise ValueError("gradcheck: no input requires a gradient; set requires_grad")
    for i in places:
        if given[i].dtype.is_complex:
            raise ValueError(f"gradcheck: input {i} is complex; give real and imaginary parts")
    count = len(_outputs(func, given))
    for i in places:
        slopes = _differences(func, given, i, eps)
        for k in range(count):
            found = _jacobian(func, given, i, k)
            if not np.allclose(found, slopes[k], rtol=rtol, atol=atol, equal_nan=True):
                if not raise_exception:
                    return False
                worst = np.nanmax(np.abs(found - slopes[k]))
                raise GradientError(
                    f"gradcheck: the Jacobian of output {k} with respect to input {i} differs from "
                    f"central differences by {worst:.3g}:\n{found}\n{slopes[k]}"
                )
    return True


def _outputs(func: Callable[..., Any], args: Sequence[Any]) -> list[Tensor]:
    found = func(*args)
    return [found] if isinstance(found, Tensor) else list(found)


def _jacobian(func: Callable[..., Any], args: Sequence[Any], i: int, k: int) -> Any:
    """The derivative of output k by input i: elements by elements."""
    y = _outputs(func, args)[k]
    rows = []
    for j in range(y.size):
        seed = nm.reshape(nm.astype(nm.equal(nm.arange(y.size), j), y.dtype), y.shape)
        (g,) = gradients(y, [args[i]], seed, allow_unused=True)
        rows.append(np.zeros(args[i].size) if g is None else g.numpy().reshape(-1))
    return np.stack(rows) if rows else np.zeros((0, args[i].size))


def _differences(func: Callable[..., Any], args: Sequence[Any], i: int, eps: float) -> list[Any]:
    """The central differences of all outputs by input i."""
    at = args[i].detach().numpy()
    columns: list[list[Any]] = []
    for j in range(at.size):
        sides = []
        for step in (eps, -eps):
            moved = at.copy()
            moved.reshape(-1)[j] += step
            x = nm.asarray(moved, device=args[i].device)
            values = _outputs(func, [*args[:i], x, *args[i + 1 :]])
            sides.append([v.detach().numpy().reshape(-1) for v in values])
        columns.append([(a - b) / (2 * eps) for a, b in zip(*sides, strict=True)])
    return [np.stack(parts, axis=-1) for parts in zip(*columns, strict=True)]
