"""Where to cut a pending graph that has reached its bound.

A cut that one value crosses leaves the rest of the graph as it was made: a loop is cut after one of
its turns, and the same kernels serve each part. Cut anywhere, no two parts would be alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from numus.graph import Node
from numus.shapes import size_of


def narrow_point(order: Sequence[Node], roots: Sequence[Node], min_depth: int) -> Node | None:
    """The pending node of least memory that all paths to the roots cross, the latest of nearly
    equal ones; None without one of at least this depth. `order` is topological."""
    last_use = {x: i for i, node in enumerate(order) for x in node.inputs if x.view is None}
    with_storage = [x for x in order if _has_tensor(x)]  # which may be read again
    last_use.update(dict.fromkeys([*roots, *with_storage], len(order)))
    ending: dict[int, int] = {}
    for node, i in last_use.items():
        if _counts(node):
            ending[i] = ending.get(i, 0) + 1
    live = 0  # values that later nodes read
    found: list[tuple[int, Node]] = []
    for i, node in enumerate(order):
        live -= ending.get(i, 0)
        if node in last_use and _counts(node):
            live += 1
            if live == 1 and node.depth >= min_depth:
                found.append((size_of(node.shape) * node.dtype.itemsize, node))
    smallest = min((nbytes for nbytes, _ in found), default=0)
    return next((node for nbytes, node in reversed(found) if nbytes <= 2 * smallest), None)


def _counts(node: Node) -> bool:
    """Constants are part of every graph that reads them."""
    return node.device is not None and node.prim.kind != "source"


def _has_tensor(node: Node) -> bool:
    handle = node.handle
    if handle is None:
        return False
    refs = handle if handle.__class__ is tuple else (handle,)
    return any(ref() is not None for ref in refs)
