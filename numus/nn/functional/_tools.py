"""Decorators and reductions of the functions of this package."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numus as nm
from numus.functions.autocast import widens
from numus.functions.indexing.index_checks import host_values
from numus.tensor import Tensor


def rounds_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compute in float32 where tensors are of a narrower float, and round the result once."""

    @functools.wraps(function)
    def run(input: Any, *args: Any, **kwargs: Any) -> Any:
        first = input if isinstance(input, Tensor) else nm.asarray(input)
        if not first.dtype.is_low_precision:
            return function(first, *args, **kwargs)
        out = function(first.astype(nm.float32, copy=False), *args, **kwargs)
        return out.astype(first.dtype, copy=False)

    return run


def in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add PyTorch's last argument `inplace`: the input itself becomes what the function gives."""
    kinds = inspect.Parameter
    own = inspect.signature(function).parameters.values()
    given = [p for p in own if p.kind is not kinds.KEYWORD_ONLY]
    flag = kinds("inplace", kinds.POSITIONAL_OR_KEYWORD, default=False, annotation=bool)

    @functools.wraps(function)
    def run(input: Any, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
        if len(args) == len(given):  # one more than it takes: the flag
            *args, inplace = args  # type: ignore[assignment]
        out = function(input, *args, **kwargs)
        return input.rebind(out._node, function.__name__) if inplace else out

    named = [p for p in own if p.kind is kinds.KEYWORD_ONLY]
    run.__signature__ = inspect.Signature([*given, flag, *named])  # type: ignore[attr-defined]
    return run


def measured(function: Callable[..., Any]) -> Callable[..., Any]:
    """A loss or distance: within an autocast it takes and gives float32."""
    return widens(rounds_once(function))


def vector(x: Tensor) -> Tensor:
    """x, a single number as a vector of one element: PyTorch's reading of it along an axis."""
    return x if x.ndim else x.reshape((1,))


def known_outside(x: Tensor, low: float, high: float) -> Any:
    """A value outside [low, high], if the values are at hand and one is; None otherwise."""
    known = host_values(x._node)
    if known is None or not known.size:
        return None
    outside = known[(known < low) | (known > high)]  # NaN is no value
    return outside.flat[0].item() if outside.size else None


def reduced(loss: Tensor, reduction: str, op: str) -> Tensor:
    """The loss of each element, their sum or their mean."""
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    if reduction == "none":
        return loss
    raise ValueError(f'{op}: reduction is "mean", "sum" or "none", not {reduction!r}')
