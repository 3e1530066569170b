"""Einstein summation: products of any number of tensors, axes named by letters."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import combinations
from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions._base import common, wrap
from numus.functions.autocast import lowers
from numus.functions.linear.labelled_contraction import Labels, Operand, arrange, product, sum_out
from numus.functions.linear.matmul import preferred
from numus.functions.shape.splitting import diagonal
from numus.functions.template_cache import templated
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.views import reshape
from numus.shapes import Shape, size_of
from numus.tensor import Tensor

__all__ = ["einsum"]

Term = tuple[Any, ...]  # labels and, at most once, Ellipsis


@templated
@lowers
def einsum(subscripts: Any, /, *operands: Any, preferred_element_type: Any = None) -> Tensor:
    """Products summed over the axes whose labels are not in the output.

    "ij,jk->ik" is a matrix product, "ii->i" a diagonal, "...ij->...ji" a transpose. Without "->"
    the output has the labels that occur once, in alphabetical order. Axes under "..." and axes of
    extent 1 broadcast. `einsum(x, [0, 1], y, [1, 2], [0, 2])` names axes by integers. More than
    two operands are multiplied in pairs, small results first. `preferred_element_type` is what
    products are accumulated in and what comes out.

    >>> a = nm.asarray([[1, 2], [3, 4]])
    >>> nm.einsum("ij,kj->ik", a, a).tolist()
    [[5, 11], [11, 25]]
    """
    if isinstance(subscripts, str):
        terms, output = _parse(subscripts)
    else:
        flat = [subscripts, *operands]
        output = tuple(flat.pop()) if len(flat) % 2 else None
        terms, operands = tuple(tuple(t) for t in flat[1::2]), tuple(flat[::2])
    if len(terms) != len(operands):
        raise ShapeError(
            f"einsum: {subscripts!r} names {len(terms)} operands, but {len(operands)} were given"
        )
    nodes = preferred("einsum", common("einsum", *operands), preferred_element_type)
    dtype = nodes[0].dtype
    if dtype.kind == "bool":  # counts, of which those above zero are true
        nodes = [ew.cast(x, dt.int32) for x in nodes]
    labels, out, extents = _label(terms, output, tuple(x.shape for x in nodes))
    parts = [_single(x, own, extents) for x, own in zip(nodes, labels, strict=True)]
    return wrap(ew.cast(_contract(parts, out), dtype))


@functools.lru_cache(maxsize=1024)
def _parse(subscripts: str) -> tuple[tuple[Term, ...], Term | None]:
    """One term per operand, and the output's term if there is one."""

    def term(text: str) -> Term:
        head, dots, tail = text.partition("...")
        if not (head + tail).isalpha() and head + tail:
            raise ShapeError(f"einsum: {text!r} in {subscripts!r} is not letters and '...'")
        return (*head, *([...] if dots else []), *tail)

    left, arrow, right = subscripts.replace(" ", "").partition("->")
    return tuple(term(t) for t in left.split(",")), term(right) if arrow else None


@functools.lru_cache(maxsize=1024)
def _label(
    terms: tuple[Term, ...], output: Term | None, shapes: tuple[Shape, ...]
) -> tuple[list[Labels], Labels, dict[Hashable, int]]:
    """A label for each axis of each operand, the output's labels, the extent of every label."""
    named = [_expand_ellipsis(t, s, i) for i, (t, s) in enumerate(zip(terms, shapes, strict=True))]
    dots = max((sum(isinstance(label, tuple) for label in s) for s in named), default=0)
    ellipsis: Labels = tuple(("...", i) for i in range(-dots, 0))
    extents: dict[Hashable, int] = {}
    for labels, shape in zip(named, shapes, strict=True):
        for label, n in zip(labels, shape, strict=True):
            known = extents.setdefault(label, n)
            if known == 1:
                extents[label] = n
            elif n not in (1, known):
                name = "..." if isinstance(label, tuple) else label
                raise ShapeError(f"einsum: axes named {name!r} have extents {known} and {n}")
    if output is not None:
        return named, _output(output, ellipsis, extents), extents
    every: list[Any] = [x for s in named for x in s if not isinstance(x, tuple)]
    return named, (*ellipsis, *sorted(x for x in set(every) if every.count(x) == 1)), extents


def _expand_ellipsis(term: Term, shape: Shape, position: int) -> Labels:
    """The term with a label for every axis that its ellipsis stands for, counted from the back."""
    named = len(term) - term.count(...)
    hidden = len(shape) - named
    if hidden < 0 or (hidden and ... not in term) or term.count(...) > 1:
        raise ShapeError(
            f"einsum: operand {position} of shape {shape} has {len(shape)} axes, but its "
            f"subscripts name {named}"
        )
    if ... not in term:
        return term
    at = term.index(...)
    return (*term[:at], *(("...", i) for i in range(-hidden, 0)), *term[at + 1 :])


