"""Shorthands that build several expressions or statements at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from numus.dtypes import DType
from numus.ir.expressions import Buffer, Expr, Register, add, minimum, mul, read, var
from numus.ir.statements import Let, Set, Stmt, Store


def block_range(number: Expr, size: Expr, end: Expr) -> tuple[Expr, Expr]:
    """The iterations of a block; the last block is cut off at the end."""
    start = mul(number, size)
    return start, minimum(add(start, size), end)


class Typed(Protocol):
    @property
    def dtype(self) -> DType: ...


def variables(name: str, like: Iterable[Typed]) -> list[Expr]:
    """A name for each of these, of its dtype."""
    return [var(f"{name}_{i}", x.dtype) for i, x in enumerate(like)]


def reads(registers: Iterable[Register]) -> list[Expr]:
    return [read(r) for r in registers]


def lets(names: Sequence[Expr], values: Sequence[Expr]) -> list[Stmt]:
    return [Let(n, x) for n, x in zip(names, values, strict=True)]


def sets(registers: Sequence[Register], values: Sequence[Expr]) -> list[Stmt]:
    return [Set(r, x) for r, x in zip(registers, values, strict=True)]


def stores(buffers: Sequence[Buffer], index: Expr, values: Sequence[Expr]) -> list[Stmt]:
    return [Store(b, index, x) for b, x in zip(buffers, values, strict=True)]


def bind(values: Sequence[Expr], name: str) -> tuple[list[Stmt], list[Expr]]:
    """Bindings of values at this point of the program, and their names."""
    names = variables(name, values)
    return lets(names, values), names


def assign(
    registers: Sequence[Register], values: Sequence[Expr], name: str
) -> tuple[list[Stmt], list[Expr]]:
    """Set registers in parallel (each value may read all of the old ones); names of the values."""
    out, names = bind(values, name)
    return out + sets(registers, names), names
