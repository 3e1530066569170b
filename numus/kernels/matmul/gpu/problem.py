"""GEMM on thread blocks: the operands, sizes and epilogue that every kernel of this folder takes.

C = A B, batched. A is read as (m, k) and B as (n, k): `mn` is a row of A or a column of B.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const

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


TRUE = const(True, dt.bool_)
MAX_ACCESS_BYTES = 16


@dataclass(slots=True)
class VectorOperand(Operand):
    """An operand that threads load from global memory straight into registers: where `address` is
    given, `vector` contiguous elements are one access, provided that `aligned` holds. Loads append
    their statements to `out`."""

    dtype: DType  # of the computation, and of what `read` gives
    address: Callable[[Expr, Expr, Expr], tuple[ir.Buffer, Expr]] | None = None  # (batch, mn, k)
    vector: int = 1
    aligned: Expr = TRUE

    def load_contiguous(
        self, out: list[Stmt], batch: Expr, mn: Expr, k: Expr, count: int, tag: str
    ) -> list[Expr]:
        """Elements from here on in memory order."""
        if self.address is None or self.vector == 1 or count == 1:
            at = [(mn, k + u) if self.k_major else (mn + u, k) for u in range(count)]
            return self.load_elements(out, batch, at, tag)
        names = self.load_vectors(out, batch, mn, k, count, tag)
        return [name.cast(self.dtype) for name in names]

    def load_vectors(
        self, out: list[Stmt], batch: Expr, mn: Expr, k: Expr, count: int, tag: str
    ) -> list[Expr]:
        """Elements from here on in memory order, as they are in memory."""
        assert self.address is not None
        vector = min(self.vector, count)
        buffer, first = self.address(batch, mn, k)
        names = [ir.var(f"{tag}_{u}", buffer.dtype) for u in range(count)]
        for u, name in enumerate(names):
            width = vector if u % vector == 0 else 0
            out.append(ir.Let(name, ir.load(buffer, first + u), vector=width))
        return list(names)

    def is_vector(self, count: int) -> bool:
        """So many elements along k are one access, or several."""
        return self.k_major and self.address is not None and 1 < self.vector <= count

    def load_elements(
        self, out: list[Stmt], batch: Expr, at: Sequence[tuple[Expr, Expr]], tag: str
    ) -> list[Expr]:
        """Elements (mn, k), one access each."""
        lets = [
            ir.Let(ir.var(f"{tag}_{u}", self.dtype), self.read(batch, mn, k, None))
            for u, (mn, k) in enumerate(at)
        ]
        out += lets
        return [let.var for let in lets]

    def load_along_k(
        self, out: list[Stmt], batch: Expr, mn: Expr, k: Expr, count: int, tag: str, vectors: bool
    ) -> list[Expr]:
        if vectors and self.k_major:
            return self.load_contiguous(out, batch, mn, k, count, tag)
        return self.load_elements(out, batch, [(mn, k + u) for u in range(count)], tag)

    def load_along_mn(
        self, out: list[Stmt], batch: Expr, mn: Expr, k: Expr, count: int, tag: str, vectors: bool
    ) -> list[Expr]:
        """Past the end, the last elements again."""
        if vectors:
            mn = ir.minimum(mn, self.extent - count)
            return self.load_contiguous(out, batch, mn, k, count, tag)
        at = [(ir.minimum(mn + u, self.extent - 1), k) for u in range(count)]
        return self.load_elements(out, batch, at, tag)


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
    # whether an argument of the launch is a multiple of 16 bytes of any dtype, where that is known
    is_aligned: Callable[[Expr], bool] = lambda argument: False


def when(condition: Expr, body: Callable[[], list[Stmt]]) -> list[Stmt]:
    """Statements under a condition, which may be constant."""
    if condition.op == "const":
        return body() if condition.attr else []
    return [ir.If(condition, body())]


def multiply_add(x: Expr, y: Expr, old: Expr) -> Expr:
    return ir.fma(x, y, old, allow_unfused=True) if old.dtype.kind == "float" else old + x * y


def next_power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def tile_origin(s: GemmSizes, block: Expr, tile_m: int, tile_n: int) -> Coordinate:
    """The first element of a block's tile; tiles of a row are consecutive."""
    m0, n0 = block // s.tiles_n % s.tiles_m * tile_m, block % s.tiles_n * tile_n
    return block // (s.tiles_m * s.tiles_n), m0, n0


def register_tile(m: int, n: int, dtype: DType, name: str = "c") -> list[list[ir.Register]]:
    return [[ir.Register(f"{name}{i}_{j}", dtype, lanes=True) for j in range(n)] for i in range(m)]
