"""Graphs as values, to be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def described(node: Any, inputs: Sequence[Any]) -> list[Any]:
    """A graph as a value, operands by number."""
    numbers = {x: i for i, x in enumerate(inputs)}
    lines: list[Any] = []

    def number(x: Any) -> int:
        if x not in numbers:
            below = tuple(number(i) for i in x.inputs)
            numbers[x] = len(numbers)
            what = x.prim.name, repr(x.params), x.shape, x.dtype.name, str(x.device), x.tracked
            layout = None if x.view is None else (x.view.offset, x.view.strides)
            lines.append((*what, layout, below, x.abstract, x.grad_slot))
        return numbers[x]

    number(node)
    return lines
