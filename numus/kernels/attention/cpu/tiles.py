"""What the schedules of attention and of its derivative are made of: tile sizes, packed operands,
register tiles.

Queries lie side by side in the lanes of *panels*, keys below each other in *tiles*. A tile of
scores is then a register tile (keys × queries) whose maxima, sums and powers are lane by lane, and
that is at once the left operand of the product that follows: a panel's weights times values.

    [panel][column][query]           queries, transposed: the right operand of scores
    [tile][column / W][key][W]       keys, to be broadcast: the left operand of scores
    [panel of columns][row][column]  rows of vectors: the right operand of what follows
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.common.register_transpose import transposed
from numus.target import Target

ZERO, ONE = const(0), const(1)

UNROLL = 4  # steps of a product's inner axis that are written out
LATENCY = 4  # cycles until a sum can be added to again; two additions start in each

Read = Callable[[Expr, Expr], Expr]  # the element at (row, column)


def up(a: Expr, b: int) -> Expr:
    """a rounded up to a multiple of b."""
    return ir.mul(ir.idiv(ir.add(a, const(b - 1)), const(b)), const(b))


def rounded(n: int, to: int) -> int:
    return -(-n // to) * to


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: some rows times some vectors."""

    rows: int
    vectors: int
    width: int

    @property
    def columns(self) -> int:
        return self.vectors * self.width

    @property
    def block(self) -> int:
        """How many columns of a packed row lie together: a vector, or what is written out."""
        return max(self.width, UNROLL)


