"""Sums of products over labelled axes: what every contraction is made of.

An operand is a node and one label per axis, all different. `product` contracts two of them: labels
that are in both and wanted are the batch, those in both and not wanted are summed over, the others
are rows and columns. That is one `contract` between views that copy nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from itertools import pairwise
from typing import NamedTuple

from numus import dtypes as dt
from numus.dtypes import DType
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, reduce_sum
from numus.primitives.contract import contract
from numus.primitives.views import permute, reshape
from numus.shapes import Shape, size_of

Labels = tuple[Hashable, ...]


class Operand(NamedTuple):
    """A node whose axes have names."""

    node: Node
    labels: Labels

    def extent(self, label: Hashable) -> int:
        return self.node.shape[self.labels.index(label)]


def product(a: Operand, b: Operand, out: Labels, dtype: DType) -> Operand:
    """The sum of a times b over the labels that `out` lacks, accumulated in `dtype`.

    The result has out's labels; its order is out's as far as that is free.
    """
    a, b = sum_out(a, (*b.labels, *out)), sum_out(b, (*a.labels, *out))
    if a.node.dtype is not b.node.dtype:  # one of them has been widened
        common = dt.promote(a.node.dtype, b.node.dtype)
        a, b = (Operand(ew.cast(p.node, common), p.labels) for p in (a, b))
    roles = _roles(a.labels, b.labels, out)
    if roles is None:
        return _elementwise(a, b, out, dtype)
    if roles.swapped:
        a, b = b, a
    extents = dict(zip((*a.labels, *b.labels), (*a.node.shape, *b.node.shape), strict=True))
    left = _matrices(a, roles.batch, roles.rows, roles.inner, extents)
    right = _matrices(b, roles.batch, roles.inner, roles.columns, extents)
    labels = (*roles.batch, *roles.rows, *roles.columns)
    y = reshape(contract(left, right, dtype), tuple([extents[x] for x in labels]))
    return Operand(y, labels)


class _Roles(NamedTuple):
    """The roles of a contraction's labels; `swapped`: the second operand has the rows."""

    batch: Labels
    rows: Labels
    inner: Labels
    columns: Labels
    swapped: bool


@functools.lru_cache(maxsize=1024)
def _roles(a: Labels, b: Labels, out: Labels) -> _Roles | None:
    """The roles of the labels, or None where there are no rows and columns, or no sum."""
    batch = [x for x in out if x in a and x in b]
    inner = tuple(x for x in a if x in b and x not in out)
    outer = [x for x in out if x not in batch]
    if not inner or not outer:
        return None
    # Rows and columns come out side by side. Leading labels that would have to part them become
    # batch labels, along which the other operand is repeated.
    while sum((x in a) != (y in a) for x, y in pairwise(outer)) > 1:
        batch.append(outer.pop(0))
    swapped = outer[0] in b
    rows = tuple(x for x in outer if (x in b) == swapped)
    columns = tuple(x for x in outer if (x in b) != swapped)
    return _Roles(tuple(batch), rows, inner, columns, swapped)


def sum_out(x: Operand, wanted: Labels) -> Operand:
    """x summed over the labels that are not wanted; low-precision floats come out in float32."""
    axes = tuple(i for i, label in enumerate(x.labels) if label not in wanted)
    if not axes:
        return x
    total = reduce_sum(ew.cast(x.node, dt.compute_dtype(x.node.dtype)), axes)
    return Operand(total, tuple(label for label in x.labels if label in wanted))


def arrange(x: Operand, order: Labels) -> Node:
    """x with its axes in this order; labels it lacks become axes of extent 1."""
    present = [label for label in order if label in x.labels]
    node = permute(x.node, tuple(x.labels.index(label) for label in present))
    if len(present) == len(order):
        return node
    return reshape(node, tuple(x.extent(label) if label in x.labels else 1 for label in order))


def _elementwise(a: Operand, b: Operand, out: Labels, dtype: DType) -> Operand:
    """A product without rows and columns, or without a sum: the multiplication is the work."""
    shared = tuple(x for x in a.labels if x not in out)
    order = (*out, *shared)
    wide = dt.promote(dt.compute_dtype(dtype), a.node.dtype)
    y = ew.mul(ew.cast(arrange(a, order), wide), ew.cast(arrange(b, order), wide))
    return Operand(ew.cast(reduce_sum(y, tuple(range(len(out), len(order)))), dtype), out)


def _matrices(
    x: Operand, batch: Labels, rows: Labels, columns: Labels, extents: dict[Hashable, int]
) -> Node:
    """x as a batch of matrices, (batch, rows, columns), or as the one there is."""
    node = arrange(x, (*batch, *rows, *columns))
    shape: Shape = tuple([extents[label] for label in (*batch, *rows, *columns)])
    first, last = len(batch), len(batch) + len(rows)
    sizes: Shape = (size_of(shape[first:last]), size_of(shape[last:]))
    if batch:
        sizes = (size_of(shape[:first]), *sizes)
    return reshape(broadcast(node, shape), sizes)
