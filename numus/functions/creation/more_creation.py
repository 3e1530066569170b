"""Arrays from functions, iterators, text and ratios; questions about arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions import api as nm
from numus.functions._base import operand
from numus.functions.creation.creation import DeviceLike
from numus.functions.creation.spacing import ratios_between
from numus.functions.indexing.coordinates import indices
from numus.functions.spelling import spelled
from numus.primitives.view_updates import may_overlap
from numus.shapes import as_shape
from numus.shapes import broadcast as broadcast_two
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "around", "as_tensor", "asanyarray", "asarray_chkfinite", "ascontiguousarray",
    "broadcast_shapes", "broadcast_tensors", "detach", "fromfunction", "fromiter", "fromstring",
    "geomspace", "get_default_dtype", "is_complex", "is_floating_point", "is_nonzero", "is_signed",
    "is_tensor", "isscalar", "iterable", "may_share_memory", "ndim", "numel", "range",
    "scalar_tensor", "shape", "shares_memory", "size", "t",
]  # fmt: skip

around = nm.round
as_tensor = asanyarray = nm.asarray


def ascontiguousarray(a: Any, dtype: Any = None) -> Tensor:
    """A tensor of at least one axis whose memory is row-major and dense."""
    found: Tensor = nm.atleast_1d(nm.asarray(a, dtype=dtype))
    return found.contiguous()


def asarray_chkfinite(a: Any, dtype: Any = None) -> Tensor:
    """`asarray`, an error where an element is infinite or NaN. Evaluates the elements.

    >>> nm.asarray_chkfinite([1.0, 2.0]).tolist()
    [1.0, 2.0]
    """
    found = nm.asarray(a, dtype=dtype)
    if found.dtype.is_inexact and not bool(nm.all(nm.isfinite(found))):
        raise ValueError("asarray_chkfinite: the array has infinities or NaN in it")
    return found


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that arrays of these shapes broadcast to.

    >>> nm.broadcast_shapes((3, 1), (4,), 1)
    (3, 4)
    """
    found: tuple[int, ...] = ()
    for given in shapes:
        found = broadcast_two(found, as_shape(given, "broadcast_shapes"), "broadcast_shapes")
    return found


broadcast_tensors = nm.broadcast_arrays


def fromfunction(
    function: Callable[..., Any], shape: Any, *, dtype: Any = None, **kwargs: Any
) -> Any:
    """A function of the indices along each axis, which it gets as arrays.

    >>> nm.fromfunction(lambda i, j: i + j, (2, 2), dtype=nm.int64).tolist()
    [[0, 1], [1, 2]]
    """
    wanted = dt.default_float if dtype is None else dtype
    return function(*indices(shape, dtype=wanted), **kwargs)


def fromiter(iter: Iterable[Any], dtype: Any, count: int = -1) -> Tensor:
    """A vector of what an iterator gives.

    Args:
        count: how many elements to take; -1 takes all.

    >>> nm.fromiter((i * i for i in [0, 1, 2, 3]), nm.int64).tolist()
    [0, 1, 4, 9]
    """
    wanted = dt.as_dtype(dtype)
    return nm.asarray(np.fromiter(iter, wanted.np, count), dtype=wanted)


def fromstring(string: str, dtype: Any = None, count: int = -1, *, sep: str) -> Tensor:
    """A vector from the numbers of a text.

    >>> nm.fromstring("1 2 3", dtype=nm.int64, sep=" ").tolist()
    [1, 2, 3]
    """
    if not sep:
        raise ValueError("fromstring: reads text; bytes are read by nm.frombuffer")
    wanted = dt.default_float if dtype is None else dt.as_dtype(dtype)
    wide = np.float64 if wanted.is_floating else wanted.np
    return nm.asarray(np.fromstring(string, wide, count, sep=sep), dtype=wanted)


def geomspace(
    start: Any,
    stop: Any,
    /,
    num: int = 50,
    *,
    endpoint: bool = True,
    dtype: Any = None,
    device: DeviceLike = None,
    axis: int = 0,
) -> Tensor:
    """`num` numbers from start to stop with a constant ratio. Both may be negative, or complex, or
    arrays, whose numbers go along a new axis.

    >>> nm.geomspace(1, 1000, 4).tolist()
    [1.0, 10.0, 100.0, 1000.0]
    """
    if ndim(start) or ndim(stop):
        found = ratios_between(start, stop, num, endpoint, axis)
        return (
            found
            if dtype is None and found.dtype.is_complex
            else nm.astype(found, dt.default_float if dtype is None else dtype)
        )
    first, last = (x.item() if isinstance(x, Tensor) else x for x in (start, stop))
    if first == 0 or last == 0:
        raise ValueError("geomspace: neither end may be 0")
    default = dt.default_complex if isinstance(first + last, complex) else dt.default_float
    wanted = default if dtype is None else dt.as_dtype(dtype)
    # on the host: a few numbers, of which both ends are exact
    host = np.geomspace(first, last, num, endpoint=endpoint)
    return nm.asarray(host.astype(wanted.np), device=device)


