"""Structural signatures of graphs: the key of every plan and compiled call.

One walk numbers the nodes, collects leaves and constants, and finds the live-out nodes, those
referenced from outside. The key is equal for graphs of one structure. It has two parts, a skeleton
and sizes: skeletons are hash-consed, as graphs come in many sizes and keys are looked up often.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from numus.compiler.graph.builder import number_class
from numus.compiler.graph.value import IDENTITIES, SIZED_OPS
from numus.shapes import Shape


class Skeleton:
    """A graph's structure without sizes; equal ones are one object.

    Attributes:
        parts: of each node in order: a leaf's dtype and rank; a constant's dtype and class; or the
            primitive, parameters that are no sizes, rank, dtype, and the numbers of the inputs.
    """

    __slots__ = ("__weakref__", "parts")

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts


_skeletons: WeakValueDictionary[Any, Skeleton] = WeakValueDictionary()


class SignatureKey:
    """A skeleton and sizes, hashed once: there are thousands of sizes."""

    __slots__ = ("_hash", "_numbers", "_skeleton")

    def __init__(self, skeleton: Skeleton, numbers: tuple[int, ...]) -> None:
        self._skeleton, self._numbers = skeleton, numbers
        self._hash = hash((skeleton, numbers))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not SignatureKey:
            return NotImplemented
        assert isinstance(other, SignatureKey)
        return self._skeleton is other._skeleton and self._numbers == other._numbers


class SignatureRecord:
    """What signatures of one structure have in common, in numbers of nodes.

    Args:
        varying: constants whose values may differ.
    """

    def __init__(self, signature: GraphSignature, varying: Collection[Any] = ()) -> None:
        number = signature.number
        self.skeleton = signature.skeleton
        self.live_out, self.tracked = signature.live_out, signature.tracked
        self.leaves = [number[x] for x in signature.leaves]
        self.constants = [number[x] for x in signature.constants]
        self.classes = list(signature.classes)
        # constants that are numbered as an equal one is
        self.equal_to = [i for x, i in number.items() if signature.nodes[i] is not x]
        self._fixed = {_bits(x) for x in signature.constants if x not in varying}
        classes = zip(signature.constants, self.classes, strict=True)
        self._class_of = {number[x]: c for x, c in classes if x in varying}

    def has_constants(self, nodes: Sequence[Any], equal: Sequence[Any]) -> bool:
        """Constants that vary are of the same classes, and those are equal that were."""
        if not self._class_of:
            return True
        bits = {i: _bits(nodes[i]) for i in self._class_of}
        different = {*bits.values(), *self._fixed}
        return (
            len(different) == len(bits) + len(self._fixed)
            and all(number_class(nodes[i].params) == c for i, c in self._class_of.items())
            and all(
                bits.get(i) in (None, _bits(x)) for x, i in zip(equal, self.equal_to, strict=True)
            )
        )


def _bits(constant: Any) -> tuple[Any, ...]:
    """The exact value of a constant."""
    return constant.dtype, constant.params.__class__, repr(constant.params)


class GraphSignature:
    """A graph's nodes, numbered inputs first, and its structural key.

    Args:
        roots: pending nodes.
        max_nodes: a larger graph is abandoned (`is_truncated`).

    Attributes:
        numbers: the sizes, in order: of each node the shape, then the strides of a leaf, or
            parameters that are sizes.
    """

    __slots__ = (
        *("classes", "constants", "is_truncated", "leaf_strides", "leaves", "live_out"),
        *("_key", "nodes", "number", "numbers", "skeleton", "standalone", "tracked"),
    )
    skeleton: Skeleton
    numbers: tuple[int, ...]
    _key: SignatureKey | None

    @property
    def key(self) -> SignatureKey:
        if self._key is None:
            self._key = SignatureKey(self.skeleton, self.numbers)
        return self._key

    def clear(self) -> None:
        """Drop all nodes."""
        self.nodes: list[Any] = []
        self.number: dict[Any, int] = {}
        self.leaves: list[Any] = []
        self.leaf_strides: list[Shape] = []
        self.constants: list[Any] = []
        self.classes: list[int | None] = []  # of constants: see `number_class`
        self.standalone: list[Any] = []  # transfers and results of control flow, to be run first
        self.live_out: tuple[int, ...] = ()
        self.tracked: tuple[int, ...] = ()  # a gradient may ask for these
        self.is_truncated = False
        self._key = None

    def __init__(self, roots: Sequence[Any], max_nodes: int = sys.maxsize) -> None:
        self.clear()
        parts: list[Any] = []
        sizes: list[int] = []
        uses: list[int] = []
        self._walk(roots, parts, sizes, uses, max_nodes)
        if self.is_truncated:
            return
        wanted = tuple([self.number[r] for r in roots])
        if len(self.nodes) - len(self.leaves) - len(self.constants) > len(wanted):
            self.live_out = self._escaping(uses, set(wanted))
            self.tracked = tuple(
                [i for i, n in enumerate(self.nodes) if n.tracked and n.view is None]
            )
        self._set_key((*parts, wanted, self.live_out, self.tracked), sizes)

    @classmethod
    def traced(
        cls,
        outputs: Sequence[Any],
        inputs: Sequence[Any],
        strides: Sequence[Shape],
        scalars: Sequence[Any],
    ) -> GraphSignature:
        """The signature of a traced graph between inputs of some strides, scalars and outputs."""
        self = cls.__new__(cls)
        self.clear()
        self.leaves += inputs
        self.leaf_strides += strides
        self.constants += scalars
        self.classes += [None] * len(scalars)
        for node in (*inputs, *scalars):
            self.number[node] = len(self.nodes)
            self.nodes.append(node)
        parts: list[Any] = []
        sizes: list[int] = []
        for x, s in zip(inputs, strides, strict=True):
            parts += ("leaf", x.dtype, len(s))
            sizes += x.shape
            sizes += s
        parts += [x.dtype for x in scalars]
        self._walk(outputs, parts, sizes, [0] * len(self.nodes), sys.maxsize)
        self._set_key((*parts, tuple([self.number[y] for y in outputs])), sizes)
        return self

    @classmethod
    def resized(
        cls, like: SignatureRecord, nodes: Sequence[Any], equal: Sequence[Any], sizes: Iterable[Any]
    ) -> GraphSignature:
        """The signature of a graph that was matched with a known structure: its nodes in order,
        constants that equal some of them, and tuples of sizes."""
        self = cls.__new__(cls)
        self.clear()
        self.nodes += nodes
        self.number = {node: i for i, node in enumerate(nodes)}
        self.number.update(zip(equal, like.equal_to, strict=True))
        self.leaves += [nodes[i] for i in like.leaves]
        self.leaf_strides += [x.view.strides for x in self.leaves]
        self.constants += [nodes[i] for i in like.constants]
        self.classes += like.classes
        self.live_out, self.tracked = like.live_out, like.tracked
        self.skeleton = like.skeleton
        self.numbers = tuple(itertools.chain.from_iterable(sizes))
        return self

    def _set_key(self, parts: tuple[Any, ...], sizes: list[int]) -> None:
        self.numbers = tuple(sizes)
        try:
            found = _skeletons.get(parts)
        except TypeError:  # unhashable parameters: no other graph has them
            self.skeleton = Skeleton(parts)
            return
        self.skeleton = _skeletons.setdefault(parts, Skeleton(parts)) if found is None else found

    @property
    def is_pending(self) -> bool:
        """True as long as nobody has evaluated a part of the graph."""
        pending = len(self.nodes) - len(self.leaves)
        return sum([node.view is None for node in self.nodes]) == pending

    def _walk(
        self,
        roots: Sequence[Any],
        parts: list[Any],
        sizes: list[int],
        uses: list[int],
        max_nodes: int,
    ) -> None:
        """Number the nodes below the roots; `uses` counts how often each is an input."""
        nodes, number, leaves, constants = self.nodes, self.number, self.leaves, self.constants
        leaf_strides, classes = self.leaf_strides, self.classes
        known: dict[Any, int] = {}  # constants
        stack: list[Any] = []
        inputs: Any = roots
        node: Any = None
        while True:
            waiting = False
            for x in inputs:
                if x in number:
                    continue
                name = x.prim.name
                view = x.view
                if view is not None:
                    strides = view.strides
                    parts += ("leaf", x.dtype, len(strides))
                    sizes += x.shape
                    sizes += strides
                    leaves.append(x)
                    leaf_strides.append(strides)
                elif name == "constant":
                    # by value: it depends on caches whether equal constants are one node
                    bits = _bits(x)
                    if bits in known:
                        number[x] = known[bits]
                        continue
                    known[bits] = len(nodes)
                    classes.append(number_class(x.params))
                    parts += (name, x.dtype, classes[-1])
                    constants.append(x)
                elif name == "transfer" or name == "get_tuple_element":
                    self.standalone.append(x)
                else:
                    stack.append(x)
                    waiting = True
                    continue
                number[x] = len(nodes)
                nodes.append(x)
                uses.append(0)
            if not waiting and node is not None:
                stack.pop()
                name = node.prim.name
                shape = node.shape
                sizes += shape
                if name in SIZED_OPS:
                    sizes += _flat(node.params)
                    params = None
                else:
                    params = None if name in IDENTITIES else node.params
                parts += (name, params, len(shape), node.dtype)
                for x in inputs:
                    i = number[x]
                    parts.append(i)
                    uses[i] += 1
                number[node] = len(nodes)
                nodes.append(node)
                uses.append(0)
            if len(nodes) > max_nodes or len(stack) > max_nodes:
                self.is_truncated = True
                return
            while True:
                if not stack:
                    return
                node = stack[-1]
                if node not in number:
                    break
                stack.pop()
            inputs = node.inputs

    @property
    def constant_bits(self) -> tuple[str, ...]:
        """The exact values of the constants: -0.0 differs from 0.0, and NaN equals itself."""
        return tuple([repr(x.params) for x in self.constants])

    def uses(self) -> dict[Any, int]:
        """How often each node is an input of pending ones."""
        found: dict[Any, int] = {}
        for node in self.nodes:
            if node.view is None:
                for x in node.inputs:
                    found[x] = found.get(x, 0) + 1
        return found

    def _escaping(self, uses: list[int], roots: set[int]) -> tuple[int, ...]:
        """Pending nodes referenced from outside this graph: they may be asked for later, so their
        values are kept. Inside, a node is referenced by its consumers and `_OWN_REFERENCES`."""
        count, own = sys.getrefcount, _OWN_REFERENCES
        found = []
        nodes = self.nodes
        for i in range(len(nodes)):
            node = nodes[i]
            if (
                count(node) > uses[i] + own
                and node.view is None
                and node.inputs
                and i not in roots
                and node.device is not None  # else it lives on other devices too
                and not is_free(node)
            ):
                found.append(i)
        return tuple(found)


def _flat(sizes: Any) -> Any:
    if sizes.__class__ is not tuple:
        return (sizes,)
    if sizes and sizes[0].__class__ is tuple:
        return [n for part in sizes for n in part]
    return sizes


def _own_references() -> int:
    """`getrefcount` of a node that only a signature references: `nodes`, `number`, the loop's
    variable and, in some versions of Python, the argument."""
    node = object()
    signature = ([node], {node: 0})
    return sys.getrefcount(node) if signature else 0


_OWN_REFERENCES = _own_references()


def is_free(node: Any) -> bool:
    """True if a pending node is a view of a constant or a counter: never worth its memory."""
    while node.prim.kind == "view":
        node = node.inputs[0]
    return node.view is None and node.prim.kind == "source"