def _output(term: Term, ellipsis: Labels, extents: dict[Hashable, int]) -> Labels:
    if ellipsis and ... not in term:
        raise ShapeError("einsum: operands have axes under '...', so the output needs '...' too")
    out: list[Hashable] = []
    for label in term:
        if label is ...:
            out.extend(ellipsis)
        elif label not in extents:
            raise ShapeError(f"einsum: the output names {label!r}, which no operand has")
        else:
            out.append(label)
    if len(set(out)) != len(out):
        raise ShapeError("einsum: the output names an axis twice")
    return tuple(out)


def _single(x: Node, labels: Labels, extents: dict[Hashable, int]) -> Operand:
    """Repeated labels become diagonals; axes of extent 1 that broadcast are dropped."""
    left = list(labels)
    if len(set(labels)) < len(labels):
        for label in dict.fromkeys(labels):
            while left.count(label) > 1:
                first = left.index(label)
                second = left.index(label, first + 1)
                if x.shape[first] != x.shape[second]:
                    raise ShapeError(f"einsum: the diagonal {label!r} of {x.shape} is not square")
                x = diagonal(wrap(x), 0, first, second)._node
                del left[second], left[first]
                left.append(label)
    axes = [i for i, label in enumerate(left) if x.shape[i] == extents[label]]
    return Operand(reshape(x, tuple([x.shape[i] for i in axes])), tuple([left[i] for i in axes]))


MAX_EXHAUSTIVE_OPERANDS = 12  # more are ordered by a heap of pairs with a common label
MAX_PAIRS_PER_OPERAND = 32


def _contract(parts: list[Operand], out: Labels) -> Node:
    """The product of all parts, pair by pair: the pair that shrinks the whole most comes first."""
    work = _Contraction(parts, out)
    if len(parts) > MAX_EXHAUSTIVE_OPERANDS:
        _contract_greedily(work)
    while len(work.keys) > 1:
        is_pair = len(work.keys) == 2
        pairs = combinations(work.keys, 2)
        work.multiply(*(work.keys if is_pair else min(pairs, key=lambda pair: work.change(*pair))))
    return arrange(sum_out(work.parts[work.keys[0]], out), out)


class _Contraction:
    """Operands that are still to be multiplied, by key, and the number that need each label."""

    def __init__(self, parts: list[Operand], out: Labels) -> None:
        self.parts = dict(enumerate(parts))
        self.keys = list(self.parts)  # the latest product first
        self._next = len(parts) - 1
        self.out = out
        self.uses = Counter(label for p in parts for label in p.labels)

    def _wanted(self, i: int, j: int) -> Labels:
        """The labels of a pair that the output or another operand needs, in the output's order."""
        a, b = self.parts[i].labels, self.parts[j].labels
        own = dict.fromkeys((*a, *b))
        needed = (x for x in own if self.uses[x] > (x in a) + (x in b) and x not in self.out)
        return (*(x for x in self.out if x in own), *needed)

    def change(self, i: int, j: int) -> int:
        """The elements that there are more, once a pair is multiplied."""
        a, b = self.parts[i], self.parts[j]
        extents = dict(zip((*a.labels, *b.labels), (*a.node.shape, *b.node.shape), strict=True))
        result = size_of(tuple(extents[x] for x in self._wanted(i, j)))
        return result - size_of(a.node.shape) - size_of(b.node.shape)

    def multiply(self, i: int, j: int) -> int:
        """Replace a pair by its product, and return the key of that."""
        wanted, a, b = self._wanted(i, j), self.parts.pop(i), self.parts.pop(j)
        dtype = dt.compute_dtype(dt.promote(a.node.dtype, b.node.dtype))
        made = product(a, b, wanted, dtype)
        self.uses.subtract((*a.labels, *b.labels))
        self.uses.update(made.labels)
        key = self._next = self._next + 1
        self.keys = [key, *(k for k in self.keys if k not in (i, j))]
        self.parts[key] = made
        return key


def _contract_greedily(work: _Contraction) -> None:
    """Multiply all pairs with a common label, the smallest results first. Each operand is paired
    with few others, which bounds the work; costs are those of the time when a pair was found."""
    holders: dict[Hashable, list[int]] = {}
    heap: list[tuple[int, int, int]] = []

    def enter(key: int) -> None:
        found = {k: None for x in work.parts[key].labels for k in holders.get(x, ())}
        for other in [k for k in found if k in work.parts][-MAX_PAIRS_PER_OPERAND:]:
            heappush(heap, (work.change(other, key), other, key))
        for label in work.parts[key].labels:
            holders[label] = [*(k for k in holders.get(label, ()) if k in work.parts), key]

    for key in list(work.keys):
        enter(key)
    while heap and len(work.keys) > 1:
        _, i, j = heappop(heap)
        if i in work.parts and j in work.parts:
            enter(work.multiply(i, j))
    by_size = [(size_of(p.node.shape), key) for key, p in work.parts.items()]
    heapify(by_size)  # nothing in common: the smallest first
    while len(by_size) > MAX_EXHAUSTIVE_OPERANDS:
        (_, i), (_, j) = heappop(by_size), heappop(by_size)
        key = work.multiply(i, j)
        heappush(by_size, (size_of(work.parts[key].node.shape), key))
