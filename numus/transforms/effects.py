"""Effect checks of functions that run once for all examples of a batch or iterations of a loop.

They cannot change outer tensors in place: the new value would be that of a single example or
iteration. Such a change is an error where it happens.
"""

from __future__ import annotations

import weakref

from numus import dtypes as dt
from numus.errors import TracingError
from numus.evaluation.evaluate import user_line
from numus.graph import Node, Nodes, mode, now
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import reduce_sum
from numus.primitives.random.bits import threefry
from numus.primitives.source import constant, placeholder
from numus.tensor import GradSlot, Tensor
from numus.transforms.subgraph import dependents

Words = tuple[Node, Node]


class EffectCheck:
    """The side effects that such a function may have, from now on."""

    _refuses_all = False  # else only values that depend on placeholders

    def __init__(self, op: str) -> None:
        self._op = op
        self._since = now()
        self._outer = mode.effects
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

    def index(self) -> Node | None:
        """The number of the iteration, in a loop."""
        found: Node | None = None if self._outer is None else self._outer.index()
        return found

    def runs(self, result: Node) -> None:
        """A call that others take part in has this result."""
        if self._outer is not None:
            self._outer.runs(result)

    def _refuse(self, what: str, hint: str) -> None:
        raise TracingError(
            f"{self._op}: the function changes {what} in place that was made outside of it"
            f"{user_line()}, but runs once for all; return the new value and assign it outside"
            f"{hint}"
        )


class BranchEffects(EffectCheck):
    """Both branches run in Python: neither may change outer tensors. Calls that others take part in
    run where a branch is taken, or in each iteration: they depend on a number that only its body
    knows."""

    _refuses_all = True

    def __init__(self, op: str) -> None:
        super().__init__(op)
        self.iteration: Node | None = None  # its index, if something asks for it
        self._results: list[Node] = []  # of calls that run whether they are used or not

    def index(self) -> Node:
        if self.iteration is None:
            self.iteration = placeholder((), dt.uint32, None, self._op)
        return self.iteration

    def runs(self, result: Node) -> None:
        self._results.append(result)

    def numbers(self, outputs: Nodes) -> list[Node]:
        """A number from each such call that the outputs of the body do not depend on: as one more
        output of the body, it makes the call run."""
        used = set(dependents(outputs, [self.index()])) if self._results else set()
        found = []
        for x in self._results:
            if x not in used:
                x = ew.cast(ew.real(x) if x.dtype.is_complex else x, dt.uint32)
                found.append(reduce_sum(x, tuple(range(x.ndim))) if x.ndim else x)
        return found


class LoopEffects(BranchEffects):
    """A loop's body runs in Python once. Random numbers differ between iterations."""

    def draws(self, words: Words) -> Words:
        return threefry(*words, constant(0, dt.uint32), self.index())
