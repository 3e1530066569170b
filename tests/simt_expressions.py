"""Expressions of the SIMT interpreter: straight-line programs of NumPy calls.

An expression is flattened once into a list of steps, in the order of its operands; each step takes
the values of earlier ones by position. A kernel's loops evaluate the same list again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus import ir

Step = Callable[[Any, Any, list[Any]], Any]  # (block, context, values so far) -> value

_UNARY: dict[str, Any] = {
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "exp2": np.exp2,
    "log2": np.log2,
    "reciprocal": np.reciprocal,
    "not": np.invert,
}
_BINARY: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "copysign": np.copysign,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def evaluate(root: ir.Expr, block: Any, c: Any, programs: dict[ir.Expr, list[Step]]) -> Any:
    """The value of an expression; `programs` keeps the steps of those seen before."""
    found = c.env.get(root)
    if found is not None:
        return found
    steps = programs.get(root)
    if steps is None:
        steps = programs[root] = _flattened(root)
    values: list[Any] = []
    for step in steps:
        values.append(step(block, c, values))
    return values[-1]


def _flattened(root: ir.Expr) -> list[Step]:
    places: dict[ir.Expr, int] = {}
    steps: list[Step] = []
    stack = [root]
    while stack:
        e = stack[-1]
        if e in places:
            stack.pop()
            continue
        args = () if e.op == "loop" else e.args  # a loop evaluates its own
        missing = [a for a in args if a not in places]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        places[e] = len(steps)
        steps.append(_step(e, [places[a] for a in args]))
    return steps


def _step(e: ir.Expr, places: list[int]) -> Step:
    op, attr = e.op, e.attr
    if op == "const":
        number = np.asarray(ir.const_value(e)).astype(e.dtype.np)[()]
        return lambda block, c, values: number
    if op in ("var", "carry"):
        return lambda block, c, values: _bound(c, e)
    if op == "scalar":
        return lambda block, c, values: block.scalars[attr][()]
    if op == "loop":
        return lambda block, c, values: block.iterate(e, c)
    if op == "loop_result":
        (loop,) = places
        return lambda block, c, values: values[loop][attr]
    if op in ("read", "lanes_reduce", "load", "address", "lanes_xor", "lanes_max"):
        return lambda block, c, values: block.access(e, [values[p] for p in places], c)
    function, dtype = operation(e), e.dtype.np

    def step(block: Any, c: Any, values: list[Any]) -> Any:
        result = function(*[values[p] for p in places])
        assert result.dtype is dtype or result.dtype == dtype, (op, result.dtype, dtype)
        return result

    def of_two(block: Any, c: Any, values: list[Any]) -> Any:
        result = function(values[first], values[second])
        assert result.dtype is dtype or result.dtype == dtype, (op, result.dtype, dtype)
        return result

    if len(places) == 2:
        first, second = places
        return of_two
    return step


def _bound(c: Any, e: ir.Expr) -> Any:
    assert e in c.env, f"{e!r} has no value here"
    return c.env[e]


def operation(e: ir.Expr) -> Callable[..., Any]:
    """The function of its operands that an expression is."""
    op, dtype = e.op, e.dtype
    if op == "cast":
        source = e.args[0].dtype
        return lambda x: _cast(x, source, dtype)
    if op == "bitcast":
        return lambda x: np.asarray(x).view(dtype.np)[()]
    if op in ("select", "slow_path"):
        to = dtype.np
        return lambda test, yes, no: np.where(test, yes, no)[()].astype(to)
    if op == "fma":
        wide = np.float64 if dtype is dt.float32 else np.longdouble
        to = dtype.np
        return lambda x, y, z: (x.astype(wide) * y + z).astype(to)
    if op == "dot4":
        return _dot4
    if op in ("idiv", "irem") and e.args[1].op == "const" and ir.const_value(e.args[1]) != 0:
        return lambda x, y: _divided(op == "irem", dtype.np, x, y)
    if op in ("popcount", "clz") or op in _UNARY:
        return _unary(op, dtype)
    return binary(op, dtype)


def _dot4(total: Any, codes: Any, x: Any) -> Any:
    """Unsigned bytes times signed ones."""
    found = np.asarray(total, np.int64)
    for shift in (0, 8, 16, 24):
        own, by = (
            np.asarray(v, np.uint32) >> np.uint32(shift) & np.uint32(255) for v in (codes, x)
        )
        found = found + own.astype(np.int64) * by.astype(np.uint8).view(np.int8)
    return found.astype(np.int32)[()]


def _unary(op: str, dtype: Any) -> Callable[[Any], Any]:
    if op == "popcount":
        return lambda x: np.bitwise_count(x).astype(dtype.np)
    if op == "clz":

        def clz(x: Any) -> Any:
            whole = np.ravel(x).astype(object) % (1 << dtype.bits)
            flat = [dtype.bits - int(v).bit_length() for v in whole]
            return np.array(flat, dtype.np).reshape(np.shape(x))[()]

        return clz
    return _UNARY[op]  # type: ignore[no-any-return]


def binary(op: str, dtype: Any) -> Callable[[Any, Any], Any]:
    """A binary operation in a dtype."""
    if op in ("idiv", "irem"):
        return lambda x, y: _divided(op == "irem", dtype.np, x, np.where(y == 0, y + 1, y))
    if op == "mulhi":
        return lambda x, y: _mulhi(dtype, x, y)
    if op in ("shl", "lshr", "ashr"):
        kind = np.dtype(f"{'i' if op == 'ashr' else 'u'}{dtype.itemsize}")
        shift, to = np.left_shift if op == "shl" else np.right_shift, dtype.np
        return lambda x, y: shift(x.astype(kind), y.astype(kind)).astype(to)[()]
    return _BINARY[op]  # type: ignore[no-any-return]


def _divided(remainder: bool, dtype: Any, x: Any, y: Any) -> Any:
    """Rounded to zero."""
    r = np.fmod(x, y)
    return (r if remainder else (x - r) // y).astype(dtype, copy=False)[()]


def _mulhi(dtype: Any, x: Any, y: Any) -> Any:
    shape = np.broadcast_shapes(np.shape(x), np.shape(y))
    a, b = (np.broadcast_to(v, shape).astype(object) for v in (x, y))
    low = [int(v) % (1 << dtype.bits) for v in np.ravel(np.asarray(a * b >> dtype.bits))]
    return np.array(low, f"u{dtype.itemsize}").astype(dtype.np).reshape(shape)[()]


def _cast(x: Any, source: Any, to: Any) -> Any:
    x = np.asarray(x)
    if to is dt.bool_:
        return (x != 0)[()]
    if source.is_floating and to.is_integer:
        low, high = dt.int_range(to)
        wide = np.where(np.isnan(x), 0, x.astype(np.longdouble))
        whole = np.trunc(np.clip(wide, np.longdouble(low), np.longdouble(high)))
        return whole.astype(to.np)[()]
    return x.astype(to.np)[()]
