"""Loop-sum hoisting: accumulations in a loop that become one reduction after it.

A loop that adds a matmul in each iteration, as the gradient of weights does, reads and writes the
whole sum each time, and its matmuls are skinny. If the loop stacks both operands instead, the sum
is one matmul over all iterations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from numus.graph import Node, Nodes
from numus.primitives.broadcast import reduce_sum
from numus.primitives.contract import contract
from numus.primitives.views import permute, reshape
from numus.shapes import size_of

Stacked = Callable[[Node], Node]  # a value of the body in all iterations, along a first axis


class HoistedSum(NamedTuple):
    """The sum of a value of a loop's body over all iterations, from stacked parts."""

    parts: Nodes
    finish: Callable[[Stacked], Node]


def total_of(node: Node) -> HoistedSum | None:
    """The sum of a value, taken after the loop; None where the loop has to accumulate it."""
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
    (left, left_transposed), (right, right_transposed) = map(_untransposed, node.inputs)

    def flat(rows: Node, inner_last: bool) -> Node:
        """One operand of all iterations, flattened: the reduced axis includes the iterations."""
        if inner_last:
            rows = permute(rows, (0, 2, 1))
        iterations, inner, outer = rows.shape
        return reshape(rows, (iterations * inner, outer))

    def finish(stacked: Stacked) -> Node:
        a, b = flat(stacked(left), not left_transposed), flat(stacked(right), right_transposed)
        return contract(permute(a, (1, 0)), b, node.dtype, node.params)

    return HoistedSum([left, right], finish)


def _untransposed(x: Node) -> tuple[Node, bool]:
    """The matrix behind a transpose, and whether there is one."""
    if x.prim.name == "permute" and x.params == (1, 0):
        return x.inputs[0], True
    return x, False


def worth_it(node: Node, new: Nodes) -> bool:
    """True if stacking the operands of all iterations costs less than accumulating the value."""
    return sum(size_of(x.shape) for x in new) <= size_of(node.shape)
