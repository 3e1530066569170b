"""Products of floats with packed codes, and how codes, scales and zero points are read on GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.matmul.gpu_operands import vector_operand
from numus.compiler.lower.matmul.packed import CodesProblem
from numus.ir import Expr, const
from numus.kernels.matmul.gpu.packed.gemv import QUAD, GroupNumber, PackedMatrix
from numus.kernels.matmul.packed import Packing

ZERO = const(0)


@dataclass(frozen=True)
class PackedGemvProblem(CodesProblem):
    """Inputs: x (1, vectors, k), codes (1, rows, words), scales (rows, groups), perhaps zeros."""

    @property
    def chunks(self) -> int:
        return self.val.inputs[0].shape[2] // self.packing.values

    def matrix(self, e: Emitter, product: Value) -> PackedMatrix:
        """The operands of one product of the group."""
        return packed_matrix(e, self.packing, *product.inputs[1:])

    def numbers(self, product: Value) -> tuple[Value, ...]:
        """What is loaded with the codes of a product."""
        return () if self.packing.header else product.inputs[2:]


def _number(e: Emitter, val: Value) -> GroupNumber:
    """An element (row or 0, group or 0); of two bytes, its bits."""

    def stored(row: Expr, group: Expr) -> Expr:
        at_row = row if val.shape[0] > 1 else ZERO
        found: Expr = e.value(val, (at_row, group if val.shape[1] > 1 else ZERO))
        return found.bitcast(dt.uint16) if val.dtype.itemsize == 2 else found

    def decoded(x: Expr) -> Expr:
        found = x.bitcast(val.dtype) if val.dtype.itemsize == 2 else x
        return found.cast(dt.float32)

    return GroupNumber(stored, decoded)


def header_scale(e: Emitter, p: Packing, codes: Value) -> GroupNumber:
    """The word ahead of a group, which has the scale in its low half."""

    def stored(row: Expr, group: Expr) -> Expr:
        found: Expr = e.value(codes, (ZERO, row, group * (p.group * p.words + 1)))
        return found

    def decoded(word: Expr) -> Expr:
        half = (word & 0xFFFF).cast(dt.uint16).bitcast(dt.float16)
        return half.cast(dt.float32)

    return GroupNumber(stored, decoded)


def packed_matrix(
    e: Emitter, p: Packing, codes: Value, scales: Value, *zeros: Value
) -> PackedMatrix:
    """A matrix of codes (1, rows, words), scales and zero points (rows or 1, groups)."""
    return PackedMatrix(
        vector_operand(e, codes, 1, dt.uint32, QUAD),
        scale=header_scale(e, p, codes) if p.header else _number(e, scales),
        zero=_number(e, zeros[0]) if zeros else None,
    )
