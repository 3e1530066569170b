"""GEMM on thread blocks: the operands, sizes and epilogue that every kernel of this folder takes.

C = A B, batched. A is read as (m, k) and B as (n, k): `mn` is a row of A or a column of B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt

Epilogue = Callable[[Expr, Expr, Expr, Expr], list[Stmt]]  # (batch, m, n, accumulator): stores
Coordinate = tuple[Expr, Expr, Expr]  # batch (and split of k, as one number), m, n
Emitted = tuple[list[Stmt], list[ir.Buffer]]  # statements of a block, and its scratch

TileT = TypeVar("TileT")
SizesT = TypeVar("SizesT")
OperandT = TypeVar("OperandT")


@dataclass(slots=True)
class Operand:
    """A or B as an expression. Kernels that load it otherwise extend it."""

    read: Callable[[Expr, Expr, Expr, Expr | None], Expr]  # (batch, mn, k, mask)
    extent: Expr  # m or n
    k_major: bool  # contiguous along k, rather than along m or n


@dataclass(slots=True)
class GemmSizes:
    """Sizes that a launch passes: one block per tile of C."""

    m: Expr
    n: Expr
    k: Expr
    tiles_m: Expr
    tiles_n: Expr


@dataclass(slots=True)
class GemmCall(Generic[TileT, SizesT, OperandT]):
    """Arguments of a GEMM kernel."""

    tile: TileT
    sizes: SizesT
    dtype: DType  # of the operands, or what they are converted to
    a: OperandT
    b: OperandT
    epilogue: Epilogue
    store_only: bool  # the epilogue is a store: cheap enough to unroll


def when(condition: Expr, body: Callable[[], list[Stmt]]) -> list[Stmt]:
    """Statements under a condition, which may be constant."""
    if condition.op == "const":
        return body() if condition.attr else []
    return [ir.If(condition, body())]


def tile_origin(s: GemmSizes, block: Expr, tile_m: int, tile_n: int) -> Coordinate:
    """The first element of a block's tile; tiles of a row are consecutive."""
    m0, n0 = block // s.tiles_n % s.tiles_m * tile_m, block % s.tiles_n * tile_n
    return block // (s.tiles_m * s.tiles_n), m0, n0


def register_tile(m: int, n: int, dtype: DType, name: str = "c") -> list[list[ir.Register]]:
    return [[ir.Register(f"{name}{i}_{j}", dtype, lanes=True) for j in range(n)] for i in range(m)]
