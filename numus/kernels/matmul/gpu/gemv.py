"""A matrix times a few vectors, for groups of threads: the matrix is read once, and nothing waits.

What takes time is the matrix on its way from memory. Threads read it straight into registers, in
runs of neighbours, and multiply each run with the vectors, which are in the caches. A group has a
few lines of the matrix (rows, where neighbours lie along k; a strip of columns, where they lie
across it) and all of k: its threads share out k and add up at the end what they have, by way of the
group's memory. Each sum is made in one order, whoever is quick.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.problem import GroupWork
from numus.kernels.matmul.gpu.vector_loads import ACCESS, Operand, multiplied, power
from numus.target import Target

ZERO, ONE = const(0), const(1)

FEW = 16  # vectors at most
SUMS, STRIP_SUMS = 32, 64  # of a thread: those of rows, those of columns
LINES = 8  # rows of the matrix that a group has at most
STEPS, MORE_STEPS = 4, 8  # of k that a thread takes at a time, across: more where it has few sums
STAGE = 32 << 10  # bytes by which the threads' sums meet
NEARLY = 0.9  # of the units: enough groups


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as data."""

    along: bool  # whether neighbours of the matrix lie along k
    vectors: int  # a power of two
    lines: int  # of the matrix: rows of a group, or neighbours of a thread
    threads: int
    across: int = 1  # threads side by side along a strip
    steps: int = 1  # of k that a thread takes at a time, there

    @property
    def deep(self) -> int:
        """Threads that share out k."""
        return self.threads // self.across

    @property
    def strip(self) -> int:
        """Lines of a group."""
        return self.lines * self.across

    @property
    def sums(self) -> int:
        """Of a thread."""
        return self.lines * self.vectors


