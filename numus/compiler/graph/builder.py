"""The compiler's own copy of a pending graph, simplified while it is built.

Values are hash-consed, so equal computations are one (common-subexpression elimination), and what
no root needs is never copied (dead code). Only rewrites that keep IEEE results are made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from numus.compiler.graph.onehot_to_gather import picked
from numus.dtypes import DType
from numus.shapes import Shape

# Operations that hand their first input on unchanged.
IDENTITIES = frozenset({"stop_gradient", "custom", "graft"})

# Kinds of value that have schedules of their own with an elementwise tail.
GEMM_KINDS = ("contract", "convolve")

# Kinds whose values are computed together.
ATTENTION = ("attention", "attention_grad")


class Value:
    """One value of the graph being compiled."""

    __slots__ = ("dtype", "id", "inputs", "kind", "op", "params", "shape")

    def __init__(
        self,
        id: int,
        op: str,
        kind: str,
        inputs: tuple[Value, ...],
        params: Any,
        shape: Shape,
        dtype: DType,
    ) -> None:
        self.id = id
        self.op = op
        self.kind = kind
        self.inputs = inputs
        self.params = params
        self.shape = shape
        self.dtype = dtype

    @property
    def size(self) -> int:
        total = 1
        for n in self.shape:
            total *= n
        return total

    def __repr__(self) -> str:
        args = ", ".join(f"%{x.id}" for x in self.inputs)
        return f"%{self.id} = {self.op}({args}) {self.dtype.name}{list(self.shape)}"


def walk(roots: Iterable[Value], past: Callable[[Value], bool]) -> Iterator[Value]:
    """These values and what they are computed from, each once, going on only past those that say
    so.
    """
    seen: set[Value] = set()
    stack = list(roots)
    while stack:
        x = stack.pop()
        if x not in seen:
            seen.add(x)
            yield x
            if past(x):
                stack.extend(x.inputs)


class GraphBuilder:
    """A graph under construction."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._table: dict[Any, Value] = {}
        self._tails: set[Value] = (
            set()
        )  # products, and what is computed from them element by element
        self._late: set[Value] = set()  # what is computed from reductions, scans and the like

    def make(
        self,
        op: str,
        kind: str,
        inputs: tuple[Value, ...],
        params: Any,
        shape: Shape,
        dtype: DType,
    ) -> Value:
        """The value of an operation, or a simpler one that equals it bit for bit."""
        v = Value(-1, op, kind, inputs, params, shape, dtype)
        simpler = self._simpler(v)
        if simpler is not None:
            return simpler
        key = (op, tuple(x.id for x in inputs), params, shape, dtype)
        found = self._table.get(key)
        if found is None:
            found = self._table[key] = v
            v.id = len(self.values)
            self.values.append(v)
            self._classify(v)
        return found

    def _classify(self, v: Value) -> None:
        if v.kind in GEMM_KINDS:
            self._tails.add(v)
        elif v.kind in ("elementwise", "view", "gather"):
            if not self._late.isdisjoint(v.inputs):
                self._late.add(v)
            elif v.kind == "elementwise" and not self._tails.isdisjoint(v.inputs):
                self._tails.add(v)
        elif v.kind not in ("leaf", "source"):
            self._late.add(v)

    def _simpler(self, v: Value) -> Value | None:
        if v.op in IDENTITIES:
            return v.inputs[0]
        rule = _SIMPLER.get(v.op)
        found = None if rule is None else rule(self, v)
        return self._under_reshape(v) if found is None and v.kind == "elementwise" else found

    def _under_reshape(self, v: Value) -> Value | None:
        """What is done to a reshaped product, done before the reshape: there it can be the tail of
        the kernel that computes the product. What waits for a reduction can't be.
        """
        if not (self._late.isdisjoint(v.inputs) and self._tails.isdisjoint(v.inputs)):
            return None
        for x in v.inputs:
            if x.op == "reshape" and x.shape == v.shape and x.inputs[0] in self._tails:
                inner = x.inputs[0].shape
                parts = tuple(self._regrouped(y, v.shape, inner) for y in v.inputs)
                out = self.make(v.op, v.kind, parts, v.params, inner, v.dtype)
                return self.reshaped(out, v.shape)
        return None

    def reshaped(self, x: Value, shape: Shape) -> Value:
        return self.make("reshape", "view", (x,), shape, shape, x.dtype)

    def _regrouped(self, x: Value, outer: Shape, shape: Shape) -> Value:
        """What broadcasts to `outer`, as it is in another shape of the same size. A broadcast along
        leading axes stays one.
        """
        if x.op == "reshape" and x.inputs[0].shape == shape:
            return x.inputs[0]
        y = x.inputs[0] if x.op == "broadcast" else x
        trailing = tuple(itertools.dropwhile(lambda n: n == 1, y.shape))
        count = len(trailing)
        if trailing == shape[len(shape) - count :] == outer[len(outer) - count :]:
            y = self.reshaped(y, trailing)
            return self.make("broadcast", "view", (y,), shape, shape, y.dtype)
        if x.shape != outer:
            x = self.make("broadcast", "view", (x,), outer, outer, x.dtype)
        return self.reshaped(x, shape)


