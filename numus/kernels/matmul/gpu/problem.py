"""What every schedule of a product by groups of threads is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from numus.dtypes import DType
from numus.ir import Expr, Stmt

# finish(batch, m, n, value) stores what becomes of an element of the product
Epilogue = Callable[[Expr, Expr, Expr, Expr], list[Stmt]]

Tiles = TypeVar("Tiles")
Sizes = TypeVar("Sizes")
Operand = TypeVar("Operand")


@dataclass(slots=True)
class TileSizes:
    """The numbers of a launch whose groups have a tile each, as expressions."""

    m: Expr
    n: Expr
    k: Expr
    row_tiles: Expr
    column_tiles: Expr


@dataclass(slots=True)
class GroupWork(Generic[Tiles, Sizes, Operand]):
    """C = A B with its epilogue. How operands are read, which numbers a launch has and how tiles
    are cut is each schedule's own affair."""

    tiles: Tiles
    sizes: Sizes
    dtype: DType  # of what is multiplied
    left: Operand
    right: Operand
    finish: Epilogue
    light: bool  # whether the epilogue is little more than a store
