"""Which lowering a group gets."""

from __future__ import annotations

from numus.compiler.emit import Step
from numus.compiler.fuse import Group
from numus.compiler.local import Val
from numus.compiler.loops import lower_concat, lower_loops, lower_product_loops
from numus.runtime.contract import Facts
from numus.shapes import Shape


def lower_group(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    """The kernels of a group, in the order in which they run."""
    if group.kind == "loop":
        return lower_loops(group, layouts, facts)
    if group.kind == "concat":
        return lower_concat(group, layouts, facts)
    if group.kind == "contract":
        return lower_product_loops(group, layouts, facts)
    raise AssertionError(f"no lowering for {group.kind}")
