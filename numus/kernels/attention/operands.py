"""What every schedule of attention, and of its derivative, reads and writes.

How a matrix is read, and what there is for each query, is each schedule's own affair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from numus.ir import Expr, Stmt

Score = Callable[[Expr, Expr, Expr], Expr]  # what there is at (matrix, query, key)
Write = Callable[[Expr, Expr, Expr, Expr], list[Stmt]]  # (matrix, row, column, value)

Matrix = TypeVar("Matrix")
PerQuery = TypeVar("PerQuery")


@dataclass(slots=True)
class Operands(Generic[Matrix]):
    """Of attention. Without values the sums of the powers alone are wanted."""

    q: Matrix
    k: Matrix
    v: Matrix | None
    scale: Expr
    bias: Score | None
    keep: Score | None
    write: Write
    write_lse: Callable[[Expr, Expr, Expr], list[Stmt]]  # (matrix, query, value)


@dataclass(slots=True)
class GradOperands(Generic[Matrix, PerQuery]):
    """Of its derivative. Those cotangents are wanted that there are ways to write, by the names of
    their operands: q, k, v."""

    q: Matrix
    k: Matrix
    v: Matrix
    g: Matrix
    scale: Expr
    lse: PerQuery
    delta: PerQuery
    bias: Score | None
    keep: Score | None
    writes: dict[str, Write]

    @property
    def changes(self) -> bool:
        """Whether it matters how scores change, as it does not for the cotangent of the values."""
        return "q" in self.writes or "k" in self.writes
