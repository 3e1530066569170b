"""The tiled contraction: C = A B in register tiles, with any code fused at both ends.

A task is a stretch of rows times a piece of columns, and runs on one thread. The piece of B is
packed and stays in the second cache while rows of A pass by: these are read in place where they lie
in memory well enough, and packed where not. What only one task needs it packs itself, what several
need has been packed before, by a kernel of its own. So both operands are read through whatever
expression stands for them (views, casts, masks), and what leaves a register tile goes through the
epilogue. Each element of C is one running sum over k: no choice of tiles shows in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.cpu.blocking import LINE, Tiles
from numus.kernels.matmul.cpu.panels import Matrix, Packed, Panels

ZERO, FALSE = const(0), const(False, dt.bool_)

STEPS = 4  # of k that are written out, at most

Epilogue = Callable[[Expr, Expr, Expr, Any, Expr | None], list[Stmt]]
Sums = list[ir.Register]  # of one number: its parts, where it is complex


@dataclass(slots=True)
class Sizes:
    """The numbers of a launch, as expressions."""

    m: Expr
    n: Expr
    k: Expr
    task_rows: Expr
    task_columns: Expr
    row_tasks: Expr
    column_tasks: Expr
    depth: Expr  # how far along k a tile goes at a time


@dataclass(slots=True)
class Work:
    """What a task has to do: an operand is packed memory, or is read in place."""

    tiles: Tiles
    sizes: Sizes
    dtype: DType  # of what is added up
    left: Matrix | Packed
    right: Matrix | Packed
    finish: Epilogue  # finish(batch, m, n, value, mask) stores an element of the result
    light: bool  # whether the epilogue is short enough to be written out for every register

    @property
    def at_once(self) -> bool:
        """Whether all finished tiles are stored from registers, those at the edges, too."""
        return self.light and (self.tiles.even or self.tiles.masked)


def contraction(work: Work, g: Expr) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The statements of task g, and the scratch memory that it needs."""
    tiles, s = work.tiles, work.sizes
    out: list[Stmt] = []

    def named(name: str, value: Expr) -> Expr:
        """A number that is computed here, once for all tiles."""
        v = ir.var(name)
        out.append(ir.Let(v, value))
        return v

    batch = named("batch", ir.idiv(g, ir.mul(s.row_tasks, s.column_tasks)))
    # neighbours in time share a piece of B, which stays in the second cache
    m0 = named("m0", ir.mul(ir.irem(g, s.row_tasks), s.task_rows))
    column_task = ir.irem(ir.idiv(g, s.row_tasks), s.column_tasks)
    n0 = named("n0", ir.mul(column_task, s.task_columns))
    m1 = named("m1", ir.minimum(ir.add(m0, s.task_rows), s.m))
    n1 = named("n1", ir.minimum(ir.add(n0, s.task_columns), s.n))
    scratch = []
    left, right = work.left, work.right
    if isinstance(left, Matrix) and tiles.left != "direct":
        panels = Panels.of_rows(tiles, s.k)
        buffer = ir.Buffer("packed_a", work.dtype, "scratch", panels.size(s.task_rows))
        out += panels.pack(buffer, ZERO, left, batch, m0, m1, s.m)
        left = Packed(buffer, ZERO, panels)
        scratch.append(buffer)
    elif isinstance(left, Packed):
        left = left.moved(batch, m0, s.m)
    edge: Matrix | Packed = right  # where the last tile of a row finds B, if it is not a whole one
    if isinstance(right, Matrix) and not (tiles.right == "direct" and tiles.even):
        panels = Panels.of_columns(tiles, s.k)
        lines, first = s.task_columns, n0
        if tiles.right == "direct":  # only what is no whole tile
            lines = const(tiles.columns)
            first = ir.sub(n1, ir.irem(ir.sub(n1, n0), lines))
        buffer = ir.Buffer("packed_b", work.dtype, "scratch", panels.size(lines))
        out += panels.pack(buffer, ZERO, right, batch, first, n1, s.n)
        edge = Packed(buffer, ir.sub(ZERO, panels.size(ir.sub(first, n0))), panels)
        if tiles.right != "direct":
            right = edge
        scratch.append(buffer)
    elif isinstance(right, Packed):
        right = edge = right.moved(batch, n0, s.n)
    ip, jp = ir.var("ip"), ir.var("jp")
    start, stop, slot = ZERO, s.k, ZERO
    size = const(tiles.rows * tiles.columns * tiles.parts)
    if tiles.blocked:  # the unfinished tiles of a task wait side by side
        start = ir.var("k_start")
        stop = ir.minimum(ir.add(start, s.depth), s.k)
        slot = ir.add(ir.mul(ip, s.task_columns), ir.mul(jp, const(tiles.rows)))
        slot = ir.mul(slot, const(tiles.parts))
        size = ir.mul(ir.mul(s.task_rows, s.task_columns), const(tiles.parts))
    unfinished = ir.Buffer("unfinished", work.dtype, "scratch", size)
    scratch.append(unfinished)
    place = _Place(batch, m0, n0, ip, jp, m1, n1, start, stop, s.k, unfinished, slot)
    body = _tiles(work, left, right, edge, place)
    for v, extent, step in ((jp, ir.sub(n1, n0), tiles.columns), (ip, ir.sub(m1, m0), tiles.rows)):
        body = [ir.For(v, ZERO, extent, "serial", body, step=const(step))]
    if tiles.blocked:
        body = [ir.For(start, ZERO, s.k, "serial", body, step=s.depth)]
    return [*out, *body], scratch