def choose(
    target: Target, itemsize: int, along: bool, batch: int, lines: int, vectors: int, k: int
) -> Schedule:
    """As many lines for a group as leave groups for all units: vectors are then read less often,
    and strips are whole lines of the caches."""
    wide = power(vectors)
    run = max(1, ACCESS // itemsize)
    if along:
        count = min(LINES, SUMS // wide)
        while count > 1 and batch * -(-lines // count) < target.num_cores:
            count //= 2
        threads = min(256, max(32, power(-(-k // run))))
        return Schedule(True, wide, count, threads)
    threads = min(512, max(target.max_block_size, target.block_size))
    own = min(run, max(1, STRIP_SUMS // wide))
    across = 32
    while across > 4 and batch * -(-lines // (across * own)) < NEARLY * target.num_cores:
        across //= 2
    steps = MORE_STEPS if wide * own <= 16 else STEPS
    while threads > 64 and threads // across > max(16, k // steps):
        threads //= 2
    return Schedule(False, wide, own, threads, across, steps)


def pieces_of(target: Target, s: Schedule, batch: int, lines: int, k: int) -> int:
    """How many pieces k is cut into, where there are too few groups for the units."""
    groups = batch * -(-lines // s.strip)
    worth = 4 * s.deep * (s.lines if s.along else s.steps)  # of k
    return max(1, min(target.num_cores // groups, k // max(worth, 512)))


@dataclass(slots=True)
class Sizes:
    """The numbers of a launch, as expressions."""

    vectors: Expr
    lines: Expr
    k: Expr
    groups: Expr  # of a matrix


Sums = list[list[ir.Register]]  # of each vector: those of the lines
Work = GroupWork[Schedule, Sizes, Operand]


def dots(work: Work, g: Expr) -> tuple[list[Stmt], list[ir.Buffer]]:
    """What group g does of a product of a matrix (on the left) and vectors;
    `finish(batch, vector, line, value)` stores an element."""
    s, sizes, dtype = work.tiles, work.sizes, work.dtype
    batch = ir.idiv(g, sizes.groups)
    first = ir.mul(ir.irem(g, sizes.groups), const(s.strip))
    sums = [
        [ir.Register(f"c{r}_{j}", dtype, lanes=True) for j in range(s.lines)]
        for r in range(s.vectors)
    ]
    out: list[Stmt] = [ir.Set(c, const(0, dtype)) for row in sums for c in row]
    lane = ir.var("lane")
    way = _along if s.along else _across
    quick, slow = (way(work, lane, batch, first, sums, whole) for whole in (True, False))
    aligned = work.left.aligned & work.right.aligned
    if work.left.place is None:
        out.append(ir.For(lane, ZERO, const(s.threads), "lanes", slow))
    else:
        for condition, body in ((aligned, quick), (~aligned, slow)):
            loop = ir.For(lane, ZERO, const(s.threads), "lanes", body)
            if condition.op != "const" or condition.attr:
                out.append(loop if condition.op == "const" else ir.If(condition, [loop]))
    steps, stage = _added_up(work, batch, first, sums)
    return [*out, *steps], [stage]


def _parts(work: Work) -> tuple[Schedule, Sizes, DType, Operand, Operand]:
    return work.tiles, work.sizes, work.dtype, work.left, work.right


def _rows(s: Schedule, sizes: Sizes) -> list[Expr]:
    """The vectors; those that do not exist are the last again."""
    last = ir.sub(sizes.vectors, ONE)
    return [ir.minimum(const(r), last) if r else ZERO for r in range(s.vectors)]


def _along(work: Work, lane: Expr, batch: Expr, first: Expr, sums: Sums, whole: bool) -> list[Stmt]:
    """Runs along k, of all lines and vectors."""
    s, sizes, dtype, matrix, vectors = _parts(work)
    run = matrix.run if whole else 1
    last = ir.sub(sizes.lines, ONE)
    lines = [ir.minimum(ir.add(first, const(j)), last) for j in range(s.lines)]
    p = ir.var("p")
    body: list[Stmt] = []

    def bring(x: Operand, line: Expr, tag: str) -> list[Expr]:
        lets, found = (
            x.neighbours(batch, line, p, run, dtype, tag, whole)
            if x.along
            else x.single(batch, [(line, ir.add(p, const(u))) for u in range(run)], dtype, tag)
        )
        body.extend(lets)
        return found

    ws = [bring(matrix, line, f"w{j}") for j, line in enumerate(lines)]
    for r, row in enumerate(_rows(s, sizes)):
        xs = bring(vectors, row, f"x{r}")
        for u in range(run):
            for c, w in zip(sums[r], ws, strict=True):
                body.append(ir.Set(c, multiplied(w[u], xs[u], ir.read(c))))
    start = ir.mul(lane, const(run))
    return [ir.For(p, start, sizes.k, "serial", body, step=const(run * s.threads))]


def _across(
    work: Work, lane: Expr, batch: Expr, first: Expr, sums: Sums, whole: bool
) -> list[Stmt]:
    """Runs of lines at some steps of k."""
    s, sizes, dtype, matrix, vectors = _parts(work)
    deep, column = ir.idiv(lane, const(s.across)), ir.irem(lane, const(s.across))
    line = ir.add(first, ir.mul(column, const(s.lines)))
    rows = _rows(s, sizes)

    def steps(p: Expr, count: int) -> list[Stmt]:
        body: list[Stmt] = []
        ws = []
        for u in range(count):
            here, tag = ir.add(p, const(u)), f"w{u}"
            if whole:
                at = ir.minimum(line, ir.sub(sizes.lines, const(s.lines)))
                lets, found = matrix.neighbours(batch, at, here, s.lines, dtype, tag, True)
            else:
                last = ir.sub(sizes.lines, ONE)
                places = [(ir.minimum(ir.add(line, const(j)), last), here) for j in range(s.lines)]
                lets, found = matrix.single(batch, places, dtype, tag)
            body += lets
            ws.append(found)
        for r, row in enumerate(rows):
            by_run = whole and vectors.along and vectors.run > 1 and count > 1
            places = [(row, ir.add(p, const(u))) for u in range(count)]
            lets, xs = (
                vectors.neighbours(batch, row, p, count, dtype, f"x{r}", True)
                if by_run
                else vectors.single(batch, places, dtype, f"x{r}")
            )
            body += lets
            for u in range(count):
                for c, w in zip(sums[r], ws[u], strict=True):
                    body.append(ir.Set(c, multiplied(w, xs[u], ir.read(c))))
        return body

    p, rest = ir.var("p"), ir.var("rest")
    if not whole:
        return [ir.For(rest, deep, sizes.k, "serial", steps(rest, 1), step=const(s.deep))]
    whole_steps = ir.mul(ir.idiv(sizes.k, const(s.steps)), const(s.steps))
    start, end = ir.mul(deep, const(s.steps)), ir.add(whole_steps, deep)
    return [
        ir.For(p, start, whole_steps, "serial", steps(p, s.steps), step=const(s.steps * s.deep)),
        ir.For(rest, end, sizes.k, "serial", steps(rest, 1), step=const(s.deep)),
    ]


def _added_up(work: Work, batch: Expr, first: Expr, sums: Sums) -> tuple[list[Stmt], ir.Buffer]:
    """What the threads have of each sum, as many sums at a time as there is room for: a team of
    threads reads what all of them have of one, and adds it up."""
    s, sizes, dtype = work.tiles, work.sizes, work.dtype
    flat = [c for row in sums for c in row]
    at_a_time = min(s.sums, s.deep, power(STAGE // (s.threads * dtype.itemsize) + 1) // 2)
    team = s.deep // at_a_time  # threads of one sum
    while team > 32:
        team //= 2
    each = s.deep // team
    results = at_a_time * s.across
    pitch = const(s.deep + min(team, 32))  # shifts the banks of the next sum
    stage = ir.Buffer("stage", dtype, "scratch", ir.mul(const(results), pitch))
    out: list[Stmt] = []
    for begin in range(0, s.sums, at_a_time):
        lane = ir.var(f"lay{begin}")
        deep, column = ir.idiv(lane, const(s.across)), ir.irem(lane, const(s.across))
        lay: list[Stmt] = []
        for q, c in enumerate(flat[begin : begin + at_a_time]):
            number = ir.add(column, const(q * s.across))
            at = ir.add(ir.mul(number, pitch), deep)
            lay.append(ir.Store(stage, at, ir.read(c)))
        out.append(ir.For(lane, ZERO, const(s.threads), "lanes", lay))
        # every thread takes part: those of sums beyond the last add up others once more
        take = ir.var(f"take{begin}")
        number, part = ir.idiv(take, const(team)), ir.irem(take, const(team))
        there = number < results
        base = ir.add(ir.mul(ir.minimum(number, const(results - 1)), pitch), part)
        total = ir.load(stage, base)
        for i in range(1, each):
            total = total + ir.load(stage, ir.add(base, const(i * team)))
        mask = 1
        while mask < team:
            total = total + ir.lanes_xor(total, mask)
            mask *= 2
        name = ir.var(f"sum{begin}", dtype)
        column = ir.irem(number, const(s.across))
        which = ir.add(ir.idiv(number, const(s.across)), const(begin))
        vector, own = ir.idiv(which, const(s.lines)), ir.irem(which, const(s.lines))
        line = ir.add(first, ir.add(ir.mul(column, const(s.lines)), own))
        exists = there & part.eq(0) & (vector < sizes.vectors) & (line < sizes.lines)
        done = ir.If(exists, work.finish(batch, vector, line, name))
        body: list[Stmt] = [ir.Let(name, total), done]
        out.append(ir.For(take, ZERO, const(s.threads), "lanes", body))
    return out, stage
