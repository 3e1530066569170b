"""Unpacking of codes into floats or int8, for products of many rows, in stores of 16 bytes.

Code and zero point become floats without a conversion, as the lowest bits of a mantissa (2**23 +
code), whose difference is exact. As int8 they are not scaled. A block has words of one row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.packed.gemv import PackedMatrix
from numus.kernels.matmul.gpu.problem import MAX_ACCESS_BYTES
from numus.kernels.matmul.packed import BYTES, Packing

ZERO = const(0)
THREADS = 128
LOADS = 4  # that a thread has in flight
_TWO_23 = 8388608.0
_TWO_23_BITS = 0x4B000000


@dataclass(frozen=True)
class Unpack:
    """The shape of a block: words of a row, some at a time for each thread."""

    packing: Packing
    dtype: DType

    @property
    def words(self) -> int:
        """That fill an access of 16 bytes, or more than one."""
        return max(1, MAX_ACCESS_BYTES // self.dtype.itemsize // self.packing.values)

    @property
    def block_words(self) -> int:
        return THREADS * LOADS * self.words

    def emit(
        self,
        matrix: PackedMatrix,
        block: Expr,
        blocks: Expr,  # of a row
        chunks: Expr,
        store: Callable[[Expr, Expr, Expr], ir.Store],  # row, column, value
    ) -> list[Stmt]:
        p, lane = self.packing, ir.var("lane")
        row, base = block // blocks, block % blocks * self.block_words
        loads, rest = list[Stmt](), list[Stmt]()
        for u in range(LOADS):
            chunk = base + (u * THREADS + lane) * self.words
            at = ir.minimum(chunk, chunks - self.words)  # loads of the end again, not stored
            group = at // p.group if p.group else ZERO
            first = at + group + 1 if p.header else at
            words = [
                ir.Let(
                    ir.var(f"w{u}_{i}", dt.uint32), matrix.codes.read(ZERO, row, first + i, None)
                )
                for i in range(self.words)
            ]
            loads += words
            stores = self._stores(matrix, row, at, group, [let.var for let in words], store)
            rest.append(ir.If(chunk < chunks, stores))
        return [ir.For(lane, ZERO, const(THREADS), "lanes", loads + rest)]

    def _stores(
        self,
        matrix: PackedMatrix,
        row: Expr,
        chunk: Expr,
        group: Expr,
        words: list[Expr],
        store: Callable[[Expr, Expr, Expr], ir.Store],
    ) -> list[Stmt]:
        p, out = self.packing, list[Stmt]()
        flipped = [word ^ (128 * BYTES) if p.signed else word for word in words]
        shifts = [j * p.bits for j in range(p.values)]
        codes = [(w >> s if s else w) & ((1 << p.bits) - 1) for w in flipped for s in shifts]
        if self.dtype is dt.int8:
            values = [(code.cast(dt.int32) - p.zero).cast(dt.int8) for code in codes]
        else:
            scale, middle = ir.var("scale", dt.float32), ir.var("zero", dt.float32)
            known = const(float(p.zero), dt.float32)
            point = known if matrix.zero is None else matrix.zero(row, group)
            out.append(ir.Let(scale, matrix.scale(row, group)))
            out.append(ir.Let(middle, point + _TWO_23))
            exact = [(code | _TWO_23_BITS).bitcast(dt.float32) - middle for code in codes]
            values = [(x * scale).cast(self.dtype) for x in exact]
        stores = [store(row, chunk * p.values + i, v) for i, v in enumerate(values)]
        first = stores[0]
        width = MAX_ACCESS_BYTES // self.dtype.itemsize
        at = ir.address(first.buffer) + first.index * self.dtype.itemsize
        whole = ir.var("whole", dt.bool_)
        vectors = [
            ir.Store(s.buffer, s.index, s.value, vector=0 if i % width else width)
            for i, s in enumerate(stores)
        ]
        out.append(ir.Let(whole, (at & const(MAX_ACCESS_BYTES - 1)).eq(0)))
        return [*out, ir.If(whole, list[Stmt](vectors)), ir.If(~whole, list[Stmt](stores))]
