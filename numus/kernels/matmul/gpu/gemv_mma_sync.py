"""A matrix of 16-bit floats times a few vectors, by units that 32 threads drive.

As in `group_dots.py` the matrix is read once, straight into registers. With more than a few vectors
plain arithmetic would take longer than memory does; the units multiply 16 vectors as quickly as
one. They want pairs along k in words, and do not care in which order steps of k come, as long as
both operands agree: so every thread gives them runs of neighbours as they lie. Where they lie
across k, the halves of two rows are paired. The warps of a group share out k, and meet in its
memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from numus import dtypes as dt
from numus import ir
from numus.dtypes import float32
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.gemv import Sizes
from numus.kernels.matmul.gpu.mainloop import zero
from numus.kernels.matmul.gpu.problem import GroupWork
from numus.kernels.matmul.gpu.vector_loads import Operand
from numus.target import Target

ZERO, ONE = const(0), const(1)
WARP = 32

LEAST, MOST = 5, 16  # vectors: with fewer, plain arithmetic keeps up with memory
ROWS, COLUMNS = 16, 8  # vectors and lines of one product
ALONG, ACROSS = 32, 16  # steps of k that a warp takes at a time
RUN, QUAD = 8, 4  # neighbours of the matrix, and of vectors where it lies across k
GROUPS = 3  # for every unit
LOADS = 4  # runs of the matrix that a thread has under way, along


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as data."""

    along: bool  # whether neighbours of the matrix lie along k
    tall: int  # products down: 16 vectors each
    wide: int  # products across: 8 lines each
    warps: int
    half: bool  # whether there are 8 vectors at most
    unroll: int = 2

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def lines(self) -> int:
        return self.wide * COLUMNS

    @property
    def steps(self) -> int:
        """Of k, for all warps together."""
        return (ALONG if self.along else ACROSS) * self.warps

    @property
    def nbytes(self) -> int:
        """Of the memory in which warps meet."""
        return self.warps * self.tall * ROWS * (self.lines + COLUMNS) * float32.itemsize


