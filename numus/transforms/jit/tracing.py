"""Tracing: one call recorded with its captures and side effects.

The graph reports operations on nodes older than the trace (captured values), tensors bound to other
nodes, and gradients read or written. When the function has returned, all of it is undone, and the
recorded graph is run by each call with its own values.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from numus import dtypes as dt
from numus.errors import TracingError
from numus.graph import Node, mode, now, tracing
from numus.primitives.source import placeholder
from numus.tensor import GradSlot, Tensor, detached
from numus.transforms.jit.scalars import Scalar
from numus.transforms.tape import is_leaf


class TraceBailout(BaseException):
    """This call cannot be compiled (it is differentiated outside, say): run it eagerly.

    Not an `Exception`, so that the function's handlers do not catch it.
    """


class Trace:
    """The record of a function being traced in this thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.since = now()
        self.closed = False
        self.inputs: dict[int, Node] = {}  # of the tensors among the arguments
        self.captured: dict[Node, None] = {}
        self.constants: dict[Node, None] = {}  # values made by it from host data
        self.bound: dict[int, tuple[Tensor, Node]] = {}  # older tensors, and their nodes before
        self.born: dict[int, weakref.ref[Tensor]] = {}  # tensors made by it on older nodes
        self.grads_read: dict[GradSlot, Any] = {}  # values before any write
        self.grads_written: dict[GradSlot, Any] = {}  # values before
        self.scalars: dict[tuple[int, dt.DType], tuple[Scalar, Node]] = {}
        self.keys: list[tuple[Any, Node, Node]] = []  # generator, and its two words
        self.lifted: dict[Node, tuple[Node, Tensor]] = {}  # constants: placeholders, and tensors
        self.effects: list[Node] = []  # results of calls that others take part in

    def __str__(self) -> str:
        return f"nm.jit of {self.name}"

    # -- events -----------------------------------------------------------------------------------

    def captures(self, node: Node) -> bool:
        """True if a node is older than the trace, and may differ at the next call."""
        return node.serial <= self.since and (
            node.prim.kind != "source" or node.view is not None or bool(handles_of(node))
        )

    def meets(self, inputs: Sequence[Node]) -> bool:
        """Record an operation's inputs; True if one of them is captured."""
        found = False
        for node in inputs:
            if node.serial > self.since and node.view is not None:
                self.constants[node] = None
            if not self.captures(node):
                continue
            if node.abstract:
                if node.abstract is not True:
                    node.abstract.check_open()
                raise TraceBailout
            if node.tracked and mode.grad and not is_leaf(node):
                raise TraceBailout  # its history is outside
            self.captured[node] = None
            found = True
        return found

    def binds(self, handle: Tensor, node: Node) -> None:
        """A tensor is about to be bound to a node."""
        old = handle._node
        if old is node:
            self.born[id(handle)] = weakref.ref(handle)
        elif old.serial <= self.since and id(handle) not in self.bound and not self.is_born(handle):
            self.bound[id(handle)] = (handle, old)

    def is_born(self, handle: Tensor) -> bool:
        """True if a tensor was made by the function, on an older node."""
        known = self.born.get(id(handle))
        return known is not None and known() is handle

    def reads_grad(self, slot: GradSlot) -> None:
        if slot.serial <= self.since and slot not in self.grads_written:
            self.grads_read.setdefault(slot, slot._grad)

    def writes_grad(self, slot: GradSlot) -> None:
        if slot.serial <= self.since:
            self.grads_written.setdefault(slot, slot._grad)

    def scalar(self, number: Scalar, dtype: dt.DType) -> Node:
        """The node of a traced number in a dtype."""
        found = self.scalars.get((id(number), dtype))
        if found is None:
            found = self.scalars[id(number), dtype] = (number, self.unknown((), dtype, None))
        return found[1]

    def draws(self, generator: Any) -> tuple[Node, Node]:
        """The words of a generator's next key."""
        words = self.unknown((), dt.uint32, None), self.unknown((), dt.uint32, None)
        self.keys.append((generator, *words))
        return words

    def argument(self, index: int, given: Node) -> Node:
        """The placeholder of a tensor argument; a leaf keeps its gradient slot."""
        node = self.inputs[index] = self.unknown(given.shape, given.dtype, given.device)
        if is_leaf(given):
            node.tracked = given.tracked
            node.grad_slot = given.grad_slot
        return node

    def unknown(self, shape: Any, dtype: dt.DType, device: Any) -> Node:
        """An input of the traced graph."""
        node = placeholder(shape, dtype, device, str(self))
        node.abstract = self
        return node

    def lift(self, node: Node) -> Node:
        """A constant as an input, so that an effect on it is a step of the function."""
        found = self.lifted.get(node)
        if found is None:
            held = Tensor(detached(node, sees_writes=False))
            found = self.lifted[node] = self.unknown(node.shape, node.dtype, node.device), held
        return found[0]

    # -- life time --------------------------------------------------------------------------------

    def run(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call the function under this trace."""
        ambient = mode.grad
        try:
            with tracing(self):
                return function(*args, **kwargs)
        except BaseException:
            mode.grad = ambient
            raise

    def close(self) -> None:
        """Undo the side effects of the call."""
        self.closed = True
        for handle, node in self.bound.values():
            handle._node = node
        for slot, grad in self.grads_written.items():
            slot._grad = grad
        # nodes and numbers refer to the trace, which must not keep the memory of what it met
        for met in (self.inputs, self.captured, self.constants, self.bound, self.scalars):
            met.clear()
        self.grads_read.clear()
        self.grads_written.clear()

    def check_open(self) -> None:
        """Raise for a tensor that has escaped from the function."""
        if self.closed:
            raise TracingError(
                f"this tensor was made while {self} was traced, and left it (through a global, a "
                "list, an attribute): it has no value; return it from the function instead"
            )


def handles_of(node: Node) -> list[Tensor]:
    """The tensors bound to a node."""
    known = node.handle
    if known is None:
        return []
    refs = known if known.__class__ is tuple else (known,)
    return [t for t in (r() for r in refs) if t is not None and t._node is node]
