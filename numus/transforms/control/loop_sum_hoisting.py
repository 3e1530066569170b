"""Sums over the turns of a loop that are taken after it.

A loop that adds a product at each turn, as the gradient of weights does, reads and writes the whole
sum at each turn, and its products are thin. Where both factors are there in every turn, the sum is
one product of all of them: what the loop has to give is the factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numus.graph import Node
from numus.primitives.broadcast import reduce_sum
from numus.primitives.contract import contract
from numus.primitives.views import permute, reshape
from numus.shapes import size_of

Stacked = Callable[[Node], Node]  # all turns of a value of the body, along a first axis


class HoistedSum:
    """The sum over all turns of a value of a loop's body, from parts that are given for each."""

    def __init__(self, parts: Sequence[Node], finish: Callable[[Stacked], Node]) -> None:
        self.parts = parts
        self.finish = finish


def total_of(node: Node) -> HoistedSum | None:
    """How to sum a value after the loop; None where it has to be summed inside."""
    name = node.prim.name
    if name == "reduce_sum":
        (x,) = node.inputs
        axes = (0, *(a + 1 for a in node.params))
        return HoistedSum([x], lambda stacked: reduce_sum(stacked(x), axes))
    if name == "contract" and node.ndim == 2:
        return _matmul(node)
    if name in ("permute", "reshape"):
        inner = total_of(node.inputs[0])
        if inner is None:
            return None
        finish = inner.finish
        if name == "permute":
            return HoistedSum(inner.parts, lambda stacked: permute(finish(stacked), node.params))
        return HoistedSum(inner.parts, lambda stacked: reshape(finish(stacked), node.shape))
    return None


def _matmul(node: Node) -> HoistedSum:
    left, right = node.inputs
    sides = [_untransposed(left), _untransposed(right)]

    def flat(stacked: Stacked, at: int, depth: int) -> Node:
        """One operand of all iterations, flattened: the reduced axis includes the iterations."""
        x, transposed = sides[at]
        rows = stacked(x)
        if (depth == 1) != transposed:  # it is the last axis of what the body has
            rows = permute(rows, (0, 2, 1))
        iterations, inner, outer = rows.shape
        return reshape(rows, (iterations * inner, outer))

    def finish(stacked: Stacked) -> Node:
        a, b = flat(stacked, 0, 1), flat(stacked, 1, 0)
        return contract(permute(a, (1, 0)), b, node.dtype, node.params)

    return HoistedSum([x for x, _ in sides], finish)


def _untransposed(x: Node) -> tuple[Node, bool]:
    """The matrix behind a transpose, and whether there is one."""
    if x.prim.name == "permute" and x.params == (1, 0):
        return x.inputs[0], True
    return x, False


def worth_it(node: Node, new: Sequence[Node]) -> bool:
    """Whether stacking the operands of all iterations costs less than accumulating the value."""
    return sum(size_of(x.shape) for x in new) <= size_of(node.shape)