def choose(target: Target, along: bool, batch: int, lines: int, vectors: int, k: int) -> Schedule:
    """Lines of a group so many as leave some groups for each unit."""
    wide, unroll = RUN, 2
    if along:
        wide = 4
        while wide > 1 and batch * -(-lines // (wide * COLUMNS)) < GROUPS * target.num_cores:
            wide //= 2
        unroll = LOADS // wide
    found = Schedule(along, -(-vectors // ROWS), wide, 8, vectors <= ROWS // 2, unroll)
    while found.warps > 4 and (found.nbytes > target.shared_bytes or found.steps > k):
        found = replace(found, warps=found.warps // 2)
    return found


def pieces_of(target: Target, s: Schedule, batch: int, lines: int, k: int) -> int:
    """How many pieces k is cut into, where there are too few groups for the units."""
    groups = batch * -(-lines // s.lines)
    return max(1, min(2 * target.num_cores // groups, k // (4 * s.steps)))


Work = GroupWork[Schedule, Sizes, Operand]
Sums = list[list[list[ir.Register]]]  # of products down and across


def dots(work: Work, g: Expr) -> tuple[list[Stmt], list[ir.Buffer]]:
    """What group g does of a product of a matrix (on the left) and vectors;
    `finish(batch, vector, line, value)` stores an element."""
    s, sizes = work.tiles, work.sizes
    batch = ir.idiv(g, sizes.groups)
    first = ir.mul(ir.irem(g, sizes.groups), const(s.lines))
    sums: Sums = [
        [
            [ir.Register(f"c{i}_{j}_{u}", float32, lanes=True) for u in range(4)]
            for j in range(s.wide)
        ]
        for i in range(s.tall)
    ]
    out: list[Stmt] = [ir.Set(c, const(0, float32)) for row in sums for p in row for c in p]
    aligned = work.left.aligned & work.right.aligned
    ways = [(aligned, True), (~aligned, False)]
    if work.left.place is None:
        ways = [(const(True, dt.bool_), False)]
    for condition, whole in ways:
        if condition.op == "const" and not condition.attr:
            continue
        reader = _Reader(work, batch, first, sums, whole)
        loops = reader.loops()
        out += loops if condition.op == "const" else [ir.If(condition, loops)]
    steps, stage = _added_up(work, batch, first, sums)
    return [*out, *steps], [stage]


class _Reader:
    """How threads read, and what they give to the units. `whole`: in runs."""

    def __init__(self, work: Work, batch: Expr, first: Expr, sums: Sums, whole: bool) -> None:
        self.work, self.batch, self.first, self.sums = work, batch, first, sums
        self.whole = whole
        self.lane = ir.var("lane" if whole else "slow_lane")
        thread = ir.irem(self.lane, const(WARP))
        self.warp = ir.idiv(self.lane, const(WARP))
        self.line, self.word = ir.idiv(thread, const(4)), ir.irem(thread, const(4))

    def loops(self) -> list[Stmt]:
        """Whole rounds of all warps, some at a time; then what is left, of which not all exists."""
        s, k = self.work.tiles, self.work.sizes.k
        own = s.steps // s.warps
        i, j = (ir.var(f"{name}{'' if self.whole else '_slow'}") for name in ("round", "rest"))
        unroll = s.unroll if self.whole else 1
        rounds = ir.idiv(k, const(s.steps * unroll))
        body: list[Stmt] = []
        loads = []
        for u in range(unroll):
            at = ir.add(
                ir.mul(ir.add(ir.mul(i, const(unroll)), const(u)), const(s.warps)), self.warp
            )
            lets, products = self.step(ir.mul(at, const(own)), False, f"{u}")
            body += lets
            loads.append(products)
        body += [product for products in loads for product in products]
        done = ir.mul(rounds, const(s.steps * unroll))
        left = ir.idiv(ir.add(ir.sub(k, done), const(s.steps - 1)), const(s.steps))
        at = ir.add(ir.mul(j, const(s.warps)), self.warp)
        lets, products = self.step(ir.add(done, ir.mul(at, const(own))), True, "r")
        inner: list[Stmt] = [
            ir.For(i, ZERO, rounds, "serial", body),
            ir.For(j, ZERO, left, "serial", [*lets, *products]),
        ]
        return [ir.For(self.lane, ZERO, const(s.threads), "lanes", inner)]

    def step(self, p: Expr, cut: bool, tag: str) -> tuple[list[Stmt], list[Stmt]]:
        """Loads and products of the steps from p on, of which some may be beyond k (`cut`)."""
        return self._along(p, cut, tag) if self.work.tiles.along else self._across(p, cut, tag)

    def run(
        self, x: Operand, line: Expr, k: Expr, count: int, cut: bool, tag: str
    ) -> tuple[list[Stmt], list[Expr]]:
        """Neighbours along k, as halves; zeros beyond its end."""
        size, dtype = self.work.sizes.k, self.work.dtype
        if self.whole and x.along and x.run >= count:
            start = ir.minimum(k, ir.sub(size, const(count))) if cut else k
            lets, found = x.neighbours(self.batch, line, start, count, dtype, tag, True)
            beyond = [k < size] * count
        else:
            ks = [ir.add(k, const(u)) for u in range(count)]
            last = ir.sub(size, ONE)
            places = [(line, ir.minimum(q, last) if cut else q) for q in ks]
            lets, found = x.single(self.batch, places, dtype, tag)
            beyond = [q < size for q in ks]
        if cut:
            found = [ir.select(c, v, zero(dtype)) for c, v in zip(beyond, found, strict=True)]
        return lets, found

    def vectors(self, k: Expr, count: int, cut: bool, tag: str) -> tuple[list[Stmt], list[Pairs]]:
        """Words of the vectors: for each product down, of two lines 8 apart."""
        s = self.work.tiles
        last = ir.sub(self.work.sizes.vectors, ONE)
        lets: list[Stmt] = []
        found: list[Pairs] = []
        for i in range(s.tall):
            both = []
            for half in range(2):
                if half and s.half:
                    both.append([const(0, dt.uint32)] * (count // 2))
                    continue
                row = ir.minimum(ir.add(self.line, const(i * ROWS + half * 8)), last)
                some, values = self.run(self.work.right, row, k, count, cut, f"x{tag}_{i}{half}")
                lets += some
                both.append([_pair(a, b) for a, b in zip(values[::2], values[1::2], strict=True)])
            found.append((both[0], both[1]))
        return lets, found

    def _along(self, p: Expr, cut: bool, tag: str) -> tuple[list[Stmt], list[Stmt]]:
        """A thread has a run of each of its lines: words of two products."""
        s = self.work.tiles
        k = ir.add(p, ir.mul(self.word, const(RUN)))
        last = ir.sub(self.work.sizes.lines, ONE)
        lets: list[Stmt] = []
        lines = []
        for j in range(s.wide):
            line = ir.minimum(ir.add(self.first, ir.add(self.line, const(j * COLUMNS))), last)
            some, values = self.run(self.work.left, line, k, RUN, cut, f"w{tag}_{j}")
            lets += some
            lines.append([_pair(a, b) for a, b in zip(values[::2], values[1::2], strict=True)])
        some, rows = self.vectors(k, RUN, cut, tag)
        products: list[Stmt] = []
        for step in range(0, RUN // 2, 2):
            for i, (low, high) in enumerate(rows):
                left = [low[step], high[step], low[step + 1], high[step + 1]]
                for j, words in enumerate(lines):
                    right = [words[step], words[step + 1]]
                    products.append(ir.MmaSync(self.sums[i][j], left, right, self.work.dtype))
        return [*lets, *some], products

    def _across(self, p: Expr, cut: bool, tag: str) -> tuple[list[Stmt], list[Stmt]]:
        """A thread has runs of lines at four steps of k; each line is of another product."""
        s, size = self.work.tiles, self.work.sizes.k
        matrix, dtype = self.work.left, self.work.dtype
        k = ir.add(p, ir.mul(self.word, const(QUAD)))
        line = ir.add(self.first, ir.mul(self.line, const(RUN)))
        lets: list[Stmt] = []
        rows = []
        for u in range(QUAD):
            here, name = ir.add(k, const(u)), f"w{tag}_{u}"
            at = ir.minimum(here, ir.sub(size, ONE)) if cut else here
            if self.whole:
                start = ir.minimum(line, ir.sub(self.work.sizes.lines, const(RUN)))
                some, values = matrix.neighbours(self.batch, start, at, RUN, dtype, name, True)
            else:
                last = ir.sub(self.work.sizes.lines, ONE)
                places = [(ir.minimum(ir.add(line, const(c)), last), at) for c in range(RUN)]
                some, values = matrix.single(self.batch, places, dtype, name)
            lets += some
            if cut:
                values = [ir.select(here < size, v, zero(dtype)) for v in values]
            rows.append(values)
        some, vectors = self.vectors(k, QUAD, cut, tag)
        products: list[Stmt] = []
        for j in range(s.wide):
            right = [_pair(rows[0][j], rows[1][j]), _pair(rows[2][j], rows[3][j])]
            for i, (low, high) in enumerate(vectors):
                left = [low[0], high[0], low[1], high[1]]
                products.append(ir.MmaSync(self.sums[i][j], left, right, dtype))
        return [*lets, *some], products


Pairs = tuple[list[Expr], list[Expr]]


def _pair(low: Expr, high: Expr) -> Expr:
    """Two halves as a word."""
    first, second = (x.bitcast(dt.uint16).cast(dt.uint32) for x in (low, high))
    return first | (second << 16)


def _added_up(work: Work, batch: Expr, first: Expr, sums: Sums) -> tuple[list[Stmt], ir.Buffer]:
    """What the warps have of each sum."""
    s, sizes = work.tiles, work.sizes
    pitch = s.lines + COLUMNS  # shifts the banks of the next vector
    size = s.tall * ROWS * pitch
    stage = ir.Buffer("stage", float32, "scratch", const(s.warps * size))
    lane = ir.var("lay")
    warp, thread = ir.idiv(lane, const(WARP)), ir.irem(lane, const(WARP))
    row, pair = ir.idiv(thread, const(4)), ir.mul(ir.irem(thread, const(4)), const(2))
    lay: list[Stmt] = []
    for i, line in enumerate(sums):
        for j, product in enumerate(line):
            for u, c in enumerate(product):
                vector = ir.add(row, const(i * ROWS + u // 2 * 8))
                column = ir.add(pair, const(u % 2))
                if s.along:
                    column = ir.add(column, const(j * COLUMNS))
                else:
                    column = ir.add(ir.mul(column, const(RUN)), const(j))
                at = ir.add(ir.mul(warp, const(size)), ir.mul(vector, const(pitch)))
                lay.append(ir.Store(stage, ir.add(at, column), ir.read(c)))
    out: list[Stmt] = [ir.For(lane, ZERO, const(s.threads), "lanes", lay)]
    take = ir.var("take")
    vector, column = ir.idiv(take, const(s.lines)), ir.irem(take, const(s.lines))
    at = ir.add(ir.mul(vector, const(pitch)), column)
    total = ir.load(stage, at)
    for w in range(1, s.warps):
        total = total + ir.load(stage, ir.add(at, const(w * size)))
    name = ir.var("sum", float32)
    line_ = ir.add(first, column)
    done = ir.If(
        line_ < sizes.lines, [ir.Let(name, total), *work.finish(batch, vector, line_, name)]
    )
    count = ir.mul(sizes.vectors, const(s.lines))
    out.append(ir.For(take, ZERO, count, "lanes", [done]))
    return out, stage
