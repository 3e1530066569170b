"""Vectors of keys and values in registers, for attention that is split along the keys.

Lanes load 16 bytes of a row at a time, all keys of an iteration together, and those of the next one
while these are used. What the program is given is loaded before earlier kernels end. A row that is
replaced (`RowUpdate`) comes from shared memory, where the block computes it beside the queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.common.smem_tiles import Matrix, RowUpdate, StridedMatrix
from numus.kernels.common.vector_registers import element, packed, vector_registers

TRUE = const(True, dt.bool_)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thread is: the matrix, its first element of a row, the last row."""

    n: Expr
    first: Expr
    last_row: Expr


class RowVectors:
    """A thread's vectors of some rows of a matrix, `count` elements each: one of a row, or those
    that begin at `columns` from its first element on."""

    def __init__(
        self,
        name: str,
        memory: StridedMatrix,
        update: RowUpdate | None,
        extent: Expr,
        count: int,
        rows: int,
        width: int,
        columns: Sequence[int] = (0,),
        reach: int = 0,  # elements from the first vector of any thread to the end of the last one
    ) -> None:
        self.name, self.memory, self.update = name, memory, update
        self.extent, self.count, self.width = extent, count, width
        self.dtype, self.columns, self.reach = memory.buffer.dtype, columns, reach
        all_vectors = range(rows * len(columns))
        self.words = [vector_registers(f"{name}{u}_word", self.dtype, count) for u in all_vectors]
        self.position = ir.Register(f"{name}_update_at", dt.int64, lanes=True)
        self.new_row = ir.Buffer(f"{name}_new_row", self.dtype, "scratch", const(width))

    def load(self, keys: Sequence[Expr], place: Place, tag: str) -> list[Stmt]:
        """Vectors of these rows; past the end the last one again."""
        out, sets = list[Stmt](), list[Stmt]()
        memory = self.memory
        for u, (key, at, own) in enumerate(self._vectors(keys, place)):
            row = ir.minimum(key, place.last_row)
            start = memory.offset(place.n) + row * memory.stride + at
            names = [ir.var(f"{tag}{u}_{i}", self.dtype) for i in range(self.count)]
            for i, name in enumerate(names):
                vector = 0 if i else self.count
                out.append(ir.Let(name, ir.load(memory.buffer, start + i), vector=vector))
            sets += ir.sets(own, packed(names))
        return out + sets

    def _vectors(
        self, keys: Sequence[Expr], place: Place
    ) -> list[tuple[Expr, Expr, list[ir.Register]]]:
        """(row, first element, registers) of each vector; past the end of a row its last one."""
        last, starts = self.extent - self.count, list[Expr]()
        for column in self.columns:
            at = place.first + column if column else place.first
            known = self.reach and self.extent.op == "const"
            is_inside = known and column + self.reach <= ir.const_value(self.extent)
            starts.append(at if is_inside else ir.minimum(at, last))
        places = [(key, at) for key in keys for at in starts]
        return [(*where, own) for where, own in zip(places, self.words, strict=True)]

    def read(self, matrix: Matrix, keys: Sequence[Expr], place: Place, tag: str) -> list[Stmt]:
        """As `load`, element by element."""
        out: list[Stmt] = []
        for u, (key, at, own) in enumerate(self._vectors(keys, place)):
            row = ir.minimum(key, place.last_row)
            names = [ir.var(f"{tag}{u}_{i}", self.dtype) for i in range(self.count)]
            found = [matrix.read(place.n, row, at + i, TRUE) for i in range(self.count)]
            out += [*ir.lets(names, found), *ir.sets(own, packed(names))]
        return out

    def find_update(self) -> list[Stmt]:
        """Load where the replaced row is; nothing waits for it yet."""
        return [] if self.update is None else [ir.Set(self.position, self.update.position)]

    def compute_update(self, n: Expr, column: Expr) -> list[Stmt]:
        """An element of the replaced row, to shared memory."""
        if self.update is None:
            return []
        inside = ir.minimum(column, self.extent - 1)
        return [ir.Store(self.new_row, column, self.update.read(n, inside))]

    def replace_updated(self, keys: Sequence[Expr], place: Place, tag: str) -> list[Stmt]:
        """The replaced row in place of what memory has, if it is among these."""
        if self.update is None:
            return []
        out: list[Stmt] = []
        for u, (key, at, own) in enumerate(self._vectors(keys, place)):
            names = [ir.var(f"{tag}{u}_new{i}", self.dtype) for i in range(self.count)]
            body: list[Stmt] = [
                ir.Let(name, ir.load(self.new_row, at + i), vector=0 if i else self.count)
                for i, name in enumerate(names)
            ]
            body += ir.sets(own, packed(names))
            row = ir.minimum(key, place.last_row)
            is_there = self.update.place(place.n, row).eq(ir.read(self.position))
            out.append(ir.If(is_there, body))
        return out

    def elements(self, u: int, dtype: DType) -> list[Expr]:
        return [element(self.words[u], i, self.dtype).cast(dtype) for i in range(self.count)]
