"""Schedules that walk an axis in order: scans, scatter.

Each gives the statements of one block's work; what is read and written is given as functions from
an index along the axis to expressions and statements, so that any fused code fits in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.ir import Expr, Stmt, const, select
from numus.dtypes import DType
from numus.kernels.math import FUNCTIONS

ZERO, ONE = const(0), const(1)

Read = Callable[[Expr], Any]
Write = Callable[[Expr, Any], list[Stmt]]


# -- scans ----------------------------------------------------------------------------------------


def scan(
    length: Expr,
    op: str,
    dtype: DType,
    read: Read,
    write: Write,
    *,
    reverse: bool,
    lanes: bool,
) -> list[Stmt]:
    """A running reduction over 0 … length - 1; `lanes` where each lane walks a row of its own."""
    real = dt.compute_dtype(dt.real_of(dtype))
    i = ir.var("scan_i")
    at = ir.sub(ir.sub(length, ONE), i) if reverse else i
    value = read(at)
    parts = list(value) if dtype.is_complex else [value.cast(real)]
    registers = [ir.Register(f"run{k}", real, lanes=lanes) for k in range(len(parts))]
    old = [ir.read(r) for r in registers]
    new = combine(op, old, parts)
    names = [ir.var(f"next{k}", real) for k in range(len(parts))]
    result: Any = tuple(names) if dtype.is_complex else names[0].cast(dtype)
    body: list[Stmt] = [ir.Let(n, x) for n, x in zip(names, new, strict=True)]
    body += [ir.Set(r, n) for r, n in zip(registers, names, strict=True)]
    body += write(at, result)
    starts = identity(op, real, len(parts))
    return [
        *(ir.Set(r, s) for r, s in zip(registers, starts, strict=True)),
        ir.For(i, ZERO, length, "serial", body),
    ]


def identity(op: str, real: DType, parts: int) -> list[Expr]:
    if op in ("sum", "prod"):
        first = const(op == "prod", real) if real is dt.bool_ else const(int(op == "prod"), real)
        return [first, const(0, real)][:parts]
    if op == "logsumexp":
        return [const(float("-inf"), real)]
    if real.kind == "float":
        return [const(float("-inf") if op == "max" else float("inf"), real)]
    low, high = dt.int_range(real)
    return [const(low if op == "max" else high, real)]


def combine(op: str, a: list[Expr], b: list[Expr]) -> list[Expr]:
    if len(a) == 2:
        if op == "sum":
            return [a[0] + b[0], a[1] + b[1]]
        return [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
    x, y = a[0], b[0]
    if x.dtype is dt.bool_:
        return [x | y if op in ("sum", "max") else x & y]
    if op == "logsumexp":
        return [log_add_exp(x, y)]
    return [ir.binary({"sum": "add", "prod": "mul"}.get(op, op), x, y)]


def log_add_exp(a: Expr, b: Expr) -> Expr:
    """log(exp a + exp b), right for infinities."""
    top = ir.maximum(a, b)
    gap = -ir.unary("abs", a - b)
    return select(
        a.eq(b),
        a + const(0.6931471805599453, a.dtype),
        top + FUNCTIONS["log1p"](FUNCTIONS["exp"](gap)),
    )
