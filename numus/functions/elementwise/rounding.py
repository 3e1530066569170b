"""Rounding to integers or decimals, halves to even."""

from __future__ import annotations

from typing import Any

from numus.functions._base import like, method, node_of, require, same, scalar_node, widened, wrap
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.tensor import ArrayLike, Tensor

__all__ = ["ceil", "floor", "rint", "round", "trunc"]


def _rounded(op: str, x: Any, build: Any) -> Tensor:
    """Integers are whole already."""
    node = require(op, node_of(x, op), "bool", "uint", "int", "float")
    return wrap(build(node) if node.dtype.kind == "float" else same(node))


@method()
def floor(x: ArrayLike, /) -> Tensor:
    """The largest integer not above x."""
    return _rounded("floor", x, ew.floor)


@method()
def ceil(x: ArrayLike, /) -> Tensor:
    """The smallest integer not below x."""
    return _rounded("ceil", x, ew.ceil)


@method()
def trunc(x: ArrayLike, /) -> Tensor:
    """x without its fraction."""
    return _rounded("trunc", x, ew.trunc)


@method()
def round(x: ArrayLike, /, decimals: int = 0) -> Tensor:
    """The nearest integer (or multiple of 10**-decimals); halves go to the even one.

    >>> nm.round(nm.asarray([0.5, 1.5, -2.7]))
    tensor([ 0.,  2., -3.])
    """
    node = node_of(x, "round")
    if node.dtype.is_complex:
        parts = (round(wrap(part), decimals)._node for part in (ew.real(node), ew.imag(node)))
        return wrap(ew.complex_(*parts))
    if node.dtype.kind == "float":
        return wrap(_round_to(node, decimals) if decimals else ew.rint(node))
    if decimals >= 0:
        return wrap(same(node))
    require("round", node, "uint", "int")
    step = like(node, 10**-decimals)
    down = ew.floor_divide(node, step)
    twice = ew.mul(ew.sub(node, ew.mul(down, step)), like(node, 2))
    odd = ew.ne(ew.and_(down, like(node, 1)), like(node, 0))
    up = ew.or_(ew.lt(step, twice), ew.and_(ew.eq(step, twice), odd))
    return wrap(ew.mul(ew.add(down, ew.cast(up, node.dtype)), step))


def _round_to(x: Node, decimals: int) -> Node:
    wide = widened(x)
    scale = scalar_node(10.0 ** abs(decimals), wide.dtype)
    there, back = (ew.mul, ew.div) if decimals > 0 else (ew.div, ew.mul)
    return ew.cast(back(ew.rint(there(wide, scale)), scale), x.dtype)


def rint(x: ArrayLike, /) -> Tensor:
    """The nearest integer; halves go to the even one."""
    return round(x)
