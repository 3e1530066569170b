"""Arrays as sets: their distinct elements and what two of them share.

The number of distinct elements depends on the values: these functions (but for `isin`) evaluate
their arguments, and refuse to be traced.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from numus import dtypes as dt
from numus.evaluation.evaluate import check_known
from numus.functions._base import common, method, node_of, wrap
from numus.functions.indexing.index_checks import COUNT_HINT, int_constant, mask_positions
from numus.functions.indexing.searching import count_before
from numus.functions.ordering.sorting import lexical_order, order
from numus.functions.reduction.histograms import counted, host_ends
from numus.functions.spelling import spelled
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, full
from numus.primitives.indexing import gather, scatter
from numus.primitives.reduce import reduce_max
from numus.primitives.scan import scan
from numus.primitives.sort import sort
from numus.primitives.source import constant, iota
from numus.primitives.structure import concat
from numus.primitives.views import permute, reshape, take_range
from numus.shapes import normal_axis, size_of
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "intersect1d", "isin", "setdiff1d", "setxor1d", "union1d", "unique", "unique_all",
    "unique_counts", "unique_inverse", "unique_values",
]  # fmt: skip

MIN_COUNTED = 1 << 18  # integers, from which on finding their range pays: on one H200 and on CPUs


class UniqueAll(NamedTuple):
    """The result of `unique_all`."""

    values: Tensor
    indices: Tensor  # where each value first occurs
    inverse_indices: Tensor  # for each element, which of the values it is
    counts: Tensor  # how often each value occurs


class UniqueCounts(NamedTuple):
    """The result of `unique_counts`."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The result of `unique_inverse`."""

    values: Tensor
    inverse_indices: Tensor


def _flat(x: Any, op: str) -> Node:
    node = node_of(x, op)
    return reshape(node, (size_of(node.shape),))


def _distinct(rows: Node, op: str, equal_nan: bool) -> tuple[Node, Node, Node, Node]:
    """The distinct elements of a vector (or rows of a matrix), sorted, and three index arrays."""
    count = rows.shape[0]
    nothing = full((0,), 0, dt.int64, rows)
    if count == 0:
        return rows, nothing, nothing, nothing
    if rows.ndim == 1:
        found = order(rows, 0)
    elif rows.shape[1] == 0:
        found = iota(count, dt.int64, rows.device)
    else:
        columns = (take_range(rows, 1, i, i + 1) for i in reversed(range(rows.shape[1])))
        found = lexical_order([reshape(c, (count,)) for c in columns], 0)
    starts = _starts(gather(rows, (found,), (0,)), equal_nan)
    at = mask_positions(starts, op, found)
    index = gather(found, (at,), (0,))
    group = ew.sub(scan("sum", ew.cast(starts, dt.int64), 0), int_constant(1))
    inverse = scatter(full((count,), 0, dt.int64), (found,), group, (0,), "set")
    return gather(rows, (index,), (0,)), index, inverse, _lengths(at, count)


def _starts(line: Node, equal_nan: bool) -> Node:
    """A mask of the first of equal elements of a sorted vector (or sorted rows of a matrix)."""
    count = line.shape[0]
    before, after = take_range(line, 0, 0, count - 1), take_range(line, 0, 1, count)
    differs = ew.ne(before, after)
    if equal_nan:
        both = ew.and_(ew.ne(before, before), ew.ne(after, after))
        differs = ew.and_(differs, ew.invert(both))
    if line.ndim == 2 and line.shape[1]:
        differs = reduce_max(differs, (1,))
    elif line.ndim == 2:
        differs = full((count - 1,), False, dt.bool_)
    return concat((full((1,), True, dt.bool_), differs), 0)


def _lengths(starts: Node, count: int) -> Node:
    """The distance of each start to the next, or to `count`."""
    end = broadcast(int_constant(count), (1,))
    return ew.sub(concat((take_range(starts, 0, 1, starts.shape[0]), end), 0), starts)


def _distinct_values(flat: Node, op: str, equal_nan: bool) -> tuple[Node, Node]:
    """The distinct elements of a vector, sorted, and how often each occurs; not where."""
    if flat.dtype.is_complex or flat.shape[0] == 0:
        values, _, _, counts = _distinct(flat, op, equal_nan)
        return values, counts
    if flat.dtype.is_integer and flat.shape[0] >= MIN_COUNTED:
        return _distinct_integers(flat, op)
    line = sort(flat, 0)
    at = mask_positions(_starts(line, equal_nan), op, line)
    return gather(line, (at,), (0,)), _lengths(at, flat.shape[0])


