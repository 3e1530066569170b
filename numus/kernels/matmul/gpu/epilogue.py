"""GEMM epilogues: accumulators through shared memory, for coalesced stores.

A block stages its tile, or subtiles of it, between barriers. In the persistent wgmma GEMM, a warp
stores its 16 rows by itself, in subtiles of columns. Of whole tiles, results of the epilogue are
staged and stored as 16-byte vectors, or accumulators are, whose epilogue then reads its operands as
such vectors; of partial or misaligned tiles, accumulators are staged and every store is predicated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from numus import ir
from numus.dtypes import bool_
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.epilogue_vectors import STORE_VECTOR, VectorValues, vector_values
from numus.kernels.matmul.gpu.mainloop import Accumulators, SplitKSizes
from numus.kernels.matmul.gpu.problem import Coordinate, Emitted, GemmCall

ZERO = const(0)

Call = GemmCall[Any, SplitKSizes, Any]


class Subtile(NamedTuple):
    """A part of a block's tile that is stored at a time."""

    m: int  # offsets in the tile
    n: int
    registers: Iterable[int]  # in the order in which threads stage them
    own: Callable[[Expr], Expr] | None = None  # threads that have them


def store_subtiles(
    call: Call,
    sums: Accumulators,
    shape: tuple[int, int],
    stage: ir.Buffer,
    ld: int,
    subtiles: Iterable[Subtile],
    vector: int = STORE_VECTOR,
) -> list[Stmt]:
    """Accumulators through shared memory and the epilogue."""
    which, m0, n0 = sums.origin
    out: list[Stmt] = []
    for number, (m, n, registers, own) in enumerate(subtiles):
        lane = ir.var(f"stage_lane{number}")
        to_shared: list[Stmt] = []
        for i in registers:
            row, column = sums.coordinates(lane, i)
            value = ir.read(sums.registers[i])
            to_shared.append(ir.Store(stage, (row - m) * ld + (column - n), value))
        if own is not None:
            to_shared = [ir.If(own(lane), to_shared)]
        out.append(ir.For(lane, ZERO, const(sums.threads), "lanes", to_shared))
        out.append(store_tile(call, stage, shape, ld, (which, m0 + m, n0 + n), f"{number}", vector))
    return out


