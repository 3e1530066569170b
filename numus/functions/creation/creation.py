"""Tensors from numbers: filled, counted, spaced, triangular."""

from __future__ import annotations

import functools
import importlib
import math
import operator
from collections.abc import Callable
from typing import Any

from numus import dtypes as dt
from numus.dtypes import DType, as_dtype
from numus.errors import DTypeError, ShapeError
from numus.functions._base import as_number, like, method, moved, node_of, require, wrap
from numus.functions.creation.dtype_functions import convert
from numus.functions.elementwise.arithmetic import pow as power
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast
from numus.primitives.source import constant, iota
from numus.primitives.views import reshape
from numus.runtime.devices import Device
from numus.runtime.devices import device as as_device
from numus.shapes import as_int, as_shape, check_size, is_sequence, size_of
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import ArrayLike, Tensor, scalar_node

__all__ = [
    "arange", "empty", "empty_like", "eye", "full", "full_like", "identity", "linspace", "logspace",
    "meshgrid", "one_hot", "ones", "ones_like", "tri", "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip

DeviceLike = Device | str | None
Binary = Callable[[Node, Node], Node]


def _float(dtype: Any) -> DType:
    return dt.default_float if dtype is None else as_dtype(dtype)


def _finish(node: Node, dtype: DType, device: Device, requires_grad: bool = False) -> Tensor:
    """A new tensor at home on its device."""
    node = ew.cast(node, dtype)
    node.device = device
    out = wrap(node)
    if requires_grad:
        out.requires_grad = True
    return out


def full(
    shape: Any,
    fill_value: Any,
    dtype: Any = None,
    *,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor in which every element is `fill_value`.

    >>> nm.full((2, 2), 7)
    tensor([[7, 7],
            [7, 7]])
    """
    wanted = as_shape(shape, "full")
    dev = as_device(device)
    if dt.scalar_kind(fill_value) is None:  # a tensor of one element, say
        node = node_of(fill_value, "full")
        out = node.dtype if dtype is None else as_dtype(dtype)
        node = moved(convert(node, out, "full"), dev)
        if broadcast_shapes(node.shape, wanted, "full") != wanted:
            raise ShapeError(
                f"full: a fill value of shape {node.shape} does not broadcast to {wanted}"
            )
    else:
        out = dt.scalar_dtype(fill_value) if dtype is None else as_dtype(dtype)
        node = scalar_node(fill_value, out)
    return _finish(broadcast(node, wanted), out, dev, requires_grad)


def _sized(op: str, shape: Any, more: tuple[Any, ...], dtype: Any) -> tuple[Any, Any]:
    """A shape in one argument or several, and the dtype, which may follow it by position."""
    if not more:
        return as_shape(shape, op), dtype
    *extents, last = (shape, *more)
    if not isinstance(last, int) or is_sequence(shape):
        if dtype is not None:
            raise TypeError(f"{op}: {last!r} after the shape and dtype= are two dtypes")
        if len(extents) == 1 and is_sequence(shape):
            return as_shape(shape, op), last
        return as_shape(extents, op), last
    return as_shape((shape, *more), op), dtype


def zeros(
    shape: Any,
    *more: Any,
    dtype: Any = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of zeros (float32, unless another dtype is asked for).

    The shape is a tuple or several integers, and a dtype may follow it.

    >>> nm.zeros(2, 3)
    tensor([[0., 0., 0.],
            [0., 0., 0.]])
    """
    shape, dtype = _sized("zeros", shape, more, dtype)
    return full(shape, 0, dtype=_float(dtype), device=device, requires_grad=requires_grad)


def ones(
    shape: Any,
    *more: Any,
    dtype: Any = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of ones.

    >>> nm.ones((2, 2), dtype=nm.int32).tolist()
    [[1, 1], [1, 1]]
    """
    shape, dtype = _sized("ones", shape, more, dtype)
    return full(shape, 1, dtype=_float(dtype), device=device, requires_grad=requires_grad)


def empty(
    shape: Any,
    *more: Any,
    dtype: Any = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor whose elements do not matter (they are zeros)."""
    return zeros(shape, *more, dtype=dtype, device=device, requires_grad=requires_grad)


def _like(x: Any, dtype: Any, device: DeviceLike, op: str) -> dict[str, Any]:
    """The dtype and device of another tensor, where no other is asked for."""
    node = node_of(x, op)
    return {
        "shape": node.shape,
        "dtype": node.dtype if dtype is None else dtype,
        "device": node.device if device is None else device,
    }


def full_like(
    x: ArrayLike,
    /,
    fill_value: Any,
    dtype: Any = None,
    *,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """`fill_value` in the shape, dtype and device of x.

    >>> nm.full_like(nm.zeros(2), 3.0).tolist()
    [3.0, 3.0]
    """
    given = _like(x, dtype, device, "full_like")
    return full(fill_value=fill_value, requires_grad=requires_grad, **given)


def zeros_like(
    x: ArrayLike, /, dtype: Any = None, *, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """Zeros in the shape, dtype and device of x."""
    return zeros(requires_grad=requires_grad, **_like(x, dtype, device, "zeros_like"))


def ones_like(
    x: ArrayLike, /, dtype: Any = None, *, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """Ones in the shape, dtype and device of x."""
    return ones(requires_grad=requires_grad, **_like(x, dtype, device, "ones_like"))


def empty_like(
    x: ArrayLike, /, dtype: Any = None, *, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """Elements that do not matter in the shape, dtype and device of x."""
    return empty(requires_grad=requires_grad, **_like(x, dtype, device, "empty_like"))


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    dtype: Any = None,
    *,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """start, start + step, … up to but without `stop`; one argument is the stop.

    >>> nm.arange(2, 8, 2)
    tensor([2, 4, 6])
    """
    if stop is None:
        start, stop = 0, start
    ends = zip((start, stop, step), ("start", "stop", "step"), strict=True)
    first, last, move = (_number(n, name) for n, name in ends)
    whole = all(isinstance(n, int) for n in (first, last, move))
    out = as_dtype(dtype) if dtype is not None else dt.default_int if whole else dt.default_float
    if out is dt.bool_:
        raise DTypeError("arange: bool cannot count; use an integer dtype and compare")
    if move == 0:
        raise ValueError("arange: step must not be 0")
    if whole:
        count = max(0, -((first - last) // move))
    else:
        span = (last - first) / move
        if not math.isfinite(span):
            raise ValueError(f"arange: {first}, {last}, {move} give no finite number of steps")
        count = max(0, math.ceil(span))
    count = int(count)
    check_size((count,), "arange")
    dev = as_device(device)
    if whole and out.is_integer and count:
        for end in (first, first + (count - 1) * move):
            scalar_node(end, out)  # raises where the dtype cannot represent it
    return _finish(_counted(count, first, move, out, dev), out, dev, requires_grad)


def _number(n: Any, name: str) -> int | float:
    n = as_number(n, name, "arange")
    if isinstance(n, (bool, int)) or (not isinstance(n, float) and hasattr(n, "__index__")):
        return operator.index(n)
    return float(n)


def _counted(count: int, first: float, step: float, out: DType, dev: Device) -> Node:
    """first + i * step, with whole numbers counted as such."""
    if isinstance(first, int) and isinstance(step, int):
        whole = out if out.is_integer else dt.int64
        wide = dt.uint64 if whole is dt.uint64 else dt.int64
        node = iota(count, wide, dev)
        node = ew.mul(node, _wrapped(step, wide))
        return ew.cast(ew.add(node, _wrapped(first, wide)), out)
    node = ew.cast(iota(count, dt.int64, dev), _compute_dtype(out))
    return ew.add(ew.mul(node, like(node, step)), like(node, first))


def _compute_dtype(out: DType) -> DType:
    return dt.float64 if out.is_integer or out in (dt.float64, dt.complex128) else dt.float32


def _wrapped(number: int, dtype: DType) -> Node:
    """A constant modulo 2**64: sums that end in range may pass outside it."""
    number &= (1 << 64) - 1
    if dtype is dt.int64 and number >> 63:
        number -= 1 << 64
    return constant(number, dtype)


def _spacing() -> Any:
    """The general case, which is written with the functions of this module."""
    return importlib.import_module("numus.functions.creation.spacing")


def _is_array(x: Any) -> bool:
    return bool(getattr(x, "ndim", 0)) or isinstance(x, (list, tuple))


def linspace(
    start: Any,
    stop: Any,
    /,
    num: int = 50,
    *,
    dtype: Any = None,
    device: DeviceLike = None,
    endpoint: bool = True,
    axis: int = 0,
    requires_grad: bool = False,
) -> Tensor:
    """`num` evenly spaced numbers from start to stop.

    Args:
        endpoint: whether stop is the last of them, or one step further.
        axis: where the new axis stands, if the ends are arrays.

    >>> nm.linspace(0, 1, 5)
    tensor([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    (count,) = as_shape(as_int(num, "num", "linspace"), "linspace")
    dev = as_device(device)
    if _is_array(start) or _is_array(stop):
        found = _spacing().between(start, stop, count, endpoint, axis)
        out = found.dtype if dtype is None and found.dtype.is_complex else _float(dtype)
        node = ew.floor(found._node) if out.is_integer else found._node
        return _finish(node, out, dev, requires_grad)
    ends = (start, stop)
    kinds = [n.dtype.kind if isinstance(n, Tensor) else dt.scalar_kind(n) for n in ends]
    is_complex = "complex" in kinds
    default = dt.default_complex if is_complex else dt.default_float
    out = default if dtype is None else as_dtype(dtype)
    if is_complex and not out.is_complex:
        raise DTypeError(f"linspace: complex ends do not fit {out.name}")
    steps, compute = max(count - 1 if endpoint else count, 1), _compute_dtype(out)
    space = functools.partial(_spaced, count, steps, compute, dev)
    node = space(*(_part(n, "real") for n in ends))
    if out.is_complex:
        node = ew.complex_(node, space(*(_part(n, "imag") for n in ends)))
    elif out.is_integer:
        node = ew.floor(node)
    return _finish(node, out, dev, requires_grad)


def _part(n: Any, name: str) -> Any:
    """The real or imaginary part of an end; a tensor's is on the host unless it is tracked."""
    pending = isinstance(n, Tensor) and (n.requires_grad or n._node.abstract)
    return getattr(n.item() if isinstance(n, Tensor) and not pending else n, name)


def _spaced(count: int, steps: int, dtype: DType, dev: Device, first: Any, last: Any) -> Node:
    """Counted from the nearer end, so that both are exact."""
    a, b = scalar_node(first, dtype), scalar_node(last, dtype)
    # not (last - first) / steps, which may overflow
    if isinstance(first, Tensor) or isinstance(last, Tensor):
        a, b = moved(a, dev), moved(b, dev)
        step = ew.sub(ew.div(b, like(b, steps)), ew.div(a, like(a, steps)))
    else:
        step = scalar_node(last / steps - first / steps if count > 1 else 0.0, dtype)
    index = iota(count, dt.int64, dev)
    behind = ew.cast(ew.sub(constant(steps, dt.int64), index), dtype)
    ahead = ew.cast(index, dtype)
    from_first, from_last = ew.add(a, ew.mul(step, ahead)), ew.sub(b, ew.mul(step, behind))
    return ew.where(ew.le(ahead, behind), from_first, from_last)


def logspace(
    start: Any,
    stop: Any,
    /,
    num: int = 50,
    *,
    base: Any = 10.0,
    dtype: Any = None,
    device: DeviceLike = None,
    endpoint: bool = True,
    axis: int = 0,
) -> Tensor:
    """`num` numbers from base**start to base**stop with evenly spaced logarithms.

    >>> nm.logspace(0, 2, 3).tolist()
    [1.0, 10.0, 100.0]
    """
    out = _float(dtype)
    compute = out if out.is_inexact else dt.float64
    if any(map(_is_array, (start, stop, base))):
        found = _spacing().powers_between(start, stop, num, base, endpoint, axis)
        return wrap(convert(found._node, out, "logspace"))
    exponents = linspace(start, stop, num, dtype=compute, device=device, endpoint=endpoint)
    return wrap(convert(power(base, exponents)._node, out, "logspace"))


def _offset(rows: int, columns: int, dev: Device | None) -> Node:
    """column - row."""
    down = reshape(iota(rows, dt.int64, dev), (rows, 1))
    return ew.sub(reshape(iota(columns, dt.int64, dev), (1, columns)), down)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: Any = None,
    device: DeviceLike = None,
) -> Tensor:
    """Ones on the k-th diagonal, zeros elsewhere.

    >>> nm.eye(2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    return _banded("eye", ew.eq, n_rows, n_cols, k, dtype, as_device(device))


def _banded(
    op: str, on: Binary, rows: int, columns: int | None, k: int, dtype: Any, dev: Device
) -> Tensor:
    """Ones where column - row compares with k."""
    rows, columns = as_shape((rows, rows if columns is None else columns), op)
    ones = on(_offset(rows, columns, dev), _diagonal(k, rows, columns, op))
    return _finish(ones, _float(dtype), dev)


def _diagonal(k: int, rows: int, columns: int, op: str) -> Node:
    """k as a constant; diagonals outside the matrix are clamped to its edge."""
    return constant(min(max(as_int(k, "k", op), -rows), columns), dt.int64)


def identity(n: int, /, *, dtype: Any = None, device: DeviceLike = None) -> Tensor:
    """The identity matrix."""
    return eye(n, dtype=dtype, device=device)


def tri(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: Any = None,
    device: DeviceLike = None,
) -> Tensor:
    """Ones on and below the k-th diagonal."""
    return _banded("tri", ew.le, n_rows, n_cols, k, dtype, as_device(device))


def _triangle(x: Any, k: int, op: str, lower: bool) -> Tensor:
    node = node_of(x, op)
    if node.ndim < 2:
        raise ShapeError(f"{op}: needs a matrix (or a stack of them), not shape {node.shape}")
    rows, columns = node.shape[-2:]
    offset, diagonal = _offset(rows, columns, node.device), _diagonal(k, rows, columns, op)
    keep = ew.le(offset, diagonal) if lower else ew.le(diagonal, offset)
    return wrap(ew.where(keep, node, like(node, 0)))


@method()
def tril(x: ArrayLike, /, k: int = 0) -> Tensor:
    """x with zeros above the k-th diagonal.

    >>> nm.tril(nm.ones((2, 2), dtype=nm.int32)).tolist()
    [[1, 0], [1, 1]]
    """
    return _triangle(x, k, "tril", lower=True)


@method()
def triu(x: ArrayLike, /, k: int = 0) -> Tensor:
    """x with zeros below the k-th diagonal."""
    return _triangle(x, k, "triu", lower=False)


def meshgrid(*arrays: Tensor, indexing: str = "xy", sparse: bool = False) -> list[Tensor]:
    """Coordinates of a grid from those of its axes.

    Args:
        indexing: "xy" lets the first array run along columns, "ij" along rows.
        sparse: leave the arrays with one element along all other axes, to broadcast.

    >>> rows, columns = nm.meshgrid(nm.arange(2), nm.arange(3), indexing="ij")
    >>> (rows * 10 + columns).tolist()
    [[0, 1, 2], [10, 11, 12]]
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f'meshgrid: indexing must be "xy" or "ij", not {indexing!r}')
    nodes = [node_of(a, "meshgrid") for a in arrays]
    for node in nodes:
        if node.ndim > 1:
            raise ShapeError(f"meshgrid: axes must be one-dimensional, not of shape {node.shape}")
    rank = len(nodes)
    order = list(range(rank))
    if indexing == "xy" and rank > 1:
        order[:2] = [1, 0]
    extents = [size_of(n.shape) for n in nodes]
    shape = tuple(extents[order.index(i)] for i in range(rank))
    grids = []
    for node, extent, axis in zip(nodes, extents, order, strict=True):
        line = tuple(extent if i == axis else 1 for i in range(rank))
        wide = line if sparse else check_size(shape, "meshgrid")
        grids.append(wrap(broadcast(reshape(node, line), wide)))
    return grids


def one_hot(x: ArrayLike, /, num_classes: int = -1, *, dtype: Any = dt.int64) -> Tensor:
    """A new last axis with a one at the index that x names; indices outside it give zeros.

    Args:
        num_classes: the extent of that axis; -1 reads the largest index from x.

    >>> nm.one_hot(nm.asarray([0, 2]), 3)
    tensor([[1, 0, 0],
            [0, 0, 1]])
    """
    node = require("one_hot", node_of(x, "one_hot"), "uint", "int")
    if num_classes == -1:
        if 0 in node.shape:
            raise ValueError("one_hot: num_classes is needed for a tensor without elements")
        num_classes = int(wrap(node).numpy().max()) + 1
    (classes,) = as_shape(num_classes, "one_hot")
    positions = iota(classes, dt.int64, node.device)
    chosen = reshape(ew.cast(node, dt.int64), (*node.shape, 1))
    return wrap(ew.cast(ew.eq(chosen, positions), as_dtype(dtype)))