def _distinct_integers(flat: Node, op: str) -> tuple[Node, Node]:
    """By a table of counts, where the integers are close together; else sorted, by their distances
    from the smallest where those are narrower."""
    count, dtype = flat.shape[0], flat.dtype
    check_known(flat, op, COUNT_HINT)
    low, high = host_ends(flat)
    wide = dtype if dtype.itemsize == 8 else dt.int64
    first = constant(low, wide)
    span = high - low + 1
    if span <= 2 * count:
        distance = ew.cast(ew.sub(ew.cast(flat, wide), first), dt.int64)
        counts = counted(distance, None, span)
        at = mask_positions(ew.ne(counts, int_constant(0)), op, counts)
        values = ew.cast(ew.add(ew.cast(at, wide), first), dtype)
        return values, gather(counts, (at,), (0,))
    narrow = dtype.itemsize == 8 and span < 1 << 32
    line = sort(ew.cast(ew.sub(flat, first), dt.uint32) if narrow else flat, 0)
    at = mask_positions(_starts(line, False), op, line)
    values = gather(line, (at,), (0,))
    if narrow:
        values = ew.add(ew.cast(values, dtype), first)
    return values, _lengths(at, count)


def unique_all(x: ArrayLike, /) -> UniqueAll:
    """The distinct elements, sorted; where each first occurs, which each element is, how often.

    Each NaN is distinct from every other.

    >>> nm.unique_all(nm.asarray([3, 1, 3])).counts.tolist()
    [1, 2]
    """
    shape = node_of(x, "unique_all").shape
    values, index, inverse, counts = _distinct(_flat(x, "unique_all"), "unique_all", False)
    return UniqueAll(wrap(values), wrap(index), wrap(reshape(inverse, shape)), wrap(counts))


def unique_counts(x: ArrayLike, /) -> UniqueCounts:
    """The distinct elements, sorted, and how often each occurs. Each NaN is distinct."""
    values, counts = _distinct_values(_flat(x, "unique_counts"), "unique_counts", False)
    return UniqueCounts(wrap(values), wrap(counts))


def unique_inverse(x: ArrayLike, /) -> UniqueInverse:
    """The distinct elements, sorted, and for each element which of them it is."""
    shape = node_of(x, "unique_inverse").shape
    values, _, inverse, _ = _distinct(_flat(x, "unique_inverse"), "unique_inverse", False)
    return UniqueInverse(wrap(values), wrap(reshape(inverse, shape)))


def unique_values(x: ArrayLike, /) -> Tensor:
    """The distinct elements, sorted. Each NaN is distinct from every other."""
    return wrap(_distinct_values(_flat(x, "unique_values"), "unique_values", False)[0])