# -- what equals something simpler: a rule gives it, or None where the operation stays ------------


def _contract(g: GraphBuilder, v: Value) -> Value | None:
    if len(v.shape) != 2:
        return None
    one = tuple(g.reshaped(x, (1, *x.shape)) for x in v.inputs)  # a batch of one
    return g.reshaped(g.make(v.op, v.kind, one, v.params, (1, *v.shape), v.dtype), v.shape)


def _reshape(g: GraphBuilder, v: Value) -> Value | None:
    x = v.inputs[0]
    while x.op == "reshape":
        x = x.inputs[0]
    if x.shape == v.shape:
        return x
    return None if x is v.inputs[0] else g.reshaped(x, v.shape)


def _permute(g: GraphBuilder, v: Value) -> Value | None:
    x = v.inputs[0]
    if x.op == "permute":
        axes = tuple(x.params[a] for a in v.params)
        if axes == tuple(range(len(axes))):
            return x.inputs[0]
        return g.make(v.op, v.kind, x.inputs, axes, v.shape, v.dtype)
    if x.op == "concat":  # laid out as it is read
        parts = tuple(
            g.make(v.op, v.kind, (y,), v.params, tuple(y.shape[a] for a in v.params), v.dtype)
            for y in x.inputs
        )
        return g.make(x.op, x.kind, parts, v.params.index(x.params), v.shape, v.dtype)
    return None


def _broadcast(g: GraphBuilder, v: Value) -> Value | None:
    x = v.inputs[0]
    if x.shape == v.shape:
        return x
    if x.op == "broadcast":
        return g.make(v.op, v.kind, x.inputs, v.shape, v.shape, v.dtype)
    return None


def _neg(g: GraphBuilder, v: Value) -> Value | None:
    return v.inputs[0].inputs[0] if v.inputs[0].op == "neg" else None


def _add(g: GraphBuilder, v: Value) -> Value | None:
    return _first(v, 0) if v.dtype.is_integer else None  # -0.0 + 0.0 is another number


def _sub(g: GraphBuilder, v: Value) -> Value | None:
    return _first(v, 0)


def _mul(g: GraphBuilder, v: Value) -> Value | None:
    if v.dtype.is_complex:  # numbers that are not finite are changed even by 1
        return None
    x, y = v.inputs
    return _first(v, 1) or (y if y.shape == v.shape and _is_constant(x, 1) else None)


def _div(g: GraphBuilder, v: Value) -> Value | None:
    return None if v.dtype.is_complex else _first(v, 1)


def _sum(g: GraphBuilder, v: Value) -> Value | None:
    return picked(g, v.inputs[0], v.params[0], v.shape) if len(v.params) == 1 else None


_SIMPLER: dict[str, Callable[[GraphBuilder, Value], Value | None]] = {
    **{"contract": _contract, "reshape": _reshape, "permute": _permute, "broadcast": _broadcast},
    **{"neg": _neg, "add": _add, "sub": _sub, "mul": _mul, "div": _div, "reduce_sum": _sum},
}


def _first(v: Value, neutral: int) -> Value | None:
    """The first of two operands, where the second leaves it as it is."""
    x, y = v.inputs
    return x if x.shape == v.shape and _is_constant(y, neutral) else None


def _is_constant(v: Value, number: int) -> bool:
    while v.op in ("broadcast", "reshape"):
        v = v.inputs[0]
    return v.op == "constant" and v.params[0] == number and v.params[0] is not None


def number_class(value: Any) -> int | None:
    """What of a constant's value is part of a kernel: 0 and 1 (of positive sign), nothing else."""
    if isinstance(value, complex) or value != value:
        return None
    if value == 1:
        return 1
    return 0 if value == 0 and math.copysign(1, value) > 0 else None
