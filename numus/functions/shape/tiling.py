"""Elements over and over: repeat, tile, roll and the ways to fill a margin."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.errors import DTypeError, ShapeError
from numus.evaluation.evaluate import check_known, host_array
from numus.functions._base import computed, flat_or_axis, method, node_of, wrap
from numus.functions.indexing.index_checks import host_values, int_constant, ramp, take_axis, upload
from numus.functions.indexing.indexing import cast_value
from numus.functions.spelling import spelled
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives import views
from numus.primitives.broadcast import broadcast, full, reduce_sum
from numus.primitives.indexing import scatter
from numus.primitives.scan import scan
from numus.primitives.structure import copy
from numus.shapes import Shape, as_int, normal_axis, size_of
from numus.tensor import ArrayLike, Tensor

__all__ = ["pad", "repeat", "repeat_interleave", "roll", "tile"]


@spelled
def repeat(
    x: ArrayLike,
    repeats: int | Any,
    /,
    *,
    axis: int | None = None,
    total_repeat_length: int | None = None,
) -> Tensor:
    """Each element (or each part along an axis) several times in a row.

    Args:
        repeats: how often; one number, or one for each index along the axis. The shape of the
            result depends on a tensor's values: it is evaluated.
        axis: without one, the elements are taken as one long axis.
        total_repeat_length: the extent of the result, where it must be known under `nm.jit`:
            nothing is evaluated, what is beyond is cut off, and the last element fills it up.

    >>> nm.repeat(nm.asarray([1, 2, 3]), nm.asarray([2, 0, 1])).tolist()
    [1, 1, 3]
    """
    node, at = flat_or_axis(node_of(x, "repeat"), axis, "repeat")
    extent = node.shape[at]
    if total_repeat_length is not None:
        from numus.functions.ordering.sized import sized_repeat

        return sized_repeat(Tensor(node), repeats, at, total_repeat_length)
    if not isinstance(repeats, (Tensor, np.ndarray, list, tuple)):
        times = as_int(repeats, "repeats", "repeat")
    else:
        counts = repeats._node if isinstance(repeats, Tensor) else upload(np.asarray(repeats), node)
        if not counts.dtype.is_integer:
            raise DTypeError(f"repeat: repeats must be integers, not {counts.dtype.name}")
        if counts.shape not in ((), (1,), (extent,)):
            raise ShapeError(
                f"repeat: repeats of shape {counts.shape} for axis {at} with {extent} elements; "
                "give one number, or one for each"
            )
        if counts.shape == (extent,) and extent != 1:
            return computed(_repeat_each(node, ew.cast(counts, dt.int64), at))
        times = int(_read(counts, "repeat").reshape(()))
    if times < 0:
        raise ShapeError(f"repeat: an element cannot be repeated {times} times")
    shape = node.shape
    wide = views.reshape(node, (*shape[: at + 1], 1, *shape[at + 1 :]))
    wide = broadcast(wide, (*shape[: at + 1], times, *shape[at + 1 :]))
    return computed(views.reshape(wide, (*shape[:at], extent * times, *shape[at + 1 :])))


def _read(node: Node, op: str) -> np.ndarray[Any, Any]:
    check_known(node, op, "give repeats as Python integers, so that the result's shape is known")
    return host_array(node)


def _repeat_each(node: Node, counts: Node, axis: int) -> Node:
    known = host_values(counts)
    if known is not None and known.size and known.min() < 0:
        raise ShapeError(f"repeat: an element cannot be repeated {known.min()} times")
    total = int(_read(reduce_sum(counts, (0,)), "repeat"))
    # position k reads the element whose number is the count of ends at or before k
    ends = scan("sum", counts, 0)
    zeros, ones = full((total,), 0, dt.int64), full(ends.shape, 1, dt.int64)
    marks = scatter(zeros, (ends,), ones, (0,), "add")
    return take_axis(node, scan("sum", marks, 0), axis)


@method("repeat", "repeat_interleave")
@spelled
def repeat_interleave(x: ArrayLike, repeats: Any, axis: int | None = None) -> Tensor:
    """`repeat` under its other name."""
    return repeat(x, repeats, axis=axis)


@method()
def tile(x: ArrayLike, repetitions: int | Sequence[int], /) -> Tensor:
    """The whole array side by side, as often along each axis as told.

    >>> nm.tile(nm.asarray([1, 2]), (2, 2)).tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    node = node_of(x, "tile")
    times = repetitions if isinstance(repetitions, (tuple, list)) else (repetitions,)
    times = tuple(as_int(n, "repetitions", "tile") for n in times)
    if any(n < 0 for n in times):
        raise ShapeError(f"tile: an axis cannot be repeated {min(times)} times")
    rank = max(len(times), node.ndim)
    times = (1,) * (rank - len(times)) + times
    shape = (1,) * (rank - node.ndim) + node.shape
    wide = views.reshape(node, tuple(n for extent in shape for n in (1, extent)))
    wide = broadcast(wide, tuple(n for pair in zip(times, shape, strict=True) for n in pair))
    return computed(views.reshape(wide, tuple(t * n for t, n in zip(times, shape, strict=True))))


