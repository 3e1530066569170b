"""Deduplication of lowering: structurally equal fusion groups (a model's layers) share kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Layouts, Value, walk
from numus.compiler.lower import templates
from numus.compiler.lower.emitter import Kernels
from numus.runtime.contract import Runtime

_INDEXED_OPS = ("leaf", "constant")  # whose last parameter numbers them in the plan


# For a group the number of the first that is equal to it, and what it is computed from, in order.
Equal = dict[FusionGroup, tuple[int, list[Value]]]


def equal_groups(groups: Sequence[FusionGroup], layouts: Layouts) -> Equal:
    """Structurally equal groups. Sizes may be symbolic: then groups are equal in all sizes."""
    first: dict[Any, int] = {}
    found: Equal = {}
    for i, group in enumerate(groups):
        values = _read_values(group, layouts)
        found[group] = first.setdefault(_key(group, values, layouts), i), values
    return found


class LoweringCache:
    """Lowers the groups of one plan. A group gets the kernels of an earlier one equal to it; some
    of these may be `known`."""

    def __init__(self, layouts: Layouts, runtime: Runtime[Any], known: Equal) -> None:
        self._layouts = layouts
        self._runtime = runtime
        self._known = known
        self._cache: dict[Any, tuple[list[Value], Kernels]] = {}

    def __call__(self, group: FusionGroup) -> Kernels:
        key: Any
        if group in self._known:
            first, values = self._known[group]
            key = (first, group.low_memory)
        else:
            values = _read_values(group, self._layouts)
            key = _key(group, values, self._layouts)
        hit = self._cache.get(key)
        if hit is None:
            # of what it reads: others tell nothing, and are thousands in a model
            layouts = {v: self._layouts[v] for v in values if v in self._layouts}
            steps = templates.lower(group, layouts, values, self._runtime)
            self._cache[key] = values, steps
            return steps
        before, steps = hit
        return _with_values(steps, dict(zip(before, values, strict=True)))


def _read_values(group: FusionGroup, layouts: Layouts) -> list[Value]:
    """The members of a group and what they are computed from, in order."""
    members = set(group.members)
    found = walk(group.members, lambda v: v in members or v not in layouts)
    return sorted(found, key=lambda v: v.id)


def _key(group: FusionGroup, values: list[Value], layouts: Layouts) -> Any:
    """Equal for groups that differ only in the identity of their values and constants."""
    members = set(group.members)
    number = {v: i for i, v in enumerate(values)}
    parts = []
    for v in values:
        layout = layouts.get(v)
        params = v.params
        if v.op in _INDEXED_OPS:
            params = v.params[: -1 if v.op == "constant" else 0]
        read = v not in members and layout is not None
        inputs = None if read else tuple([number[x] for x in v.inputs])
        own = None if read else params
        captured = v in group.captured
        parts.append((v.op, v.kind, own, v.shape, v.dtype, layout, inputs, captured))
    stored = tuple([(number[v], v in group.stored) for v in group.members])
    return (group.kind, group.space, group.axes, group.low_memory, stored, tuple(parts))


def _with_values(steps: Kernels, new: dict[Value, Value]) -> Kernels:
    """The same kernels on other values. Intermediates that lowering made are made anew."""
    for v in [v for step in steps for v in step.buffers]:
        if v not in new:
            new[v] = Value.fresh(v.op, v.kind, v.inputs, v.params, v.shape, v.dtype)
    return templates.with_values(steps, new)
