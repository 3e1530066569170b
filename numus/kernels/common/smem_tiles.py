"""Swizzled tiles of 16-bit matrices in shared memory, as wgmma reads them, and their epilogue.

Rows are stored in blocks of 64 columns with the 128-byte XOR swizzle (`ir.MmaOperand`), so that a
tile can be multiplied along its columns and along its rows. Matrices in memory are copied
asynchronously, expressions evaluated; zeros stand for what is out of bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, Stmt, const

ZERO, ONE = const(0), const(1)

VECTOR = 8  # elements of a 16-byte copy
SWIZZLE_COLUMNS = 64  # of a swizzled row
MMA_K = 16


def round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def tile_bytes(rows: int, columns: int) -> int:
    """Of a tile of 16-bit floats."""
    return rows * round_up(columns, SWIZZLE_COLUMNS) * 2


@dataclass(slots=True)
class StridedMatrix:
    """Row-major matrices of a batch in memory."""

    buffer: ir.Buffer
    offset: Callable[[Expr], Expr]  # of the n-th matrix
    stride: Expr  # from row to row
    aligned: Callable[[Expr], Expr]  # 16-byte copies of the n-th matrix are


@dataclass(slots=True)
class RowUpdate:
    """A row that is not what memory has: that whose `place(n, row)` is the `position`, with the
    elements `read(n, column)`."""

    position: Expr
    place: Callable[[Expr, Expr], Expr]
    read: Callable[[Expr, Expr], Expr]


@dataclass(slots=True)
class Matrix:
    """A batch of matrices; `read(n, row, column, mask)` is an element."""

    read: Callable[[Expr, Expr, Expr, Expr], Expr]
    columns: Expr
    memory: StridedMatrix | None
    update: RowUpdate | None = None


_Rows = tuple[Expr, Expr, Expr, Expr]  # matrix, first row, end of the matrix, stage


class SmemTile:
    """Some rows of a matrix with all of its columns, in one or several stages."""

    def __init__(
        self, name: str, matrix: Matrix, dtype: DType, rows: int, columns: int, stages: int = 1
    ) -> None:
        self.name, self.matrix, self.rows = name, matrix, rows
        self.columns = round_up(columns, MMA_K)
        self.size = rows * round_up(columns, SWIZZLE_COLUMNS)
        self.stages = stages
        self.buffer = ir.Buffer(name, dtype, "scratch", const(stages * self.size))

    def k_major(self, stage: Expr = ZERO) -> ir.MmaOperand:
        """As an operand whose k are its columns."""
        return ir.MmaOperand(self.buffer, stage * self.size, True, self.rows)

    def mn_major(self, stage: Expr = ZERO) -> ir.MmaOperand:
        """As an operand whose k are its rows, all of them."""
        return ir.MmaOperand(self.buffer, stage * self.size, False)

    def load(
        self, tag: str, threads: int, n: Expr, first: Expr, limit: Expr, stage: Expr = ZERO
    ) -> list[Stmt]:
        """Begin to load the rows from `first` on, of which those before `limit` exist."""
        tag, rows, memory = f"{self.name}_{tag}", (n, first, limit, stage), self.matrix.memory
        if memory is None:
            return self._evaluate(tag, threads, rows)
        aligned = memory.aligned(n)
        whole = (first + self.rows <= limit) & self.matrix.columns.eq(self.columns)
        return [
            ir.If(aligned & whole, self._copy(f"{tag}whole", threads, rows, True)),
            ir.If(aligned & ~whole, self._copy(f"{tag}predicated", threads, rows, False)),
            ir.If(~aligned, self._evaluate(tag, threads, rows)),
        ]

    @property
    def _row_vectors(self) -> int:
        """Vectors of a row, rounded up to a power of two."""
        return 1 << (self.columns // VECTOR - 1).bit_length()

    def _thread_vectors(self, threads: int) -> tuple[int, int]:
        """Vectors of a thread, and rows from one to the next."""
        return max(1, self.rows * self._row_vectors // threads), threads // self._row_vectors

    def _swizzled(self, row: Expr, column: Expr) -> Expr:
        block, inner = divmod(column, SWIZZLE_COLUMNS)
        vector = (inner // VECTOR) ^ (row % VECTOR)
        return block * (SWIZZLE_COLUMNS * self.rows) + row * SWIZZLE_COLUMNS + vector * VECTOR

    def _thread_loop(self, threads: int, lane: Expr, body: list[Stmt]) -> list[Stmt]:
        """Threads without a vector are predicated off."""
        vectors = self._row_vectors
        if self.rows * vectors < threads:
            body = [ir.If(lane < self.rows * vectors, body)]
        if vectors > self.columns // VECTOR:
            body = [ir.If(lane % vectors < self.columns // VECTOR, body)]
        return [ir.For(lane, ZERO, const(threads), "lanes", body)]

    def _copy(self, tag: str, threads: int, part: _Rows, whole: bool) -> list[Stmt]:
        n, first, limit, stage = part
        memory = self.matrix.memory
        assert memory is not None
        lane, vectors = ir.var(tag), self._row_vectors
        row, column = lane // vectors, lane % vectors * VECTOR
        base, own = memory.offset(n) + first * memory.stride, row * memory.stride + column
        swizzled = self._swizzled(row, column)
        count, rows = self._thread_vectors(threads)
        body: list[Stmt] = []
        for number in range(count):
            down = const(number * rows)
            to = swizzled + down * SWIZZLE_COLUMNS
            if rows % VECTOR:
                to = self._swizzled(row + down, column)
            index = base + down * memory.stride + own
            left = const(VECTOR)
            if not whole:
                exists = first + row + down < limit
                left = ir.select(exists, self.matrix.columns - column, ZERO)
            at = stage * self.size + to
            body.append(ir.AsyncCopy(self.buffer, at, memory.buffer, index, left))
        return self._thread_loop(threads, lane, body)

    def _evaluate(self, tag: str, threads: int, part: _Rows) -> list[Stmt]:
        n, first, limit, stage = part
        lane, number = ir.var(f"{tag}read"), ir.var(f"{tag}number")
        vectors, (count, rows) = self._row_vectors, self._thread_vectors(threads)
        row, column = lane // vectors + number * rows, lane % vectors * VECTOR
        to = stage * self.size + self._swizzled(row, column)
        zero = const(0.0, float32).cast(self.buffer.dtype)
        body: list[Stmt] = []
        for u in range(VECTOR):
            at = column + u
            exists = (first + row < limit) & (at < self.matrix.columns)
            value = self.matrix.read(n, first + row, at, exists)
            body.append(ir.Store(self.buffer, to + u, ir.select(exists, value, zero)))
        loop = ir.For(number, ZERO, const(count), "serial", body)
        return [*self._thread_loop(threads, lane, [loop]), ir.AsyncFence()]


@dataclass(slots=True)
class Vector:
    """An element for each row of a batch of matrices; `read(n, row, mask)`."""

    read: Callable[[Expr, Expr, Expr], Expr]
    memory: StridedMatrix | None  # whose rows are the vectors


class SmemVector:
    """Part of a float32 vector, in several stages."""

    def __init__(self, name: str, vector: Vector, rows: int, stages: int) -> None:
        self.name, self.vector, self.rows = name, vector, rows
        self.buffer = ir.Buffer(name, float32, "scratch", const(stages * rows))

    def load(
        self, tag: str, threads: int, n: Expr, first: Expr, limit: Expr, stage: Expr
    ) -> list[Stmt]:
        """Begin to load the elements from `first` on; zeros from `limit` on."""
        start = stage * self.rows
        lane = ir.var(f"{self.name}_{tag}read")
        row = first + lane
        value = self.vector.read(n, row, row < limit)
        store = ir.Store(self.buffer, start + lane, value)
        evaluate = ir.For(lane, ZERO, const(self.rows), "lanes", [store])
        memory = self.vector.memory
        if memory is None:
            return [evaluate]
        lane = ir.var(f"{self.name}_{tag}copy")
        offset = lane * (16 // float32.itemsize)
        row = first + offset
        index, left = memory.offset(n) + row, limit - row
        copy = ir.AsyncCopy(self.buffer, start + offset, memory.buffer, index, left)
        some = ir.If(lane < self.rows // 4, [copy])
        aligned = memory.aligned(n)
        copies = ir.For(lane, ZERO, const(threads), "lanes", [some])
        return [ir.If(aligned, [copies]), ir.If(~aligned, [evaluate])]

    def at(self, row: Expr, stage: Expr) -> Expr:
        return ir.load(self.buffer, stage * self.rows + row)


SUBTILE_COLUMNS = 32  # that the epilogue stores at a time
_LD = SUBTILE_COLUMNS + 8  # against bank conflicts
_WARP = 32


def stage_buffer(rows: int) -> ir.Buffer:
    """Shared memory of the epilogue."""
    return ir.Buffer("stage", float32, "scratch", const(rows * _LD))


def stage_bytes(rows: int) -> int:
    return rows * _LD * 4


def store_accumulators(
    tag: str,
    threads: int,
    stage: ir.Buffer,
    columns: int,
    value: Callable[[int, Expr], Expr],
    write: Callable[[Expr, Expr, Expr], list[Stmt]],
    exists: Callable[[Expr, Expr], Expr],
) -> list[Stmt]:
    """Accumulators through shared memory, for coalesced stores, each warp's by itself if the stage
    is private to warps.

    `value(number, lane)` is a thread's accumulator; `write(row, column, value)` stores an element
    of those that exist.
    """
    rows = threads // 2
    out: list[Stmt] = []
    for first in range(0, columns, SUBTILE_COLUMNS):
        width = min(SUBTILE_COLUMNS, columns - first)
        lane, at = ir.var(f"{tag}_stage{first}"), ir.var(f"{tag}_out{first}")
        to_shared: list[Stmt] = []
        for i in range(width // 2):
            row, column = ir.accumulator_element(lane, i)
            to = row * _LD + column
            to_shared.append(ir.Store(stage, to, value(first // 2 + i, lane)))
        out.append(ir.For(lane, ZERO, const(threads), "lanes", to_shared))
        row, column = at // (width // VECTOR), at % (width // VECTOR) * VECTOR
        if stage.warp_private:  # a warp has 16 rows
            row, own = at % threads // _WARP * 16, at % _WARP // (width // VECTOR)
            row += at // threads * (_WARP * VECTOR // width) + own
        base, column = row * _LD + column, column + first
        names = [ir.var(f"{tag}_v{first}_{u}", float32) for u in range(VECTOR)]
        loads: list[Stmt] = [ir.Let(name, ir.load(stage, base + u)) for u, name in enumerate(names)]
        values = [write(row, column + u, name) for u, name in enumerate(names)]
        whole = [stores[k] for k in range(len(values[0])) for stores in values]
        u = ir.var(f"{tag}_one{first}")
        one = write(row, column + u, ir.load(stage, base + u))
        last = exists(row, column + (VECTOR - 1))
        element = ir.If(exists(row, column + u), one)
        rest = ir.For(u, ZERO, const(VECTOR), "serial", [element])
        body: list[Stmt] = [ir.If(last, [*loads, *whole]), ir.If(~last, [rest])]
        out.append(ir.For(at, ZERO, const(rows * width // VECTOR), "lanes", body))
    return out
