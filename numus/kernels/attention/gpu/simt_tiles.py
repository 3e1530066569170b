"""SIMT register tiles: accumulators of a thread block, operands in shared memory.

Operands are MN-major, so a step of k loads vectors of 4 contiguous elements. Threads of one row of
the thread grid are adjacent lanes and reduce by warp shuffles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.common.smem_tiles import Matrix, round_up

ZERO, ONE = const(0), const(1)

VECTOR = 4  # contiguous elements of a shared-memory load
UNROLL = 4  # steps of k
LOAD_BATCH = 8  # global loads that a thread has in flight


@dataclass(frozen=True, slots=True)
class ThreadGrid:
    """Threads of a block as rows × columns."""

    rows: int
    columns: int

    @staticmethod
    def of(count: int) -> ThreadGrid:
        columns = 16 if count >= 256 else 8
        return ThreadGrid(count // columns, columns)

    @property
    def count(self) -> int:
        return self.rows * self.columns

    def row(self, lane: Expr) -> Expr:
        return lane // self.columns

    def column(self, lane: Expr) -> Expr:
        return lane % self.columns

    def loop(self, name: str, make: Callable[[Expr], list[Stmt]]) -> Stmt:
        lane = ir.var(name)
        return ir.For(lane, ZERO, const(self.count), "lanes", make(lane))

    def row_reduce(self, value: Expr, combine: Callable[[Expr, Expr], Expr]) -> Expr:
        """Reduction over the threads of a row (butterfly shuffle)."""
        mask = 1
        while mask < self.columns:
            value = combine(value, ir.lanes_xor(value, mask))
            mask *= 2
        return value


def tile_index(per_thread: int, threads: int, lane: Expr, number: int) -> Expr:
    """Row (or column) of a tile that is a thread's `number`-th: vectors, strided over the grid."""
    vector = VECTOR if per_thread % VECTOR == 0 else 1
    offset = number // vector * (threads * vector) + number % vector
    return lane * vector + offset


class SmemTile:
    """A matrix in shared memory: `depth` rows along k, `width` elements each."""

    def __init__(self, name: str, dtype: DType, depth: int, width: int) -> None:
        self.depth, self.width = depth, width
        self.pitch = round_up(width, VECTOR) + VECTOR  # padding against bank conflicts
        self.buffer = ir.Buffer(name, dtype, "scratch", const(depth * self.pitch))

    def at(self, index: Expr, element: Expr) -> Expr:
        return index * self.pitch + element

    @staticmethod
    def bytes(dtype: DType, depth: int, width: int) -> int:
        return depth * (round_up(width, VECTOR) + VECTOR) * dtype.itemsize


def load_tile(
    name: str,
    threads: ThreadGrid,
    dtype: DType,
    matrix: Matrix,
    at: tuple[Expr, Expr, Expr],
    shape: tuple[int, int],
    *,
    transposed: SmemTile | None = None,
    direct: SmemTile | None = None,
) -> Stmt:
    """Load a block of a matrix, `transposed`, as it is (`direct`), or both; zeros out of bounds.
    `at`: the matrix of the batch, the first row, and the end of the rows."""
    n, first, end = at
    rows, columns = shape
    total = rows * columns
    per_thread = -(-total // threads.count)
    batch = min(LOAD_BATCH, per_thread)
    batch_start = ir.var(f"{name}_batch")

    def load(lane: Expr) -> list[Stmt]:
        body: list[Stmt] = []
        values: list[tuple[Expr, Expr, Expr, Expr]] = []
        for number in range(batch):
            # an index that depends on the loop does not occupy registers across key blocks
            at = lane + batch_start * threads.count + number * threads.count
            row, column = at // columns, at % columns
            source = first + row
            in_bounds = (source < end) & (column < matrix.columns)
            if per_thread * threads.count != total or per_thread % batch:
                in_bounds = in_bounds & (at < total)
            loaded = ir.var(f"{name}_loaded{number}", dtype)
            value = matrix.read(n, source, column, in_bounds).cast(dtype)
            value = ir.select(in_bounds, value, const(0, dtype))
            body.append(ir.Let(loaded, value))
            values.append((at, row, column, loaded))
        for at, row, column, loaded in values:
            stores: list[Stmt] = []
            if transposed is not None:
                stores.append(ir.Store(transposed.buffer, transposed.at(column, row), loaded))
            if direct is not None:
                stores.append(ir.Store(direct.buffer, direct.at(row, column), loaded))
            if per_thread * threads.count != total or per_thread % batch:
                stores = [ir.If(at < total, stores)]
            body += stores
        return [ir.For(batch_start, ZERO, const(per_thread), "serial", body, step=const(batch))]

    return threads.loop(f"{name}_thread", load)


class AccumulatorTile:
    """`rows` × `columns` accumulators, distributed over the threads of a block."""

    def __init__(
        self, name: str, threads: ThreadGrid, dtype: DType, rows: int, columns: int
    ) -> None:
        self.name, self.threads, self.dtype = name, threads, dtype
        self.rows, self.columns = rows, columns
        self.thread_rows, self.thread_columns = rows // threads.rows, columns // threads.columns
        self.registers = [
            [ir.Register(f"{name}{i}_{j}", dtype, lanes=True) for j in range(self.thread_columns)]
            for i in range(self.thread_rows)
        ]

    def elements(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(self.thread_rows) for j in range(self.thread_columns)]

    def clear(self) -> list[Stmt]:
        return [ir.Set(self.registers[i][j], const(0, self.dtype)) for i, j in self.elements()]

    def read(self, i: int, j: int) -> Expr:
        return ir.read(self.registers[i][j])

    def row(self, lane: Expr, i: int) -> Expr:
        return tile_index(self.thread_rows, self.threads.rows, self.threads.row(lane), i)

    def column(self, lane: Expr, j: int) -> Expr:
        return tile_index(self.thread_columns, self.threads.columns, self.threads.column(lane), j)

    def add(self, lane: Expr, left: SmemTile, right: SmemTile) -> Stmt:
        """acc += left' @ right."""
        assert left.depth == right.depth
        k = ir.var(f"{self.name}_k")
        body: list[Stmt] = []
        for u in range(UNROLL):
            step = k + u
            a, b = (
                [ir.var(f"{self.name}{tag}{u}_{i}", self.dtype) for i in range(count)]
                for tag, count in (("a", self.thread_rows), ("b", self.thread_columns))
            )
            for i, x in enumerate(a):
                body.append(ir.Let(x, ir.load(left.buffer, left.at(step, self.row(lane, i)))))
            for j, x in enumerate(b):
                body.append(ir.Let(x, ir.load(right.buffer, right.at(step, self.column(lane, j)))))
            for i, j in self.elements():
                c = self.registers[i][j]
                body.append(ir.Set(c, ir.fma(a[i], b[j], ir.read(c), allow_unfused=True)))
        return ir.For(k, ZERO, const(left.depth), "serial", body, step=const(UNROLL))