@method()
@spelled
def unique(
    x: ArrayLike,
    /,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """The distinct elements (or parts along an axis), sorted, as NumPy gives them.

    Args:
        return_index: also where each first occurs.
        return_inverse: also which of them each element is.
        return_counts: also how often each occurs.
        equal_nan: whether all NaNs count as one element.
        size: how many there are to be, without an axis, where it must be known under `nm.jit`:
            nothing is evaluated; those that are too few are `fill_value`, or the smallest.

    >>> nm.unique(nm.asarray([[1, 2], [1, 2], [0, 5]]), axis=0).tolist()
    [[0, 5], [1, 2]]
    """
    op = "unique"
    node = node_of(x, op)
    if axis is not None and node.ndim == 1:
        normal_axis(axis, 1, op)
        axis = None
    if size is not None and axis is None:
        from numus.functions.ordering.sized import sized_unique

        flags = (return_index, return_inverse, return_counts)
        return sized_unique(wrap(node), size, fill_value, flags)
    if axis is None and not (return_index or return_inverse):
        values, counts = _distinct_values(_flat(x, op), op, equal_nan)
        return (wrap(values), wrap(counts)) if return_counts else wrap(values)
    if axis is None:
        values, index, inverse, counts = _distinct(_flat(x, op), op, equal_nan)
        inverse = reshape(inverse, node.shape)
    else:
        at = normal_axis(axis, node.ndim, op)
        moved = permute(node, (at, *(i for i in range(node.ndim) if i != at)))
        rest = moved.shape[1:]
        rows = reshape(moved, (moved.shape[0], size_of(rest)))
        values, index, inverse, counts = _distinct(rows, op, False)
        values = reshape(values, (values.shape[0], *rest))
        values = permute(values, (*range(1, at + 1), 0, *range(at + 1, node.ndim)))
    wanted = (True, return_index, return_inverse, return_counts)
    found = itertools.compress((values, index, inverse, counts), wanted)
    out = tuple(wrap(n) for n in found)
    return out[0] if len(out) == 1 else out


def _among(x: Node, members: Node) -> Node:
    """Whether each element of x is among a vector's."""
    count = members.shape[0]
    if count == 0:
        return full(x.shape, False, dt.bool_, x)
    if x.dtype.is_complex:  # they have no order to search by: compare each with each
        same = ew.eq(reshape(x, (*x.shape, 1)), members)
        return reduce_max(same, (x.ndim,))
    line = sort(members, 0)
    at = count_before(line, x, "left")
    return ew.eq(gather(line, (at,), (0,)), x)  # past the end reads the last, which is less than x


def isin(
    x1: ArrayLike, x2: ArrayLike, /, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Whether each element of x1 is among those of x2. NaN is not, not even among NaNs.

    `assume_unique` changes nothing here; it is there for those who say so.

    >>> nm.isin(nm.asarray([1, 2, 3]), nm.asarray([3, 1])).tolist()
    [True, False, True]
    """
    a, b = common("isin", x1, x2)
    found = _among(a, reshape(b, (size_of(b.shape),)))
    return wrap(ew.invert(found) if invert else found)


def _members(op: str, x1: Any, x2: Any, shared: bool) -> Tensor:
    """The distinct elements of x1 that are (or are not) among those of x2."""
    a, b = (_distinct_values(_flat(wrap(n), op), op, True)[0] for n in common(op, x1, x2))
    keep = _among(a, b) if shared else ew.invert(_among(a, b))
    return wrap(gather(a, (mask_positions(keep, op),), (0,)))


def intersect1d(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    assume_unique: bool = False,
    return_indices: bool = False,
) -> Any:
    """The distinct elements that both arrays have, sorted.

    Args:
        assume_unique: neither array has an element twice.
        return_indices: give back where the elements are first in each array, too.

    >>> nm.intersect1d(nm.asarray([3, 1, 2]), nm.asarray([2, 3, 3])).tolist()
    [2, 3]
    """
    found = _members("intersect1d", x1, x2, shared=True)
    if not return_indices:
        return found
    lines = [reshape(n, (size_of(n.shape),)) for n in common("intersect1d", x1, x2)]
    places = []
    for line in lines:
        by_value = order(line, 0)
        at = count_before(gather(line, (by_value,), (0,)), found._node, "left")
        places.append(wrap(gather(by_value, (at,), (0,))))
    return found, *places


def setdiff1d(x1: ArrayLike, x2: ArrayLike, /, *, assume_unique: bool = False) -> Tensor:
    """The distinct elements of x1 that x2 has not, sorted; in x1's order with assume_unique, which
    says that it has none twice."""
    if assume_unique:
        a, b = (reshape(n, (size_of(n.shape),)) for n in common("setdiff1d", x1, x2))
        keep = mask_positions(ew.invert(_among(a, b)), "setdiff1d")
        return wrap(gather(a, (keep,), (0,)))
    return _members("setdiff1d", x1, x2, shared=False)


def union1d(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """The distinct elements that either array has, sorted."""
    nodes = (reshape(n, (size_of(n.shape),)) for n in common("union1d", x1, x2))
    return wrap(_distinct_values(concat(tuple(nodes), 0), "union1d", True)[0])


def setxor1d(x1: ArrayLike, x2: ArrayLike, /, *, assume_unique: bool = False) -> Tensor:
    """The distinct elements that one of the arrays has and the other has not, sorted.

    `assume_unique` changes nothing here; it is there for those who say so.
    """
    return union1d(setdiff1d(x1, x2), setdiff1d(x2, x1))
