"""Operands that threads load from global memory straight into registers, vector by vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.problem import Operand

TRUE = const(True, dt.bool_)
MAX_ACCESS_BYTES = 16


@dataclass(slots=True)
class VectorOperand(Operand):
    """`read` gives elements in the dtype of the computation; where `address` is given, vectors of
    `vector` contiguous elements are one access, provided that `aligned` holds."""

    address: Callable[[Expr, Expr, Expr], tuple[ir.Buffer, Expr]] | None = None  # (batch, mn, k)
    vector: int = 1
    aligned: Expr = TRUE

    def load_contiguous(
        self, batch: Expr, mn: Expr, k: Expr, count: int, dtype: DType, tag: str, vectorised: bool
    ) -> tuple[list[Stmt], list[Expr]]:
        """Elements from here on in memory order: statements that load them, and their values."""
        if not vectorised or self.address is None or self.vector == 1 or count == 1:
            at = [(mn, k + u) for u in range(count)]
            if not self.k_major:
                at = [(mn + u, k) for u in range(count)]
            return self.load_elements(batch, at, dtype, tag)
        vector = min(self.vector, count)
        lets: list[Stmt] = []
        values: list[Expr] = []
        buffer, first = self.address(batch, mn, k)
        for u in range(count):
            name = ir.var(f"{tag}_{u}", buffer.dtype)
            value = ir.load(buffer, first + u)
            lets.append(ir.Let(name, value, vector=vector if u % vector == 0 else 0))
            values.append(name.cast(dtype))
        return lets, values

    def load_elements(
        self, batch: Expr, at: list[tuple[Expr, Expr]], dtype: DType, tag: str
    ) -> tuple[list[Stmt], list[Expr]]:
        """Elements (mn, k), one access each."""
        values = [self.read(batch, mn, k, None) for mn, k in at]
        names = [ir.var(f"{tag}_{u}", dtype) for u in range(len(values))]
        return [ir.Let(n, v) for n, v in zip(names, values, strict=True)], names


def multiply_add(x: Expr, y: Expr, old: Expr) -> Expr:
    return ir.fma(x, y, old, allow_unfused=True) if old.dtype.kind == "float" else old + x * y


def next_power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
