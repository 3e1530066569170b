"""Small windows as expressions: the taps of every window, and the windows that cover every element.

Each is a view of the data without a reduction, so that what combines them is one pointwise kernel
with loads in order. Larger windows are loops over taps (`windows.py`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from numus import dtypes as dt
from numus.functions.layers.windows import Windows
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast
from numus.primitives.source import constant, iota
from numus.primitives.structure import copy
from numus.primitives.views import pad, reshape, slice_

# The maximum of few elements is an expression, whose loop is over windows; of more, a loop over
# taps. 3 × 3 windows with a stride of 2 over 64 × 112² elements take 1.6 ms (4.6) on two cores,
# 5 × 5 with a stride of 1 take 2.1 ms (3.4).
_MAX_UNROLLED_TAPS = 5
_MAX_UNROLLED_WINDOWS = 9  # that cover an element


def are_small(axes: Sequence[Windows], device: Any) -> bool:
    """Windows are evenly spaced, and have few taps. Threads unroll the loops over taps by
    themselves: short graphs serve them better."""
    if device is not None and device.runtime.target.simt:
        return False
    return all(a.starts is None and a.taps <= _MAX_UNROLLED_TAPS for a in axes)


def cover_few(axes: Sequence[Windows], device: Any) -> bool:
    """Windows are small, and few cover an element."""
    covers = 1
    for a in axes:
        covers *= -(-a.taps // a.stride)
    near = all(a.dilation == 1 and a.count > 0 for a in axes)
    return are_small(axes, device) and near and covers <= _MAX_UNROLLED_WINDOWS


# -- taps of a window -----------------------------------------------------------------------------


def taps_along(x: Node, axis: int, a: Windows, fill: float) -> list[Node]:
    """The taps of windows along one axis, each a slice; `fill` is beyond the ends."""
    reach = (a.count - 1) * a.stride + (a.taps - 1) * a.dilation + 1
    low, high = a.low, max(0, reach - a.low - a.size)
    if low or high:
        x = _padded(x, axis, low, high, fill)
    shape = tuple(a.count if i == axis else n for i, n in enumerate(x.shape))
    steps = tuple(a.stride if i == axis else 1 for i in range(x.ndim))
    found = []
    for k in range(a.taps):
        starts = tuple(k * a.dilation if i == axis else 0 for i in range(x.ndim))
        found.append(slice_(x, starts, steps, shape))
    return found


def _padded(x: Node, axis: int, low: int, high: int, fill: float) -> Node:
    size = x.shape[axis]
    ends = [tuple(n if i == axis else 0 for i in range(x.ndim)) for n in (low, high)]
    wide = pad(x, *ends)
    if fill == 0:
        return wide
    # a view of ones sees zeros beyond them: as a comparison it would be a kernel of its own
    inside = pad(broadcast(constant(True, dt.bool_), (size,)), (low,), (high,))
    inside = reshape(inside, tuple(low + size + high if i == axis else 1 for i in range(x.ndim)))
    return ew.where(inside, wide, constant(fill, x.dtype))


def taps_of_all(x: Node, axes: Sequence[Windows], fill: float) -> list[Node]:
    """The taps of windows over the last axes, row-major."""
    found = [x]
    for axis, a in enumerate(axes, x.ndim - len(axes)):
        found = [tap for y in found for tap in taps_along(y, axis, a, fill)]
    return found


# -- windows that cover an element ----------------------------------------------------------------


def _between(x: Node, axis: int, stride: int) -> Node:
    """Each element along an axis as often as there are elements between two windows."""
    if stride == 1:
        return x
    shape = (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :])
    wide = tuple(stride if i == axis + 1 else n for i, n in enumerate(shape))
    merged = tuple(n * stride if i == axis else n for i, n in enumerate(x.shape))
    return reshape(broadcast(reshape(x, shape), wide), merged)


def _number(axes: Sequence[Windows], i: int, turn: int, device: Any) -> Node:
    """Which tap every element along an axis is of the window `turn` before the last it is in."""
    a = axes[i]
    # a remainder by the stride, as a view: a division would be a kernel of its own
    cycles = (a.low + a.size - 1) // a.stride + 1
    cycle = broadcast(reshape(iota(a.stride, dt.int32, device), (1, a.stride)), (cycles, a.stride))
    place = slice_(reshape(cycle, (cycles * a.stride,)), (a.low,), (1,), (a.size,))
    tap = ew.add(place, constant(turn * a.stride, dt.int32))
    return reshape(tap, tuple(a.size if j == i else 1 for j in range(len(axes))))


def _covering_along(x: Node, axis: int, a: Windows) -> list[Node]:
    """For every element along an axis, the results of the windows that begin before it: of the
    last one, of the one before, and so on."""
    turns = -(-a.taps // a.stride)
    found = _between(x, axis, a.stride)
    extents = tuple(a.size if i == axis else n for i, n in enumerate(x.shape))
    return [
        slice_(
            found,
            tuple(a.low + (turns - 1 - t) * a.stride if i == axis else 0 for i in range(x.ndim)),
            (1,) * x.ndim,
            extents,
        )
        for t in range(turns)
    ]


def _with_neighbours(x: Node, axes: Sequence[Windows]) -> Node:
    """Results of windows, stored with zeros for the windows beyond both ends that elements see;
    as they are where there are none."""
    given = x
    for axis, a in enumerate(axes, x.ndim - len(axes)):
        low = -(-a.taps // a.stride) - 1
        high = max(0, (a.size - 1 + a.low) // a.stride - (a.count - 1))
        if low or high:
            x = _padded(x, axis, low, high, 0)
    return x if x is given else copy(x)


def covering(
    results: Sequence[Node], axes: Sequence[Windows]
) -> Iterator[tuple[Node, Node | None, list[Node]]]:
    """For each window that may cover an element: which of its taps the element is, row-major;
    whether it is one at all (None: always); and the results of that window, 0 without one."""
    rank, device = len(axes), results[0].device
    lead = results[0].ndim - rank
    stored = [_with_neighbours(x, axes) for x in results]
    turns = [range(-(-a.taps // a.stride)) for a in axes]
    views = [[x] for x in stored]
    for i, a in enumerate(axes):
        views = [[v for y in some for v in _covering_along(y, lead + i, a)] for some in views]
    for n, turn in enumerate(itertools.product(*turns)):
        numbers = [_number(axes, i, t, device) for i, t in enumerate(turn)]
        inside: list[Node] = [
            ew.lt(number, constant(a.taps, dt.int32))
            for a, t, number in zip(axes, turn, numbers, strict=True)
            if (t + 1) * a.stride > a.taps
        ]
        tap = numbers[0]
        for a, number in zip(axes[1:], numbers[1:], strict=True):
            tap = ew.add(ew.mul(tap, constant(a.taps, dt.int32)), number)
        seen = functools.reduce(ew.and_, inside) if inside else None
        yield tap, seen, [some[n] for some in views]


def window_sums(x: Node, axes: Sequence[Windows]) -> Node:
    """The sum of every window."""
    for axis, a in enumerate(axes, x.ndim - len(axes)):
        x = functools.reduce(ew.add, taps_along(x, axis, a, 0))
    return x


def sums_over_windows(g: Node, axes: Sequence[Windows]) -> Node:
    """The transpose of `window_sums`: each element sums over the windows that cover it."""
    total: Node | None = None
    zero = constant(0.0, g.dtype)
    for _, seen, (part,) in covering((g,), axes):
        found = part if seen is None else ew.where(seen, part, zero)
        total = found if total is None else ew.add(total, found)
    assert total is not None
    return total
