"""Epilogue of the persistent wgmma GEMM: each warp by itself, without block barriers.

A warp stores its 16 rows in subtiles of columns through shared memory. Of whole tiles, results of
the epilogue are staged and stored as 16-byte vectors; of partial or misaligned tiles, accumulators
are staged and every store is predicated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType, bool_
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.mainloop import STORE_VECTOR, store_vector
from numus.kernels.matmul.gpu.problem import Epilogue

ZERO = const(0)

WARP, WARP_ROWS, WARPS = 32, 16, 8
ROW_BYTES = 256  # of a row that a warp stores at a time
SHORT_ROW_BYTES = 64  # where blocks share an SM
PADDING_BYTES = 16  # between rows, against bank conflicts


def smem_bytes(row_bytes: int) -> int:
    return WARPS * WARP_ROWS * (row_bytes + PADDING_BYTES)


@dataclass(frozen=True, slots=True)
class EpilogueShape:
    """Tile of a block, columns of a warp, bytes per row of a subtile, and the extents of C."""

    tile: tuple[int, int]
    warp_n: int
    row_bytes: int
    extents: tuple[Expr, Expr]

    def subtile_n(self, itemsize: int) -> int:
        return min(self.row_bytes // itemsize, self.warp_n)


Coordinate = tuple[Expr, Expr, Expr]  # batch and split as one number, m, n


def stores_whole_rows(itemsizes: tuple[int, ...], columns: int) -> bool:
    """There is one result, whose rows begin at multiples of 16 bytes."""
    return len(itemsizes) == 1 and itemsizes[0] <= 4 and columns * itemsizes[0] % 16 == 0


def store_accumulators(
    shape: EpilogueShape,
    accumulator: DType,
    sums: list[ir.Register],
    origin: Coordinate,
    epilogue: Epilogue,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Statements and scratch. The epilogue has one result (`stores_whole_rows`)."""
    _, m0, n0 = origin
    store = _store(epilogue, origin, ir.read(sums[0]))
    dtype = store.buffer.dtype
    nbytes = smem_bytes(shape.row_bytes)
    results = ir.Buffer(
        "results", dtype, "scratch", const(nbytes // dtype.itemsize), warp_private=True
    )
    size = const(nbytes // accumulator.itemsize)
    stage = ir.Buffer("stage", accumulator, "scratch", size, results, warp_private=True)
    address = ir.add(ir.address(store.buffer), ir.mul(store.index, const(dtype.itemsize)))
    (tile_m, tile_n), (m, n) = shape.tile, shape.extents
    in_bounds = (ir.add(m0, const(tile_m)) <= m) & (ir.add(n0, const(tile_n)) <= n)
    whole = ir.var("whole", bool_)
    return [
        ir.Let(whole, in_bounds & (address & const(15)).eq(0)),
        ir.If(whole, _store_vectors(shape, results, sums, origin, epilogue)),
        ir.If(~whole, _store_predicated(shape, stage, sums, origin, epilogue)),
    ], [results, stage]


def _store(epilogue: Epilogue, at: Coordinate, value: Expr) -> ir.Store:
    (store,) = epilogue(*at, value)
    assert isinstance(store, ir.Store)
    return store


def _store_vectors(
    shape: EpilogueShape,
    results: ir.Buffer,
    sums: list[ir.Register],
    origin: Coordinate,
    epilogue: Epilogue,
) -> list[Stmt]:
    dtype = results.dtype
    width = min(STORE_VECTOR, 16 // dtype.itemsize)
    body: list[Stmt] = []
    for subtile in _subtiles(shape, results, sums, origin):
        body.append(subtile.to_shared(lambda at, c: _store(epilogue, at, c).value))
        lane, first, (which, m, n), rows = subtile.vectors()
        stores: list[Stmt] = []
        for i in range(WARP_ROWS // rows):
            base = ir.add(first, const(i * rows * subtile.ld))
            names = [ir.var(f"v{subtile.number}_{i}_{u}", dtype) for u in range(STORE_VECTOR)]
            stores += [
                ir.Let(v, ir.load(results, ir.add(base, const(u)))) for u, v in enumerate(names)
            ]
            for u, v in enumerate(names):
                at = (which, ir.add(m, const(i * rows)), ir.add(n, const(u)))
                store = _store(epilogue, at, ir.read(sums[0]))
                vector = width if u % width == 0 else 0
                stores.append(ir.Store(store.buffer, store.index, v, vector=vector))
        body.append(ir.For(lane, ZERO, const(WARPS * WARP), "lanes", stores))
    return body


def _store_predicated(
    shape: EpilogueShape,
    stage: ir.Buffer,
    sums: list[ir.Register],
    origin: Coordinate,
    epilogue: Epilogue,
) -> list[Stmt]:
    body: list[Stmt] = []
    for subtile in _subtiles(shape, stage, sums, origin):
        body.append(subtile.to_shared(lambda at, c: c))
        lane, first, (which, m, n), rows = subtile.vectors()
        i = ir.var(f"row{subtile.number}")
        down = ir.mul(i, const(rows))
        base = ir.add(first, ir.mul(down, const(subtile.ld)))
        at = (which, ir.add(m, down), n)
        one = store_vector(stage, base, at, shape.extents, epilogue, f"s{subtile.number}")
        loop = ir.For(i, ZERO, const(WARP_ROWS // rows), "serial", one)
        body.append(ir.For(lane, ZERO, const(WARPS * WARP), "lanes", [loop]))
    return body


@dataclass(slots=True)
class _Subtile:
    """Some columns of every warp, in a shared buffer."""

    number: int
    shape: EpilogueShape
    buffer: ir.Buffer
    sums: list[ir.Register]  # of these columns
    origin: Coordinate

    @property
    def columns(self) -> int:
        return self.shape.subtile_n(self.buffer.dtype.itemsize)

    @property
    def ld(self) -> int:
        return self.columns + PADDING_BYTES // self.buffer.dtype.itemsize

    def _warp(self, name: str) -> tuple[Expr, Expr, Expr, Coordinate]:
        """Thread, lane of its warp, index of the warp's rows in the buffer, and their origin."""
        which, m0, n0 = self.origin
        lane = ir.var(f"{self.buffer.name}_{name}{self.number}")
        warp, thread = ir.idiv(lane, const(WARP)), ir.irem(lane, const(WARP))
        warps_m = const(self.shape.tile[0] // WARP_ROWS)
        m = ir.add(m0, ir.mul(ir.irem(warp, warps_m), const(WARP_ROWS)))
        n = ir.add(n0, ir.mul(ir.idiv(warp, warps_m), const(self.shape.warp_n)))
        n = ir.add(n, const(self.number * self.columns))
        return lane, thread, ir.mul(warp, const(WARP_ROWS * self.ld)), (which, m, n)

    def to_shared(self, value: Callable[[Coordinate, Expr], Expr]) -> Stmt:
        """Accumulators, or values made of them, to the buffer."""
        lane, thread, base, (which, m, n) = self._warp("in")
        row, column = ir.idiv(thread, const(4)), ir.mul(ir.irem(thread, const(4)), const(2))
        first = ir.add(base, ir.add(ir.mul(row, const(self.ld)), column))
        m, n = ir.add(m, row), ir.add(n, column)
        stores: list[Stmt] = []
        for i, c in enumerate(self.sums):
            down, right = i // 2 % 2 * 8, i // 4 * 8 + i % 2
            at = (which, ir.add(m, const(down)), ir.add(n, const(right)))
            to = ir.add(first, const(down * self.ld + right))
            stores.append(ir.Store(self.buffer, to, value(at, ir.read(c))))
        return ir.For(lane, ZERO, const(WARPS * WARP), "lanes", stores)

    def vectors(self) -> tuple[Expr, Expr, Coordinate, int]:
        """Thread, index and coordinate of its first vector, and rows that a warp covers at once."""
        lane, thread, base, (which, m, n) = self._warp("out")
        across = const(self.columns // STORE_VECTOR)
        row, column = ir.idiv(thread, across), ir.mul(ir.irem(thread, across), const(STORE_VECTOR))
        first = ir.add(base, ir.add(ir.mul(row, const(self.ld)), column))
        rows = WARP * STORE_VECTOR // self.columns
        return lane, first, (which, ir.add(m, row), ir.add(n, column)), rows


def _subtiles(
    shape: EpilogueShape, buffer: ir.Buffer, sums: list[ir.Register], origin: Coordinate
) -> Iterator[_Subtile]:
    columns = shape.subtile_n(buffer.dtype.itemsize)
    for number in range(shape.warp_n // columns):
        own = sums[number * columns // 2 : (number + 1) * columns // 2]
        yield _Subtile(number, shape, buffer, own, origin)
