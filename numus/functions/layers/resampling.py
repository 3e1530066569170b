"""Sparse linear maps along an axis: a table of the elements that each result reads, and weights.

The transpose is such a table again, so a gradient gathers as the value does, without scatter-add.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numus.functions._base import like
from numus.functions.indexing.index_checks import take_axis, upload
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import reduce_sum
from numus.primitives.custom import custom
from numus.primitives.views import reshape

Array = np.ndarray[Any, Any]

MAX_UNROLLED_READS = 4  # written out, so that the map fuses into its consumer
Nodes = Sequence[Node | None]


@dataclass(frozen=True, eq=False)
class Table:
    """(results, reads): which element is read, and its weight; weight 0: none."""

    indices: Array
    weights: Array
    size: int  # of the axis that is read

    @functools.cached_property
    def transposed(self) -> Table:
        """For each element, which results it is part of."""
        results, columns = np.nonzero(self.weights)
        elements = self.indices[results, columns]
        order = np.argsort(elements, kind="stable")
        results, columns, elements = results[order], columns[order], elements[order]
        counts = np.bincount(elements, minlength=self.size)
        reads = max(1, int(counts.max(initial=0)))
        column = np.arange(len(elements)) - np.repeat(np.cumsum(counts) - counts, counts)
        indices = np.zeros((self.size, reads), np.int64)
        weights = np.zeros((self.size, reads))
        indices[elements, column] = results
        weights[elements, column] = self.weights[results, columns]
        back = Table(indices, weights, len(self.indices))
        back.__dict__["transposed"] = self
        return back


class _Rule:
    """How a resampled axis is differentiated."""

    count = 1

    def __init__(self, table: Table, axis: int) -> None:
        self.table = table
        self.axis = axis
        self._batched: _Rule | None = None

    def vjp(self, operands: Sequence[Node], cotangents: Nodes) -> Nodes:
        g = cotangents[0]
        return (None if g is None else resample(g, self.axis, self.table.transposed),)

    def jvp(self, operands: Sequence[Node], tangents: Nodes) -> Nodes:
        t = tangents[0]
        return (None if t is None else resample(t, self.axis, self.table),)

    def batched(self, size: int, flags: tuple[bool, ...]) -> _Rule:
        if self._batched is None:
            self._batched = _Rule(self.table, self.axis + 1)
        return self._batched


def resample(x: Node, axis: int, table: Table) -> Node:
    """x with an axis mapped by a table."""
    rest = (1,) * (x.ndim - axis - 1)
    count, reads = table.indices.shape

    def uploaded(column: Array, *shape: int) -> Node:
        return reshape(upload(np.ascontiguousarray(column), x), (*shape, *rest))

    def term(read: Node, weights: Array, *shape: int) -> Node:
        # what is not read is not multiplied by zero either: it may not be finite
        if np.all(weights == 1):
            return read
        value = ew.mul(read, ew.cast(uploaded(weights, *shape), x.dtype))
        if np.all(weights != 0):
            return value
        return ew.where(uploaded(weights != 0, *shape), value, like(x, 0))

    if reads <= MAX_UNROLLED_READS:
        value: Node | None = None
        for k in range(reads):
            index = upload(np.ascontiguousarray(table.indices[:, k]), x)
            part = term(take_axis(x, index, axis), table.weights[:, k], count)
            value = part if value is None else ew.add(value, part)
        assert value is not None
    else:
        read = take_axis(x, upload(table.indices, x), axis)
        value = reduce_sum(term(read, table.weights, count, reads), (axis + 1,))
    return custom(_Rule(table, axis), 0, value, (x,))
