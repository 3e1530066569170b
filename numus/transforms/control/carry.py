"""The body of a loop, traced with what it carries from turn to turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.tensor import Tensor
from numus.transforms import tree
from numus.transforms.control.body import call_on, check_types, device_of, spots, types_of
from numus.transforms.effects import LoopEffects
from numus.transforms.trace import nodes_of


@dataclass
class TracedBody:
    """One turn, traced: from the carry and what else its arguments stand for, to the carry after
    it and what else it gives."""

    carry: list[Node]  # as it goes in, in the dtypes that the loop gives it
    structure: tree.Structure
    arguments: list[Node]
    after: list[Node]
    rest: Any
    inside: LoopEffects

    def carried(self, nodes: Sequence[Node]) -> Any:
        """The container of the carry, on these nodes."""
        return tree.unflatten(self.structure, [Tensor(x) for x in nodes])


def trace_body(
    op: str,
    what: str,
    f: Callable[..., Any],
    init: Any,
    sliced: Sequence[Node] = (),
    slices: tree.Structure | None = None,
    parted: Callable[[Any], tuple[Any, Any]] = lambda answer: (answer, None),
) -> TracedBody:
    """f traced on a carry like `init` and, where there are any, slices of arrays. `parted` takes
    what f gives apart into the carry, called `what` by errors, and the rest.

    A Python number takes the dtype that the loop gives it: f is then traced once more.
    """
    carry, structure = nodes_of(init, op, "init")
    structures = [structure] if slices is None else [structure, slices]
    kinds = [(x.shape[1:], x.dtype) for x in sliced]
    weak = [type(leaf) in (int, float, complex, bool) for leaf in tree.leaves(init)]
    while True:
        inside = LoopEffects(op)
        arguments = spots([*types_of(carry), *kinds], device_of([*carry, *sliced]), op)
        state, rest = parted(call_on(f, structures, arguments, inside))
        after, found = nodes_of(state, op, what)
        if found != structure:
            where = tree.difference(structure, found)
            raise ValueError(f"{op}: {what} changes its structure at {where}")
        wider = [w and y.dtype is not x.dtype for w, x, y in zip(weak, carry, after, strict=True)]
        if not any(wider):
            break
        carry = [
            ew.cast(x, y.dtype) if w else x for w, x, y in zip(wider, carry, after, strict=True)
        ]
        weak = [False] * len(weak)
    check_types(op, what, after, types_of(carry), structure)
    return TracedBody(carry, structure, arguments, after, rest, inside)
