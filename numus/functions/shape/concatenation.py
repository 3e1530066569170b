"""Several arrays as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from numus.errors import ShapeError
from numus.functions._base import common, computed
from numus.functions.shape.manipulation import atleast_1d, atleast_2d, atleast_3d, expand_dims
from numus.functions.spelling import spelled
from numus.graph import Node
from numus.primitives import structure
from numus.primitives.views import reshape
from numus.shapes import normal_axis, size_of
from numus.tensor import Tensor

__all__ = [
    "cat", "column_stack", "concat", "concatenate", "dstack", "hstack", "stack", "vstack",
]  # fmt: skip


def _operands(arrays: Any, op: str) -> list[Node]:
    """The arrays in their common dtype."""
    if isinstance(arrays, Tensor):
        raise TypeError(f"{op}: takes a sequence of arrays, not one; write {op}((x, y, …))")
    if not isinstance(arrays, Iterable):
        raise TypeError(f"{op}: takes a sequence of arrays, not {type(arrays).__name__}")
    given = list(arrays)
    if not given:
        raise ShapeError(f"{op}: needs at least one array")
    return common(op, *given)


@spelled
def concat(arrays: Sequence[Tensor], /, axis: int | None = 0) -> Tensor:
    """Arrays joined end to end along an axis they have; axis=None flattens them first.

    >>> nm.concat((nm.asarray([[1, 2]]), nm.asarray([[3, 4]])), axis=1).tolist()
    [[1, 2, 3, 4]]
    """
    nodes = _operands(arrays, "concat")
    if axis is None:
        nodes = [reshape(n, (size_of(n.shape),)) for n in nodes]
        axis = 0
    first = nodes[0]
    if first.ndim == 0:
        raise ShapeError("concat: arrays without axes have no end to join at; use stack")
    at = normal_axis(axis, first.ndim, "concat")
    rest = first.shape[:at] + first.shape[at + 1 :]
    for node in nodes:
        if node.ndim != first.ndim or node.shape[:at] + node.shape[at + 1 :] != rest:
            raise ShapeError(
                f"concat: shapes {first.shape} and {node.shape} differ in more than axis {at}, "
                "along which they are joined"
            )
    return computed(structure.concat(tuple(nodes), at))


concatenate = concat


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """`concat` under its other name."""
    return concat(tensors, dim)


@spelled
def stack(arrays: Sequence[Tensor], /, axis: int = 0) -> Tensor:
    """Arrays of one shape side by side along a new axis.

    >>> nm.stack((nm.asarray([1, 2]), nm.asarray([3, 4])), axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    nodes = _operands(arrays, "stack")
    shape = nodes[0].shape
    for node in nodes:
        if node.shape != shape:
            raise ShapeError(f"stack: shapes {shape} and {node.shape} differ; they must be equal")
    at = normal_axis(axis, len(shape) + 1, "stack")
    wide = tuple(reshape(n, (*shape[:at], 1, *shape[at:])) for n in nodes)
    return computed(structure.concat(wide, at))


def hstack(arrays: Sequence[Tensor], /) -> Tensor:
    """Arrays side by side: along the second axis, vectors and scalars along the first.

    >>> nm.hstack((nm.asarray([1, 2]), nm.asarray([3]))).tolist()
    [1, 2, 3]
    """
    parts = [atleast_1d(x) for x in arrays]
    return concat(parts, 0 if parts and parts[0].ndim == 1 else 1)


def vstack(arrays: Sequence[Tensor], /) -> Tensor:
    """Arrays one below the other: along the first axis, vectors as rows.

    >>> nm.vstack((nm.asarray([1, 2]), nm.asarray([3, 4]))).tolist()
    [[1, 2], [3, 4]]
    """
    return concat([atleast_2d(x) for x in arrays], 0)


def dstack(arrays: Sequence[Tensor], /) -> Tensor:
    """Arrays one behind the other: along the third axis."""
    return concat([atleast_3d(x) for x in arrays], 2)


def column_stack(arrays: Sequence[Tensor], /) -> Tensor:
    """Vectors as the columns of a matrix; matrices are joined as they are."""
    parts = [atleast_1d(x) for x in arrays]
    return concat([x if x.ndim > 1 else expand_dims(x, 1) for x in parts], 1)
