"""Calls with a derivative of their own: what custom_vjp, custom_jvp and checkpoint share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from numus.graph import Node
from numus.primitives.broadcast import broadcast, full, reduce_sum
from numus.primitives.custom import custom
from numus.primitives.elementwise import stop_gradient
from numus.primitives.source import placeholder
from numus.tensor import Tensor
from numus.transforms import tree
from numus.transforms.trace import fitting
from numus.transforms.vmap import batch


class CallRule:
    """The part of a `primitives.custom.Rule` that is the same for all: how it is batched."""

    count: int

    def __init__(self) -> None:
        # weak, as a batched rule holds its inner one: the nodes that use it keep it
        self._batched: WeakValueDictionary[Any, Batched] = WeakValueDictionary()

    def vjp(
        self, operands: Sequence[Node], cotangents: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        raise NotImplementedError

    def jvp(
        self, operands: Sequence[Node], tangents: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        raise NotImplementedError

    def batched(self, size: int, flags: tuple[bool, ...]) -> Batched:
        rule = self._batched.get((size, flags))
        if rule is None:
            rule = self._batched[size, flags] = Batched(self, size, flags)
        return rule


class Batched(CallRule):
    """A rule under vmap: the inner rule is traced for one entry and its graph rewritten."""

    def __init__(self, inner: CallRule, size: int, flags: tuple[bool, ...]) -> None:
        super().__init__()
        self._inner = inner
        self._size = size
        self._flags = flags
        self.count = inner.count

    def vjp(
        self, operands: Sequence[Node], cotangents: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        spots: dict[Node, Node] = {}
        found = self._inner.vjp(
            _entries(operands, self._flags, spots),
            _entries(cotangents, (True,) * self.count, spots),
        )
        wide = self._rewritten(found, spots)
        return [
            g if g is None or is_batched else reduce_sum(g, (0,))  # an operand that all share
            for g, is_batched in zip(wide, self._flags, strict=True)
        ]

    def jvp(
        self, operands: Sequence[Node], tangents: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        spots: dict[Node, Node] = {}
        found = self._inner.jvp(
            _entries(operands, self._flags, spots), _entries(tangents, self._flags, spots)
        )
        return self._rewritten(found, spots)

    def _rewritten(
        self, found: Sequence[Node | None], spots: dict[Node, Node]
    ) -> list[Node | None]:
        size = self._size
        rewritten = iter(batch([n for n in found if n is not None], spots, size))
        out: list[Node | None] = []
        for node in found:
            if node is None:
                out.append(None)
            else:
                y, carries = next(rewritten)
                out.append(y if carries else broadcast(y, (size, *y.shape)))
        return out


def _entries(nodes: Sequence[Any], flags: Sequence[bool], spots: dict[Node, Node]) -> list[Any]:
    """Placeholders for one entry of each batched node; `spots` says what they stand for."""
    out = []
    for x, is_batched in zip(nodes, flags, strict=True):
        if x is not None and is_batched:
            spot = placeholder(x.shape[1:], x.dtype, x.device, "vmap")
            spot.tracked = x.tracked
            spots[spot] = x
            x = spot
        out.append(x)
    return out


# -- arguments and results ------------------------------------------------------------------------


class TreeSpec:
    """A container without its tensors: where they were, their shapes and dtypes, all the rest."""

    def __init__(self, container: Any) -> None:
        self._leaves, self.structure = tree.flatten(container)
        self._places = [i for i, x in enumerate(self._leaves) if isinstance(x, Tensor)]
        self._types = [(self._leaves[i].shape, self._leaves[i].dtype) for i in self._places]
        for i in self._places:
            self._leaves[i] = None

    def __len__(self) -> int:
        return len(self._places)

    def filled(self, nodes: Sequence[Node | None]) -> Any:
        """The container with tensors on these nodes; None stays None."""
        return self._with(self._leaves, nodes)

    def zeroed(self, nodes: Sequence[Node | None]) -> list[Node | None]:
        """Tangents or cotangents with zeros for None; None stays where the dtype has none."""
        return [
            (full(shape, 0, dtype) if node is None else node) if dtype.is_inexact else None
            for node, (shape, dtype) in zip(nodes, self._types, strict=True)
        ]

    def derivative(self, nodes: Sequence[Node | None]) -> Any:
        """Tangents or cotangents in the container's form; leaves that are no tensors get zero."""
        blank = [0.0 if isinstance(x, float) else None for x in self._leaves]
        return self._with(blank, self.zeroed(nodes))

    def _with(self, leaves: Sequence[Any], nodes: Sequence[Node | None]) -> Any:
        leaves = list(leaves)
        for i, node in zip(self._places, nodes, strict=True):
            leaves[i] = None if node is None else Tensor(node)
        return tree.unflatten(self.structure, leaves)

    def matching(
        self, container: Any, like: Sequence[Node], op: str, what: str
    ) -> list[Node | None]:
        """The nodes of tangents or cotangents in the container's form, checked; None is zero."""
        leaves = tree.broadcast_leaves(container, self.structure, op, what)
        paths = tree.paths(self.structure)
        return [
            fitting(leaves[i], x, op, what + paths[i]) if x.dtype.is_inexact else None
            for i, x in zip(self._places, like, strict=True)
        ]


def flatten(container: Any) -> tuple[TreeSpec, list[Node]]:
    """A container as its form and the nodes of its tensors."""
    return TreeSpec(container), [x._node for x in tree.leaves(container) if isinstance(x, Tensor)]


def connected(
    rule: CallRule, form: TreeSpec, values: Sequence[Node], operands: tuple[Node, ...]
) -> Any:
    """The results of a call, in their container, differentiated by `rule`."""
    plain = [stop_gradient(y) if y.tracked else y for y in values]
    return form.filled(
        [custom(rule, i, y, operands) if y.dtype.is_inexact else y for i, y in enumerate(plain)]
    )


def positional(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Arguments in the order of f's parameters, defaults included."""
    if not kwargs:
        return list(args)
    bound = inspect.signature(f).bind(*args, **kwargs)
    bound.apply_defaults()
    if bound.kwargs:
        raise TypeError(f"{f.__name__}: keyword-only arguments cannot be differentiated")
    return list(bound.args)
