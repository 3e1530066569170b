"""Products of little depth, for groups of threads: what takes time is writing the result.

A thread has a few neighbouring columns, keeps all of B that they need in registers, and goes down
the rows: of each it reads what A has there, which all threads beside it read too, and stores a run
of the result. Rows come a few at a time, so that their loads are under way together. Each element
is one running sum over k.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.problem import GroupWork, TileSizes
from numus.kernels.matmul.gpu.vector_loads import ACCESS, Operand, multiplied, power
from numus.target import Target

ZERO, ONE = const(0), const(1)

DEEPEST, DEEPEST_BESIDE_UNITS = 16, 8  # where units multiply small matrices, they are quicker
HELD = 64  # words of B that a thread keeps
ROWS = (32, 16, 8)  # of a thread: what it keeps is read once for all of them
LITTLE = 4  # depth below which nothing much is kept


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as data."""

    depth: int  # a power of two
    own: int  # columns of a thread
    across: int  # threads side by side
    threads: int
    rows: int  # of a thread
    together: int  # rows at a time

    @property
    def height(self) -> int:
        """Rows of a group."""
        return self.threads // self.across * self.rows

    @property
    def width(self) -> int:
        return self.across * self.own


def choose(
    target: Target, wide: int, stored: int, light: bool, batch: int, m: int, n: int, k: int
) -> Schedule:
    """Runs of the result that are one access, if B has room; rows as many as leave groups for all
    units. `wide`, `stored`: the sizes of a number as it is computed and as it is stored."""
    depth = power(k)
    own = max(1, min(ACCESS // stored, HELD * 4 // (depth * wide)))
    threads = target.block_size
    across = min(threads, power(-(-n // own)))
    together = max(1, min(4, 32 * 4 // (depth * wide))) if light else 1
    for rows in ROWS:
        schedule = Schedule(depth, own, across, threads, rows, together)
        groups = batch * -(-m // schedule.height) * -(-n // schedule.width)
        if groups >= (6 if depth < LITTLE else 3) * target.num_cores:
            break
    return schedule


@dataclass(slots=True)
class Sizes(TileSizes):
    exact: bool  # whether k is the schedule's depth


Work = GroupWork[Schedule, Sizes, Operand]


def contraction(work: Work, g: Expr) -> list[Stmt]:
    """The work of group g."""
    s, t = work.tiles, work.sizes
    batch = ir.idiv(g, ir.mul(t.row_tiles, t.column_tiles))
    m0 = ir.mul(ir.irem(ir.idiv(g, t.column_tiles), t.row_tiles), const(s.height))
    n0 = ir.mul(ir.irem(g, t.column_tiles), const(s.width))
    lane = ir.var("lane")
    down, right = ir.idiv(lane, const(s.across)), ir.irem(lane, const(s.across))
    n = ir.add(n0, ir.mul(right, const(s.own)))
    aligned = work.left.aligned & work.right.aligned
    inside = ir.add(n, const(s.own)) <= t.n
    cut = (n < t.n) & ~inside
    held = [
        [ir.Register(f"b{p}_{u}", work.dtype, lanes=True) for u in range(s.own)]
        for p in range(s.depth)
    ]
    quick, slow, last = (
        _rows(work, held, batch, m0, n, down, *how)
        for how in ((True, True), (False, True), (False, False))
    )
    body: list[Stmt] = []
    if aligned.op == "const":
        body.append(ir.If(inside, quick))
    else:
        body += [ir.If(inside & aligned, quick), ir.If(inside & ~aligned, slow)]
    return [ir.For(lane, ZERO, const(s.threads), "lanes", [*body, ir.If(cut, last)])]


def _rows(
    work: Work,
    held: list[list[ir.Register]],
    batch: Expr,
    m0: Expr,
    n: Expr,
    down: Expr,
    whole: bool,
    inside: bool,
) -> list[Stmt]:
    """All rows of a thread. `whole`: operands are read in runs; `inside`: all its columns exist."""
    s, t, dtype = work.tiles, work.sizes, work.dtype
    tag = f"{'w' if whole else 's'}{'i' if inside else 'c'}"
    own = s.own if inside else 1
    column = n if inside else ir.var(f"j{tag}")
    deep = [const(p) for p in range(s.depth)]
    if not t.exact:  # what lies beyond is the last again, and counts nothing
        deep = [ir.minimum(p, ir.sub(t.k, ONE)) for p in deep]
    nothing = const(0, dtype)

    def exists(p: int, value: Expr) -> Expr:
        return value if t.exact else ir.select(const(p) < t.k, value, nothing)

    body: list[Stmt] = []
    by_columns = whole and work.right.along and t.exact and s.depth > 1
    for u in range(own if by_columns else 0):
        here = ir.add(column, const(u))
        lets, values = work.right.neighbours(batch, here, ZERO, s.depth, dtype, f"b{tag}{u}", True)
        body += lets
        body += [ir.Set(line[u], v) for line, v in zip(held, values, strict=True)]
    for p, k in enumerate([] if by_columns else deep):
        places = [(ir.add(column, const(u)), k) for u in range(own)]
        lets, values = (
            work.right.neighbours(batch, column, k, own, dtype, f"b{tag}{p}", True)
            if whole and not work.right.along and work.right.run >= own
            else work.right.single(batch, places, dtype, f"b{tag}{p}")
        )
        body += lets
        body += [ir.Set(c, exists(p, v)) for c, v in zip(held[p], values, strict=False)]
    row = ir.var(f"row{tag}")
    step = s.threads // s.across
    ms = [ir.add(row, const(i * step)) for i in range(s.together)]
    last = ir.sub(t.m, ONE)
    heres = [ir.minimum(m, last) for m in ms] if s.together > 1 else ms
    loads: list[Stmt] = []
    rows: list[list[Expr]] = [[] for _ in ms]
    if whole and not work.left.along and step == 1 and work.left.run >= s.together > 1:
        for p, k in enumerate(deep):  # neighbours are rows that come together
            lets, values = work.left.neighbours(
                *(batch, row, k, s.together, dtype, f"a{tag}{p}"), True
            )
            loads += lets
            for line, value in zip(rows, values, strict=True):
                line.append(value)
    else:
        for i, here in enumerate(heres):
            lets, rows[i] = (
                work.left.neighbours(batch, here, ZERO, s.depth, dtype, f"a{tag}{i}", True)
                if whole and work.left.along and t.exact
                else work.left.single(batch, [(here, k) for k in deep], dtype, f"a{tag}{i}")
            )
            loads += lets
    found = [
        (m, [exists(p, v) for p, v in enumerate(values)])
        for m, values in zip(ms, rows, strict=True)
    ]
    stores: list[Stmt] = []
    for i, (m, values) in enumerate(found):
        each = []
        sums: list[Stmt] = []
        for u in range(own):
            total = nothing
            for p in range(s.depth):
                total = multiplied(values[p], ir.read(held[p][u]), total)
            name = ir.var(f"c{tag}{i}_{u}", dtype)
            sums.append(ir.Let(name, total))
            each.append(work.finish(batch, m, ir.add(column, const(u)), name))
        done = [element[j] for j in range(len(each[0])) for element in each]
        one = [*sums, *done]
        stores += [ir.If(m < t.m, one)] if s.together > 1 else one
    first = ir.add(m0, down)
    end = ir.minimum(ir.add(m0, const(s.height)), t.m)
    body.append(ir.For(row, first, end, "serial", [*loads, *stores], step=const(step * s.together)))
    if inside:
        return body
    return [ir.For(column, n, t.n, "serial", body)]
