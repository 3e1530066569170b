"""Collation: examples to a batch, by stacking the arrays of their containers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.tensor import Tensor

__all__ = ["default_collate", "default_convert"]

Array = np.ndarray[Any, Any]


def default_collate(examples: Sequence[Any]) -> Any:
    """A batch of examples of one structure: tensors, arrays and numbers become tensors with one
    axis more; strings and bytes become lists; dicts, tuples, lists and dataclasses stay.

    >>> from numus.data import default_collate
    >>> batch = default_collate([{"x": nm.zeros(2), "y": 1}, {"x": nm.ones(2), "y": 2}])
    >>> batch["x"].shape, batch["y"].tolist()
    ((2, 2), [1, 2])
    """
    try:
        return as_tensors(stacked(examples, ""))
    except RecursionError:
        message = "default_collate: examples are nested too deep, or hold themselves"
        raise ValueError(message) from None


def default_convert(example: Any) -> Any:
    """One example as it is, its arrays as tensors."""
    return as_tensors(map_leaves(example, lambda x: np.asarray(x) if isinstance(x, Tensor) else x))


def stacked(examples: Sequence[Any], where: str) -> Any:
    """Examples stacked as NumPy arrays, without touching a device: the work of workers."""
    first = examples[0]
    if isinstance(first, (Tensor, np.ndarray, np.generic)):
        arrays = [np.asarray(x) for x in examples]
        shapes = {a.shape for a in arrays}
        if len(shapes) > 1:
            listed = ", ".join(map(str, sorted(shapes)))
            raise ShapeError(
                f"default_collate: {where or 'examples'} of shapes {listed} do not stack; give the "
                "loader a collate_fn that pads them"
            )
        return np.stack(arrays)
    for kind, dtype in ((bool, np.bool_), (int, np.int64), (float, np.float32)):
        if isinstance(first, kind):
            try:
                return np.asarray(examples, dtype)
            except (TypeError, ValueError, OverflowError) as error:
                raise TypeError(
                    f"default_collate: {where or 'examples'} are not all numbers of "
                    f"{np.dtype(dtype).name}: {error}"
                ) from None
    if isinstance(first, (str, bytes)):
        return list(examples)
    if isinstance(first, Mapping):
        for i, x in enumerate(examples):
            if not isinstance(x, Mapping) or x.keys() != first.keys():
                keys = sorted(map(repr, x)) if isinstance(x, Mapping) else type(x).__name__
                raise ShapeError(
                    f"default_collate: {where or 'examples'} have other keys: example 0 has "
                    f"{sorted(map(repr, first))}, example {i} {keys}; give the loader a collate_fn"
                )
        return {key: stacked([x[key] for x in examples], f"{where}[{key!r}]") for key in first}
    if isinstance(first, (tuple, list)):
        if len({len(x) for x in examples}) > 1:
            raise ShapeError(f"default_collate: {where or 'examples'} have unequal lengths")
        parts = [
            stacked(part, f"{where}[{i}]") for i, part in enumerate(zip(*examples, strict=True))
        ]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if dataclasses.is_dataclass(first):
        names = [f.name for f in dataclasses.fields(first)]
        made = {n: stacked([getattr(x, n) for x in examples], f"{where}.{n}") for n in names}
        whole: Any = type(first)
        return whole(**made)
    raise TypeError(
        f"default_collate: {where or 'an example'} is a {type(first).__name__}, of which no batch "
        "can be made; it takes tensors, arrays, numbers, strings and containers of them"
    )


def as_tensors(batch: Any, device: Any = None) -> Any:
    """The arrays of a batch as tensors; their memory is shared, where it can be."""

    def convert(x: Any) -> Any:
        if isinstance(x, np.ndarray):
            try:
                x = nm.asarray(x, copy=False)
            except ValueError:  # not contiguous, or not where the device can see it
                x = nm.asarray(x)
        return x.to(device) if device is not None and isinstance(x, Tensor) else x

    return map_leaves(batch, convert)


def map_leaves(batch: Any, f: Any) -> Any:
    """A batch with f applied to each array, tensor, number …, except lists of strings."""
    kind = type(batch)
    if kind is Tensor or kind is np.ndarray:
        return f(batch)
    if kind is dict or isinstance(batch, Mapping):
        return {k: map_leaves(v, f) for k, v in batch.items()}
    if isinstance(batch, list) and batch and isinstance(batch[0], (str, bytes)):
        return batch
    if isinstance(batch, (tuple, list)):
        parts = [map_leaves(x, f) for x in batch]
        return kind(*parts) if hasattr(batch, "_fields") else kind(parts)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in dataclasses.fields(batch)]
        return kind(**{name: map_leaves(getattr(batch, name), f) for name in names})
    return f(batch)