def store_tile(
    call: Call,
    stage: ir.Buffer,
    shape: tuple[int, int],
    ld: int,
    origin: Coordinate,
    tag: str = "",
    vector: int = STORE_VECTOR,
) -> Stmt:
    """A tile from shared memory through the epilogue, vector by vector."""
    which, m0, n0 = origin
    lane = ir.var(f"out{tag}")
    row, column = lane // (shape[1] // vector), lane % (shape[1] // vector) * vector
    at = (which, m0 + row, n0 + column)
    body = store_vector(call, stage, row * ld + column, at, tag, vector)
    return ir.For(lane, ZERO, const(shape[0] * shape[1] // vector), "lanes", body)


def store_vector(
    call: Call, stage: ir.Buffer, base: Expr, at: Coordinate, tag: str, vector: int = STORE_VECTOR
) -> list[Stmt]:
    """Contiguous elements of a row from shared memory through the epilogue, those that exist."""
    epilogue, extents = call.epilogue, (call.sizes.m, call.sizes.n)
    which, m, n = at
    values = [ir.var(f"v{tag}_{u}", stage.dtype) for u in range(vector)]
    loads: list[Stmt] = [ir.Let(v, ir.load(stage, base + u)) for u, v in enumerate(values)]
    fused = [epilogue(which, m, n + u, v) for u, v in enumerate(values)]
    whole = [stores[i] for i in range(len(fused[0])) for stores in fused]
    u = ir.var(f"u{tag}")
    one = epilogue(which, m, n + u, ir.load(stage, base + u))
    row, last = m < extents[0], n + vector
    return [
        ir.If(row & (last <= extents[1]), [*loads, *whole]),
        ir.If(row & (last > extents[1]), [ir.For(u, ZERO, extents[1] - n, "serial", one)]),
    ]


WARP, WARP_ROWS, WARPS = 32, 16, 8
ROW_BYTES = 256  # of a row that a warp stores at a time
SHORT_ROW_BYTES = 64  # where blocks share an SM
PADDING_BYTES = 16  # between rows, against bank conflicts


def smem_bytes(row_bytes: int) -> int:
    return WARPS * WARP_ROWS * (row_bytes + PADDING_BYTES)


def stores_whole_rows(itemsizes: tuple[int, ...], columns: int) -> bool:
    """There is one result, whose rows begin at multiples of 16 bytes."""
    return len(itemsizes) == 1 and itemsizes[0] <= 4 and columns * itemsizes[0] % 16 == 0


@dataclass(slots=True)
class WarpEpilogue:
    """Accumulators of a block's tile to C. There is one result (`stores_whole_rows`)."""

    call: Call
    tile: tuple[int, int]
    warp_n: int
    row_bytes: int  # of a subtile
    sums: list[ir.Register]
    origin: Coordinate

    def store(self) -> Emitted:
        _, m0, n0 = self.origin
        store, accumulator = self._element(self.origin, ir.read(self.sums[0])), self.sums[0].dtype
        dtype, nbytes = store.buffer.dtype, smem_bytes(self.row_bytes)
        size = const(nbytes // dtype.itemsize)
        results = ir.Buffer("results", dtype, "scratch", size, warp_private=True)
        size = const(nbytes // accumulator.itemsize)
        stage = ir.Buffer("stage", accumulator, "scratch", size, results, warp_private=True)
        address = ir.address(store.buffer) + store.index * dtype.itemsize
        (tile_m, tile_n), s = self.tile, self.call.sizes
        in_bounds = (m0 + tile_m <= s.m) & (n0 + tile_n <= s.n)
        whole = ir.var("whole", bool_)
        operands = self._vector_operands(stage)
        if operands is not None:
            for buffer in operands:
                in_bounds = in_bounds & (ir.address(buffer) & const(15)).eq(0)
        return [
            ir.Let(whole, in_bounds & (address & const(15)).eq(0)),
            ir.If(whole, self._store(results if operands is None else stage, whole=True)),
            ir.If(~whole, self._store(stage, whole=False)),
        ], [results, stage]

    def _element(self, at: Coordinate, value: Expr) -> ir.Store:
        (store,) = self.call.epilogue(*at, value)
        assert isinstance(store, ir.Store)
        return store

    def _result(self, at: Coordinate, value: Expr) -> Expr:
        return self._element(at, value).value

    def _vector_operands(self, stage: ir.Buffer) -> list[ir.Buffer] | None:
        """The operands that the epilogue reads as vectors; None where it has none for each row, or
        may not: then it is computed before results are staged."""
        if self.call.store_only:
            return None
        _, _, (which, m, n), _ = next(self._subtiles(stage)).vectors("plan")
        values: list[Expr] = [ir.var(f"plan{u}", stage.dtype) for u in range(STORE_VECTOR)]
        found, below = (self._vector((which, m + i, n), values, "") for i in (0, 1))
        varies = found is not None and below is not None and found.indices != below.indices
        return found.operands if found is not None and varies else None

    def _vector(self, at: Coordinate, values: list[Expr], tag: str) -> VectorValues | None:
        def is_aligned(x: Expr) -> bool:
            return self.call.is_aligned(x) or (x is self.origin[2] and self.tile[1] % 8 == 0)

        return vector_values(self._element, at, values, is_aligned, tag)

    def _store(self, buffer: ir.Buffer, whole: bool) -> list[Stmt]:
        body: list[Stmt] = []
        staged = whole and buffer.name == "results"  # or computed as it is stored
        for subtile in self._subtiles(buffer):
            body.append(subtile.to_shared(self._result if staged else lambda at, c: c))
            lane, first, at, rows = subtile.vectors()
            store = self._store_vectors if staged else self._store_computed
            store = store if whole else self._store_predicated
            stores = store(subtile, first, at, rows)
            body.append(ir.For(lane, ZERO, const(WARPS * WARP), "lanes", stores))
        return body

    def _store_vectors(
        self, subtile: _Subtile, first: Expr, at: Coordinate, rows: int
    ) -> list[Stmt]:
        buffer, (which, m, n) = subtile.buffer, at
        width = min(STORE_VECTOR, 16 // buffer.dtype.itemsize)
        stores: list[Stmt] = []
        for i in range(0, WARP_ROWS, rows):
            name, base = f"v{subtile.number}_{i}", first + i * subtile.ld
            values = [ir.var(f"{name}_{u}", buffer.dtype) for u in range(STORE_VECTOR)]
            stores += [ir.Let(v, ir.load(buffer, base + u)) for u, v in enumerate(values)]
            first_store = self._element((which, m + i, n), ir.read(self.sums[0]))
            for u, v in enumerate(values):
                vector = width if u % width == 0 else 0
                index = first_store.index + u
                stores.append(ir.Store(first_store.buffer, index, v, vector=vector))
        return stores

    def _store_computed(
        self, subtile: _Subtile, first: Expr, at: Coordinate, rows: int
    ) -> list[Stmt]:
        """Through the epilogue, whose operands are loaded as vectors."""
        buffer, (which, m, n) = subtile.buffer, at
        stores: list[Stmt] = []
        for i in range(0, WARP_ROWS, rows):
            name, base = f"v{subtile.number}_{i}", first + i * subtile.ld
            values = [ir.var(f"{name}_{u}", buffer.dtype) for u in range(STORE_VECTOR)]
            stores += [ir.Let(v, ir.load(buffer, base + u)) for u, v in enumerate(values)]
            found = self._vector((which, m + i, n), values, name)
            assert found is not None
            stores += [*found.loads, *found.stores]
        return stores

    def _store_predicated(
        self, subtile: _Subtile, first: Expr, at: Coordinate, rows: int
    ) -> list[Stmt]:
        i, (which, m, n) = ir.var(f"row{subtile.number}"), at
        base, at = first + i * rows * subtile.ld, (which, m + i * rows, n)
        one = store_vector(self.call, subtile.buffer, base, at, f"s{subtile.number}")
        return [ir.For(i, ZERO, const(WARP_ROWS // rows), "serial", one)]

    def _subtiles(self, buffer: ir.Buffer) -> Iterator[_Subtile]:
        # a power of two, of which a warp's columns are a multiple
        columns = min(self.row_bytes // buffer.dtype.itemsize, self.warp_n & -self.warp_n)
        for number in range(self.warp_n // columns):
            own = self.sums[number * columns // 2 : (number + 1) * columns // 2]
            yield _Subtile(number, columns, self, buffer, own)


@dataclass(slots=True)
class _Subtile:
    """Some columns of every warp, in a shared buffer."""

    number: int
    columns: int
    epilogue: WarpEpilogue
    buffer: ir.Buffer
    sums: list[ir.Register]  # of these columns

    @property
    def ld(self) -> int:
        return self.columns + PADDING_BYTES // self.buffer.dtype.itemsize

    def _warp(self, name: str) -> tuple[Expr, Expr, Expr, Coordinate]:
        """Thread, lane of its warp, index of the warp's rows in the buffer, and their origin."""
        which, m0, n0 = self.epilogue.origin
        lane = ir.var(f"{self.buffer.name}_{name}{self.number}")
        warp, thread = divmod(lane, WARP)
        warp_n, warp_m = divmod(warp, self.epilogue.tile[0] // WARP_ROWS)
        n = n0 + warp_n * self.epilogue.warp_n + self.number * self.columns
        at = (which, m0 + warp_m * WARP_ROWS, n)
        return lane, thread, warp * (WARP_ROWS * self.ld), at

    def to_shared(self, value: Callable[[Coordinate, Expr], Expr]) -> Stmt:
        """Accumulators, or values made of them, to the buffer."""
        lane, thread, base, (which, m, n) = self._warp("in")
        row, column = thread // 4, thread % 4 * 2
        first = base + row * self.ld + column
        m, n = m + row, n + column
        stores: list[Stmt] = []
        for i, c in enumerate(self.sums):
            down, right = i // 2 % 2 * 8, i // 4 * 8 + i % 2
            at = (which, m + down, n + right)
            to = first + down * self.ld + right
            stores.append(ir.Store(self.buffer, to, value(at, ir.read(c))))
        return ir.For(lane, ZERO, const(WARPS * WARP), "lanes", stores)

    def vectors(self, name: str = "out") -> tuple[Expr, Expr, Coordinate, int]:
        """Thread, index and coordinate of its first vector, and rows that a warp covers at once."""
        lane, thread, base, (which, m, n) = self._warp(name)
        across, rows = self.columns // STORE_VECTOR, WARP * STORE_VECTOR // self.columns
        row, column = thread // across, thread % across * STORE_VECTOR
        return lane, base + row * self.ld + column, (which, m + row, n + column), rows
