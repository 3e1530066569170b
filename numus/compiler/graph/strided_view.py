"""Strided views: an offset and strides into a base, for values that are nothing but views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numus.compiler.graph.value import Layouts, Value
from numus.shapes import Shape, find_reshape_strides, is_row_major, row_major


@dataclass(frozen=True, slots=True)
class StridedView:
    """A base and the layout of a view in its memory, in elements."""

    base: Value
    offset: int
    strides: Shape


def strided_view(x: Value, layouts: Layouts) -> StridedView | None:
    """The layout of x in a base of known strides; None if x is computed or needs a copy."""
    views: list[Value] = []
    while x not in layouts:
        if x.op not in ("reshape", "permute", "broadcast", "slice"):
            return None
        views.append(x)
        x = x.inputs[0]
    return _compose(x, layouts[x], views[::-1])


def bijective_views(x: Value) -> tuple[Value, list[Value]]:
    """The value that reshapes and permutations lead to x from, and these, innermost first."""
    views: list[Value] = []
    while x.op in ("reshape", "permute"):
        views.append(x)
        x = x.inputs[0]
    return x, views[::-1]


def storage_view(v: Value, leaf_strides: Layouts) -> StridedView:
    """The value to store for a result, and the result's layout in it: reshapes and permutations of
    a computed value need no kernel."""
    x, views = bijective_views(v)
    for i in range(len(views) + 1):
        if x not in leaf_strides:
            found = _compose(x, row_major(x.shape), views[i:])
            if found is not None:
                return found
        elif i == len(views):
            return StridedView(x, 0, leaf_strides[x])
        x = views[i]
    raise AssertionError("a value is a view of itself")


def reads_in_order(v: Value, leaf_strides: Layouts) -> bool:
    """Whether a result is a permutation of a computed value that reads its operands in the
    result's order of memory rather than in its own: images with channels last, say, whose
    functions are written for channels first. It is best stored as it is."""
    x, views = bijective_views(v)
    if not views or x.kind != "elementwise":
        return False
    own = other = 0
    seen: set[Value] = set()
    stack = [x]
    while stack:
        y = stack.pop()
        if y in seen or y.shape != x.shape:
            continue
        seen.add(y)
        found = strided_view(y, leaf_strides)
        if found is None:
            if y.kind == "elementwise":
                stack.extend(y.inputs)
            continue
        there = _compose(y, found.strides, views)
        own += is_row_major(x.shape, found.strides)
        other += there is not None and is_row_major(v.shape, there.strides)
    return other > own


def _compose(base: Value, strides: Shape, views: Sequence[Value]) -> StridedView | None:
    """The layout of the last of these views, innermost first."""
    shape, offset = base.shape, 0
    for view in views:
        if view.op == "reshape":
            reshaped = find_reshape_strides(shape, strides, view.shape)
            if reshaped is None:
                return None
            strides = reshaped
        elif view.op == "permute":
            strides = tuple(strides[a] for a in view.params)
        elif view.op == "broadcast":  # new axes come first
            added = len(view.shape) - len(shape)
            own = zip(strides, shape, view.shape[added:], strict=True)
            strides = (0,) * added + tuple(0 if n != m else s for s, n, m in own)
        else:
            starts, steps = view.params
            offset += sum(a * s for a, s in zip(starts, strides, strict=True))
            strides = tuple(s * step for s, step in zip(strides, steps, strict=True))
        shape = view.shape
    return StridedView(base, offset, strides)
