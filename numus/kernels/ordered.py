"""Schedules that walk an axis in order: scans, radix sort, scatter.

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

_DIGIT_BITS = 8
_DIGITS = 1 << _DIGIT_BITS


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
    new = _combine(op, old, parts)
    names = [ir.var(f"next{k}", real) for k in range(len(parts))]
    result: Any = tuple(names) if dtype.is_complex else names[0].cast(dtype)
    body: list[Stmt] = [ir.Let(n, x) for n, x in zip(names, new, strict=True)]
    body += [ir.Set(r, n) for r, n in zip(registers, names, strict=True)]
    body += write(at, result)
    starts = _identity(op, real, len(parts))
    return [
        *(ir.Set(r, s) for r, s in zip(registers, starts, strict=True)),
        ir.For(i, ZERO, length, "serial", body),
    ]


def _identity(op: str, real: DType, parts: int) -> list[Expr]:
    if op in ("sum", "prod"):
        first = const(op == "prod", real) if real is dt.bool_ else const(int(op == "prod"), real)
        return [first, const(0, real)][:parts]
    if op == "logsumexp":
        return [const(float("-inf"), real)]
    if real.kind == "float":
        return [const(float("-inf") if op == "max" else float("inf"), real)]
    low, high = dt.int_range(real)
    return [const(low if op == "max" else high, real)]


def _combine(op: str, a: list[Expr], b: list[Expr]) -> list[Expr]:
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


# -- radix sort -----------------------------------------------------------------------------------


def sort_key(x: Expr, descending: bool) -> Expr:
    """An unsigned integer that orders as the value does: NaN last, both zeros the same."""
    if x.dtype is dt.bool_:
        key = x.cast(dt.uint8)
    elif x.dtype.kind == "uint":
        key = x
    elif x.dtype.kind == "int":
        unsigned = dt.BY_NAME[f"uint{x.dtype.bits}"]
        key = x.bitcast(unsigned) ^ const(1 << (x.dtype.bits - 1), unsigned)
    else:
        unsigned = dt.BY_NAME[f"uint{x.dtype.bits}"]
        bits = (x + const(0.0, x.dtype)).bitcast(unsigned)  # -0 + 0 is +0
        top = const(1 << (x.dtype.bits - 1), unsigned)
        key = select((bits & top).ne(const(0, unsigned)), ~bits, bits | top)
        key = select(ir.isnan(x), const(-1 % (1 << x.dtype.bits), unsigned), key)
    return ~key if descending else key


def radix_sort(
    length: Expr, key_dtype: DType, key: Read, write: Callable[[Expr, Expr], list[Stmt]]
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Sort one row: `write(i, place)` gets the place of the i-th smallest key, ties in order."""
    keys = [ir.Buffer(f"keys{k}", key_dtype, "scratch", length) for k in (0, 1)]
    places = [ir.Buffer(f"places{k}", dt.int64, "scratch", length) for k in (0, 1)]
    counts = ir.Buffer("counts", dt.int64, "scratch", const(_DIGITS))
    i = ir.var("fill_i")
    out: list[Stmt] = [
        ir.For(
            i,
            ZERO,
            length,
            "lanes",
            [ir.Store(keys[0], i, key(i)), ir.Store(places[0], i, i)],
        )
    ]
    for number in range(key_dtype.itemsize):
        source, target = number % 2, 1 - number % 2
        out += _digit_pass(length, keys, places, counts, source, target, number)
    last = key_dtype.itemsize % 2
    i = ir.var("out_i")
    out.append(ir.For(i, ZERO, length, "serial", write(i, ir.load(places[last], i))))
    return out, [*keys, *places, counts]


def _digit_pass(
    length: Expr,
    keys: list[ir.Buffer],
    places: list[ir.Buffer],
    counts: ir.Buffer,
    source: int,
    target: int,
    number: int,
) -> list[Stmt]:
    """Move every key behind those with a smaller digit, keeping the order within a digit."""

    def digit(k: Expr) -> Expr:
        shift = const(number * _DIGIT_BITS, k.dtype)
        return (ir.binary("lshr", k, shift) & const(_DIGITS - 1, k.dtype)).cast(dt.int64)

    z, c, p, m = (ir.var(f"{n}{number}") for n in ("zero", "count", "prefix", "move"))
    counted = digit(ir.load(keys[source], c))
    running = ir.Register(f"sum{number}", dt.int64)
    before = ir.var(f"before{number}")
    moving = ir.load(keys[source], m)
    slot = ir.var(f"slot{number}")
    d = digit(moving)
    return [
        ir.For(z, ZERO, const(_DIGITS), "lanes", [ir.Store(counts, z, ZERO)]),
        ir.For(
            c,
            ZERO,
            length,
            "serial",
            [ir.Store(counts, counted, ir.add(ir.load(counts, counted), ONE))],
        ),
        ir.Set(running, ZERO),
        ir.For(
            p,
            ZERO,
            const(_DIGITS),
            "serial",
            [
                ir.Let(before, ir.read(running)),
                ir.Set(running, ir.add(before, ir.load(counts, p))),
                ir.Store(counts, p, before),
            ],
        ),
        ir.For(
            m,
            ZERO,
            length,
            "serial",
            [
                ir.Let(slot, ir.load(counts, d)),
                ir.Store(counts, d, ir.add(slot, ONE)),
                ir.Store(keys[target], slot, moving),
                ir.Store(places[target], slot, ir.load(places[source], m)),
            ],
        ),
    ]
