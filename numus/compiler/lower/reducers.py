"""Reducers: accumulators of each reduction, their update and the combination of partial results."""

from __future__ import annotations

import math
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.elementwise import complex_mul
from numus.dtypes import DType
from numus.ir import Expr, const, select
from numus.target import Target

State = list[Expr]


class Reducer:
    """A reduction with one register: sum, product, max, min (any, all on bool)."""

    def __init__(self, val: Value) -> None:
        self.val = val
        self.source = val.inputs[0].dtype
        self.acc = dt.compute_dtype(dt.real_of(self.source))
        self.op = val.op.removeprefix("reduce_")

    @property
    def dtypes(self) -> list[DType]:
        return [self.acc]

    @property
    def lanes(self) -> str | None:
        """The cross-lane reduction, None where no single operation combines lanes."""
        if self.acc is dt.bool_:
            return {"max": "or", "min": "and", "sum": "or", "prod": "and"}[self.op]
        return {"sum": "add", "prod": "mul", "max": "max", "min": "min"}[self.op]

    @property
    def simd(self) -> bool:
        """SIMD lanes can be combined."""
        return self.lanes is not None

    def total_dtypes(self, target: Target) -> list[DType]:
        """Of combined partial results: sums of float32 in float64 where the device has it."""
        wide = self.op in ("sum", "prod") and "float64" in target.dtypes
        return [dt.float64 if wide and t is dt.float32 else t for t in self.dtypes]

    def initial(self) -> State:
        if self.acc is dt.bool_:
            return [const(self.op in ("min", "prod"), dt.bool_)]
        if self.op in ("sum", "prod"):
            return [const(0 if self.op == "sum" else 1, self.acc)]
        return [lowest(self.acc) if self.op == "max" else highest(self.acc)]

    def widen(self, value: Any) -> Any:
        return value.cast(self.acc)

    def element(self, value: Any) -> State:
        """The state of one element."""
        return [self.widen(value)]

    def step(self, state: State, value: Any, position: Expr) -> State:
        return self.merge(state, self.element(value))

    def merge(self, a: State, b: State) -> State:
        x, y = a[0], b[0]
        if self.acc is dt.bool_:
            return [x | y if self.op in ("max", "sum") else x & y]
        op = {"sum": "add", "prod": "mul"}.get(self.op, self.op)
        return [ir.binary(op, x, y)]

    def pairwise(self, states: list[State]) -> State:
        """Pairwise summation, and its like."""
        while len(states) > 1:
            pairs = [self.merge(*states[i : i + 2]) for i in range(0, len(states) - 1, 2)]
            states = pairs + states[len(pairs) * 2 :]
        return states[0]

    def combine(self, a: State, b: State) -> State:
        """Merge states of interleaved elements; `merge` takes those of earlier elements first."""
        return self.merge(a, b)

    def finish(self, state: State) -> Any:
        return state[0].cast(self.val.dtype)


class ComplexReducer(Reducer):
    """Sum or product of complex numbers."""

    @property
    def dtypes(self) -> list[DType]:
        return [self.acc, self.acc]

    @property
    def lanes(self) -> str | None:
        return "add" if self.op == "sum" else None

    def initial(self) -> State:
        return [const(0.0 if self.op == "sum" else 1.0, self.acc), const(0.0, self.acc)]

    def element(self, value: Any) -> State:
        return list(value)

    def merge(self, a: State, b: State) -> State:
        if self.op == "sum":
            return [a[0] + b[0], a[1] + b[1]]
        return list(complex_mul((a[0], a[1]), (b[0], b[1])))

    def finish(self, state: State) -> Any:
        return (state[0], state[1])


class ArgReducer(Reducer):
    """The index of the first largest (smallest) element; NaN wins.

    -1 is the index of the initial state; if no element is better than that, the first is meant.
    """

    @property
    def index_dtype(self) -> DType:
        """The smallest that fits: there is an index for every lane."""
        shape = self.val.inputs[0].shape
        size = math.prod(shape[a] for a in self.val.params)
        return dt.index_dtype(size)

    @property
    def dtypes(self) -> list[DType]:
        return [self.acc, self.index_dtype]

    @property
    def lanes(self) -> str | None:
        return None

    @property
    def simd(self) -> bool:
        return self.acc is not dt.bool_

    def initial(self) -> State:
        return [
            lowest(self.acc) if self.op == "argmax" else highest(self.acc),
            const(-1, self.index_dtype),
        ]

    def step(self, state: State, value: Any, position: Expr) -> State:
        new = [self.widen(value), position.cast(self.index_dtype)]
        return _chosen(self._better(state[0], new[0]), state, new)

    def merge(self, a: State, b: State) -> State:
        return _chosen(self._better(a[0], b[0]), a, b)

    def combine(self, a: State, b: State) -> State:
        x, y = a[0], b[0]
        same = x.eq(y)
        if self.acc.kind == "float":
            same = same | (ir.isnan(y) & ir.isnan(x))
        return _chosen(self._better(x, y) | (same & (b[1] < a[1])), a, b)

    def _better(self, x: Expr, y: Expr) -> Expr:
        """y is better than x."""
        if self.acc is dt.bool_:
            return y & ~x if self.op == "argmax" else x & ~y
        better = y > x if self.op == "argmax" else y < x
        if self.acc.kind == "float":
            better = better | (ir.isnan(y) & ~ir.isnan(x))
        return better

    def finish(self, state: State) -> Any:
        return ir.maximum(state[1], const(0, self.index_dtype)).cast(dt.int64)


def _chosen(better: Expr, a: State, b: State) -> State:
    return [select(better, y, x) for x, y in zip(a, b, strict=True)]


def reducer(val: Value) -> Reducer:
    if val.op in ("argmax", "argmin"):
        return ArgReducer(val)
    return ComplexReducer(val) if val.inputs[0].dtype.is_complex else Reducer(val)


def lowest(dtype: DType) -> Expr:
    if dtype is dt.bool_:
        return const(False, dtype)
    return const(-math.inf if dtype.kind == "float" else dt.int_range(dtype)[0], dtype)


def highest(dtype: DType) -> Expr:
    if dtype is dt.bool_:
        return const(True, dtype)
    return const(math.inf if dtype.kind == "float" else dt.int_range(dtype)[1], dtype)
