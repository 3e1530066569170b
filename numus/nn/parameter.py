"""Parameters: tensors that a module learns, and that stay themselves while their values change."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.tensor import Tensor, detached, leaf_of

__all__ = ["Parameter"]


class Parameter(Tensor):
    """A leaf tensor that a module finds among its attributes and an optimiser changes in place.

    >>> w = Parameter(nm.zeros(2))
    >>> w.requires_grad
    True
    """

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        values = nm.asarray(data)
        super().__init__(detached(values._node, sees_writes=False))
        self.requires_grad = requires_grad

    def __repr__(self) -> str:
        return f"Parameter({self.detach()!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        out = Parameter(self.detach().clone(), self.requires_grad)
        if self.grad is not None:
            out.grad = self.grad.detach().clone()
        memo[id(self)] = out
        return out

    def __reduce__(self) -> Any:
        return Parameter, (self.detach(), self.requires_grad)


def replace(x: Tensor, values: Tensor) -> None:
    """Let a parameter or buffer hold values of another dtype or on another device.

    `x` stays the same object, so optimisers and tied modules keep hold of it; its gradient goes
    along.
    """
    slot = x._node.grad_slot
    node = detached(values._node, sees_writes=False)
    if slot is not None and slot.leaf:
        gradient = slot.grad
        if gradient is not None:
            slot.grad = gradient.to(values.dtype, values.device)
        node = leaf_of(node, slot)
    x._bind(node)
