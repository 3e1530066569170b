"""Calls with a derivative of their own: what custom_vjp, custom_jvp and checkpoint share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from numus.dtypes import DType
from numus.graph import Node, Nodes, Tangents
from numus.primitives.broadcast import broadcast, full, reduce_sum
from numus.primitives.custom import custom
from numus.primitives.elementwise import stop_gradient
from numus.shapes import Shape
from numus.tensor import Tensor
from numus.transforms import tree
from numus.transforms.trace import fitting
from numus.transforms.vmap import batch, entries_of

Types = Sequence[tuple[Shape, DType]]


@dataclass(eq=False)
class CallRule:
    """The part of a `primitives.custom.Rule` that all share: its batching."""

    count: int

    @functools.cached_property
    def _batched(self) -> WeakValueDictionary[Any, Batched]:
        # weak, as a batched rule references its inner one: the nodes that use it keep it alive
        return WeakValueDictionary()

    def vjp(self, operands: Nodes, cotangents: Tangents) -> Tangents:
        raise NotImplementedError

    def jvp(self, operands: Nodes, tangents: Tangents) -> Tangents:
        raise NotImplementedError

    def batched(self, size: int, flags: tuple[bool, ...]) -> Batched:
        rule = self._batched.get((size, flags))
        if rule is None:
            rule = self._batched[size, flags] = Batched(self.count, self, size, flags)
        return rule


@dataclass(eq=False)
class Batched(CallRule):
    """A rule under vmap: the inner rule is traced for one entry and its graph rewritten."""

    inner: CallRule
    size: int
    flags: tuple[bool, ...]

    def vjp(self, operands: Nodes, cotangents: Tangents) -> Tangents:
        spots: dict[Node, Node] = {}
        primals = entries_of(operands, self.flags, spots)
        found = self.inner.vjp(primals, entries_of(cotangents, (True,) * self.count, spots))
        return [
            g if g is None or is_batched else reduce_sum(g, (0,))  # an operand that all share
            for g, is_batched in zip(self._rewritten(found, spots), self.flags, strict=True)
        ]

    def jvp(self, operands: Nodes, tangents: Tangents) -> Tangents:
        spots: dict[Node, Node] = {}
        primals = entries_of(operands, self.flags, spots)
        found = self.inner.jvp(primals, entries_of(tangents, self.flags, spots))
        return self._rewritten(found, spots)

    def _rewritten(self, found: Tangents, spots: dict[Node, Node]) -> Tangents:
        rewritten = iter(
            y if carries else broadcast(y, (self.size, *y.shape))
            for y, carries in batch([n for n in found if n is not None], spots, self.size)
        )
        return [None if node is None else next(rewritten) for node in found]


# -- arguments and results ------------------------------------------------------------------------


def instantiate_zeros(tangents: Tangents, types: Types) -> list[Node | None]:
    """Tangents or cotangents with zeros for None; None remains where the dtype has none."""
    return [
        (full(shape, 0, dtype) if t is None else t) if dtype.is_inexact else None
        for t, (shape, dtype) in zip(tangents, types, strict=True)
    ]


class TreeSpec:
    """A container without its tensors: their positions, shapes and dtypes, and all the rest."""

    def __init__(self, container: Any) -> None:
        self._leaves, self.structure = tree.flatten(container)
        self._positions = [i for i, x in enumerate(self._leaves) if isinstance(x, Tensor)]
        self._types = [(self._leaves[i].shape, self._leaves[i].dtype) for i in self._positions]
        for i in self._positions:
            self._leaves[i] = None

    def __len__(self) -> int:
        return len(self._positions)

    def filled(self, nodes: Tangents) -> Any:
        """The container with tensors on these nodes."""
        return self._with(self._leaves, nodes)

    def zeroed(self, nodes: Tangents) -> list[Node | None]:
        return instantiate_zeros(nodes, self._types)

    def derivative(self, nodes: Tangents) -> Any:
        """The container of tangents or cotangents; zero for leaves that are not tensors."""
        blank = [0.0 if isinstance(x, float) else None for x in self._leaves]
        return self._with(blank, self.zeroed(nodes))

    def _with(self, leaves: Sequence[Any], nodes: Tangents) -> Any:
        leaves = list(leaves)
        for i, node in zip(self._positions, nodes, strict=True):
            leaves[i] = None if node is None else Tensor(node)
        return tree.unflatten(self.structure, leaves)

    def matching(self, container: Any, like: Nodes, op: str, what: str) -> Tangents:
        """The nodes of a container of tangents or cotangents, checked."""
        leaves = tree.broadcast_leaves(container, self.structure, op, what)
        paths = tree.paths(self.structure)
        return [
            fitting(leaves[i], x, op, what + paths[i]) if x.dtype.is_inexact else None
            for i, x in zip(self._positions, like, strict=True)
        ]


def flatten(container: Any) -> tuple[TreeSpec, list[Node]]:
    """A container as its spec and the nodes of its tensors."""
    return TreeSpec(container), [x._node for x in tree.leaves(container) if isinstance(x, Tensor)]


def differentiated(rule: CallRule, values: Nodes, operands: tuple[Node, ...]) -> list[Node]:
    """The results of a call, differentiated by `rule`."""
    return [custom(rule, i, y, operands) if y.dtype.is_inexact else y for i, y in enumerate(values)]


def connected(rule: CallRule, spec: TreeSpec, values: Nodes, operands: tuple[Node, ...]) -> Any:
    """The results of a call, in their container, differentiated by `rule` alone."""
    untracked = [stop_gradient(y) if y.tracked else y for y in values]
    return spec.filled(differentiated(rule, untracked, operands))


def positional(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Arguments in the order of f's parameters, defaults included."""
    if not kwargs:
        return list(args)
    bound = inspect.signature(f).bind(*args, **kwargs)
    bound.apply_defaults()
    if bound.kwargs:
        raise TypeError(f"{f.__name__}: keyword-only arguments cannot be differentiated")
    return list(bound.args)
