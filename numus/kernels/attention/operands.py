"""Operands of attention kernels, generic in how a schedule reads matrices and per-query vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from numus.ir import Expr, Stmt

Score = Callable[[Expr, Expr, Expr], Expr]  # the element at (matrix, query, key)
Write = Callable[[Expr, Expr, Expr, Expr], list[Stmt]]  # (matrix, row, column, value)

Matrix = TypeVar("Matrix")
PerQuery = TypeVar("PerQuery")


@dataclass(slots=True)
class Operands(Generic[Matrix]):
    """Forward pass. Without values, the log-sum-exp alone is computed."""

    q: Matrix
    k: Matrix
    v: Matrix | None
    scale: Expr
    bias: Score | None
    keep: Score | None
    write: Write
    write_lse: Callable[[Expr, Expr, Expr], list[Stmt]]  # (matrix, query, value)
    causal: bool
    position: Callable[[Expr], Expr] = lambda row: row  # of a row among the queries of its head


@dataclass(slots=True)
class BackwardOperands(Generic[Matrix, PerQuery]):
    """Backward pass. `writes` has the requested gradients, by operand: q, k, v."""

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
    causal: bool

    @property
    def needs_ds(self) -> bool:
        """dS, the gradient of the scores, is needed for dQ and dK; dV needs P alone."""
        return "q" in self.writes or "k" in self.writes
