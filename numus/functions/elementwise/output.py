"""NumPy's `out` argument of elementwise functions: the tensor that takes the result."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol, overload

from numus.errors import DeviceError, ShapeError
from numus.functions.indexing.indexing import cast_value
from numus.primitives.broadcast import broadcast
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import ArrayLike, Tensor


class Unary(Protocol):
    """A function of one operand."""

    __name__: str

    def __call__(self, x: ArrayLike, /, *, out: Tensor | None = None) -> Tensor: ...


class Binary(Protocol):
    """A function of two operands."""

    __name__: str

    def __call__(self, x1: ArrayLike, x2: ArrayLike, /, *, out: Tensor | None = None) -> Tensor: ...


@overload
def accepts_out(function: Callable[[ArrayLike], Tensor]) -> Unary: ...
@overload
def accepts_out(function: Callable[[ArrayLike, ArrayLike], Tensor]) -> Binary: ...


def accepts_out(function: Any) -> Any:
    """Let a function of one or two operands write its result to a tensor given as `out`, which it
    then returns; views of that tensor see it."""
    name = function.__name__

    def unary(x: ArrayLike, /, *, out: Tensor | None = None) -> Tensor:
        result: Tensor = function(x)
        return result if out is None else write_out(result, out, name)

    def binary(x1: ArrayLike, x2: ArrayLike, /, *, out: Tensor | None = None) -> Tensor:
        result: Tensor = function(x1, x2)
        return result if out is None else write_out(result, out, name)

    operands = inspect.unwrap(function).__code__.co_argcount
    call: Any = unary if operands == 1 else binary
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(call, attribute, getattr(function, attribute))
    return call


Pair = tuple[Tensor, Tensor]
Outs = tuple[Tensor | None, Tensor | None]


def write_outs(results: Pair, outs: Outs | None, op: str) -> Pair:
    """The same for two results and a pair of tensors, either of which may be None."""
    if outs is None:
        return results
    if not isinstance(outs, tuple) or len(outs) != 2:
        raise TypeError(f"{op}: out must be a pair of tensors, not {outs!r:.80}")
    first, second = (
        x if y is None else write_out(x, y, op) for x, y in zip(results, outs, strict=True)
    )
    return first, second


def write_out(result: Tensor, out: Any, op: str) -> Tensor:
    """Give a tensor the elements of a result, cast to its dtype and broadcast to its shape."""
    if isinstance(out, tuple) and len(out) == 1:  # as ufuncs take it
        (out,) = out
    if not isinstance(out, Tensor):
        raise TypeError(f"{op}: out must be a tensor, not {type(out).__name__}")
    node = result._node
    if node.device is not None and node.device is not out.device:
        raise DeviceError(f"{op}: out is on {out.device}, and the result on {node.device}")
    if broadcast_shapes(node.shape, out.shape, op) != out.shape:
        raise ShapeError(f"{op}: a result of shape {node.shape} does not fit out, of {out.shape}")
    return out.rebind(broadcast(cast_value(result, out._node, op), out.shape), op)
