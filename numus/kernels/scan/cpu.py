"""Running reductions.

A stretch of an axis is walked in one of two ways: `along`, a vector of neighbours at a time, with
running reductions inside the vector; or `across`, where every lane has a row of its own. Long axes
are cut into parts of a fixed size: their totals are found first, then what comes before each of
them, then every part is walked with that in front. What an element is made of, and in which order,
depends on its place and the shape alone: the number of threads never shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.math import FUNCTIONS

ZERO, ONE = const(0), const(1)

Number = list[Expr]  # a value in the dtype that is computed in; two for complex numbers
Read = Callable[[Expr], Number]
Write = Callable[[Expr, Number], list[Stmt]]


@dataclass(frozen=True, slots=True)
class Running:
    """What runs, and over which stretch of an axis."""

    op: str
    real: DType  # computed in
    parts: int  # 2 for complex numbers
    start: Expr
    stop: Expr

    @property
    def identity(self) -> Number:
        return identity(self.op, self.real, self.parts)

    def combine(self, a: Number, b: Number) -> Number:
        return combine(self.op, a, b)

    def registers(self, lanes: bool) -> list[ir.Register]:
        return [ir.Register(f"run{k}", self.real, lanes=lanes) for k in range(self.parts)]

    def names(self, name: str) -> Number:
        return [ir.var(f"{name}{k}", self.real) for k in range(self.parts)]


def _named(names: Number, values: Number) -> list[Stmt]:
    return [ir.Let(n, v) for n, v in zip(names, values, strict=True)]


def _set(registers: list[ir.Register], values: Number) -> list[Stmt]:
    return [ir.Set(r, v) for r, v in zip(registers, values, strict=True)]


def across(run: Running, read: Read, write: Write) -> tuple[list[Stmt], Number]:
    """The stretch one element after another: for lanes that each have a row of their own."""
    i = ir.var("scan_i")
    registers = run.registers(lanes=True)
    new = run.names("next")
    body = [
        *_named(new, run.combine([ir.read(r) for r in registers], read(i))),
        *_set(registers, new),
        *write(i, new),
    ]
    loop = ir.For(i, run.start, run.stop, "serial", body)
    return [*_set(registers, run.identity), loop], [ir.read(r) for r in registers]


def along(run: Running, lanes: int, read: Read, write: Write) -> tuple[list[Stmt], Number]:
    """The stretch a vector at a time; what is left at the end one element after another."""
    k = ir.var("rest_i")
    registers = run.registers(lanes=False)
    total = [ir.read(r) for r in registers]
    new = run.names("next")
    rest = [*_named(new, run.combine(total, read(k))), *_set(registers, new), *write(k, new)]
    start, out = run.start, _set(registers, run.identity)
    if lanes > 1:
        start = ir.sub(run.stop, ir.irem(ir.sub(run.stop, run.start), const(lanes)))
        out.append(_vectors(run, registers, start, lanes, read, write))
    return [*out, ir.For(k, start, run.stop, "serial", rest)], total


def _vectors(
    run: Running, registers: list[ir.Register], stop: Expr, lanes: int, read: Read, write: Write
) -> Stmt:
    """Whole vectors of the stretch: running reductions inside each, then what came before it."""
    i, j = ir.var("vector_i"), ir.var("lane")
    at = ir.add(i, j)
    here = run.names("step0_")
    body = _named(here, read(at))
    reach = 1
    while reach < lanes:
        before = [ir.lanes_shift(x, reach, one) for x, one in zip(here, run.identity, strict=True)]
        combined = run.combine(before, here)
        here = run.names(f"step{reach}_")
        body += _named(here, combined)
        reach *= 2
    result = run.names("sum")
    body += _named(result, run.combine([ir.read(r) for r in registers], here))
    body += _set(registers, [ir.lanes_last(x) for x in result])
    body += write(at, result)
    vector = ir.For(j, ZERO, const(lanes), "lanes", body, width=lanes)
    return ir.For(i, run.start, stop, "serial", [vector], step=const(lanes))


def before_parts(
    op: str, real: DType, parts: int, count: Expr, read: Read, write: Write
) -> list[Stmt]:
    """From the totals of parts to what comes before each of them."""
    run = Running(op, real, parts, ZERO, count)
    i = ir.var("part_i")
    registers = run.registers(lanes=True)
    old, new = run.names("before"), run.names("next")
    body = [
        *_named(new, read(i)),
        *_named(old, [ir.read(r) for r in registers]),
        *write(i, old),
        *_set(registers, run.combine(old, new)),
    ]
    return [*_set(registers, run.identity), ir.For(i, ZERO, count, "serial", body)]


def identity(op: str, real: DType, parts: int) -> list[Expr]:
    """What combines with anything to give that thing."""
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
    """Two values, the earlier one first, as one. Complex numbers are pairs."""
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