@dataclass(slots=True)
class _Place:
    """Where a register tile lies: the panels ip and jp of a task that ends at m1 and n1, from k0
    to k1; what is unfinished at k1 waits in memory.
    """

    batch: Expr
    m0: Expr
    n0: Expr
    ip: Expr
    jp: Expr
    m1: Expr
    n1: Expr
    k0: Expr
    k1: Expr
    k: Expr
    unfinished: ir.Buffer
    slot: Expr

    @property
    def m(self) -> Expr:
        return ir.add(self.m0, self.ip)

    @property
    def n(self) -> Expr:
        return ir.add(self.n0, self.jp)

    @property
    def rows(self) -> Expr:
        return ir.sub(self.m1, self.m)

    @property
    def columns(self) -> Expr:
        return ir.sub(self.n1, self.n)

    @property
    def last(self) -> Expr:
        """Whether the sums are complete."""
        return self.k1.eq(self.k) if self.k1 is not self.k else ~FALSE

    def full(self, tiles: Tiles) -> Expr:
        """Whether the sums are complete, and all of the tile lies within the result."""
        full = self.last & (self.rows >= const(tiles.rows))
        return full if tiles.even else full & (self.columns >= const(tiles.columns))


def _tiles(
    work: Work, left: Matrix | Packed, right: Matrix | Packed, edge: Matrix | Packed, at: _Place
) -> list[Stmt]:
    """One register tile; the last one of a row, from the packed edge of B, with about as many
    vectors as it takes.
    """
    tiles = work.tiles
    out: list[Stmt] = []
    vectors = tiles.vectors
    if tiles.even or edge is not right:
        out = _register_tile(work, left, right, at, vectors)
    if not tiles.even:
        most = tiles.columns
        if edge is not right:
            out = [ir.If(at.columns >= const(most), out)]
            most -= 1
        while vectors:
            fits = at.columns > const(vectors // 2 * tiles.width)
            if vectors < tiles.vectors or edge is not right:
                fits = fits & (at.columns <= const(most))
            out.append(ir.If(fits, _register_tile(work, left, edge, at, vectors)))
            vectors //= 2
            most = vectors * tiles.width
    return out + _store_tile(work, at)


def _register_tile(
    work: Work,
    left: Matrix | Packed,
    right: Matrix | Packed,
    at: _Place,
    vectors: int,
) -> list[Stmt]:
    """One panel of A times one panel of B, added up in registers, then through the epilogue."""
    tiles, dtype = work.tiles, work.dtype
    rows, width, parts = tiles.rows, tiles.width, tiles.parts
    lane, k = ir.var("lane"), ir.var("k")
    sums = [
        [
            [ir.Register(f"c{i}_{v}_{p}", dtype, lanes=True) for p in range(parts)]
            for v in range(vectors)
        ]
        for i in range(rows)
    ]

    def step(k: Expr, u: int) -> list[Stmt]:
        """All products of one k."""
        out: list[Stmt] = []
        bs = []
        for v in range(vectors):
            value = right.columns(at.batch, ir.add(k, const(u)), at.n0, at.jp, lane, v * width)
            names = [ir.var(f"b{u}_{v}_{p}", dtype) for p in range(parts)]
            out += [ir.Let(name, x) for name, x in zip(names, value, strict=True)]
            bs.append(names)
        for i in range(rows):
            a = left.row(at.batch, at.m0, at.ip, i, k, u)
            for v in range(vectors):
                out += _multiply_add(sums[i][v], a, bs[v], tiles.fused)
        return out

    registers = [
        (
            sums[i][v][p],
            ir.add(ir.add(at.slot, lane), const((i * parts + p) * tiles.columns + v * width)),
        )
        for i in range(rows)
        for v in range(vectors)
        for p in range(parts)
    ]
    zeros: list[Stmt] = [ir.Set(r, const(0, dtype)) for r, _ in registers]
    body = zeros
    if tiles.blocked:
        again: list[Stmt] = [ir.Set(r, ir.load(at.unfinished, place)) for r, place in registers]
        body = [ir.If(at.k0.eq(0), zeros), ir.If(at.k0 > 0, again)]
    count = min(STEPS, width)  # what is packed along k is packed by vectors
    steps = const(count)
    whole = ir.sub(at.k1, ir.irem(ir.sub(at.k1, at.k0), steps))
    fetches = _next_rows(work, left, at, k, count)
    written_out = [s for u in range(count) for s in (*step(k, u), *fetches[u::count])]
    body.append(ir.For(k, at.k0, whole, "serial", written_out, step=steps))
    rest = ir.var("k_rest")
    body.append(ir.For(rest, whole, at.k1, "serial", step(rest, 0)))
    aside: list[Stmt] = [ir.Store(at.unfinished, place, ir.read(r)) for r, place in registers]
    body += _leave_registers(work, at, sums, lane, aside) if work.light else aside
    return [ir.For(lane, ZERO, const(width), "lanes", body)]


def _leave_registers(
    work: Work, at: _Place, sums: Sequence[Sequence[Sums]], lane: Expr, aside: list[Stmt]
) -> list[Stmt]:
    """Sums of rows and vectors through the epilogue; to memory what is not finished, or not whole
    where that is stored from there."""
    tiles = work.tiles

    def finished(i: int, masked: bool) -> list[Stmt]:
        """Row i through the epilogue."""
        out: list[Stmt] = []
        for v, parts in enumerate(sums[i]):
            n = ir.add(ir.add(at.n, lane), const(v * tiles.width))
            value = _number([ir.read(r) for r in parts])
            mask = n < at.n1 if masked else None
            out += work.finish(at.batch, ir.add(at.m, const(i)), n, value, mask)
        return out

    full = at.full(tiles) if len(sums[0]) == tiles.vectors else FALSE
    out: list[Stmt] = [ir.If(full, [s for i in range(tiles.rows) for s in finished(i, False)])]
    if not work.at_once:
        return [*out, ir.If(~full, aside)]
    part: list[Stmt] = [
        ir.If(at.rows > const(i), finished(i, not tiles.even)) for i in range(tiles.rows)
    ]
    out.append(ir.If(at.last & ~full, part))
    return [*out, ir.If(~at.last, aside)] if tiles.blocked else out


def _next_rows(work: Work, left: Matrix | Packed, at: _Place, k: Expr, count: int) -> list[Stmt]:
    """Hints for the rows of the next tile, which follow in memory: of `count` steps along k, the
    same share. Cores find such rows by themselves only where each has a page to itself.
    """
    tiles = work.tiles
    if not tiles.ahead:
        return []
    assert isinstance(left, Matrix)
    first = left.read(at.batch, ir.add(at.m, const(tiles.rows)), ZERO, None)
    line = LINE // work.dtype.itemsize
    here = ir.add(first.args[0], ir.mul(k, const(tiles.rows)))
    return [
        ir.Prefetch(first.attr, ir.add(here, const(i)), write=False)
        for i in range(0, count * tiles.rows, line)
    ]


def _number(parts: list[Expr]) -> Any:
    return parts[0] if len(parts) == 1 else tuple(parts)


def _multiply_add(sums: Sums, a: list[Expr], b: list[Expr], fused: bool) -> list[Stmt]:
    """sums += a * b; of complex numbers, with one rounding per product and sum."""

    def add(to: ir.Register, x: Expr, y: Expr) -> Stmt:
        old = ir.read(to)
        return ir.Set(to, ir.fma(x, y, old) if fused else old + x * y)

    if len(sums) == 1:
        return [add(sums[0], a[0], b[0])]
    real, imaginary = sums
    return [
        *(add(real, a[0], b[0]), add(imaginary, a[0], b[1])),
        *(add(real, -a[1], b[1]), add(imaginary, a[1], b[0])),
    ]


def _store_tile(work: Work, at: _Place) -> list[Stmt]:
    """The part of a tile that lies within the result, from memory through the epilogue."""
    if work.at_once:
        return []
    tiles = work.tiles
    i, j = ir.var("out_i"), ir.var("out_j")
    rows = ir.minimum(at.rows, const(tiles.rows))

    def line(mask: Expr | None) -> list[Stmt]:
        value = []
        for p in range(tiles.parts):
            line = ir.add(ir.mul(i, const(tiles.parts)), const(p))
            place = ir.add(ir.add(at.slot, ir.mul(line, const(tiles.columns))), j)
            value.append(ir.load(at.unfinished, place))
        store = work.finish(at.batch, ir.add(at.m, i), ir.add(at.n, j), _number(value), mask)
        unroll = tiles.vectors if mask is None else 1
        across = ir.For(j, ZERO, const(tiles.columns), "lanes", store, unroll=unroll)
        return [ir.For(i, ZERO, rows, "serial", [across])]

    done = at.last & ~at.full(tiles) if work.light else at.last  # and not stored yet
    if tiles.even:
        return [ir.If(done, line(None))]
    masked = line(ir.add(at.n, j) < at.n1)
    if work.light:
        return [ir.If(done, masked)]
    whole = at.columns >= const(tiles.columns)
    return [ir.If(done & whole, line(None)), ir.If(done & ~whole, masked)]