@method()
@spelled
def roll(
    x: ArrayLike, /, shift: int | Sequence[int], axis: int | Sequence[int] | None = None
) -> Tensor:
    """The elements moved on along axes; those that leave at one end come in at the other.

    >>> nm.roll(nm.arange(5), 2).tolist()
    [3, 4, 0, 1, 2]
    """
    node = node_of(x, "roll")
    if axis is None:
        flat = views.reshape(node, (size_of(node.shape),))
        steps = sum(shift) if isinstance(shift, Sequence) else shift
        return computed(views.reshape(_roll(flat, steps, 0), node.shape))
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    if len(axes) == 1:
        axes = tuple(axes) * len(shifts)
    if len(axes) != len(shifts):
        raise ShapeError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    for a, steps in zip(axes, shifts, strict=True):
        node = _roll(node, steps, normal_axis(a, node.ndim, "roll"))
    return computed(node)


def _roll(node: Node, shift: int, axis: int) -> Node:
    extent = node.shape[axis]
    start = -as_int(shift, "shift", "roll") % extent if extent else 0
    return cycle(node, axis, start, extent) if start else node


def cycle(node: Node, axis: int, start: int, count: int) -> Node:
    """`count` elements from `start` on along a periodic axis: a view."""
    shape = node.shape
    extent = shape[axis]
    start %= extent
    laps = -(-(start + count) // extent)
    wide = views.reshape(node, (*shape[:axis], 1, *shape[axis:]))
    wide = broadcast(wide, (*shape[:axis], laps, *shape[axis:]))
    long = views.reshape(wide, (*shape[:axis], laps * extent, *shape[axis + 1 :]))
    return views.take_range(long, axis, start, start + count)


def _between(before: Node, node: Node, after: Node, axis: int) -> Node:
    """Three arrays end to end, chosen by position: one pass that fuses, as its gradient does.

    It reads the middle three times, so that one is materialised.
    """
    low, extent, high = (n.shape[axis] for n in (before, node, after))

    def padded(part: Node, left: int, right: int) -> Node:
        sides = (tuple(n if i == axis else 0 for i in range(node.ndim)) for n in (left, right))
        return views.pad(part, *sides)

    out = padded(node, low, high)
    position = ramp(out.shape, axis, node.device)
    if low:
        first = ew.lt(position, int_constant(low))
        out = ew.where(first, padded(before, 0, extent + high), out)
    if high:
        last = ew.le(int_constant(low + extent), position)
        out = ew.where(last, padded(after, low + extent, 0), out)
    return out


def _stored(node: Node) -> Node:
    return node if node.view is not None or node.prim.kind == "source" else copy(node)


def _pad_edge(node: Node, axis: int, low: int, high: int) -> Node:
    node = _stored(node)

    def end(start: int, count: int) -> Node:
        shape = (*node.shape[:axis], count, *node.shape[axis + 1 :])
        return broadcast(views.take_range(node, axis, start, start + 1), shape)

    return _between(end(0, low), node, end(node.shape[axis] - 1, high), axis)


def _pad_mirror(node: Node, axis: int, low: int, high: int, skip: int) -> Node:
    """Mirrored at the last element (skip = 1) or behind it (0); over and over for wide margins."""
    while low or high:
        extent = node.shape[axis]
        a, b = min(low, extent - skip), min(high, extent - skip)
        node = _stored(node)
        before = views.take_range(node, axis, skip, skip + a)
        after = views.take_range(node, axis, extent - skip - b, extent - skip)
        node = _between(views.flip(before, (axis,)), node, views.flip(after, (axis,)), axis)
        low, high = low - a, high - b
    return node


def _pad_reflect(node: Node, axis: int, low: int, high: int) -> Node:
    if node.shape[axis] == 1:  # the mirror shows the only element
        return _pad_edge(node, axis, low, high)
    return _pad_mirror(node, axis, low, high, skip=1)


_FILLS: dict[str, Callable[[Node, int, int, int], Node]] = {
    "edge": _pad_edge,
    "wrap": lambda node, axis, low, high: cycle(node, axis, -low, low + node.shape[axis] + high),
    "reflect": _pad_reflect,
    "symmetric": functools.partial(_pad_mirror, skip=0),
}


def pad(
    x: ArrayLike,
    /,
    pad_width: int | Sequence[Any] | dict[int, Any],
    mode: str = "constant",
    *,
    constant_values: Any = 0,
    end_values: Any = 0,
    stat_length: Any = None,
    reflect_type: str = "even",
) -> Tensor:
    """An array with a margin.

    Args:
        pad_width: ((before, after), …) for each axis, (before, after) or one number for all, or a
            dict from axes to such.
        mode: what fills it: "constant", "edge" (the last element), "reflect" (the elements
            mirrored at the last one), "symmetric" (mirrored behind it), "wrap" (the other end),
            "maximum", "mean", "median", "minimum" (of the axis), "linear_ramp" (to end_values),
            "empty" (zeros).
        constant_values: for "constant", in the same forms as pad_width.
        end_values: for "linear_ramp", where the margin begins, in the same forms.
        stat_length: how many elements at each end the statistics are of; None takes all.
        reflect_type: "odd" mirrors values at the edge too: twice the edge, less the mirrored.

    >>> nm.pad(nm.asarray([1, 2, 3]), (2, 1), "reflect").tolist()
    [3, 2, 1, 2, 3, 2]
    """
    node = node_of(x, "pad")
    widths = _sides(pad_width, node.ndim, "pad_width")
    low, high = (tuple(as_int(side[i], "pad_width", "pad") for side in widths) for i in (0, 1))
    if any(n < 0 for n in (*low, *high)):
        raise ShapeError(f"pad: a margin cannot be negative: {pad_width}; cut with a slice")
    if mode == "constant":
        values = _sides(constant_values, node.ndim, "constant_values")
        return computed(_pad_constant(node, low, high, values))
    if mode not in _FILLS or reflect_type == "odd":
        return _pad_computed(wrap(node), low, high, mode, stat_length, end_values)
    for axis, extent in enumerate(node.shape):
        if low[axis] or high[axis]:
            if extent == 0:
                raise ShapeError(f"pad: axis {axis} is empty: {mode} has nothing to fill it with")
            node = _FILLS[mode](node, axis, low[axis], high[axis])
    return computed(node)


def _pad_computed(
    x: Tensor, low: Shape, high: Shape, mode: str, stat_length: Any, end_values: Any
) -> Tensor:
    # the margins are written with functions that stand on this module
    padding = importlib.import_module("numus.functions.shape.padding")
    if mode in ("reflect", "symmetric"):
        for axis, sides in enumerate(zip(low, high, strict=True)):
            x = padding.odd_reflection(x, axis, *sides, skip=int(mode == "reflect"))
        return x
    if mode not in padding.MODES:
        known = ", ".join(("constant", *_FILLS, *padding.MODES))
        raise ValueError(f"pad: no mode {mode!r}; modes: {known}")
    lengths = _sides(stat_length, x.ndim, "stat_length")
    ends = _sides(end_values, x.ndim, "end_values")
    found: Tensor = padding.computed_margins(x, low, high, mode, lengths, ends)
    return found


def _sides(given: Any, rank: int, what: str) -> list[tuple[Any, Any]]:
    """NumPy's forms of a pair per axis."""
    if isinstance(given, dict):
        out: list[tuple[Any, Any]] = [(0, 0)] * rank
        for axis, pair in given.items():
            out[normal_axis(axis, rank, "pad")] = _sides(pair, 1, what)[0]
        return out
    leaves: list[Any] = []

    def placed(part: Any) -> Any:
        """The positions of a part's numbers among the leaves; tensors are no numbers to NumPy."""
        if isinstance(part, (np.ndarray, np.generic)):
            part = part.tolist()
        if isinstance(part, (list, tuple)) or (isinstance(part, Tensor) and part.ndim):
            return [placed(p) for p in part]
        leaves.append(part)
        return len(leaves) - 1

    try:
        places = np.broadcast_to(np.array(placed(given), int), (rank, 2)).tolist()
        return [(leaves[a], leaves[b]) for a, b in places]
    except ValueError:
        raise ShapeError(
            f"pad: {what}={given!r} does not give (before, after) for each of {rank} axes"
        ) from None


def _pad_constant(node: Node, low: Any, high: Any, values: list[tuple[Any, Any]]) -> Node:
    out = views.pad(node, low, high)
    known = [v for pair in values for v in pair if not isinstance(v, (dt.Weak, Tensor))]
    if len(known) == 2 * len(values) and not any(known):
        return out
    for axis, (before, after) in enumerate(values):  # where margins cross, the later axis wins
        position = ramp(out.shape, axis, node.device)
        if low[axis]:
            fill = cast_value(before, node, "pad")
            out = ew.where(ew.lt(position, int_constant(low[axis])), fill, out)
        if high[axis]:
            fill = cast_value(after, node, "pad")
            last = int_constant(low[axis] + node.shape[axis] - 1)
            out = ew.where(ew.lt(last, position), fill, out)
    return out
