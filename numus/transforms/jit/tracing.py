"""One recorded call: what it met, what it changed.

While a trace runs in a thread, the graph tells it of three things: operations on nodes that are
older than the trace (captured values), tensors that are bound to other nodes, and gradients that
are read or written. When the function has returned, all of it is put back as it was, and what is
left is a recipe that each call follows with values of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from numus import dtypes as dt
from numus.errors import TracingError
from numus.graph import Node, mode, now, tracing
from numus.primitives.source import placeholder
from numus.tensor import GradSlot, Tensor
from numus.transforms.jit.scalars import Scalar
from numus.transforms.tape import is_leaf


class Inline(BaseException):
    """This call cannot be a program of its own: somebody outside will differentiate it, say.

    No `Exception`, so that nobody's handler takes it for an error of the function.
    """


class Trace:
    """What happens in this thread while a function is traced."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.since = now()
        self.closed = False
        self.inputs: dict[int, Node] = {}  # of the tensors among the arguments
        self.captured: dict[Node, None] = {}
        self.constants: dict[Node, None] = {}  # values that were made inside, from the host's data
        self.bound: dict[int, tuple[Tensor, Node]] = {}  # older tensors, and what they stood for
        self.born: dict[int, weakref.ref[Tensor]] = {}  # tensors made inside on older nodes
        self.grads_read: dict[GradSlot, Any] = {}  # before anything was written there
        self.grads_written: dict[GradSlot, Any] = {}  # what was there before
        self.scalars: dict[tuple[int, dt.DType], tuple[Scalar, Node]] = {}
        self.keys: list[tuple[Any, Node, Node]] = []  # generator, and the two words it will give

    def __str__(self) -> str:
        return f"nm.jit of {self.name}"

    # -- what the graph tells ---------------------------------------------------------------------

    def captures(self, node: Node) -> bool:
        """Whether a node was there before the trace, and may be another at the next call."""
        return node.serial <= self.since and (
            node.prim.kind != "source" or node.view is not None or bool(handles_of(node))
        )

    def meets(self, inputs: Sequence[Node]) -> bool:
        """Take note of an operation's inputs; whether one of them is captured."""
        found = False
        for node in inputs:
            if node.serial > self.since:
                if node.view is not None:
                    self.constants[node] = None
                continue
            if not self.captures(node):
                continue
            if node.abstract:
                if node.abstract is not True:
                    node.abstract.check_open()
                raise Inline
            if node.tracked and mode.grad and not is_leaf(node):
                raise Inline  # its history is outside
            self.captured[node] = None
            found = True
        return found

    def binds(self, handle: Tensor, node: Node) -> None:
        """A tensor is about to stand for a node."""
        old = handle._node
        if old is node:
            self.born[id(handle)] = weakref.ref(handle)
        elif old.serial <= self.since and id(handle) not in self.bound and not self.is_born(handle):
            self.bound[id(handle)] = (handle, old)

    def is_born(self, handle: Tensor) -> bool:
        """Whether a tensor was made inside, though it stands for an older node."""
        known = self.born.get(id(handle))
        return known is not None and known() is handle

    def reads_grad(self, slot: GradSlot) -> None:
        if slot.serial <= self.since and slot not in self.grads_written:
            self.grads_read.setdefault(slot, slot._grad)

    def writes_grad(self, slot: GradSlot) -> None:
        if slot.serial <= self.since:
            self.grads_written.setdefault(slot, slot._grad)

    def scalar(self, number: Scalar, dtype: dt.DType) -> Node:
        """The node of a number of the arguments in a dtype."""
        found = self.scalars.get((id(number), dtype))
        if found is None:
            found = self.scalars[id(number), dtype] = (number, self.unknown((), dtype, None))
        return found[1]

    def draws(self, generator: Any) -> tuple[Node, Node]:
        """The words of the next key of a generator."""
        words = self.unknown((), dt.uint32, None), self.unknown((), dt.uint32, None)
        self.keys.append((generator, *words))
        return words

    def argument(self, index: int, given: Node) -> Node:
        """The node of a tensor among the arguments; a leaf's gradients go where they always do."""
        node = self.inputs[index] = self.unknown(given.shape, given.dtype, given.device)
        if is_leaf(given):
            node.tracked = given.tracked
            node.grad_slot = given.grad_slot
        return node

    def unknown(self, shape: Any, dtype: dt.DType, device: Any) -> Node:
        """An input of the recipe."""
        node = placeholder(shape, dtype, device, str(self))
        node.abstract = self
        return node

    # -- begin and end ----------------------------------------------------------------------------

    def run(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call the function, recorded."""
        ambient = mode.grad
        try:
            with tracing(self):
                return function(*args, **kwargs)
        except BaseException:
            mode.grad = ambient
            raise

    def close(self) -> None:
        """Put everything back as it was before the call."""
        self.closed = True
        for handle, node in self.bound.values():
            handle._node = node
        for slot, grad in self.grads_written.items():
            slot._grad = grad

    def check_open(self) -> None:
        """Refuse tensors that have left the function."""
        if self.closed:
            raise TracingError(
                f"this tensor was made while {self} was traced, and left it (through a global, a "
                "list, an attribute): it has no value; return it from the function instead"
            )


def handles_of(node: Node) -> list[Tensor]:
    """The tensors that stand for a node."""
    known = node.handle
    if known is None:
        return []
    refs = known if known.__class__ is tuple else (known,)
    return [t for t in (r() for r in refs) if t is not None and t._node is node]
