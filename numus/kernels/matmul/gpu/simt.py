"""The tiled contraction for groups of threads: C = A B with any code fused at both ends.

A group computes a tile of C. Slices of A and B along k go through the group's memory, where every
element of a tile of C finds what it needs; each thread keeps a small tile of sums in registers. The
next slices are on their way while the current ones are multiplied. Operands are read through
whatever expression stands for them, once per tile; sums leave through the epilogue. Each element of
C is one running sum over k: no choice of tiles shows in the result.

Where the target's compiler knows no more of registers than the kernel tells (WGSL), a slice is
multiplied in one piece of straight code, and slices that lie wholly inside are read without asking
whether they do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.problem import GroupWork, TileSizes
from numus.target import Target

ZERO, ONE = const(0), const(1)

STEPS = 4  # of k that are written out
RUN = 4  # neighbours that a thread reads from the group's memory at a time
BLOCK = (4, 8)  # threads down and across that read the group's memory together, in straight code


@dataclass(frozen=True, slots=True)
class Tiles:
    """A schedule as data."""

    threads: int
    rows: int  # of the group's tile
    columns: int
    depth: int  # of a slice
    own_rows: int  # of a thread's tile
    own_columns: int
    straight: bool = False  # whether all of a slice is written out

    @property
    def across(self) -> int:
        """Threads along the columns."""
        return self.columns // self.own_columns

    def own(self, lane: Expr) -> tuple[Expr, Expr]:
        """Where a thread's tile is among those of the group: down, and across."""
        if not self.straight:
            return ir.idiv(lane, const(self.across)), ir.irem(lane, const(self.across))
        down, across = BLOCK
        block, inside = ir.idiv(lane, const(down * across)), ir.irem(lane, const(down * across))
        blocks = const(self.across // across)
        return (
            ir.add(ir.mul(ir.idiv(block, blocks), const(down)), ir.idiv(inside, const(across))),
            ir.add(ir.mul(ir.irem(block, blocks), const(across)), ir.irem(inside, const(across))),
        )

    def nbytes(self, dtype: DType, light: bool) -> int:
        """What a group needs of its memory: two slices, and a row of each thread on its way out."""
        elements = (self.rows + self.columns + 2 * RUN) * self.depth
        if not light:
            elements += self.rows // self.own_rows * self.columns
        return elements * dtype.itemsize


def choose(
    target: Target, dtype: DType, batch: int, m: int, n: int, light: bool, straight: bool = False
) -> Tiles:
    """The largest tiles that fit into a group's memory and of which there are enough to keep every
    unit busy."""
    threads = min(target.block_size, 128 if straight else 256)
    best = None
    for side in (8, 4, 2):
        if side == 8 and dtype.itemsize > 4:
            continue  # their sums would not fit into registers
        across = 16 if threads >= 128 else 8
        columns, rows = across * side, threads // across * side
        depth = {8: 8, 4: 16, 2: 32}[side]  # what waits to be multiplied needs registers too
        least = max(STEPS, threads // min(rows, columns))  # a thread brings an element, at least
        best = Tiles(threads, rows, columns, depth, side, side, straight)
        while best.nbytes(dtype, light) > target.shared_bytes and best.depth > least:
            best = replace(best, depth=best.depth // 2)
        if best.nbytes(dtype, light) > target.shared_bytes:
            continue
        if batch * -(-m // rows) * -(-n // columns) >= target.num_cores:
            break
    assert best is not None
    return best


Read = Callable[[Expr, Expr, Expr, Expr | None], Expr]


@dataclass(slots=True)
class Operand:
    """`read(batch, line, k, mask)` is an element; lines are rows of A or columns of B. Without a
    mask it is surely there."""

    read: Read
    extent: Expr  # how many lines there are
    along: bool  # whether neighbours in memory lie along k


@dataclass(slots=True)
class _Side:
    """An operand on its way through the group's memory."""

    operand: Operand
    first: Expr  # line of the tile
    lines: int  # of the tile
    buffer: ir.Buffer
    pitch: int
    waiting: list[ir.Register]

    def place(self, tiles: Tiles, lane: Expr, number: int) -> tuple[Expr, Expr]:
        """Which element (line, k) of a slice a thread brings as its `number`-th."""
        fast, before = tiles.depth if self.operand.along else self.lines, number * tiles.threads
        if not tiles.straight:
            at = ir.add(lane, const(before))
            slow, quick = ir.idiv(at, const(fast)), ir.irem(at, const(fast))
        elif fast % tiles.threads == 0:
            slow, quick = const(before // fast), ir.add(lane, const(before % fast))
        else:
            assert tiles.threads % fast == 0
            slow, quick = ir.idiv(lane, const(fast)), ir.irem(lane, const(fast))
            slow = ir.add(slow, const(before // fast))
        return (slow, quick) if self.operand.along else (quick, slow)

    def fetch(self, tiles: Tiles, lane: Expr, batch: Expr, start: Expr, k: Expr) -> list[Stmt]:
        """Begin to load the slice that starts at `start`; zeros beyond the operand's ends."""
        out: list[Stmt] = []
        for number, register in enumerate(self.waiting):
            line, depth = self.place(tiles, lane, number)
            line, depth = ir.add(self.first, line), ir.add(start, depth)
            inside = (line < self.operand.extent) & (depth < k)
            value = self.operand.read(batch, line, depth, inside)
            out.append(ir.Set(register, ir.select(inside, value, const(0, register.dtype))))
        return out

    def fetch_inside(self, tiles: Tiles, lane: Expr, batch: Expr, start: Expr) -> list[Stmt]:
        """The same for a slice that ends before k does. Lines beyond the last are that one again:
        nobody stores what becomes of them."""
        out: list[Stmt] = []
        last = ir.sub(self.operand.extent, ONE)
        for number, register in enumerate(self.waiting):
            line, depth = self.place(tiles, lane, number)
            line = ir.minimum(ir.add(self.first, line), last)
            value = self.operand.read(batch, line, ir.add(start, depth), None)
            out.append(ir.Set(register, value))
        return out

    def keep(self, tiles: Tiles, lane: Expr) -> list[Stmt]:
        """Put what was loaded where the group finds it."""
        out: list[Stmt] = []
        for number, register in enumerate(self.waiting):
            line, depth = self.place(tiles, lane, number)
            at = ir.add(ir.mul(depth, const(self.pitch)), line)
            out.append(ir.Store(self.buffer, at, ir.read(register)))
        return out

    def values(self, own: int, lane: Expr, step: Expr, tag: str) -> tuple[list[Stmt], list[Expr]]:
        """What a thread needs of one step along k: runs of neighbours, spread over the tile."""
        out: list[Stmt] = []
        names = []
        run = min(RUN, own)
        for i in range(own):
            line = ir.add(ir.mul(lane, const(run)), const(i // run * (self.lines * run // own)))
            at = ir.add(ir.add(ir.mul(step, const(self.pitch)), line), const(i % run))
            name = ir.var(f"{tag}{i}", self.buffer.dtype)
            out.append(ir.Let(name, ir.load(self.buffer, at)))
            names.append(name)
        return out, names

    def line(self, own: int, lane: Expr, number: int) -> Expr:
        """Which line of the tile a thread's `number`-th is."""
        run = min(RUN, own)
        offset = number // run * (self.lines * run // own) + number % run
        return ir.add(ir.mul(lane, const(run)), const(offset))


Work = GroupWork[Tiles, TileSizes, Operand]


def contraction(work: Work, g: Expr) -> tuple[list[Stmt], list[ir.Buffer]]:
    """What group g does. A light epilogue is written out for each of a thread's sums."""
    s, t, dtype, finish = work.sizes, work.tiles, work.dtype, work.finish
    batch = ir.idiv(g, ir.mul(s.row_tiles, s.column_tiles))
    m0 = ir.mul(ir.irem(ir.idiv(g, s.column_tiles), s.row_tiles), const(t.rows))
    n0 = ir.mul(ir.irem(g, s.column_tiles), const(t.columns))
    out: list[Stmt] = []
    if t.straight:  # divided once, not for every slice
        found = (batch, m0, n0)
        batch, m0, n0 = (ir.var(name) for name in ("batch", "m0", "n0"))
        out += [ir.Let(name, x) for name, x in zip((batch, m0, n0), found, strict=True)]
    sides = []
    for name, operand, first, lines in (
        ("a", work.left, m0, t.rows),
        ("b", work.right, n0, t.columns),
    ):
        pitch = lines + RUN  # shifts the banks of the next step
        buffer = ir.Buffer(f"slice_{name}", dtype, "scratch", const(t.depth * pitch))
        count = lines * t.depth // t.threads
        waiting = [ir.Register(f"next_{name}{i}", dtype, lanes=True) for i in range(count)]
        sides.append(_Side(operand, first, lines, buffer, pitch, waiting))
    a, b = sides
    sums = [
        [ir.Register(f"c{i}_{j}", dtype, lanes=True) for j in range(t.own_columns)]
        for i in range(t.own_rows)
    ]

    def threads(name: str, make: Callable[[Expr], list[Stmt]]) -> Stmt:
        lane = ir.var(name)
        return ir.For(lane, ZERO, const(t.threads), "lanes", make(lane))

    k0 = ir.var("k0")

    def fetch(lane: Expr, start: Expr) -> list[Stmt]:
        asked = [x for side in sides for x in side.fetch(t, lane, batch, start, s.k)]
        if not t.straight:
            return asked
        inside = ir.add(start, const(t.depth)) <= s.k
        plain = [x for side in sides for x in side.fetch_inside(t, lane, batch, start)]
        return [ir.If(inside, plain), ir.If(~inside, asked)]

    def multiply(lane: Expr) -> list[Stmt]:
        down, right_lane = t.own(lane)
        kk = ir.var("kk")
        body: list[Stmt] = []
        for u in range(t.depth if t.straight else STEPS):
            step = const(u) if t.straight else ir.add(kk, const(u))
            lets_a, xs = a.values(t.own_rows, down, step, f"a{u}_")
            lets_b, ys = b.values(t.own_columns, right_lane, step, f"b{u}_")
            body += [*lets_a, *lets_b]
            for i, x in enumerate(xs):
                for j, y in enumerate(ys):
                    old = ir.read(sums[i][j])
                    new = (
                        ir.fma(x, y, old, allow_unfused=True)
                        if dtype.kind == "float"
                        else old + x * y
                    )
                    body.append(ir.Set(sums[i][j], new))
        if not t.straight:
            body = [ir.For(kk, ZERO, const(t.depth), "serial", body, step=const(STEPS))]
        return [*fetch(lane, ir.add(k0, const(t.depth))), *body]

    def keep(lane: Expr) -> list[Stmt]:
        return [x for side in sides for x in side.keep(t, lane)]

    out += [ir.Set(c, const(0, dtype)) for row in sums for c in row]
    out.append(threads("first", lambda lane: fetch(lane, ZERO)))
    body = [threads("keep", keep), threads("multiply", multiply)]
    out.append(ir.For(k0, ZERO, s.k, "serial", body, step=const(t.depth)))

    def element(lane: Expr, i: int, j: int) -> tuple[Expr, Expr]:
        down, right_lane = t.own(lane)
        return a.line(t.own_rows, down, i), b.line(t.own_columns, right_lane, j)

    scratch = [a.buffer, b.buffer]
    if work.light:

        def store(lane: Expr) -> list[Stmt]:
            stores: list[Stmt] = []
            for i in range(t.own_rows):
                for j in range(t.own_columns):
                    row, column = element(lane, i, j)
                    m, n = ir.add(m0, row), ir.add(n0, column)
                    done = finish(batch, m, n, ir.read(sums[i][j]))
                    stores.append(ir.If((m < s.m) & (n < s.n), done))
            return stores

        return [*out, threads("store", store)], scratch
    # through the group's memory, a row of every thread at a time: the epilogue is written once each
    height = t.rows // t.own_rows
    stage = ir.Buffer("stage", dtype, "scratch", const(height * t.columns))
    for i in range(t.own_rows):

        def lay(lane: Expr, i: int = i) -> list[Stmt]:
            row = ir.mul(t.own(lane)[0], const(t.columns))
            return [
                ir.Store(stage, ir.add(row, element(lane, i, j)[1]), ir.read(sums[i][j]))
                for j in range(t.own_columns)
            ]

        at = ir.var(f"out{i}")
        down, column = ir.idiv(at, const(t.columns)), ir.irem(at, const(t.columns))
        m, n = ir.add(m0, a.line(t.own_rows, down, i)), ir.add(n0, column)
        done = finish(batch, m, n, ir.load(stage, at))
        inside = ir.If((m < s.m) & (n < s.n), done)
        out.append(threads(f"lay{i}", lay))
        out.append(ir.For(at, ZERO, const(height * t.columns), "lanes", [inside]))
    return out, [*scratch, stage]


def pieces_of(target: Target, tiles: Tiles, batch: int, m: int, n: int, k: int) -> int:
    """How many pieces a long inner axis is cut into, so that small results keep all units busy."""
    groups = batch * -(-m // tiles.rows) * -(-n // tiles.columns)
    wanted = -(-2 * target.num_cores // groups)
    return max(1, min(wanted, k // 512), -(-k // 65536))
