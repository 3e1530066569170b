"""NumPy's vector product, of vectors of two elements and of three, along any axes."""

from __future__ import annotations

from numus.errors import ShapeError
from numus.functions._base import method, pair, wrap
from numus.functions.shape.concatenation import stack
from numus.functions.spelling import spelled
from numus.shapes import normal_axis
from numus.tensor import ArrayLike, Tensor

__all__ = ["cross"]


@method()
@spelled
def cross(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Tensor:
    """The cross products of vectors of three elements along an axis; other axes broadcast.

    Args:
        axisa, axisb, axisc: the axes of the vectors in x1, in x2, and in the result.
        axis: the same for all three.

    A third element that is not there counts as 0; of two vectors of two elements, the third
    element of the product is the result. `nm.linalg.cross` takes three elements alone.

    >>> nm.cross(nm.asarray([1, 0, 0]), nm.asarray([0, 1, 0])).tolist()
    [0, 0, 1]
    >>> nm.cross(nm.asarray([1, 2]), nm.asarray([3, 4])).item()
    -2
    """
    axes = (axisa, axisb, axisc) if axis is None else (axis,) * 3
    given = [wrap(n) for n in pair("cross", x1, x2)]
    for x, at in zip(given, axes, strict=False):
        if x.shape[normal_axis(at, x.ndim, "cross")] not in (2, 3):
            raise ShapeError(
                f"cross: vectors must have 2 or 3 elements along axis {at}, not shape {x.shape}"
            )
    a, b = (x.unbind(at) for x, at in zip(given, axes, strict=False))
    third = a[0] * b[1] - a[1] * b[0]
    if len(a) == len(b) == 2:
        return third
    if len(a) == 2:
        parts = (a[1] * b[2], -a[0] * b[2], third)
    elif len(b) == 2:
        parts = (-a[2] * b[1], a[2] * b[0], third)
    else:
        parts = (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], third)
    return stack(parts, axis=axes[2])
