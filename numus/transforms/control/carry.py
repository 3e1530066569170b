"""The body of a loop, traced with the values that it carries between iterations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numus.graph import Node, Nodes
from numus.primitives import elementwise as ew
from numus.transforms import tree
from numus.transforms.control.body import call_on, check_types, device_of, placeholders, types_of
from numus.transforms.effects import LoopEffects
from numus.transforms.trace import nodes_of


@dataclass
class TracedBody:
    """One traced iteration: from the carry and slices to the next carry and other results."""

    carry: list[Node]  # initial values, in the dtypes that the loop gives them
    structure: tree.Structure
    arguments: list[Node]
    after: list[Node]
    rest: Any
    effects: LoopEffects


def trace_body(
    op: str,
    what: str,
    f: Callable[..., Any],
    init: Any,
    sliced: Nodes = (),
    slices: tree.Structure | None = None,
    split: Callable[[Any], tuple[Any, Any]] = lambda answer: (answer, None),
) -> TracedBody:
    """f traced on a carry like `init` and, if there are any, slices of arrays. `split` separates
    f's result into the carry, called `what` by errors, and the rest.

    A Python number takes the dtype that the loop gives it: f is then traced once more.
    """
    carry, structure = nodes_of(init, op, "init")
    structures = [structure] if slices is None else [structure, slices]
    types = [(x.shape[1:], x.dtype) for x in sliced]
    weak = [type(leaf) in (int, float, complex, bool) for leaf in tree.leaves(init)]
    while True:
        effects = LoopEffects(op)
        arguments = placeholders([*types_of(carry), *types], device_of([*carry, *sliced]), op)
        state, rest = split(call_on(f, structures, arguments, effects))
        after, found = nodes_of(state, op, what)
        if found != structure:
            where = tree.difference(structure, found)
            raise ValueError(f"{op}: {what} changes its structure at {where}")
        wider = [w and y.dtype is not x.dtype for w, x, y in zip(weak, carry, after, strict=True)]
        if not any(wider):
            check_types(op, what, after, carry, structure)
            return TracedBody(carry, structure, arguments, after, rest, effects)
        carry = [
            ew.cast(x, y.dtype) if w else x for w, x, y in zip(wider, carry, after, strict=True)
        ]
        weak = [False] * len(weak)
