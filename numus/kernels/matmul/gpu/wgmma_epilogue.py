"""Sums of a tile on their way out of a group that stays, each warp by itself.

A warp has 16 rows, and of every 8 columns of them a thread has two neighbours in each of two rows.
They go through the group's memory in strips of columns. Of whole tiles, what lies there has been
through the epilogue, in lines that threads store 16 bytes at a time. Of tiles that are cut off, and
of memory that is not aligned, it is sums, and each is stored where it exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType, bool_
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.mainloop import RUN, run_out
from numus.kernels.matmul.gpu.problem import Epilogue

ZERO = const(0)

WARP, WARP_ROWS, WARPS = 32, 16, 8
LINE = 256  # bytes of a row that a warp stores at a time
SHORT_LINE = 64  # where groups share a unit
SPARE = 16  # bytes between rows: they shift the banks


def room(line: int) -> int:
    """Bytes of the group's memory."""
    return WARPS * WARP_ROWS * (line + SPARE)


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows and columns of a tile, columns of a warp, bytes of a line, and where C ends."""

    tile: tuple[int, int]
    own: int
    line: int
    ends: tuple[Expr, Expr]

    def width(self, itemsize: int) -> int:
        """Columns of a strip."""
        return min(self.line // itemsize, self.own)


Place = tuple[Expr, Expr, Expr]  # which matrix; row and column


def in_lines(sizes: tuple[int, ...], columns: int) -> bool:
    """Whether results of these sizes, of rows of so many, can be stored in whole lines."""
    return len(sizes) == 1 and sizes[0] <= 4 and columns * sizes[0] % 16 == 0


def leave(
    shape: Shape, kind: DType, sums: list[ir.Register], tile: Place, finish: Epilogue
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Statements, and the memory that they need. There is one result (`in_lines`)."""
    which, m0, n0 = tile
    (store,) = finish(which, m0, n0, ir.read(sums[0]))
    assert isinstance(store, ir.Store)
    dtype = store.buffer.dtype
    nbytes = room(shape.line)
    lines = ir.Buffer("lines", dtype, "scratch", const(nbytes // dtype.itemsize), warp_private=True)
    stage = ir.Buffer(
        "stage", kind, "scratch", const(nbytes // kind.itemsize), lines, warp_private=True
    )
    begin = ir.add(ir.address(store.buffer), ir.mul(store.index, const(dtype.itemsize)))
    (rows, columns), (m, n) = shape.tile, shape.ends
    inside = (ir.add(m0, const(rows)) <= m) & (ir.add(n0, const(columns)) <= n)
    whole = ir.var("whole", bool_)
    return [
        ir.Let(whole, inside & (begin & const(15)).eq(0)),
        ir.If(whole, _finished(shape, lines, sums, tile, finish)),
        ir.If(~whole, _as_sums(shape, stage, sums, tile, finish)),
    ], [lines, stage]


def _finished(
    shape: Shape, lines: ir.Buffer, sums: list[ir.Register], tile: Place, finish: Epilogue
) -> list[Stmt]:
    dtype = lines.dtype
    run = min(RUN, 16 // dtype.itemsize)

    def value(place: Place, c: Expr) -> Expr:
        (store,) = finish(*place, c)
        assert isinstance(store, ir.Store)
        return store.value

    body: list[Stmt] = []
    for strip in _strips(shape, lines, sums, tile):
        body.append(strip.lay(value))
        lane, first, (which, m, n), down = strip.runs()
        give: list[Stmt] = []
        for i in range(WARP_ROWS // down):
            base = ir.add(first, const(i * down * strip.pitch))
            names = [ir.var(f"v{strip.number}_{i}_{u}", dtype) for u in range(RUN)]
            give += [ir.Let(v, ir.load(lines, ir.add(base, const(u)))) for u, v in enumerate(names)]
            for u, v in enumerate(names):
                at = (which, ir.add(m, const(i * down)), ir.add(n, const(u)))
                (store,) = finish(*at, ir.read(sums[0]))
                assert isinstance(store, ir.Store)
                many = run if u % run == 0 else 0
                give.append(ir.Store(store.buffer, store.index, v, vector=many))
        body.append(ir.For(lane, ZERO, const(WARPS * WARP), "lanes", give))
    return body


def _as_sums(
    shape: Shape, stage: ir.Buffer, sums: list[ir.Register], tile: Place, finish: Epilogue
) -> list[Stmt]:
    body: list[Stmt] = []
    for strip in _strips(shape, stage, sums, tile):
        body.append(strip.lay(lambda place, c: c))
        lane, first, (which, m, n), down = strip.runs()
        i = ir.var(f"below{strip.number}")
        away = ir.mul(i, const(down))
        base = ir.add(first, ir.mul(away, const(strip.pitch)))
        place = (which, ir.add(m, away), n)
        one = run_out(stage, base, place, shape.ends, finish, f"s{strip.number}")
        rows = ir.For(i, ZERO, const(WARP_ROWS // down), "serial", one)
        body.append(ir.For(lane, ZERO, const(WARPS * WARP), "lanes", [rows]))
    return body


@dataclass(slots=True)
class _Strip:
    """Some columns of every warp, which lie in a buffer."""

    number: int
    shape: Shape
    buffer: ir.Buffer
    sums: list[ir.Register]  # of these columns
    tile: Place

    @property
    def width(self) -> int:
        return self.shape.width(self.buffer.dtype.itemsize)

    @property
    def pitch(self) -> int:
        return self.width + SPARE // self.buffer.dtype.itemsize

    def _share(self, name: str) -> tuple[Expr, Expr, Expr, Place]:
        """A thread's number, its place in its warp, where the warp's lines lie, and where they
        begin in C."""
        which, m0, n0 = self.tile
        lane = ir.var(f"{self.buffer.name}_{name}{self.number}")
        warp, thread = ir.idiv(lane, const(WARP)), ir.irem(lane, const(WARP))
        band = const(self.shape.tile[0] // WARP_ROWS)  # of warps one below the other
        m = ir.add(m0, ir.mul(ir.irem(warp, band), const(WARP_ROWS)))
        n = ir.add(n0, ir.mul(ir.idiv(warp, band), const(self.shape.own)))
        n = ir.add(n, const(self.number * self.width))
        return lane, thread, ir.mul(warp, const(WARP_ROWS * self.pitch)), (which, m, n)

    def lay(self, value: Callable[[Place, Expr], Expr]) -> Stmt:
        """What becomes of sums, to where they lie."""
        lane, thread, mine, (which, m, n) = self._share("lay")
        row, column = ir.idiv(thread, const(4)), ir.mul(ir.irem(thread, const(4)), const(2))
        first = ir.add(mine, ir.add(ir.mul(row, const(self.pitch)), column))
        m, n = ir.add(m, row), ir.add(n, column)
        stores: list[Stmt] = []
        for i, c in enumerate(self.sums):
            down, across = i // 2 % 2 * 8, i // 4 * 8 + i % 2
            place = (which, ir.add(m, const(down)), ir.add(n, const(across)))
            to = ir.add(first, const(down * self.pitch + across))
            stores.append(ir.Store(self.buffer, to, value(place, ir.read(c))))
        return ir.For(lane, ZERO, const(WARPS * WARP), "lanes", stores)

    def runs(self) -> tuple[Expr, Expr, Place, int]:
        """A thread's number, where its first run of neighbours lies, where it belongs, and of how
        many rows below each other a warp has runs at the same time."""
        lane, thread, mine, (which, m, n) = self._share("out")
        across = const(self.width // RUN)
        row, column = ir.idiv(thread, across), ir.mul(ir.irem(thread, across), const(RUN))
        first = ir.add(mine, ir.add(ir.mul(row, const(self.pitch)), column))
        return lane, first, (which, ir.add(m, row), ir.add(n, column)), WARP * RUN // self.width


def _strips(
    shape: Shape, buffer: ir.Buffer, sums: list[ir.Register], tile: Place
) -> Iterator[_Strip]:
    width = shape.width(buffer.dtype.itemsize)
    for number in range(shape.own // width):
        own = sums[number * width // 2 : (number + 1) * width // 2]
        yield _Strip(number, shape, buffer, own, tile)
