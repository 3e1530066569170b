"""`jax.flatten_util`: a container of arrays as one vector, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numus as nm
from numus.jax._adapt import to_tensor
from numus.tensor import Tensor
from numus.transforms import tree

__all__ = ["ravel_pytree"]


def ravel_pytree(pytree: Any) -> tuple[Tensor, Callable[[Any], Any]]:
    """All elements of a container in one vector, and the function that puts them back.

    >>> from numus.jax.flatten_util import ravel_pytree
    >>> flat, unravel = ravel_pytree({"a": 1.0, "b": nm.ones((2, 2))})
    >>> flat.tolist(), unravel(2 * flat)["b"].tolist()
    ([1.0, 1.0, 1.0, 1.0, 1.0], [[2.0, 2.0], [2.0, 2.0]])
    """
    leaves, structure = tree.flatten(pytree)
    arrays = [to_tensor(leaf) for leaf in leaves]
    ends = [sum(x.size for x in arrays[: i + 1]) for i in range(len(arrays))]

    def unravel(flat: Any) -> Any:
        if flat.shape != (ends[-1] if ends else 0,):
            raise ValueError(f"unravel: takes a vector of {ends[-1:]} elements, not {flat.shape}")
        parts = nm.split(flat, ends[:-1]) if ends else []
        pairs = zip(parts, arrays, strict=True)
        made = [nm.astype(nm.reshape(part, x.shape), x.dtype) for part, x in pairs]
        return tree.unflatten(structure, made)

    if not arrays:
        return nm.zeros((0,)), unravel
    wide = nm.result_type(*arrays)
    return nm.concatenate([nm.astype(nm.reshape(x, -1), wide) for x in arrays]), unravel