def range(
    start: float,
    end: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    device: Any = None,
) -> Tensor:
    """start, start + step, ... up to and with `end`, as PyTorch's range; `arange` leaves it out.

    >>> nm.range(1, 3).tolist()
    [1.0, 2.0, 3.0]
    """
    first, last = (0, start) if end is None else (start, end)
    count = int(np.floor((last - first) / step)) + 1
    if count < 0 or step == 0:
        raise ValueError(f"range: there are no steps of {step} from {first} to {last}")
    wanted = dt.default_float if dtype is None else dtype
    return nm.astype(nm.arange(count, dtype=dt.float32, device=device) * step + first, wanted)


def scalar_tensor(s: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor without axes."""
    return nm.full((), s, dtype=dtype, device=device)


def t(x: ArrayLike, /) -> Tensor:
    """The transpose of a matrix; a vector or a number as it is.

    >>> nm.t(nm.ones((2, 3))).shape
    (3, 2)
    """
    given = operand("t", x)
    if given.ndim > 2:
        raise ShapeError(f"t: takes a matrix, not an array of shape {given.shape}; use swapaxes")
    return nm.transpose(given) if given.ndim == 2 else given


def detach(x: Tensor, /) -> Tensor:
    """A view without history."""
    return operand("detach", x).detach()


# -- queries --------------------------------------------------------------------------------------


def ndim(a: Any, /) -> int:
    """The number of axes.

    >>> nm.ndim([[1, 2]])
    2
    """
    return nm.asarray(a).ndim


def shape(a: Any, /) -> tuple[int, ...]:
    """The extents of the axes."""
    return nm.asarray(a).shape


@spelled
def size(a: Any, /, axis: int | None = None) -> int:
    """The number of elements, or the extent of an axis."""
    found = nm.asarray(a)
    return found.size if axis is None else found.shape[axis]


def numel(x: ArrayLike, /) -> int:
    """The number of elements."""
    return operand("numel", x).size


def is_tensor(obj: Any, /) -> bool:
    """True for tensors of numus."""
    return isinstance(obj, Tensor)


def is_complex(x: ArrayLike, /) -> bool:
    """True if the dtype is complex."""
    return operand("is_complex", x).dtype.is_complex


def is_floating_point(x: ArrayLike, /) -> bool:
    """True if the dtype is a real floating-point one."""
    return operand("is_floating_point", x).dtype.is_floating


def is_signed(x: ArrayLike, /) -> bool:
    """True if the dtype has negative numbers."""
    return operand("is_signed", x).dtype.kind in ("int", "float", "complex")


def is_nonzero(x: ArrayLike, /) -> bool:
    """True if the only element is not zero. Evaluates it."""
    return bool(operand("is_nonzero", x))


def isscalar(element: Any, /) -> bool:
    """True for Python's and NumPy's numbers and text; a tensor without axes is an array.

    >>> nm.isscalar(3.1), nm.isscalar(nm.asarray(3.1))
    (True, False)
    """
    return np.isscalar(element)


def iterable(y: Any, /) -> bool:
    """True if it can be iterated over."""
    try:
        iter(y)
    except TypeError:
        return False
    return True


def shares_memory(a: Tensor, b: Tensor, /, max_work: Any = None) -> bool:
    """True if a write to one tensor can be seen in the other: they are views of one another.

    >>> x = nm.zeros(3)
    >>> nm.shares_memory(x, x[1:]), nm.shares_memory(x, x + 0)
    (True, False)
    """
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return a is b  # a host array that is given was copied, if at all
    if a is b or a._node is b._node:
        return True
    own, other = a._alias, b._alias
    if own is None or other is None or own[0] is not other[0]:
        return False
    return may_overlap(own[1], other[1])


may_share_memory = shares_memory


def get_default_dtype() -> dt.DType:
    """The dtype of floats that name none: float32."""
    return dt.default_float
