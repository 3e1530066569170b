"""References to the tensors of a traced function: arguments, handles, gradients, variables.

A captured value is identified by its tensor (the handle), not by its node: the next call reads
whatever that tensor is bound to then.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from numus.graph import Node
from numus.tensor import GradSlot, Tensor
from numus.transforms.tape import is_tracked_leaf


class InputRef(ABC):
    """Where a tensor is found, given the leaves of a call's arguments."""

    # Returns the tensor where no arguments are needed, and something else where it is gone.
    reader: Callable[[], Any] | None = None

    @abstractmethod
    def find(self, leaves: Sequence[Any]) -> Tensor | None:
        """The tensor; None where it is gone."""

    @abstractmethod
    def key(self) -> Any:
        """Equal for equal references."""


class ArgumentRef(InputRef):
    def __init__(self, index: int) -> None:
        self.index = index

    def find(self, leaves: Sequence[Any]) -> Tensor | None:
        found: Tensor = leaves[self.index]
        return found

    def key(self) -> Any:
        return self.index


class HandleRef(InputRef):
    """A captured tensor, not kept alive."""

    def __init__(self, handle: Tensor) -> None:
        self.reader: Callable[[], Tensor | None]
        self.reader = self._handle = weakref.ref(handle)

    def find(self, leaves: Sequence[Any]) -> Tensor | None:
        return self._handle()

    def key(self) -> Any:
        return ("handle", id(self._handle()))


class ConstantRef(InputRef):
    """A tensor that the function itself has made, the same in every call; kept alive."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self.reader = lambda: tensor

    def find(self, leaves: Sequence[Any]) -> Tensor | None:
        return self._tensor

    def key(self) -> Any:
        return ("constant", id(self._tensor))


class GradientRef(InputRef):
    """The `.grad` of a tensor."""

    def __init__(self, owner: InputRef) -> None:
        self.owner = owner

    def slot(self, leaves: Sequence[Any]) -> GradSlot | None:
        owner = self.owner.find(leaves)
        return None if owner is None else owner._node.grad_slot

    def find(self, leaves: Sequence[Any]) -> Tensor | None:
        slot = self.slot(leaves)
        return None if slot is None else slot._grad

    def key(self) -> Any:
        return ("grad", self.owner.key())


class TracedInput:
    """An input of a traced function: its references, and the properties it was traced with."""

    def __init__(self, node: Node, refs: Sequence[InputRef]) -> None:
        self.refs = list(refs)
        self.shape = node.shape
        self.dtype = node.dtype
        self.device = node.device
        self.tracked = node.tracked
        self.leaf = is_tracked_leaf(node)

    def find(self, leaves: Sequence[Any]) -> Node | None:
        """The current node; None where its properties differ from the traced one's."""
        node: Node | None = None
        for ref in self.refs:
            tensor = ref.find(leaves)
            if tensor is None or (node is not None and tensor._node is not node):
                return None  # gone, or no longer one tensor
            node = tensor._node
        if (
            node is None
            or node.shape != self.shape
            or node.dtype is not self.dtype
            or (node.device is not self.device and node.view is not None)
            or node.abstract
            or node.tracked != self.tracked
            or is_tracked_leaf(node) != self.leaf
        ):
            return None
        return node