def tile_for(target: Target, width: int, columns: int, rows: Sequence[int]) -> Tile:
    """The register tile that computes so many columns soonest, its rows one of those given."""
    vectors = max(1, -(-columns // width))
    best: tuple[float, Tile] | None = None
    for r in rows:
        for v in range(1, min(vectors, 8) + 1):
            if r * v + v + 1 > target.vector_registers:
                continue
            cycles = max(r * v / 2, (r + v) / 2, LATENCY) + 0.01 * (r + v)
            cost = -(-vectors // v) * cycles / r
            if best is None or cost < best[0]:
                best = (cost, Tile(r, v, width))
    assert best is not None
    return best[1]


def scores_tile(target: Target, dtype: DType, queries: int) -> Tile:
    """The register tile of scores: keys below each other, queries side by side."""
    width = target.vector_bytes // dtype.itemsize
    vectors = 1 if queries <= width else 2
    return Tile(8 if target.vector_registers >= 32 or vectors == 1 else 4, vectors, width)


def divisors(n: int) -> list[int]:
    """The powers of two up to 16 that divide n."""
    return [r for r in (1, 2, 4, 8, 16) if n % r == 0]


# -- packing --------------------------------------------------------------------------------------


def _cleared(name: str, buffer: ir.Buffer, size: Expr, ragged: Expr) -> Stmt:
    """Zeros everywhere, if parts of a buffer are not going to be written."""
    z = ir.var(f"{name}_z")
    clear = ir.For(z, ZERO, size, "lanes", [ir.Store(buffer, z, const(0, buffer.dtype))])
    return ir.If(ragged, [clear])


def pack_panels(
    name: str, buffer: ir.Buffer, read: Read, tile: Tile, rows: Expr, columns: Expr
) -> list[Stmt]:
    """Rows side by side, panel by panel; zeros beyond the last column.

    Lanes run along a row and part where it is written: its memory is walked in order. Beyond the
    last row is what was there before, and what becomes of that is not looked at.
    """
    p, c, i = (ir.var(f"{name}_{x}") for x in "pcj")
    deep = up(columns, UNROLL)
    at = ir.add(ir.add(ir.mul(p, deep), ir.mul(c, const(tile.columns))), i)
    row = ir.For(c, ZERO, columns, "lanes", [ir.Store(buffer, at, read(ir.add(p, i), c))])
    rest = ir.minimum(ir.sub(rows, p), tile.columns)
    panel = ir.For(i, ZERO, rest, "serial", [row])
    return [
        _cleared(name, buffer, ir.mul(up(rows, tile.columns), deep), deep.ne(columns)),
        ir.For(p, ZERO, rows, "serial", [panel], step=const(tile.columns)),
    ]


def turn_panels(
    name: str,
    buffer: ir.Buffer,
    aside: ir.Buffer,
    read: Read,
    tile: Tile,
    rows: Expr,
    columns: Expr,
) -> list[Stmt]:
    """The same, a square of registers at a time. A vector's worth of rows lies `aside` before, with
    zeros beyond the last column; what is turned of them may end behind the panel, which is where
    the next one goes: the last one needs room for a square behind it.
    """
    width = const(tile.width)
    p, v, i, c, j = (ir.var(f"{name}_{x}") for x in "pvicj")
    pitch, deep = up(columns, tile.width), up(columns, UNROLL)
    row = ir.add(p, ir.add(v, i))
    line = ir.Store(aside, ir.add(ir.mul(i, pitch), c), read(row, c))
    there = ir.minimum(ir.sub(rows, ir.add(p, v)), width)
    keep = ir.For(i, ZERO, there, "serial", [ir.For(c, ZERO, columns, "lanes", [line])])
    square = [
        ir.load(aside, ir.add(ir.add(ir.mul(const(k), pitch), c), j)) for k in range(tile.width)
    ]
    lets, turned = transposed(square, j, buffer.dtype)
    at = ir.add(ir.add(ir.mul(p, deep), v), j)
    stores = [
        ir.Store(buffer, ir.add(at, ir.mul(ir.add(c, const(k)), const(tile.columns))), x)
        for k, x in enumerate(turned)
    ]
    turn = ir.For(j, ZERO, width, "lanes", [*lets, *stores], width=tile.width)
    across = ir.For(c, ZERO, columns, "serial", [turn], step=width)
    vectors = ir.For(v, ZERO, const(tile.columns), "serial", [keep, across], step=width)
    return [
        _cleared(name, aside, ir.mul(width, pitch), pitch.ne(columns)),
        ir.For(p, ZERO, rows, "serial", [vectors], step=const(tile.columns)),
    ]


def pack_tiles(
    name: str, buffer: ir.Buffer, read: Read, tile: Tile, rows: Expr, columns: Expr
) -> list[Stmt]:
    """Rows below each other, a block of neighbouring columns at a time; zeros beyond the last."""
    t, i, b, j = (ir.var(f"{name}_{x}") for x in "tibj")
    deep = up(columns, tile.block)
    size = ir.mul(up(rows, tile.rows), deep)
    at = ir.add(ir.mul(t, deep), ir.mul(b, const(tile.rows)))
    at = ir.add(ir.add(at, ir.mul(i, const(tile.block))), j)
    store = ir.Store(buffer, at, read(ir.add(t, i), ir.add(b, j)))
    vector = ir.For(j, ZERO, ir.minimum(ir.sub(columns, b), tile.block), "lanes", [store])
    blocks = ir.For(b, ZERO, columns, "serial", [vector], step=const(tile.block))
    row = ir.For(i, ZERO, ir.minimum(ir.sub(rows, t), tile.rows), "serial", [blocks])
    return [
        _cleared(name, buffer, size, deep.ne(columns)),
        ir.For(t, ZERO, rows, "serial", [row], step=const(tile.rows)),
    ]


def pack_lines(
    name: str,
    buffer: ir.Buffer,
    read: Read,
    width: int,
    rows: Expr,
    padded: Expr,
    columns: Expr,
) -> list[Stmt]:
    """Rows of `width` columns, panel by panel; zeros beyond the last row and column."""
    c, r, j = (ir.var(f"{name}_{x}") for x in "crj")
    wide = up(columns, width)
    at = ir.add(ir.add(ir.mul(c, padded), ir.mul(r, const(width))), j)
    store = ir.Store(buffer, at, read(r, ir.add(c, j)))
    line = ir.For(j, ZERO, ir.minimum(ir.sub(columns, c), width), "lanes", [store])
    body: list[Stmt] = [ir.For(c, ZERO, columns, "serial", [line], step=const(width))]
    return [
        _cleared(name, buffer, ir.mul(padded, wide), wide.ne(columns) | padded.ne(rows)),
        ir.For(r, ZERO, rows, "serial", body),
    ]


# -- register tiles -------------------------------------------------------------------------------

Loop = tuple[Expr, Expr, Expr, Expr]  # variable, start, stop, step


class Sums:
    """A register tile that is being summed up, inside a lanes loop over `lane`."""

    def __init__(self, name: str, tile: Tile, dtype: DType, lane: Expr) -> None:
        self.name, self.tile, self.dtype, self.lane = name, tile, dtype, lane
        self.registers = [
            [ir.Register(f"{name}{i}_{v}", dtype, lanes=True) for v in range(tile.vectors)]
            for i in range(tile.rows)
        ]

    def places(self) -> list[tuple[int, int]]:
        return [(i, v) for i in range(self.tile.rows) for v in range(self.tile.vectors)]

    def set(self, value: Callable[[int, int], Expr]) -> list[Stmt]:
        return [ir.Set(self.registers[i][v], value(i, v)) for i, v in self.places()]

    def clear(self) -> list[Stmt]:
        return self.set(lambda i, v: const(0, self.dtype))

    def read(self, i: int, v: int) -> Expr:
        return ir.read(self.registers[i][v])

    def column(self, v: int) -> Expr:
        """Which column a lane of the v-th vector is."""
        return ir.add(self.lane, const(v * self.tile.width))

    def add(
        self,
        loops: Sequence[Loop],
        left: Callable[[int, int], Expr],
        right: Callable[[int, Expr], Expr],
    ) -> list[Stmt]:
        """Add the products over the innermost of these loops, UNROLL steps at a time:
        `left(u, i)` of row i times `right(u, column)`, in step u."""
        body: list[Stmt] = []
        for u in range(UNROLL):
            names = []
            for v in range(self.tile.vectors):
                name = ir.var(f"{self.name}b{u}_{v}", self.dtype)
                body.append(ir.Let(name, right(u, self.column(v))))
                names.append(name)
            for i in range(self.tile.rows):
                a = left(u, i)
                for v in range(self.tile.vectors):
                    register = self.registers[i][v]
                    body.append(
                        ir.Set(register, ir.fma(a, names[v], ir.read(register), allow_unfused=True))
                    )
        for variable, start, stop, step in reversed(loops):
            body = [ir.For(variable, start, stop, "serial", body, step=step)]
        return body


def scores(
    sums: Sums, tiles: ir.Buffer, tile_at: Expr, panel: ir.Buffer, panel_at: Expr, columns: Expr
) -> list[Stmt]:
    """The inner products of a packed tile of rows with a packed panel, over all columns."""
    width, rows, lanes = sums.tile.block, sums.tile.rows, sums.tile.columns
    b, k = ir.var(f"{sums.name}_b"), ir.var(f"{sums.name}_k")
    deep = up(columns, UNROLL)
    loops = [
        (b, ZERO, deep, const(width)),
        (k, ZERO, ir.minimum(ir.sub(deep, b), width), const(UNROLL)),
    ]
    block = ir.add(tile_at, ir.mul(b, const(rows)))
    line = ir.add(panel_at, ir.mul(ir.add(b, k), const(lanes)))
    return [
        *sums.clear(),
        *sums.add(
            loops,
            lambda u, i: ir.load(tiles, ir.add(ir.add(block, k), const(i * width + u))),
            lambda u, column: ir.load(panel, ir.add(ir.add(line, column), const(u * lanes))),
        ),
    ]
