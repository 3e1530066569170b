"""Operands that threads of a group read straight into their registers, in runs of neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const

TRUE = const(True, dt.bool_)
ACCESS = 16  # bytes of the widest access


@dataclass(slots=True)
class Operand:
    """`read(batch, line, k)` is an element, in the dtype that is computed in; lines are rows of A
    or columns of B.

    `place(batch, line, k)` tells where an operand that is nothing but memory has it. Runs of `run`
    neighbours lie at whole accesses there, wherever `aligned` is true.
    """

    read: Callable[[Expr, Expr, Expr], Expr]
    extent: Expr  # how many lines there are
    along: bool  # whether neighbours lie along k
    place: Callable[[Expr, Expr, Expr], tuple[ir.Buffer, Expr]] | None = None
    run: int = 1
    aligned: Expr = TRUE

    def neighbours(
        self, batch: Expr, line: Expr, k: Expr, count: int, dtype: DType, tag: str, whole: bool
    ) -> tuple[list[Stmt], list[Expr]]:
        """So many elements from here on, as they lie in memory: statements that begin to load them,
        and what they are. `whole`: by accesses as wide as can be."""
        if not whole or self.place is None or self.run == 1 or count == 1:
            ways = [(line, ir.add(k, const(u))) for u in range(count)]
            if not self.along:
                ways = [(ir.add(line, const(u)), k) for u in range(count)]
            return self.single(batch, ways, dtype, tag)
        run = min(self.run, count)
        lets: list[Stmt] = []
        found: list[Expr] = []
        buffer, first = self.place(batch, line, k)
        for u in range(count):
            name = ir.var(f"{tag}_{u}", buffer.dtype)
            value = ir.load(buffer, ir.add(first, const(u)))
            lets.append(ir.Let(name, value, vector=run if u % run == 0 else 0))
            found.append(name.cast(dtype))
        return lets, found

    def single(
        self, batch: Expr, places: list[tuple[Expr, Expr]], dtype: DType, tag: str
    ) -> tuple[list[Stmt], list[Expr]]:
        """Elements one by one, wherever they are."""
        values = [self.read(batch, line, k) for line, k in places]
        names = [ir.var(f"{tag}_{u}", dtype) for u in range(len(values))]
        return [ir.Let(n, v) for n, v in zip(names, values, strict=True)], names


def multiplied(x: Expr, y: Expr, old: Expr) -> Expr:
    """A sum with one more product."""
    return ir.fma(x, y, old, allow_unfused=True) if old.dtype.kind == "float" else old + x * y


def power(n: int) -> int:
    """The least power of two that is no less."""
    return 1 << max(0, n - 1).bit_length()
