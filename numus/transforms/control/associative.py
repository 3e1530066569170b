"""associative_scan: running results of an associative operation, in few steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numus.errors import ShapeError
from numus.graph import Node, Nodes
from numus.primitives.structure import concat
from numus.primitives.views import flip, reshape, slice_, take_range
from numus.shapes import normal_axis
from numus.transforms import tree
from numus.transforms.trace import nodes_of, require_function, tensors
from numus.transforms.vmap import move_axis

__all__ = ["associative_scan"]


def associative_scan(
    f: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0
) -> Any:
    """The running results of an associative f along an axis: y[i] = f(y[i - 1], x[i]).

    `elems` is a container of tensors with the same extent along the axis. f combines two such
    containers elementwise along it, and is called a logarithmic number of times, each time for
    many pairs at once.

    >>> import numus as nm
    >>> nm.associative_scan(lambda a, b: a * b, nm.asarray([1, 2, 3, 4])).tolist()
    [1, 2, 6, 24]
    """
    op = "associative_scan"
    require_function(f, op)
    nodes, structure = nodes_of(elems, op, "elems")
    if not nodes:
        return elems
    axes = [normal_axis(axis, x.ndim, op) for x in nodes]
    extents = {x.shape[at] for x, at in zip(nodes, axes, strict=True)}
    if len(extents) > 1:
        raise ShapeError(f"{op}: the extents along the axis differ: {sorted(extents)}")

    def container(rows: Nodes) -> Any:
        return tensors(structure, [move_axis(x, 0, at) for x, at in zip(rows, axes, strict=True)])

    def combine(a: Nodes, b: Nodes) -> list[Node]:
        found, shape = nodes_of(f(container(a), container(b)), op, "the result")
        if shape != structure:
            where = tree.difference(structure, shape)
            raise ValueError(f"{op}: f changes the structure at {where}")
        return [move_axis(y, at, 0) for y, at in zip(found, axes, strict=True)]

    rows = [move_axis(x, at, 0) for x, at in zip(nodes, axes, strict=True)]
    if not reverse:
        return container(_scanned(combine, rows))
    found = _scanned(combine, [flip(x, (0,)) for x in rows])
    return container([flip(x, (0,)) for x in found])


def _every_other(x: Node, start: int, stop: int) -> Node:
    count = max(-(-(stop - start) // 2), 0)
    starts, steps = (start,) + (0,) * (x.ndim - 1), (2,) + (1,) * (x.ndim - 1)
    return slice_(x, starts, steps, (count, *x.shape[1:]))


def _scanned(combine: Callable[..., list[Node]], rows: list[Node]) -> list[Node]:
    """Blelloch scan: adjacent pairs are combined, the pairs scanned, and odd rows filled in."""
    n = rows[0].shape[0]
    if n < 2:
        return rows
    left = [_every_other(x, 0, n - 1) for x in rows]
    right = [_every_other(x, 1, n) for x in rows]
    odd = _scanned(combine, combine(left, right))
    even = [take_range(x, 0, 0, 1) for x in rows]
    if n > 2:
        count = (n - 1) // 2
        before = [take_range(x, 0, 0, count) for x in odd]
        more = combine(before, [_every_other(x, 2, n) for x in rows])
        even = [concat((a, b), 0) for a, b in zip(even, more, strict=True)]
    return [_interleaved(a, b, n) for a, b in zip(even, odd, strict=True)]


def _interleaved(even: Node, odd: Node, n: int) -> Node:
    if odd.shape[0] < even.shape[0]:
        odd = concat((odd, take_range(even, 0, 0, 1)), 0)
    m, rest = even.shape[0], even.shape[1:]
    pairs = concat((reshape(even, (m, 1, *rest)), reshape(odd, (m, 1, *rest))), 1)
    return take_range(reshape(pairs, (2 * m, *rest)), 0, 0, n)
