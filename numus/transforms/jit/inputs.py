"""Where a program finds tensors at each call: among the arguments, by handle, in a variable.

A captured value is known by the tensor (the handle) that stood for it, not by its node: the next
call reads whatever that tensor stands for then.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from numus.graph import Node
from numus.tensor import GradSlot, Tensor


class Place(ABC):
    """Somewhere a tensor is found, given the leaves of a call's arguments."""

    # What gives the tensor where no arguments are needed; something else where it is gone.
    reference: Callable[[], Any] | None = None

    @abstractmethod
    def find(self, leaves: Sequence[Any]) -> Tensor | None:
        """The tensor, None where there is none (any more)."""

    @abstractmethod
    def key(self) -> Any:
        """Equal for the same place."""


class Argument(Place):
    def __init__(self, index: int) -> None:
        self.index = index

    def find(self, leaves: Sequence[Any]) -> Tensor | None:
        found: Tensor = leaves[self.index]
        return found

    def key(self) -> Any:
        return self.index


class Handle(Place):
    """A tensor that the function reaches by itself. It is not kept alive."""

    def __init__(self, handle: Tensor) -> None:
        self.reference: Callable[[], Tensor | None]
        self.reference = self._handle = weakref.ref(handle)

    def find(self, leaves: Sequence[Any]) -> Tensor | None:
        return self._handle()

    def key(self) -> Any:
        return ("handle", id(self._handle()))


class Gradient(Place):
    """The `.grad` of a tensor."""

    def __init__(self, owner: Place) -> None:
        self.owner = owner

    def slot(self, leaves: Sequence[Any]) -> GradSlot | None:
        owner = self.owner.find(leaves)
        return None if owner is None else owner._node.grad_slot

    def find(self, leaves: Sequence[Any]) -> Tensor | None:
        slot = self.slot(leaves)
        return None if slot is None else slot._grad

    def key(self) -> Any:
        return ("grad", self.owner.key())


class Source:
    """An input of a traced function: where it is found, and what it was like."""

    def __init__(self, node: Node, places: Sequence[Place]) -> None:
        self.places = list(places)
        self.shape = node.shape
        self.dtype = node.dtype
        self.device = node.device
        self.tracked = node.tracked
        self.leaf = is_leaf_node(node)

    def find(self, leaves: Sequence[Any]) -> Node | None:
        """The node now; None where it is not like the one that was traced."""
        node: Node | None = None
        for place in self.places:
            tensor = place.find(leaves)
            if tensor is None or (node is not None and tensor._node is not node):
                return None  # gone, or no longer one and the same
            node = tensor._node
        if (
            node is None
            or node.shape != self.shape
            or node.dtype is not self.dtype
            or (node.device is not self.device and node.view is not None)
            or node.abstract
            or node.tracked != self.tracked
            or is_leaf_node(node) != self.leaf
        ):
            return None
        return node


def is_leaf_node(node: Node) -> bool:
    """Whether `backward()` leaves gradients here."""
    return node.tracked and node.grad_slot is not None and bool(node.grad_slot.leaf)
