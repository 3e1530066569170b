"""Graph construction with hash-consing and algebraic simplification.

Equal computations are one value (common-subexpression elimination), and what no root needs is never
copied in (dead-code elimination). Rewrites keep results bit for bit, as IEEE 754 defines them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from numus.compiler.graph.onehot_to_gather import onehot_to_gather
from numus.compiler.graph.value import GEMM_KINDS, IDENTITIES, Value, is_constant
from numus.dtypes import DType
from numus.shapes import Shape


class GraphBuilder:
    """A graph under construction. `stores_views`: kernels of attention store permutations of their
    results."""

    def __init__(self, stores_views: bool = False) -> None:
        self._stores_views = stores_views
        self._permuted: dict[Value, Value] = {}  # results of attention that a product reads so
        self.values: list[Value] = []
        self._table: dict[Any, Value] = {}
        self._epilogues: set[Value] = set()  # GEMMs and elementwise functions of them
        self._after_barriers: set[Value] = set()  # functions of reductions, scans, sorts...

    def make(
        self, op: str, kind: str, inputs: tuple[Value, ...], params: Any, shape: Shape, dtype: DType
    ) -> Value:
        """The value of an operation, or a simpler one that equals it bit for bit."""
        key = (op, tuple(x.id for x in inputs), params, shape, dtype)
        found = self._table.get(key)
        if found is not None:
            return found
        v = Value(len(self.values), op, kind, inputs, params, shape, dtype)
        simpler = self._simplify(v)
        if simpler is not None:
            return simpler
        self._table[key] = v
        self.values.append(v)
        self._classify(v)
        return v

    def _classify(self, v: Value) -> None:
        if v.op == "permute" and self._stores_views:
            source = v.inputs[0].inputs[0] if v.inputs[0].op == "reshape" else v.inputs[0]
            if source.op == "attention":
                self._permuted.setdefault(source, v)
        if v.kind in GEMM_KINDS:
            self._epilogues.add(v)
        elif v.kind in ("elementwise", "view", "gather"):
            if not self._after_barriers.isdisjoint(v.inputs):
                self._after_barriers.add(v)
            elif v.kind == "elementwise" and not self._epilogues.isdisjoint(v.inputs):
                self._epilogues.add(v)
        elif v.kind not in ("leaf", "source"):
            self._after_barriers.add(v)

    def _simplify(self, v: Value) -> Value | None:
        if v.op in IDENTITIES:
            return v.inputs[0]
        rule = _REWRITES.get(v.op)
        found = None if rule is None else rule(self, v)
        if found is not None or v.kind != "elementwise":
            return found
        if not self._permuted.keys().isdisjoint(v.inputs):
            operands = tuple(map(self._as_stored, v.inputs))
            return self.make(v.op, v.kind, operands, v.params, v.shape, v.dtype)
        return self._sink_reshape(v)

    def _as_stored(self, x: Value) -> Value:
        """A result of attention as a view of its permutation, which alone is stored then: a
        gradient reads what the next layer does."""
        permuted = self._permuted.get(x)
        if permuted is None:
            return x
        inner = permuted.inputs[0]
        axes = tuple(permuted.params.index(a) for a in range(len(permuted.params)))
        back = self._view("permute", permuted, axes, inner.shape)
        return back if inner is x else self._view("reshape", back, x.shape, x.shape)

    def _view(self, op: str, x: Value, params: Any, shape: Shape) -> Value:
        """A view that is not simplified."""
        key = (op, (x.id,), params, shape, x.dtype)
        found = self._table.get(key)
        if found is None:
            found = self._table[key] = Value(
                len(self.values), op, "view", (x,), params, shape, x.dtype
            )
            self.values.append(found)
            self._classify(found)
        return found

    def _sink_reshape(self, v: Value) -> Value | None:
        """f(reshape(gemm)) as reshape(f(gemm)): there f fuses into the epilogue. Not where an
        operand waits for a reduction."""
        if not (self._after_barriers.isdisjoint(v.inputs) and self._epilogues.isdisjoint(v.inputs)):
            return None
        for x in v.inputs:
            if x.op == "reshape" and x.shape == v.shape and x.inputs[0] in self._epilogues:
                inner = x.inputs[0].shape
                operands = tuple(self._regrouped(y, v.shape, inner) for y in v.inputs)
                out = self.make(v.op, v.kind, operands, v.params, inner, v.dtype)
                return self.reshaped(out, v.shape)
        return None

    def reshaped(self, x: Value, shape: Shape) -> Value:
        return self.make("reshape", "view", (x,), shape, shape, x.dtype)

    def _regrouped(self, x: Value, outer: Shape, shape: Shape) -> Value:
        """A value that broadcasts to `outer` in another shape; leading broadcasts stay such."""
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


# -- rewrites: a simpler value, or None where the operation stays ---------------------------------


def _contract(g: GraphBuilder, v: Value) -> Value | None:
    if len(v.shape) != 2:
        return None
    batched = tuple(g.reshaped(x, (1, *x.shape)) for x in v.inputs)
    return g.reshaped(g.make(v.op, v.kind, batched, v.params, (1, *v.shape), v.dtype), v.shape)


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
    if x.op == "concat":  # written in the order in which it is read
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


def _gather(g: GraphBuilder, v: Value) -> Value | None:
    """Elements that are all one: indices are clamped, so that each is it."""
    x = v.inputs[0]
    if x.op != "broadcast" or x.inputs[0].size != 1 or not x.size:
        return None
    scalar = g.reshaped(x.inputs[0], ())
    return g.make("broadcast", "view", (scalar,), v.shape, v.shape, v.dtype)


def _mul(g: GraphBuilder, v: Value) -> Value | None:
    if v.dtype.is_complex:  # multiplying by 1 changes complex numbers that are not finite
        return None
    x, y = v.inputs
    return _right_identity(v, 1) or (y if y.shape == v.shape and is_constant(x, 1) else None)


def _right_identity(v: Value, neutral: int) -> Value | None:
    """The first operand, where the second is the operation's neutral element."""
    x, y = v.inputs
    return x if x.shape == v.shape and is_constant(y, neutral) else None


def _sum(g: GraphBuilder, v: Value) -> Value | None:
    one_axis = len(v.params) == 1
    return onehot_to_gather(g.make, v.inputs[0], v.params[0], v.shape) if one_axis else None


_REWRITES: dict[str, Callable[[GraphBuilder, Value], Value | None]] = {
    **{"contract": _contract, "reshape": _reshape, "permute": _permute, "broadcast": _broadcast},
    "gather": _gather,
    "neg": lambda g, v: v.inputs[0].inputs[0] if v.inputs[0].op == "neg" else None,
    # -0.0 + 0.0 is +0.0
    "add": lambda g, v: _right_identity(v, 0) if v.dtype.is_integer else None,
    "sub": lambda g, v: _right_identity(v, 0),
    "mul": _mul,
    "div": lambda g, v: None if v.dtype.is_complex else _right_identity(v, 1),
    "reduce_sum": _sum,
}


def number_class(value: Any) -> int | None:
    """The part of a constant that kernels are specialised on: +0 and 1, else None."""
    if isinstance(value, complex) or value != value:
        return None
    if value == 1:
        return 1
    return 0 if value == 0 and math.copysign(1, value) > 0 else None
