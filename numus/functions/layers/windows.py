"""Windows of convolutions and poolings: their arguments, counts, and views of the data."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions._base import node_of, require, wrap
from numus.functions.indexing.index_checks import upload
from numus.functions.layers.resampling import Table, resample
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, full, reduce_sum
from numus.primitives.source import iota
from numus.primitives.views import pad, permute, reshape, shear, take_range
from numus.shapes import Shape, as_int
from numus.tensor import Tensor

P = ParamSpec("P")
R = TypeVar("R")
Sizes = int | Sequence[int]
Margins = tuple[tuple[int, int], ...]  # before and after each axis


def per_axis(op: str, what: str, given: Any, rank: int, minimum: int = 1) -> Shape:
    """One number for all axes, or one for each."""
    if isinstance(given, (tuple, list)):
        numbers = tuple(as_int(n, what, op) for n in given)
        if len(numbers) == 1:
            numbers *= rank
    else:
        numbers = (as_int(given, what, op),) * rank
    if len(numbers) != rank:
        raise ShapeError(
            f"{op}: {what}={given!r} has {len(numbers)} numbers for {rank} axes; give one, or one "
            "for each"
        )
    if any(n < minimum for n in numbers):
        raise ShapeError(f"{op}: {what} must be at least {minimum}, not {given!r}")
    return numbers


def margins(op: str, given: Any, rank: int) -> Margins:
    """A margin for all axes, one for each, or a pair (before, after) for each."""
    if isinstance(given, (tuple, list)) and any(isinstance(p, (tuple, list)) for p in given):
        pairs = [p if isinstance(p, (tuple, list)) else (p, p) for p in given]
        if len(pairs) != rank or any(len(p) != 2 for p in pairs):
            raise ShapeError(
                f"{op}: padding={given!r} does not give (before, after) for each of {rank} axes"
            )
        return tuple((as_int(a, "padding", op), as_int(b, "padding", op)) for a, b in pairs)
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
    """The number of windows of `reach` elements along an axis of `size` with its margins."""
    return max(0, (size - reach) // stride + 1)


def batched(op: str, x: Node, rank: int) -> tuple[Node, bool]:
    """x as (batch, channels, *space), and whether it had a batch axis."""
    if x.ndim == rank + 2:
        return x, True
    if x.ndim == rank + 1:
        return reshape(x, (1, *x.shape)), False
    names = ", ".join(("batch", "channels", *("depth", "height", "width")[3 - rank :]))
    raise ShapeError(f"{op}: takes ({names}), with or without the batch, not shape {x.shape}")


@dataclass(frozen=True)
class Windows:
    """The windows along one axis: where each begins (it may be before the data), and its taps."""

    size: int
    count: int
    taps: int
    stride: int = 1
    dilation: int = 1
    low: int = 0
    starts: tuple[int, ...] | None = None  # of windows that are not evenly spaced,
    lengths: tuple[int, ...] | None = None  # which may differ in length too

    @functools.cached_property
    def table(self) -> Table:
        """The resampling table of taps of windows that are not evenly spaced."""
        assert self.starts is not None
        assert self.lengths is not None
        k = np.arange(self.taps)
        indices = (np.asarray(self.starts)[:, None] + k).reshape(-1, 1)
        there = (k < np.asarray(self.lengths)[:, None]).reshape(-1, 1)
        return Table(np.minimum(indices, self.size - 1), there.astype(float), self.size)

    @property
    def are_blocks(self) -> bool:
        """Whether windows neither overlap nor leave gaps: a reshape separates them."""
        side_by_side = self.stride == self.taps and self.dilation == 1 and self.low == 0
        return self.starts is None and side_by_side and self.count * self.taps <= self.size

    @property
    def is_full(self) -> bool:
        """Whether every tap of every window is an element."""
        if self.lengths is not None:
            return len(set(self.lengths)) == 1
        reach = (self.count - 1) * self.stride + (self.taps - 1) * self.dilation - self.low
        return self.low <= 0 and reach < self.size

    def in_bounds(self, device: Any) -> Node:
        """(count, taps): whether a tap is an element of its window and of the data."""
        if self.lengths is not None:
            k = reshape(iota(self.taps, dt.int64, device), (1, self.taps))
            length = upload(np.asarray(self.lengths, np.int64), k)
            return ew.lt(k, reshape(length, (self.count, 1)))
        # a window over ones sees zeros beyond them
        ones = broadcast(full((1, 1), True, dt.bool_), (self.size, self.taps))
        return shear(ones, 0, 1, self.count, self.stride, self.dilation, -self.low, 1)


def windows_of(x: Node, axes: Sequence[Windows]) -> tuple[Node, Node | None]:
    """Zero-padded windows over the last axes of x, (…, *counts, *taps), and a mask of the elements
    that are not padding (None: all)."""
    rank = len(axes)
    lead = x.ndim - rank
    wide = reshape(x, (*x.shape, *(1,) * rank))
    for i, a in enumerate(axes):
        if a.are_blocks:
            wide = take_range(wide, lead + i, 0, a.count * a.taps)
        elif a.starts is not None:
            wide = resample(wide, lead + i, a.table)
        else:
            continue
        shape = list(wide.shape)  # the axis parted, its taps moved behind
        shape[lead + i : lead + i + 1] = [a.count, a.taps]
        del shape[lead + rank + i + 1]
        order = _moved(wide.ndim, lead + i + 1, lead + rank + i)
        wide = permute(reshape(wide, tuple(shape)), order)
    # one broadcast for all axes, so that its transpose is one sum
    wide = broadcast(wide, (*wide.shape[: lead + rank], *(a.taps for a in axes)))
    in_bounds: Node | None = None
    for i, a in enumerate(axes):
        if a.starts is None and not a.are_blocks:
            wide = shear(wide, lead + i, lead + rank + i, a.count, a.stride, a.dilation, -a.low, 1)
        if not a.is_full:
            shape = [a.count if j == i else a.taps if j == rank + i else 1 for j in range(2 * rank)]
            mine = reshape(a.in_bounds(x.device), tuple(shape))
            in_bounds = mine if in_bounds is None else ew.and_(in_bounds, mine)
    return wide, in_bounds


def from_windows(wide: Node, axes: Sequence[Windows]) -> Node:
    """The transpose of `windows_of`: each element sums over the windows that cover it.

    Polyphase: an element stride * q + r of an axis with its margin is covered by windows q - m, at
    taps stride * m + r. These are ceil(taps / stride) windows, and none of them has to be tested.
    """
    rank = len(axes)
    lead = wide.ndim - 2 * rank
    sheared = [i for i, a in enumerate(axes) if a.starts is None and not a.are_blocks]
    # of each axis: windows that cover an element, and elements between windows
    phases = {i: 1 if axes[i].dilation > 1 else axes[i].stride for i in sheared}
    covers = {i: -(-axes[i].taps // n) for i, n in phases.items()}
    after = [covers.get(i, 1) * phases.get(i, a.taps) - a.taps for i, a in enumerate(axes)]
    if any(after):
        wide = pad(wide, (0,) * wide.ndim, (0,) * (lead + rank) + tuple(after))
    tail = [(covers[i], phases[i]) if i in phases else (a.taps,) for i, a in enumerate(axes)]
    wide = reshape(wide, (*wide.shape[: lead + rank], *(n for pair in tail for n in pair)))
    for i in reversed(sheared):
        a, at = axes[i], lead + rank + sum(map(len, tail[:i]))
        steps = (-(-(a.low + a.size) // a.stride), 1, -1, 0, 1)
        if a.dilation > 1:
            steps = (a.size, 1, -a.dilation, a.low, a.stride)
        wide = shear(wide, lead + i, at, *steps)
        wide = _merged(wide, at + 1, lead + i)
        if a.dilation == 1:
            wide = take_range(wide, lead + i, a.low, a.low + a.size)
    summed = tuple(lead + rank + i for i in sheared)
    shape = tuple(1 if i in summed else n for i, n in enumerate(wide.shape))
    wide = reshape(reduce_sum(wide, summed), shape)
    for i, a in reversed(list(enumerate(axes))):
        if i in phases:
            continue
        wide = _merged(wide, lead + rank + i, lead + i)
        if a.starts is not None:
            wide = resample(wide, lead + i, a.table.transposed)
        else:
            behind = tuple(a.size - n if k == lead + i else 0 for k, n in enumerate(wide.shape))
            wide = pad(wide, (0,) * wide.ndim, behind)
        shape = (*wide.shape[: lead + rank + i], 1, *wide.shape[lead + rank + i :])
        wide = reshape(wide, shape)
    return reshape(wide, wide.shape[: lead + rank])


def _merged(x: Node, source: int, target: int) -> Node:
    """An axis made the fast part of another one before it."""
    x = permute(x, _moved(x.ndim, source, target + 1))
    both = x.shape[target] * x.shape[target + 1]
    return reshape(x, (*x.shape[:target], both, *x.shape[target + 2 :]))


def _moved(ndim: int, source: int, target: int) -> Shape:
    order = [i for i in range(ndim) if i != source]
    order.insert(target, source)
    return tuple(order)


def taps_of(wide: Node, rank: int) -> Shape:
    """The axes of windows that are their taps."""
    return tuple(range(wide.ndim - rank, wide.ndim))


def strided_windows(
    op: str, x: Node, kernel_size: Sizes, stride: Any, padding: Sizes, dilation: Sizes, ceil: bool
) -> list[Windows]:
    """Evenly spaced windows, as PyTorch counts them."""
    rank = x.ndim - 2
    taps = per_axis(op, "kernel_size", kernel_size, rank)
    strides = taps if stride is None else per_axis(op, "stride", stride, rank)
    low = per_axis(op, "padding", padding, rank, 0)
    dilations = per_axis(op, "dilation", dilation, rank)
    axes = []
    for n, k, s, p, d in zip(x.shape[2:], taps, strides, low, dilations, strict=True):
        reach = (k - 1) * d + 1
        if 2 * p > reach:
            raise ShapeError(
                f"{op}: padding={padding!r} is more than half of a window of {reach}: some windows "
                "would see nothing"
            )
        room = n + 2 * p - reach
        count = (-(-room // s) if ceil else room // s) + 1
        if ceil and (count - 1) * s >= n + p:  # the last window must begin within the data
            count -= 1
        if count < 1:
            raise ShapeError(
                f"{op}: windows of {kernel_size!r} (dilation {dilation!r}) are larger than data of "
                f"{x.shape[2:]} with padding={padding!r}"
            )
        axes.append(Windows(n, count, k, s, d, p))
    return axes


def adaptive_windows(op: str, x: Node, output_size: Any) -> list[Windows]:
    """output_size windows along each axis, as equal in length as whole elements allow."""
    rank = x.ndim - 2
    given = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * rank
    if len(given) != rank:
        raise ShapeError(f"{op}: output_size={output_size!r} for {rank} axes")
    axes = []
    for n, want in zip(x.shape[2:], given, strict=True):
        count = n if want is None else as_int(want, "output_size", op)
        if count < 0:
            raise ShapeError(f"{op}: output_size must not be negative, not {output_size!r}")
        if n == 0:
            raise ShapeError(f"{op}: data of shape {x.shape} has no space to pool")
        if count and n % count == 0:
            axes.append(Windows(n, count, n // count, n // count))
            continue
        starts = tuple(i * n // count for i in range(count))
        lengths = tuple(-(-(i + 1) * n // count) - s for i, s in enumerate(starts))
        axes.append(Windows(n, count, max(lengths, default=1), starts=starts, lengths=lengths))
    return axes


def along_axis(axes: Sequence[Windows], i: int) -> Shape:
    """The shape of one number per window of an axis, to be broadcast against results."""
    return (1, 1, *(a.count if j == i else 1 for j, a in enumerate(axes)))


def pooled(op: str, x: Any, rank: int, *kinds: str) -> tuple[Node, bool]:
    return batched(op, require(op, node_of(x, op), *kinds), rank)


def unbatched(y: Node, has_batch: bool) -> Tensor:
    return wrap(y if has_batch else reshape(y, y.shape[1:]))


Ranks = tuple[Callable[P, R], Callable[P, R], Callable[P, R]]


def by_rank(function: Callable[Concatenate[int, P], R], name: str, *docs: str) -> Ranks[P, R]:
    """Functions over one, two and three axes of space, of one that takes their number first."""
    signature = inspect.signature(function)
    signature = signature.replace(parameters=list(signature.parameters.values())[1:])

    def of_rank(rank: int) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(rank, *args, **kwargs)

        run.__name__ = run.__qualname__ = f"{name}{rank}d"
        run.__doc__ = docs[rank - 1]
        run.__signature__ = signature  # type: ignore[attr-defined]
        return run

    return of_rank(1), of_rank(2), of_rank(3)
