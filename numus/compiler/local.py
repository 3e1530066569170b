"""The compiler's own copy of a pending graph, simplified while it is built.

Values are hash-consed, so equal computations are one (common-subexpression elimination), and what
no root needs is never copied (dead code). Only rewrites that keep IEEE results are made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from numus.compiler.picks import picked
from numus.dtypes import DType
from numus.shapes import Shape

# Operations that hand their first input on unchanged.
IDENTITIES = frozenset({"stop_gradient", "custom", "graft"})

# Kinds of value that have schedules of their own with an elementwise tail.
PRODUCTS = ("contract", "convolve")

# Kinds whose values are computed together.
ATTENTION = ("attention", "attention_grad")


class Val:
    """One value of the graph being compiled."""

    __slots__ = ("dtype", "id", "inputs", "kind", "op", "params", "shape")

    def __init__(
        self,
        id: int,
        op: str,
        kind: str,
        inputs: tuple[Val, ...],
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


def walk(roots: Iterable[Val], past: Callable[[Val], bool]) -> Iterator[Val]:
    """These values and what they are computed from, each once, going on only past those that say
    so.
    """
    seen: set[Val] = set()
    stack = list(roots)
    while stack:
        x = stack.pop()
        if x not in seen:
            seen.add(x)
            yield x
            if past(x):
                stack.extend(x.inputs)


class Local:
    """A graph under construction."""

    def __init__(self) -> None:
        self.values: list[Val] = []
        self._table: dict[Any, Val] = {}
        self._tails: set[Val] = set()  # products, and what is computed from them element by element
        self._late: set[Val] = set()  # what is computed from reductions, scans and the like

    def make(
        self,
        op: str,
        kind: str,
        inputs: tuple[Val, ...],
        params: Any,
        shape: Shape,
        dtype: DType,
    ) -> Val:
        """The value of an operation, or a simpler one that equals it bit for bit."""
        simpler = self._simplify(op, inputs, params, shape, dtype)
        if simpler is None and kind == "elementwise":
            simpler = self._under_reshape(op, inputs, params, shape, dtype)
        if simpler is not None:
            return simpler
        key = (op, tuple(x.id for x in inputs), params, shape, dtype)
        found = self._table.get(key)
        if found is None:
            found = Val(len(self.values), op, kind, inputs, params, shape, dtype)
            self.values.append(found)
            self._table[key] = found
            if kind in PRODUCTS:
                self._tails.add(found)
            elif kind in ("elementwise", "view", "gather"):
                if not self._late.isdisjoint(inputs):
                    self._late.add(found)
                elif kind == "elementwise" and not self._tails.isdisjoint(inputs):
                    self._tails.add(found)
            elif kind not in ("leaf", "source"):
                self._late.add(found)
        return found

    def _under_reshape(
        self, op: str, inputs: Sequence[Val], params: Any, shape: Shape, dtype: DType
    ) -> Val | None:
        """What is done to a reshaped product, done before the reshape: there it can be the tail of
        the kernel that computes the product. What waits for a reduction can't be.
        """
        if not (self._late.isdisjoint(inputs) and self._tails.isdisjoint(inputs)):
            return None
        for x in inputs:
            if x.op == "reshape" and x.shape == shape and x.inputs[0] in self._tails:
                inner = x.inputs[0].shape
                parts = tuple(self._reshaped(y, shape, inner) for y in inputs)
                out = self.make(op, "elementwise", parts, params, inner, dtype)
                return self.make("reshape", "view", (out,), shape, shape, dtype)
        return None

    def _reshaped_to(self, x: Val, shape: Shape) -> Val:
        return self.make("reshape", "view", (x,), shape, shape, x.dtype)

    def _reshaped(self, x: Val, outer: Shape, shape: Shape) -> Val:
        """What broadcasts to `outer`, as it is in another shape of the same size. A broadcast along
        leading axes stays one.
        """
        if x.op == "reshape" and x.inputs[0].shape == shape:
            return x.inputs[0]
        y = x.inputs[0] if x.op == "broadcast" else x
        trailing = tuple(itertools.dropwhile(lambda n: n == 1, y.shape))
        count = len(trailing)
        if trailing == shape[len(shape) - count :] == outer[len(outer) - count :]:
            y = self.make("reshape", "view", (y,), trailing, trailing, y.dtype)
            return self.make("broadcast", "view", (y,), shape, shape, y.dtype)
        if x.shape != outer:
            x = self.make("broadcast", "view", (x,), outer, outer, x.dtype)
        return self.make("reshape", "view", (x,), shape, shape, x.dtype)

    def _simplify(
        self, op: str, inputs: Sequence[Val], params: Any, shape: Shape, dtype: DType
    ) -> Val | None:
        if not inputs:
            return None
        x = inputs[0]
        if op == "contract" and len(shape) == 2:  # a batch of one
            one = tuple(self._reshaped_to(y, (1, *y.shape)) for y in inputs)
            product = self.make(op, op, one, params, (1, *shape), dtype)
            return self._reshaped_to(product, shape)
        if op in IDENTITIES:
            return x
        if op == "reshape":
            while x.op == "reshape":
                x = x.inputs[0]
            if x.shape == shape:
                return x
            if x is not inputs[0]:
                return self.make(op, "view", (x,), shape, shape, dtype)
        elif op == "permute" and x.op == "permute":
            axes = tuple(x.params[a] for a in params)
            y = x.inputs[0]
            if axes == tuple(range(len(axes))):
                return y
            return self.make(op, "view", (y,), axes, shape, dtype)
        elif op == "permute" and x.op == "concat":  # laid out as it is read
            parts = tuple(
                self.make(op, "view", (y,), params, tuple(y.shape[a] for a in params), dtype)
                for y in x.inputs
            )
            return self.make("concat", x.kind, parts, params.index(x.params), shape, dtype)
        elif op == "broadcast":
            if x.shape == shape:
                return x
            if x.op == "broadcast":
                return self.make(op, "view", (x.inputs[0],), shape, shape, dtype)
        elif op == "neg" and x.op == "neg":
            return x.inputs[0]
        elif len(inputs) == 2 and x.shape == shape:
            y = inputs[1]
            # complex numbers that are not finite are changed even by 1
            if op in ("mul", "div") and not dtype.is_complex and _is_constant(y, 1):
                return x
            if op == "sub" and _is_constant(y, 0):
                return x
            if op == "add" and dtype.is_integer and _is_constant(y, 0):
                return x
        if op == "mul" and not dtype.is_complex:
            y = inputs[1]
            if y.shape == shape and _is_constant(x, 1):
                return y
        if op == "reduce_sum" and len(params) == 1:
            return picked(self, x, params[0], shape)
        return None


def _is_constant(v: Val, number: int) -> bool:
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
