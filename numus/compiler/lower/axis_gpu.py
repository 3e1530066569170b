"""Rows along an axis, their elements and their keys, as kernels of groups find them."""

from __future__ import annotations

import math
from collections.abc import Callable

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Index
from numus.ir import Expr, const
from numus.kernels.sort.cpu import decode, encode
from numus.shapes import Shape

ZERO, ONE = const(0), const(1)

Layouts = dict[Value, Shape]


def outside(layouts: Layouts, *vals: Value) -> Layouts:
    return {v: s for v, s in layouts.items() if v not in vals}


def rows_along(e: Emitter, number: Expr, shape: Shape, axis: int) -> Callable[[Expr], Index]:
    """Row `number` of the rows along an axis: the index of a place in it."""
    others = [i for i in range(len(shape)) if i != axis]
    digits: dict[int, Expr] = {}
    for place, i in enumerate(others):
        below = math.prod(shape[k] for k in others[place + 1 :])
        digit = number if below == 1 else ir.idiv(number, e.dim(below))
        digits[i] = ir.irem(digit, e.dim(shape[i])) if place else digit
        if shape[i] == 1:
            digits[i] = ZERO
    return lambda at: tuple(at if i == axis else digits[i] for i in range(len(shape)))


def elements_along(e: Emitter, val: Value) -> tuple[Expr, Callable[[Expr], Expr]]:
    """How long rows are, and where the i-th element of a scan lies along its axis."""
    _, axis, reverse = val.params
    length = e.dim(val.shape[axis])
    return length, lambda i: ir.sub(ir.sub(length, ONE), i) if reverse else i


def wants_places(val: Value) -> bool:
    """Whether places are asked for: values are told by their keys."""
    return val.op == "argsort"


def key_of(e: Emitter, val: Value, index: Index) -> Expr:
    return encode(e.value(val.inputs[0], index), val.params[1], ties=wants_places(val))


def value_of(val: Value, key: Expr) -> Expr:
    return decode(key, val.inputs[0].dtype, val.params[1])
