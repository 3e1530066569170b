"""Einstein summation: products of any number of tensors, axes named by letters."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions._base import common, wrap
from numus.functions._product import Labels, Operand, arrange, product, sum_out
from numus.functions.contraction import diagonal_of
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.views import reshape
from numus.shapes import size_of
from numus.tensor import Tensor

__all__ = ["einsum"]

Term = list[Any]  # labels and, at most once, Ellipsis


def einsum(subscripts: Any, /, *operands: Any) -> Tensor:
    """Products summed over the axes whose labels are not in the output.

    "ij,jk->ik" is a matrix product, "ii->i" a diagonal, "...ij->...ji" a transpose. Without "->"
    the output has the labels that occur once, in alphabetical order. Axes under "..." and axes of
    extent 1 broadcast. `einsum(x, [0, 1], y, [1, 2], [0, 2])` names axes by integers. More than
    two operands are multiplied in pairs, small results first.

    >>> import numus as nm
    >>> a = nm.asarray([[1, 2], [3, 4]])
    >>> nm.einsum("ij,kj->ik", a, a).tolist()
    [[5, 11], [11, 25]]
    """
    terms, output, tensors = _parse(subscripts, operands)
    nodes = common("einsum", *tensors)
    dtype = nodes[0].dtype
    logical = dtype.kind == "bool"
    if logical:  # counts, of which those above zero are true
        nodes = [ew.cast(x, dt.int32) for x in nodes]
    parts, out = _labelled(terms, output, nodes)
    y = ew.cast(_contract(parts, out), dtype)
    return wrap(y)


# -- reading the subscripts -----------------------------------------------------------------------


def _parse(subscripts: Any, operands: Sequence[Any]) -> tuple[list[Term], Term | None, list[Any]]:
    """One term per operand, the output's term if there is one, and the operands."""
    if not isinstance(subscripts, str):
        flat = [subscripts, *operands]
        output = list(flat.pop()) if len(flat) % 2 else None
        terms, operands = [list(t) for t in flat[1::2]], flat[::2]
    else:
        left, arrow, right = subscripts.replace(" ", "").partition("->")
        terms = [_term(t, subscripts) for t in left.split(",")]
        output = _term(right, subscripts) if arrow else None
    if len(terms) != len(operands):
        raise ShapeError(
            f"einsum: {subscripts!r} names {len(terms)} operands, but {len(operands)} were given"
        )
    return terms, output, list(operands)


def _term(text: str, subscripts: str) -> Term:
    head, dots, tail = text.partition("...")
    if not (head + tail).isalpha() and head + tail:
        raise ShapeError(f"einsum: {text!r} in {subscripts!r} is not made of letters and '...'")
    return [*head, *([...] if dots else []), *tail]


def _labelled(
    terms: list[Term], output: Term | None, nodes: Sequence[Node]
) -> tuple[list[Operand], Labels]:
    """Operands whose axes have one label each, no label twice, and the labels of the output."""
    spread = [_spread(term, x, i) for i, (term, x) in enumerate(zip(terms, nodes, strict=True))]
    dots = max((sum(isinstance(label, tuple) for label in s) for s in spread), default=0)
    ellipsis: Labels = tuple(("...", i) for i in range(-dots, 0))
    extents: dict[Hashable, int] = {}
    for labels, x in zip(spread, nodes, strict=True):
        for label, n in zip(labels, x.shape, strict=True):
            known = extents.setdefault(label, n)
            if known == 1:
                extents[label] = n
            elif n not in (1, known):
                name = "..." if isinstance(label, tuple) else label
                raise ShapeError(f"einsum: axes named {name!r} have extents {known} and {n}")
    if output is None:
        every: list[Any] = [x for s in spread for x in s if not isinstance(x, tuple)]
        out = (*ellipsis, *sorted(x for x in set(every) if every.count(x) == 1))
    else:
        out = _output(output, ellipsis, extents)
    return [_single(x, s, extents) for x, s in zip(nodes, spread, strict=True)], out


def _spread(term: Term, x: Node, place: int) -> Labels:
    """The term with a label for every axis that its ellipsis stands for, counted from the back."""
    named = len(term) - term.count(...)
    hidden = x.ndim - named
    if hidden < 0 or (hidden and ... not in term) or term.count(...) > 1:
        raise ShapeError(
            f"einsum: operand {place} of shape {x.shape} has {x.ndim} axes, but its subscripts "
            f"name {named}"
        )
    if ... not in term:
        return tuple(term)
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
    for label in dict.fromkeys(labels):
        while left.count(label) > 1:
            first = left.index(label)
            second = left.index(label, first + 1)
            if x.shape[first] != x.shape[second]:
                raise ShapeError(f"einsum: the diagonal {label!r} of shape {x.shape} is not square")
            x = diagonal_of(x, first, second)
            del left[first]
    kept = [i for i, label in enumerate(left) if x.shape[i] == extents[label]]
    return Operand(reshape(x, tuple(x.shape[i] for i in kept)), tuple(left[i] for i in kept))


# -- multiplying ----------------------------------------------------------------------------------


def _contract(parts: list[Operand], out: Labels) -> Node:
    """The product of all parts, pair by pair: the pair that shrinks the whole most comes first."""
    while len(parts) > 1:
        if len(parts) == 2:
            i, j = 0, 1
        else:
            pairs = combinations(range(len(parts)), 2)
            i, j = min(pairs, key=lambda p: _growth(parts, p[0], p[1], out))
        rest = [p for k, p in enumerate(parts) if k not in (i, j)]
        dtype = dt.compute_dtype(dt.promote(parts[i].node.dtype, parts[j].node.dtype))
        wanted = _wanted(parts, i, j, out)
        parts = [product(parts[i], parts[j], wanted, dtype), *rest]
    return arrange(sum_out(parts[0], out), out)


def _wanted(parts: list[Operand], i: int, j: int, out: Labels) -> Labels:
    """The labels of a pair that the output or another operand needs, in the output's order."""
    others = {x for k, p in enumerate(parts) if k not in (i, j) for x in p.labels}
    own = dict.fromkeys((*parts[i].labels, *parts[j].labels))
    return (*(x for x in out if x in own), *(x for x in own if x in others and x not in out))


def _growth(parts: list[Operand], i: int, j: int, out: Labels) -> int:
    a, b = parts[i], parts[j]
    wanted = _wanted(parts, i, j, out)
    result = size_of(tuple(a.extent(x) if x in a.labels else b.extent(x) for x in wanted))
    return result - size_of(a.node.shape) - size_of(b.node.shape)
