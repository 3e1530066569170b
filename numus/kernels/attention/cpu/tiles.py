"""Register tiles and packed operands of CPU attention (BLIS-style panels).

Scores are keys × queries with queries in the lanes: the softmax is lane-wise and its tile is the
left operand of the next GEMM.

    [panel][column][query]           Q transposed: right operand of the scores
    [tile][column / W][key][W]       K, broadcast: left operand of the scores
    [panel of columns][row][column]  V (K, Q, dO): right operand of the second GEMM
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.common.register_transpose import transpose_registers
from numus.target import Target

ZERO, ONE = const(0), const(1)

UNROLL = 4  # steps of the inner (k) loop
FMA_LATENCY = 4  # cycles, with two FMAs issued in each

Read = Callable[[Expr, Expr], Expr]  # the element at (row, column)


def ceil_to(a: Expr, b: int) -> Expr:
    """a, rounded up to a multiple of b."""
    return (a + (b - 1)) // b * b


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile of rows × vectors."""

    rows: int
    vectors: int
    width: int

    @property
    def columns(self) -> int:
        return self.vectors * self.width

    @property
    def column_block(self) -> int:
        """Columns of a packed row that are contiguous."""
        return max(self.width, UNROLL)


def tile_for(target: Target, width: int, columns: int, rows: Sequence[int]) -> Tile:
    """The register tile of minimum estimated time for a number of columns, of the given rows."""
    vectors = max(1, -(-columns // width))
    best: tuple[float, Tile] | None = None
    for r in rows:
        for v in range(1, min(vectors, 8) + 1):
            if r * v + v + 1 > target.vector_registers:
                continue
            cycles = max(r * v / 2, (r + v) / 2, FMA_LATENCY) + 0.01 * (r + v)
            cost = -(-vectors // v) * cycles / r
            if best is None or cost < best[0]:
                best = (cost, Tile(r, v, width))
    assert best is not None
    return best[1]


def scores_tile(target: Target, dtype: DType, queries: int) -> Tile:
    """The register tile of the scores: keys × queries."""
    width = target.vector_bytes // dtype.itemsize
    vectors = 1 if queries <= width else 2
    return Tile(8 if target.vector_registers >= 32 or vectors == 1 else 4, vectors, width)


def divisors(n: int) -> list[int]:
    """Powers of two up to 16 that divide n."""
    return [r for r in (1, 2, 4, 8, 16) if n % r == 0]


# -- packing --------------------------------------------------------------------------------------


def _cleared(name: str, buffer: ir.Buffer, size: Expr, has_padding: Expr) -> Stmt:
    """Zero-fill, where padding is not going to be written."""
    z = ir.var(f"{name}_z")
    clear = ir.For(z, ZERO, size, "lanes", [ir.Store(buffer, z, const(0, buffer.dtype))])
    return ir.If(has_padding, [clear])


def pack_panels(
    name: str, buffer: ir.Buffer, read: Read, tile: Tile, rows: Expr, columns: Expr
) -> list[Stmt]:
    """Transposed panels of rows; zeros beyond the last column, garbage beyond the last row.

    Lanes run along a row: contiguous loads, strided stores.
    """
    p, c, i = (ir.var(f"{name}_{x}") for x in "pcj")
    depth = ceil_to(columns, UNROLL)
    at = p * depth + c * tile.columns + i
    row = ir.For(c, ZERO, columns, "lanes", [ir.Store(buffer, at, read(p + i, c))])
    rest = ir.minimum(rows - p, tile.columns)
    panel = ir.For(i, ZERO, rest, "serial", [row])
    return [
        _cleared(name, buffer, ceil_to(rows, tile.columns) * depth, depth.ne(columns)),
        ir.For(p, ZERO, rows, "serial", [panel], step=const(tile.columns)),
    ]


def transpose_panels(
    name: str, buffers: list[ir.Buffer], read: Read, tile: Tile, rows: Expr, columns: Expr
) -> list[Stmt]:
    """Transposed panels in the first buffer, by register transposes of rows in the second.

    The last transpose may write past its panel: the buffer ends with room for one more square.
    """
    (buffer, staging), width = buffers, const(tile.width)
    p, v, i, c, j = (ir.var(f"{name}_{x}") for x in "pvicj")
    pitch, depth = ceil_to(columns, tile.width), ceil_to(columns, UNROLL)
    row = p + (v + i)
    row_at = ir.Store(staging, i * pitch + c, read(row, c))
    rows_left = ir.minimum(rows - (p + v), width)
    stage = ir.For(i, ZERO, rows_left, "serial", [ir.For(c, ZERO, columns, "lanes", [row_at])])
    rows_in = [ir.load(staging, k * pitch + c + j) for k in range(tile.width)]
    lets, transposed_rows = transpose_registers(rows_in, j, buffer.dtype)
    at = p * depth + v + j
    stores = [
        ir.Store(buffer, at + (c + k) * tile.columns, x) for k, x in enumerate(transposed_rows)
    ]
    transpose = ir.For(j, ZERO, width, "lanes", [*lets, *stores], width=tile.width)
    columns_loop = ir.For(c, ZERO, columns, "serial", [transpose], step=width)
    vectors = ir.For(v, ZERO, const(tile.columns), "serial", [stage, columns_loop], step=width)
    return [
        _cleared(name, staging, width * pitch, pitch.ne(columns)),
        ir.For(p, ZERO, rows, "serial", [vectors], step=const(tile.columns)),
    ]


def pack_tiles(
    name: str, buffer: ir.Buffer, read: Read, tile: Tile, rows: Expr, columns: Expr
) -> list[Stmt]:
    """Tiles of rows, interleaved by blocks of columns; zeros beyond the last column."""
    t, i, b, j = (ir.var(f"{name}_{x}") for x in "tibj")
    depth = ceil_to(columns, tile.column_block)
    size = ceil_to(rows, tile.rows) * depth
    at = t * depth + b * tile.rows
    at = at + i * tile.column_block + j
    store = ir.Store(buffer, at, read(t + i, b + j))
    vector = ir.For(j, ZERO, ir.minimum(columns - b, tile.column_block), "lanes", [store])
    blocks = ir.For(b, ZERO, columns, "serial", [vector], step=const(tile.column_block))
    row = ir.For(i, ZERO, ir.minimum(rows - t, tile.rows), "serial", [blocks])
    return [
        _cleared(name, buffer, size, depth.ne(columns)),
        ir.For(t, ZERO, rows, "serial", [row], step=const(tile.rows)),
    ]


def pack_rows(
    name: str, buffer: ir.Buffer, read: Read, width: int, rows: Expr, padded: Expr, columns: Expr
) -> list[Stmt]:
    """Panels of `width` columns, row by row; zeros beyond the last row and column."""
    c, r, j = (ir.var(f"{name}_{x}") for x in "crj")
    padded_columns = ceil_to(columns, width)
    at = c * padded + r * width + j
    store = ir.Store(buffer, at, read(r, c + j))
    row_at = ir.For(j, ZERO, ir.minimum(columns - c, width), "lanes", [store])
    body: list[Stmt] = [ir.For(c, ZERO, columns, "serial", [row_at], step=const(width))]
    return [
        _cleared(
            name, buffer, padded * padded_columns, padded_columns.ne(columns) | padded.ne(rows)
        ),
        ir.For(r, ZERO, rows, "serial", body),
    ]


# -- register tiles -------------------------------------------------------------------------------

Loop = tuple[Expr, Expr, Expr, Expr]  # variable, start, stop, step


class Accumulators:
    """A register tile of accumulators in a lanes loop over `lane`."""

    def __init__(self, name: str, tile: Tile, dtype: DType, lane: Expr) -> None:
        self.name, self.tile, self.dtype, self.lane = name, tile, dtype, lane
        self.registers = [
            [ir.Register(f"{name}{i}_{v}", dtype, lanes=True) for v in range(tile.vectors)]
            for i in range(tile.rows)
        ]

    def elements(self) -> list[tuple[int, int]]:
        return [(i, v) for i in range(self.tile.rows) for v in range(self.tile.vectors)]

    def set(self, value: Callable[[int, int], Expr]) -> list[Stmt]:
        return [ir.Set(self.registers[i][v], value(i, v)) for i, v in self.elements()]

    def clear(self) -> list[Stmt]:
        return self.set(lambda i, v: const(0, self.dtype))

    def read(self, i: int, v: int) -> Expr:
        return ir.read(self.registers[i][v])

    def column(self, v: int) -> Expr:
        """The column that a lane of the v-th vector holds."""
        return self.lane + v * self.tile.width

    def add(
        self,
        loops: Sequence[Loop],
        left: Callable[[int, int], Expr],
        right: Callable[[int, Expr], Expr],
    ) -> list[Stmt]:
        """Rank-1 updates `left(u, i)` × `right(u, column)`, the innermost loop unrolled."""
        body: list[Stmt] = []
        for u in range(UNROLL):
            names = [ir.var(f"{self.name}b{u}_{v}", self.dtype) for v in range(self.tile.vectors)]
            body += [ir.Let(x, right(u, self.column(v))) for v, x in enumerate(names)]
            for i, registers in enumerate(self.registers):
                a = left(u, i)
                for c, b in zip(registers, names, strict=True):
                    body.append(ir.Set(c, ir.fma(a, b, ir.read(c), allow_unfused=True)))
        for variable, start, stop, step in reversed(loops):
            body = [ir.For(variable, start, stop, "serial", body, step=step)]
        return body

    def gemm(
        self,
        result: ir.Buffer,
        at: Callable[[int, int], Expr],
        product: list[Stmt],
        rows: tuple[Expr, Expr],
        columns: tuple[Expr, Expr],
        rescale: Callable[[int], Expr] | None = None,
    ) -> list[Stmt]:
        """result = result · rescale + product, register tile by register tile. The product is a sum
        of its own: rounding errors grow with the number of products, not with their depth."""

        def total(i: int, v: int) -> Expr:
            old, new = ir.load(result, at(i, v)), self.read(i, v)
            if rescale is None:
                return old + new
            return ir.fma(old, rescale(i), new, allow_unfused=True)

        stores = [ir.Store(result, at(i, v), total(i, v)) for i, v in self.elements()]
        body = [*self.clear(), *product, *stores]
        inner: list[Stmt] = [ir.For(self.lane, ZERO, const(self.tile.width), "lanes", body)]
        for (variable, stop), step in ((rows, self.tile.rows), (columns, self.tile.columns)):
            inner = [ir.For(variable, ZERO, stop, "serial", inner, step=const(step))]
        return inner


def scores(
    acc: Accumulators, tiles: ir.Buffer, key: Expr, panels: ir.Buffer, query: Expr, columns: Expr
) -> list[Stmt]:
    """Q K': the packed tile of keys from `key` on times the packed panel of queries."""
    width, rows, lanes = acc.tile.column_block, acc.tile.rows, acc.tile.columns
    b, k = ir.var(f"{acc.name}_b"), ir.var(f"{acc.name}_k")
    depth = ceil_to(columns, UNROLL)
    loops = [(b, ZERO, depth, const(width)), (k, ZERO, ir.minimum(depth - b, width), const(UNROLL))]
    block = key * ceil_to(columns, width) + b * rows
    row_at = query * depth + (b + k) * lanes
    product = acc.add(
        loops,
        lambda u, i: ir.load(tiles, block + k + (i * width + u)),
        lambda u, column: ir.load(panels, row_at + column + u * lanes),
    )
    return [*acc.clear(), *product]
