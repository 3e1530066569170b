"""A function that runs once, in Python, for all examples of a batch or all turns of a loop.

Tensors from outside cannot be changed in place there: the new value would be one that only a
single example or turn has. It would be lost with the old one, so it is refused where it happens.
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
    """What such a function may do to its surroundings, from now on."""

    def __init__(self, op: str) -> None:
        self._op = op
        self._since = now()
        self._born: dict[int, weakref.ref[Tensor]] = {}  # tensors made inside on older nodes

    def binds(self, handle: Tensor, node: Node) -> None:
        """A tensor is about to stand for a node."""
        old = handle._node
        if old is node:
            self._born[id(handle)] = weakref.ref(handle)
        elif old.serial <= self._since and self._refuses(node):
            known = self._born.get(id(handle))
            if known is None or known() is not handle:
                self._refuse("a tensor", "")

    def writes_grad(self, slot: GradSlot) -> None:
        if slot.serial <= self._since:
            self._refuse("the .grad of a tensor", " (nm.grad gives gradients as values)")

    def draws(self, words: Words) -> Words:
        """The words of a key of the generator, for each turn."""
        return words

    def _refuses(self, new: Node) -> bool:
        """Whether an older tensor must not stand for a node."""
        return bool(new.abstract)

    def _refuse(self, what: str, hint: str) -> None:
        raise TracingError(
            f"{self._op}: the function changes {what} in place that was made outside of it"
            f"{user_line()}, but runs once for all; return the new value and assign it outside"
            f"{hint}"
        )


class BranchEffects(EffectCheck):
    """Both branches of a choice run in Python: neither may change anything outside."""

    def _refuses(self, new: Node) -> bool:
        return True


class LoopEffects(BranchEffects):
    """A loop's body runs in Python once. Random numbers are others at each turn."""

    def __init__(self, op: str) -> None:
        super().__init__(op)
        self.iteration: Node | None = None  # its index, where it was asked for

    def draws(self, words: Words) -> Words:
        if self.iteration is None:
            self.iteration = placeholder((), dt.uint32, None, self._op)
        return threefry(*words, constant(0, dt.uint32), self.iteration)
