"""Regions of tensor parallelism (Megatron-LM, Shoeybi et al. 2019): where replicated tensors enter
and leave them.

Outside of a region all ranks of the group compute the same from the same, the loss included, and
each of them differentiates its own. So the derivative of leaving a region is the identity, not the
sum over ranks that the transpose of `all_reduce` is, and the other way round for entering one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numus as nm
from numus.distributed.collectives import all_gather, all_reduce
from numus.distributed.groups import Group, world
from numus.errors import ShapeError
from numus.functions._base import wrap
from numus.graph import Node, Nodes, Tangents, mode
from numus.shapes import normal_axis
from numus.tensor import Tensor
from numus.transforms.rules import CallRule, differentiated

__all__ = ["cut", "enter", "join", "leave"]


@dataclass(eq=False)
class _Region(CallRule):
    """A linear map whose way back is another one of this module."""

    kind: str
    group: Group
    axis: int

    def jvp(self, operands: Nodes, tangents: Tangents) -> Tangents:
        return [
            None if t is None else _apply(self.kind, t, self.group, self.axis) for t in tangents
        ]

    def vjp(self, operands: Nodes, cotangents: Tangents) -> Tangents:
        (g,) = cotangents
        return [None if g is None else _apply(_BACK[self.kind], g, self.group, self.axis)]


_BACK = {"enter": "leave", "leave": "enter", "cut": "join", "join": "cut"}


def _apply(kind: str, x: Node, group: Group, axis: int) -> Node:
    with nm.no_grad():
        y = _value(kind, wrap(x).detach(), group, axis)._node
    if x.tracked and mode.grad and y.dtype.is_inexact:
        (y,) = differentiated(_Region(1, kind, group, axis), [y], (x,))
    return y


def _value(kind: str, x: Tensor, group: Group, axis: int) -> Tensor:
    if kind == "enter" or group.size == 1:
        return x
    if kind == "leave":
        return all_reduce(x, group=group)
    if kind == "join":
        return all_gather(x, axis, group=group)
    extent = x.shape[axis] // group.size
    at = group.rank * extent
    return x[(slice(None),) * axis + (slice(at, at + extent),)]


def _region(kind: str, x: Any, group: Group | None, axis: int = 0) -> Tensor:
    tensor = nm.asarray(x)
    return wrap(_apply(kind, tensor._node, world() if group is None else group, axis))


def enter(x: Any, *, group: Group | None = None) -> Tensor:
    """The same tensor, which each rank uses for another part of the work: its gradient is the sum
    of those of all ranks.

    >>> nm.distributed.parallel.enter(nm.asarray([1.0, 2.0]))
    tensor([1., 2.])
    """
    return _region("enter", x, group)


def leave(x: Any, *, group: Group | None = None) -> Tensor:
    """The sum of the parts that the ranks have computed; its gradient, the same on all ranks, is
    that of each part.

    >>> nm.distributed.parallel.leave(nm.asarray([1.0, 2.0]))
    tensor([1., 2.])
    """
    return _region("leave", x, group)


def cut(x: Any, axis: int = 0, *, group: Group | None = None) -> Tensor:
    """This rank's part along an axis of a tensor that all ranks have.

    >>> nm.distributed.parallel.cut(nm.asarray([1.0, 2.0]))
    tensor([1., 2.])
    """
    tensor = nm.asarray(x)
    group = world() if group is None else group
    at = normal_axis(axis, tensor.ndim, "cut")
    if tensor.shape[at] % group.size:
        raise ShapeError(
            f"cut: axis {at} of {tensor._node.type_text} has {tensor.shape[at]} entries, which are "
            f"not to be divided among the {group.size} ranks of {group}; pad it, or choose an axis "
            "of the mesh that divides it"
        )
    return _region("cut", tensor, group, at)


def join(x: Any, axis: int = 0, *, group: Group | None = None) -> Tensor:
    """The parts of all ranks along an axis, on all of them: the inverse of `cut`.

    >>> nm.distributed.parallel.join(nm.asarray([1.0, 2.0]))
    tensor([1., 2.])
    """
    tensor = nm.asarray(x)
    return _region("join", tensor, group, normal_axis(axis, tensor.ndim, "join"))
