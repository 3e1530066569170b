"""What convolutions and poolings say about their windows: a number per axis, margins, extents."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from numus.errors import ShapeError
from numus.graph import Node
from numus.primitives.views import reshape
from numus.shapes import Shape

P = ParamSpec("P")
R = TypeVar("R")
Margins = tuple[tuple[int, int], ...]  # before and after each axis


def per_axis(op: str, what: str, given: Any, rank: int, least: int = 1) -> Shape:
    """One number for all axes, or one for each."""
    if isinstance(given, (tuple, list)):
        numbers = tuple(operator.index(n) for n in given)
        if len(numbers) == 1:
            numbers *= rank
    else:
        numbers = (operator.index(given),) * rank
    if len(numbers) != rank:
        raise ShapeError(
            f"{op}: {what}={given!r} has {len(numbers)} numbers for {rank} axes; give one, or one "
            "for each"
        )
    if any(n < least for n in numbers):
        raise ShapeError(f"{op}: {what} must be at least {least}, not {given!r}")
    return numbers


def margins(op: str, given: Any, rank: int) -> Margins:
    """A margin for all axes, one for each, or a pair (before, after) for each."""
    if isinstance(given, (tuple, list)) and any(isinstance(p, (tuple, list)) for p in given):
        pairs = [p if isinstance(p, (tuple, list)) else (p, p) for p in given]
        if len(pairs) != rank or any(len(p) != 2 for p in pairs):
            raise ShapeError(
                f"{op}: padding={given!r} does not give (before, after) for each of {rank} axes"
            )
        return tuple((operator.index(a), operator.index(b)) for a, b in pairs)
    return tuple((n, n) for n in per_axis(op, "padding", given, rank, 0))


def same_margins(size: Shape, taps: Shape, strides: Shape, dilations: Shape) -> Margins:
    """Margins by which an axis of n elements has ceil(n / stride) windows; an odd one is after."""
    out = []
    for n, k, s, d in zip(size, taps, strides, dilations, strict=True):
        count = -(-n // s)
        total = max(0, (count - 1) * s + (k - 1) * d + 1 - n)
        out.append((total // 2, total - total // 2))
    return tuple(out)


def window_count(size: int, reach: int, stride: int) -> int:
    """How many windows of `reach` elements an axis (with its margins) has."""
    return max(0, (size - reach) // stride + 1)


def batched(op: str, x: Node, rank: int) -> tuple[Node, bool]:
    """x as (batch, channels, *space), and whether it had a batch axis."""
    if x.ndim == rank + 2:
        return x, True
    if x.ndim == rank + 1:
        return reshape(x, (1, *x.shape)), False
    names = ", ".join(("batch", "channels", *("depth", "height", "width")[3 - rank :]))
    raise ShapeError(f"{op}: takes ({names}), with or without the batch, not shape {x.shape}")


def of_rank(
    function: Callable[Concatenate[int, P], R], rank: int, name: str, doc: str
) -> Callable[P, R]:
    """A function of a number of axes of space for one such number, under a name of its own."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(rank, *args, **kwargs)

    own = inspect.signature(function)
    run.__name__ = run.__qualname__ = name
    run.__doc__ = doc
    run.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=list(own.parameters.values())[1:]
    )
    return run
