"""Collectives: what the ranks of a group compute together.

Derivatives are those of the sum of what all ranks differentiate: the transpose of the linear map
between the ranks' operands and results (as in mpi4jax, and `psum` of JAX). That of `all_gather` is
`reduce_scatter` and the other way round, of `broadcast` `reduce`, of `gather` `scatter`, of a
`send` a receive. All ranks have to walk back through a collective, as they have all called it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numus as nm
from numus import dtypes as dt
from numus.distributed.calls import Collective, collective
from numus.distributed.groups import Group, agree, world
from numus.distributed.work import run_now
from numus.errors import DistributedError, DTypeError, ShapeError, TracingError
from numus.functions._base import wrap
from numus.graph import Node, Nodes, Tangents, current_trace, has_active_hook, mode
from numus.primitives import control
from numus.primitives import elementwise as ew
from numus.shapes import Shape, normal_axis
from numus.tensor import Tensor, node_of
from numus.transforms.rules import CallRule, differentiated

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "permute",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
]

_REDUCTIONS = ("sum", "mean", "max", "min", "prod")

# The kind of collective that a cotangent travels by.
_TRANSPOSED = {
    **{"all_reduce": "all_reduce", "broadcast": "reduce", "reduce": "broadcast"},
    **{"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"},
    **{"all_to_all": "all_to_all", "gather": "scatter", "scatter": "gather"},
    **{"permute": "permute", "send": "recv", "recv": "send"},
}


@dataclass(eq=False)
class _Linear(CallRule):
    """The derivatives of a linear collective: itself, and its transpose."""

    call: Collective

    def jvp(self, operands: Nodes, tangents: Tangents) -> Tangents:
        return [None if t is None else apply_collective(self.call, t) for t in tangents]

    def vjp(self, operands: Nodes, cotangents: Tangents) -> Tangents:
        (g,) = cotangents
        if g is None:
            return [None]
        call = self.call
        kind = _TRANSPOSED[call.kind]
        back = replace(call, kind=kind, reduction="", pairs=tuple((b, a) for a, b in call.pairs))
        if kind == "send":  # the token has no more use; sending is what counts
            apply_collective(replace(back, shape=g.shape), g)
            return [None]
        if kind == "recv":
            like = wrap(operands[0]).detach() * 0
            return [apply_collective(replace(back, shape=call.shape, tokens=()), like._node)]
        if kind == "scatter" and not call.is_root:
            g = _linked((call.group.size, *call.shape), g)
        if kind in ("all_reduce", "reduce", "reduce_scatter"):
            back = replace(back, reduction="sum")
        found = apply_collective(replace(back, shape=g.shape), g)
        if kind == "gather" and not call.is_root:
            found = _linked(call.shape, found)
        return [found]


def _linked(shape: Shape, empty: Node) -> Node:
    """Zeros on the tape behind a tensor without elements, whose derivative others wait for."""
    zero = nm.sum(wrap(empty))
    return nm.broadcast_to(zero, shape)._node


def apply_collective(call: Collective, x: Node) -> Node:
    """The result of a collective of a node, with its derivatives."""
    if x.abstract or has_active_hook() or mode.effects is not None:
        (y,) = control.call(call, (x,))
    else:
        y = run_now(call, x)
    if x.tracked and mode.grad and y.dtype.is_inexact:
        (y,) = differentiated(_Linear(1, call), [y], (x,))
    return y


def _prepared(x: Any, op: str, group: Group | None) -> tuple[Tensor, Group]:
    tensor = x if x.__class__ is Tensor else wrap(node_of(x, op))
    if tensor._node.device is None:  # a number
        tensor = nm.asarray(x)
    if group is None:
        group = world()
    if group.rank < 0:
        raise DistributedError(
            f"{op}: rank {world().rank} is no member of {group}: only its ranks call it"
        )
    return tensor, group


def _call(kind: str, x: Tensor, group: Group, **options: Any) -> Tensor:
    node = x._node
    call = collective(kind, group, node.shape, node.dtype, **options)
    return wrap(apply_collective(call, node))


def _root(root: int, op: str, group: Group) -> int:
    """The rank in the group of a rank of the world."""
    if root not in group.ranks:
        raise ValueError(f"{op}: rank {root} must be one of {group}, which has {list(group.ranks)}")
    return group.ranks.index(root)


def _check_reduction(op: str, name: str, x: Tensor) -> None:
    if op not in _REDUCTIONS:
        raise ValueError(f"{name}: {op!r} must be one of {', '.join(_REDUCTIONS)}")
    if x.dtype is dt.bool_ and op not in ("max", "min"):
        raise DTypeError(
            f"{name}: the {op} of bools is not defined; cast them to integers, or take max (any) "
            "or min (all)"
        )
    if x.dtype.is_complex and op in ("max", "min"):
        raise DTypeError(f"{name}: {x.dtype.name} numbers have no {op}")
    if op == "mean" and not x.dtype.is_inexact:
        raise DTypeError(f"{name}: the mean of {x.dtype.name} is no integer; cast it to a float")


def all_reduce(x: Any, op: str = "sum", *, group: Group | None = None) -> Tensor:
    """The elementwise sum of the tensors of all ranks, on all of them; or `mean`, `max`, `min`,
    `prod`.

    16-bit floats are summed up in float32. `max` and `min` of NaN are NaN. Every rank gets the same
    bits.

    >>> nm.distributed.all_reduce(nm.asarray([1.0, 2.0]))
    tensor([1., 2.])
    """
    x, group = _prepared(x, "all_reduce", group)
    known = group.calls.get(("all_reduce", x._node.shape, x._node.dtype, ("reduction", op)))
    if known is not None and op == "sum":  # called before: what follows has been checked
        return wrap(apply_collective(known, x._node))
    _check_reduction(op, "all_reduce", x)
    if x.dtype.is_floating and x.dtype.itemsize < 4:
        return all_reduce(x.astype(dt.float32), op, group=group).astype(x.dtype)
    if op == "mean":
        return _call("all_reduce", x, group, reduction="sum") / group.size
    if op == "sum" or (op == "prod" and not x._node.tracked):
        return _call("all_reduce", x, group, reduction=op)
    if op == "prod":  # its derivative is that of a product, zeros among the factors included
        return nm.prod(_call("all_gather", x, group), axis=0)
    return _extremum(x, op, group)


def _extremum(x: Tensor, op: str, group: Group) -> Tensor:
    """max and min; a gradient goes to the ranks that have the extremum, in equal parts."""
    if not x.dtype.is_floating:
        return _call("all_reduce", x, group, reduction=op)
    found = _from_order(
        _call("all_reduce", _in_order(x.detach(), op), group, reduction=op), x.dtype
    )
    if not x._node.tracked:
        return found
    mine = (x.detach() == found).astype(x.dtype)
    shares = mine / _call("all_reduce", mine, group, reduction="sum")
    # the value, with the derivative of the weighted sum over the ranks
    weighted = _call("all_reduce", x * shares, group, reduction="sum")
    return found + (weighted - weighted.detach())


def _in_order(x: Tensor, op: str) -> Tensor:
    """Integers in the order of floats, with NaN at the end that wins."""
    integer = dt.int32 if x.dtype.itemsize == 4 else dt.int64
    bits = wrap(ew.bitcast(x._node, integer))
    width = 8 * x.dtype.itemsize - 1
    highest = (1 << width) - 1
    ordered = bits ^ ((bits >> width) & highest)
    return nm.where(nm.isnan(x), highest if op == "max" else -highest - 1, ordered)


def _from_order(ordered: Tensor, dtype: Any) -> Tensor:
    width = 8 * dtype.itemsize - 1
    bits = ordered ^ ((ordered >> width) & ((1 << width) - 1))
    return wrap(ew.bitcast(bits._node, dtype))


def reduce(x: Any, root: int = 0, op: str = "sum", *, group: Group | None = None) -> Tensor:
    """The elementwise sum of the tensors of all ranks (or `mean`, `max`, `min`, `prod`), on one of
    them; zeros on the others.

    >>> nm.distributed.reduce(nm.asarray([1.0, 2.0]), root=0)
    tensor([1., 2.])
    """
    x, group = _prepared(x, "reduce", group)
    _check_reduction(op, "reduce", x)
    at = _root(root, "reduce", group)
    if x.dtype.is_floating and x.dtype.itemsize < 4:
        return reduce(x.astype(dt.float32), root, op, group=group).astype(x.dtype)
    if op in ("sum", "mean"):
        found = _call("reduce", x, group, reduction="sum", root=at)
        return found / group.size if op == "mean" else found
    found = all_reduce(x, op, group=group)
    return found if group.rank == at else nm.zeros_like(found)


def broadcast(x: Any, root: int = 0, *, group: Group | None = None) -> Tensor:
    """The tensor of one rank, on all. Every rank gives one of the same shape and dtype.

    >>> nm.distributed.broadcast(nm.asarray([1.0, 2.0]), root=0)
    tensor([1., 2.])
    """
    x, group = _prepared(x, "broadcast", group)
    return _call("broadcast", x, group, root=_root(root, "broadcast", group))


def all_gather(x: Any, axis: int = 0, *, group: Group | None = None) -> Tensor:
    """The tensors of all ranks, concatenated along an axis in the order of ranks; on all of them.

    >>> nm.distributed.all_gather(nm.asarray([[1.0, 2.0]])).shape
    (1, 2)
    """
    x, group = _prepared(x, "all_gather", group)
    axis = _axis(axis, x, "all_gather")
    return _concatenated(_call("all_gather", x, group), axis)


def reduce_scatter(x: Any, op: str = "sum", axis: int = 0, *, group: Group | None = None) -> Tensor:
    """The elementwise sum (or `mean`, …) of the tensors of all ranks, cut along an axis: each rank
    gets its part. Its extent has to be a multiple of the number of ranks.

    >>> nm.distributed.reduce_scatter(nm.asarray([1.0, 2.0]))
    tensor([1., 2.])
    """
    x, group = _prepared(x, "reduce_scatter", group)
    _check_reduction(op, "reduce_scatter", x)
    axis = _axis(axis, x, "reduce_scatter")
    if x.dtype.is_floating and x.dtype.itemsize < 4:
        wide = reduce_scatter(x.astype(dt.float32), op, axis, group=group)
        return wide.astype(x.dtype)
    parts = _parts(x, axis, group, "reduce_scatter")
    if op in ("sum", "mean"):
        found = _call("reduce_scatter", parts, group, reduction="sum")
        return found / group.size if op == "mean" else found
    # others by all-to-all: each rank reduces what it gets
    got = _call("all_to_all", parts, group)
    return {"max": nm.max, "min": nm.min, "prod": nm.prod}[op](got, axis=0)


def all_to_all(
    x: Any, split_axis: int = 0, concat_axis: int = 0, *, group: Group | None = None
) -> Tensor:
    """Cut a tensor along an axis into a part for each rank, and concatenate the parts that the
    ranks have for this one along another.

    >>> nm.distributed.all_to_all(nm.ones((2, 3)), split_axis=0, concat_axis=1).shape
    (2, 3)
    """
    x, group = _prepared(x, "all_to_all", group)
    parts = _parts(x, _axis(split_axis, x, "all_to_all"), group, "all_to_all")
    return _concatenated(_call("all_to_all", parts, group), _axis(concat_axis, x, "all_to_all"))


def gather(x: Any, root: int = 0, axis: int = 0, *, group: Group | None = None) -> Tensor:
    """The tensors of all ranks, concatenated along an axis, on one of them; on the others, a tensor
    without elements.

    >>> nm.distributed.gather(nm.asarray([1.0, 2.0])).shape
    (2,)
    """
    x, group = _prepared(x, "gather", group)
    axis = _axis(axis, x, "gather")
    found = _call("gather", x, group, root=_root(root, "gather", group))
    return _concatenated(found, axis)


def scatter(x: Any, root: int = 0, axis: int = 0, *, group: Group | None = None) -> Tensor:
    """The tensor of one rank cut along an axis: each rank gets its part. Every rank gives a tensor
    of the same shape and dtype, only that of `root` counts.

    >>> nm.distributed.scatter(nm.asarray([1.0, 2.0])).shape
    (2,)
    """
    x, group = _prepared(x, "scatter", group)
    parts = _parts(x, _axis(axis, x, "scatter"), group, "scatter")
    return _call("scatter", parts, group, root=_root(root, "scatter", group))


def permute(x: Any, pairs: Sequence[tuple[int, int]], *, group: Group | None = None) -> Tensor:
    """Send tensors from ranks to others, all at once: `pairs` lists (from, to), each rank at most
    once on either side. Ranks that get nothing have zeros. The same pairs on all ranks.

    >>> nm.distributed.permute(nm.asarray([1.0, 2.0]), [(0, 0)])
    tensor([1., 2.])
    """
    x, group = _prepared(x, "permute", group)
    found = tuple((_root(a, "permute", group), _root(b, "permute", group)) for a, b in pairs)
    for side in zip(*found, strict=True):
        if len(set(side)) != len(side):
            raise ValueError(f"permute: {list(pairs)}: a rank is there twice on one side")
    return _call("permute", x, group, pairs=found)


def send(x: Any, to: int, *, group: Group | None = None) -> Tensor:
    """Send a tensor to a rank, which calls `recv`. Gives a token: a zero whose derivative receives
    the cotangent that the other rank sends back. So `send(x, 1).backward()` is this rank's part of
    a backward pass that begins on rank 1.

    A rank sends to others only:

    >>> nm.distributed.send(nm.ones(2), to=0)
    Traceback (most recent call last):
    ValueError: send: rank 0 is this one itself; to and from are other ranks
    """
    x, group = _prepared(x, "send", group)
    return _call("send", x, group, peer=_peer(to, "send", group))


def recv(like: Any, source: int, *, group: Group | None = None) -> Tensor:
    """The tensor that a rank sends to this one. `like` has its shape, dtype and device; where it
    requires gradients, the derivative sends the cotangent back.

    >>> nm.distributed.recv(nm.ones(2), source=0)
    Traceback (most recent call last):
    ValueError: recv: rank 0 is this one itself; to and from are other ranks
    """
    x, group = _prepared(like, "recv", group)
    return _call("recv", x, group, peer=_peer(source, "recv", group))


def barrier(*, group: Group | None = None) -> None:
    """Wait until all ranks of the group have come here.

    >>> nm.distributed.barrier()
    """
    if current_trace() is not None:
        raise TracingError(
            "barrier: it has no place in nm.jit, whose collectives run in order; call it outside"
        )
    agree("barrier()", _prepared(0.0, "barrier", group)[1])


def _peer(rank: int, op: str, group: Group) -> int:
    found = _root(rank, op, group)
    if found == group.rank:
        raise ValueError(f"{op}: rank {rank} is this one itself; to and from are other ranks")
    return found


def _axis(axis: int, x: Tensor, op: str) -> int:
    if x.ndim == 0:
        raise ShapeError(f"{op}: a tensor without axes has none to cut or join along; reshape it")
    return normal_axis(axis, x.ndim, op)


def _concatenated(parts: Tensor, axis: int) -> Tensor:
    """(ranks, ...) with the parts concatenated along an axis."""
    count, *shape = parts.shape
    shape[axis] *= count
    return nm.moveaxis(parts, 0, axis).reshape(tuple(shape))


def _parts(x: Tensor, axis: int, group: Group, op: str) -> Tensor:
    """(ranks, ...): the parts of a tensor cut along an axis."""
    extent = x.shape[axis]
    if extent % group.size:
        raise ShapeError(
            f"{op}: axis {axis} of {x._node.type_text} has {extent} entries, which are not to be "
            f"divided among the {group.size} ranks of {group}; pad it"
        )
    shape = (*x.shape[:axis], group.size, extent // group.size, *x.shape[axis + 1 :])
    return nm.moveaxis(x.reshape(shape), axis, 0)
