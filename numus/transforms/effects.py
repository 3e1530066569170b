"""Effect checks of functions that run once for all examples of a batch or iterations of a loop.

They cannot change outer tensors in place: the new value would be that of a single example or
iteration. Such a change is an error where it happens.
"""

from __future__ import annotations

import weakref

from numus import dtypes as dt
from numus.errors import TracingError
from numus.evaluation.evaluate import user_line
from numus.graph import Node, now
from numus.primitives.random_bits import threefry
from numus.primitives.source import constant, placeholder
from numus.tensor import GradSlot, Tensor

Words = tuple[Node, Node]


class EffectCheck:
    """The side effects that such a function may have, from now on."""

    _refuses_all = False  # else only values that depend on placeholders

    def __init__(self, op: str) -> None:
        self._op = op
        self._since = now()
        self._born: dict[int, weakref.ref[Tensor]] = {}  # tensors made by it on older nodes

    def binds(self, handle: Tensor, node: Node) -> None:
        """A tensor is about to be bound to a node."""
        old = handle._node
        if old is node:
            self._born[id(handle)] = weakref.ref(handle)
        elif old.serial <= self._since and (self._refuses_all or node.abstract):
            known = self._born.get(id(handle))
            if known is None or known() is not handle:
                self._refuse("a tensor", "")

    def writes_grad(self, slot: GradSlot) -> None:
        if slot.serial <= self._since:
            self._refuse("the .grad of a tensor", " (nm.grad gives gradients as values)")

    def draws(self, words: Words) -> Words:
        """The words of a generator's key, for each iteration."""
        return words

    def _refuse(self, what: str, hint: str) -> None:
        raise TracingError(
            f"{self._op}: the function changes {what} in place that was made outside of it"
            f"{user_line()}, but runs once for all; return the new value and assign it outside"
            f"{hint}"
        )


class BranchEffects(EffectCheck):
    """Both branches run in Python: neither may change outer tensors."""

    _refuses_all = True


class LoopEffects(BranchEffects):
    """A loop's body runs in Python once. Random numbers differ between iterations."""

    def __init__(self, op: str) -> None:
        super().__init__(op)
        self.iteration: Node | None = None  # its index, if random numbers are drawn

    def draws(self, words: Words) -> Words:
        if self.iteration is None:
            self.iteration = placeholder((), dt.uint32, None, self._op)
        return threefry(*words, constant(0, dt.uint32), self.iteration)
