"""Slices of the operands of a product on their way through a group's memory.

Some slices ahead are being copied while one is multiplied. What is nothing but memory is copied
without passing through registers, where the target does that; anything else is read through its
expression. A slice lies there as lines of k one after the other (`along`), or as lines across k, in
*words*: of narrow dtypes, so many elements along k as 4 bytes hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.ir import Expr, Stmt, const
from numus.dtypes import DType, float32
from numus.kernels.group_work import Epilogue, TileSizes

ZERO, ONE = const(0), const(1)

COPIES_SINCE = 80  # compute capability from which on copies go on by themselves
SPARE = 4  # words between lines along k: they shift the banks
TOGETHER = 8  # runs that are copied at a time where some are cut off: more take many registers


def zero(dtype: DType) -> Expr:
    return const(0.0, float32).cast(dtype) if dtype.is_narrow_float else const(0, dtype)


def word_of(dtype: DType) -> DType:
    """What a thread reads at a time."""
    return dtype if dtype.itemsize >= 4 else dt.uint32


@dataclass(slots=True)
class Operand:
    """`read(batch, line, k, mask)` is an element; lines are rows of A or columns of B."""

    read: Callable[[Expr, Expr, Expr, Expr], Expr]
    extent: Expr  # how many lines there are
    along: bool  # whether lines of neighbours run along k in the group's memory
    plain: Callable[[Expr, Expr, Expr], tuple[ir.Buffer, Expr]] | None  # where it can be copied
    aligned: Expr  # whether runs of 16 bytes lie at whole places there
    pitch: Expr = ZERO  # and how far lines of neighbours lie apart there
    turned: bool = False  # whether neighbours in memory run the other way: copied one by one
    # (batch, slice) -> how far from its place a slice lies: in lines of neighbours, and in elements
    displaced: Callable[[Expr, Expr], tuple[Expr, Expr]] | None = None
    lines: Expr = ZERO  # in memory, of what is displaced: zeros lie around them
    ends: Callable[[Expr], Expr] | None = None  # slice -> the k from which on there are zeros


@dataclass(frozen=True, slots=True)
class Shape:
    """What all slices of a kernel share."""

    dtype: DType
    depth: int  # words along k
    stages: int  # slices in the group's memory
    threads: int
    spare: int  # words between lines across k

    @property
    def per_word(self) -> int:
        return word_of(self.dtype).itemsize // self.dtype.itemsize

    @property
    def elements(self) -> int:
        """Along k."""
        return self.depth * self.per_word


@dataclass(slots=True)
class Side:
    """An operand, of which a tile has so many lines from `first` on."""

    operand: Operand
    first: Expr
    lines: int
    shape: Shape
    words: ir.Buffer
    elements: ir.Buffer  # the same memory
    start: int  # in words

    @property
    def pitch(self) -> int:
        """Words from line to line, along k or across it."""
        if self.operand.along:
            return self.shape.depth + SPARE
        return self.lines + self.shape.spare

    @property
    def size(self) -> int:
        """Words of a slice."""
        return self.pitch * (self.lines if self.operand.along else self.shape.depth)

    def place(self, stage: Expr, line: Expr, word: Expr) -> Expr:
        base = ir.add(ir.mul(stage, const(self.size)), const(self.start))
        slow, quick = (line, word) if self.operand.along else (word, line)
        return ir.add(ir.add(base, ir.mul(slow, const(self.pitch))), quick)

    @property
    def by_k(self) -> bool:
        """Whether neighbours in memory run along k."""
        return self.operand.along != self.operand.turned

    def inside(self, number: Expr, k_size: Expr, hop: Expr | None, run: int) -> Expr:
        """Whether runs of a slice, so many lines away, are whole. Where lines of a tile do not
        exist, others are copied: nothing becomes of them."""
        o = self.operand
        k_size = k_size if o.ends is None else o.ends(number)
        last = ir.add(self.first, const(self.lines))
        begin = ir.mul(number, const(self.shape.elements))
        end = ir.add(begin, const(self.shape.elements))
        whole = end <= k_size
        if hop is None:
            if self.by_k or run == 1:
                return whole
            return whole & ((last <= o.extent) | ir.irem(o.extent, const(run)).eq(0))
        begin, end = (self.first, last) if self.by_k else (begin, end)
        lines = (ir.add(begin, hop) >= 0) & (ir.add(end, hop) <= o.lines)
        return whole & (last <= o.extent) & lines

    def ways(self, number: Expr, k_size: Expr, hop: Expr | None) -> dict[str, Expr]:
        """How slice `number` is brought, and on which conditions: copied in `runs` of 16 bytes or
        as single `ones`; where the tile's lines end (`edge`), where runs are `cut`; or `read`."""
        o, size = self.operand, self.shape.dtype.itemsize
        if o.plain is None:
            return {"read": const(True, dt.bool_)}
        there = ir.add(self.first, const(self.lines)) <= o.extent

        def copies(kind: str, given: Expr, run: int) -> dict[str, Expr]:
            inside = self.inside(number, k_size, hop, run)
            cut = {f"{kind} cut": given & ~inside}
            if hop is not None or not self.by_k:
                return {kind: given & inside, **cut}
            return {kind: given & inside & there, f"{kind} edge": given & inside & ~there, **cut}

        if o.turned:
            return copies("ones", const(True, dt.bool_), 1)
        found = copies("runs", o.aligned, 16 // size)
        if size < 4:
            return {**found, "read": ~o.aligned}
        if o.aligned.op == "const":
            return {**found, **copies("ones", ~o.aligned, 1)}
        return {**found, "ones cut": ~o.aligned}

    def bring(
        self,
        lane: Expr,
        batch: Expr,
        number: Expr,
        stage: Expr,
        k_size: Expr,
        how: str,
        away: tuple[Expr, Expr] | None = None,
    ) -> list[Stmt]:
        """A thread's share of slice `number`, which lies `away` from its place, to a stage."""
        o, s = self.operand, self.shape
        k_size = k_size if o.ends is None else o.ends(number)
        run = 1 if how.startswith("ones") else 16 // s.dtype.itemsize
        cut = how.endswith("cut")
        total = self.lines * s.elements // run
        by_k = self.by_k
        fast = (s.elements if by_k else self.lines) // run
        down, right = ir.idiv(lane, const(fast)), ir.mul(ir.irem(lane, const(fast)), const(run))
        begin = ir.mul(number, const(s.elements))
        # of memory's lines, and of the neighbours in each: where there are none any more
        firsts, ends = (self.first, begin), (o.extent, k_size)
        if not by_k:
            firsts, ends = firsts[::-1], ends[::-1]

        def at(slow: Expr, quick: Expr) -> tuple[Expr, Expr]:
            """A line of the tile, and how deep in the slice."""
            return (slow, quick) if by_k else (quick, slow)

        def target(slow: Expr, quick: Expr) -> Expr:
            line, deep = at(slow, quick)
            word = ir.idiv(deep, const(s.per_word)) if s.per_word > 1 else deep
            return self.place(stage, line, word)

        def copied(below: Expr, aside: Expr) -> list[Stmt]:
            assert o.plain is not None
            line, deep = at(down, ir.add(right, aside))
            line, limit = ir.add(self.first, line), const(run)
            far = below.cast(dt.uint32)
            room = ends[0] - ir.add(firsts[0], down)  # lines of memory from the first one on
            if cut:
                there = room > below
                if away is not None:
                    place = ir.add(ir.add(ir.add(firsts[0], down), below), away[0])
                    there = there & (place >= 0) & (place < o.lines)
                limit = ir.select(there, ends[1] - ir.add(firsts[1], ir.add(right, aside)), ZERO)
            elif how.endswith("edge"):  # lines that do not exist are copies of the last one
                line = ir.minimum(line, o.extent - 1)
                far = ir.minimum(far, (o.extent - 1 - line).cast(dt.uint32))
            elif away is None and not by_k:
                line = ir.minimum(line, o.extent - run)
            buffer, source = o.plain(batch, line, deep)
            source = ir.add(source, begin if by_k else ir.mul(begin, o.pitch))
            if away is not None:
                source = ir.add(source, away[1])
            # from the first place by a number of lines, in a single multiplication
            lines = ir.mul(o.pitch.cast(dt.uint32).cast(ir.INDEX), far.cast(ir.INDEX))
            index = ir.add(source, lines)
            to = target(ir.add(down, below), ir.add(right, aside))
            return [ir.AsyncCopy(self.words, to, buffer, index, limit, run * s.dtype.itemsize)]

        def read(below: Expr, aside: Expr) -> list[Stmt]:
            found: list[Stmt] = []
            slow, quick = ir.add(down, below), ir.add(right, aside)
            line, deep = at(slow, quick)
            for u in range(run):
                i = ir.add(ir.add(self.first, line), const(0 if by_k else u))
                p = ir.add(ir.add(begin, deep), const(u if by_k else 0))
                there = (i < o.extent) & (p < k_size)
                value = ir.select(there, o.read(batch, i, p, there), zero(s.dtype))
                to = ir.add(ir.mul(target(slow, quick), const(s.per_word)), const(u))
                found.append(ir.Store(self.elements, to, value))
            return found

        def share(number: Expr) -> list[Stmt]:
            away = ir.mul(number, const(s.threads))
            each = read if how == "read" else copied
            one = each(ir.idiv(away, const(fast)), ir.mul(ir.irem(away, const(fast)), const(run)))
            return one if not total % s.threads else [ir.If(ir.add(lane, away) < const(total), one)]

        count = -(-total // s.threads)
        if not cut or count % TOGETHER:
            return [x for i in range(count) for x in share(const(i))]
        which = ir.var(f"{lane.attr}_share")
        some = [x for i in range(TOGETHER) for x in share(ir.add(which, const(i)))]
        return [ir.For(which, ZERO, const(count), "serial", some, const(TOGETHER))]


def sides(
    shape: Shape,
    operands: tuple[Operand, Operand],
    firsts: tuple[Expr, Expr],
    lines: tuple[int, int],
) -> tuple[Side, Side, int]:
    """Both operands in one piece of the group's memory, and how many words that has."""
    word = word_of(shape.dtype)
    words = ir.Buffer("slices", word, "scratch")
    elements = ir.Buffer("elements", shape.dtype, "scratch", over=words)
    a = Side(operands[0], firsts[0], lines[0], shape, words, elements, 0)
    b = Side(operands[1], firsts[1], lines[1], shape, words, elements, shape.stages * a.size)
    total = shape.stages * (a.size + b.size)
    words.size, elements.size = const(total), const(total * shape.per_word)
    return a, b, total


@dataclass(slots=True)
class Sizes(TileSizes):
    """The same where k may be cut into pieces."""

    together: Expr  # rows of tiles whose groups run at the same time: they share columns
    pieces: Expr  # of k, each a sum of its own
    slices: Expr  # of a piece

    def piece(self, which: Expr, depth: int) -> tuple[Expr, Expr, Expr]:
        """The matrix of a batch that a piece is of, its first slice, and how many it has."""
        first = ir.mul(ir.irem(which, self.pieces), self.slices)
        every = ir.idiv(ir.add(self.k, const(depth - 1)), const(depth))
        return ir.idiv(which, self.pieces), first, ir.minimum(self.slices, every - first)


Run = list[ir.Let]  # what one access reads


@dataclass(slots=True)
class Parts:
    """What a thread does with a slice, in so many parts (two at least).

    `read(part, lane, stage, tag)` begins to read what a part needs from its beginning on, under
    names with this tag; `multiply(part, lane, stage, ahead)` is the part, in the course of which
    the runs of `ahead` are to be read: those of the next one.
    """

    count: int
    read: Callable[[Expr, Expr, Expr, str], list[Run]]
    multiply: Callable[[Expr, Expr, Expr, list[Run]], list[Stmt]]
    loop: str  # "serial" or "unroll"


def woven(products: list[Stmt], runs: list[Run]) -> list[Stmt]:
    """Runs that are read while something is multiplied."""
    out: list[Stmt] = []
    runs = list(runs)
    count, done, total = len(runs), 0, sum(not isinstance(s, ir.Let) for s in products)
    for s in products:
        if not isinstance(s, ir.Let):
            while (count - len(runs)) * total < (done + 1) * count:
                out += runs.pop(0)
            done += 1
        out.append(s)
    return out


def pipeline(pair: tuple[Side, Side], which: Expr, sizes: Sizes, parts: Parts) -> list[Stmt]:
    """The loop over all slices of a piece. The group meets before the last part of a slice: in its
    course threads begin to read the next one."""
    shape = pair[0].shape
    batch, start, count = sizes.piece(which, shape.elements)
    end = ir.add(start, count)
    k_size = sizes.k
    ahead = shape.stages - 1

    def bring(name: str, number: Expr, stage: Expr) -> list[Stmt]:
        steps: list[Stmt] = []
        for side, tag in zip(pair, "ab", strict=True):
            away = None
            if side.operand.displaced is not None:
                away = (ir.var(f"{name}{tag}_hop"), ir.var(f"{name}{tag}_more"))
                found = side.operand.displaced(batch, number)
                steps += [ir.Let(v, e) for v, e in zip(away, found, strict=True)]
            for how, condition in side.ways(number, k_size, away and away[0]).items():
                if condition.op == "const" and not condition.attr:
                    continue
                lane = ir.var(f"{name}{tag}_{how}")
                body = side.bring(lane, batch, number, stage, k_size, how, away)
                loop: list[Stmt] = [ir.For(lane, ZERO, const(shape.threads), "lanes", body)]
                rare = how not in ("runs", "ones")
                steps += loop if condition.op == "const" else [ir.If(condition, loop, rare)]
        return steps

    def all_threads(name: str, work: Callable[[Expr], list[Stmt]]) -> Stmt:
        lane = ir.var(name)
        return ir.For(lane, ZERO, const(shape.threads), "lanes", work(lane))

    # what a part needs from its beginning on is kept from one part to the next
    names = [let.var for run in parts.read(ZERO, ZERO, ZERO, "") for let in run]
    kept = [ir.Register(f"kept{i}", v.dtype, lanes=True) for i, v in enumerate(names)]
    last = const(parts.count - 1)

    def keep(runs: list[Run]) -> list[Stmt]:
        values = (let.var for run in runs for let in run)
        return [ir.Set(register, value) for register, value in zip(kept, values, strict=True)]

    def begin(lane: Expr) -> list[Stmt]:
        runs = parts.read(ZERO, lane, ZERO, "")
        return [*(let for run in runs for let in run), *keep(runs)]

    def one(lane: Expr, part: Expr, next_: Expr, where: Expr) -> list[Stmt]:
        """A part of a slice, while another one is read, of another slice maybe."""
        runs = parts.read(next_, lane, where, "next_")
        old = [ir.Let(name, ir.read(x)) for name, x in zip(names, kept, strict=True)]
        return [*old, *parts.multiply(part, lane, here, runs), *keep(runs)]

    def most(lane: Expr) -> list[Stmt]:
        part = ir.var("part")
        return [ir.For(part, ZERO, last, parts.loop, one(lane, part, ir.add(part, ONE), here))]

    def rest(lane: Expr) -> list[Stmt]:
        return one(lane, last, ZERO, after)

    stage = ir.Register("stage", ir.INDEX)
    here, before, after = (ir.var(f"stage_{name}") for name in ("here", "before", "after"))
    at_end = ir.add(here, ONE).eq(shape.stages)
    around: list[Stmt] = [
        ir.Let(here, ir.read(stage)),
        ir.Let(before, ir.select(here.eq(0), const(ahead), ir.add(here, const(-1)))),
        ir.Let(after, ir.select(at_end, ZERO, ir.add(here, ONE))),
    ]

    out: list[Stmt] = []
    for number in range(ahead):
        first = ir.add(start, const(number))
        there = bring(f"ahead{number}", first, const(number))
        out += [ir.If(first < end, there), ir.AsyncCommit()]
    out += [ir.AsyncWait(ahead - 1), all_threads("begin", begin), ir.Set(stage, ZERO)]
    q = ir.var("slice")
    next_ = ir.add(q, const(ahead))
    body: list[Stmt] = [
        *around,
        ir.If(next_ < end, bring("next", next_, before)),
        ir.AsyncCommit(),
        all_threads("multiply", most),
        ir.AsyncWait(ahead - 1),
        all_threads("multiply_last", rest),
        ir.Set(stage, after),
    ]
    return [*out, ir.For(q, start, end, "serial", body), ir.AsyncWait(0)]


def corner(
    s: Sizes, g: Expr, rows: int, columns: int
) -> tuple[tuple[Expr, Expr, Expr], list[Stmt]]:
    """Which piece of which matrix of a batch group g has (as one number), and the first row and
    column of its tile: names, and statements that give them values. Groups that run together have a
    square of tiles."""
    tiles = ir.mul(s.row_tiles, s.column_tiles)
    inner = ir.irem(g, tiles)
    band = ir.mul(s.together, s.column_tiles)
    top = ir.mul(ir.idiv(inner, band), s.together)
    within = ir.irem(inner, band)
    height = ir.minimum(s.together, s.row_tiles - top)
    row = ir.add(top, ir.irem(within, height))
    values = (
        ir.idiv(g, tiles),
        ir.mul(row, const(rows)),
        ir.mul(ir.idiv(within, height), const(columns)),
    )
    names = (ir.var("which"), ir.var("m0"), ir.var("n0"))
    return names, [ir.Let(name, value) for name, value in zip(names, values, strict=True)]


@dataclass(slots=True)
class Summed:
    """A tile of sums in the registers of a group's threads, and the statements that make it."""

    body: list[Stmt]
    tile: tuple[Expr, Expr, Expr]  # which matrix, and the first row and column
    shape: tuple[int, int]
    threads: int
    registers: list[ir.Register]
    place: Callable[[Expr, int], tuple[Expr, Expr]]  # of a thread's `number`-th, in the tile
    scratch: list[ir.Buffer]  # of which the first is free for other things by then
    words: int  # of that

    def then(self, steps: list[Stmt], stage: ir.Buffer) -> tuple[list[Stmt], list[ir.Buffer]]:
        """What a group does, and its memory: the sums, and steps that take them out by a stage."""
        return [*self.body, *steps], [*self.scratch, stage]


RUN = 8  # neighbours of the result that a thread stores at a time


def runs_out(
    stage: ir.Buffer,
    shape: tuple[int, int],
    pitch: Expr,
    ends: tuple[Expr, Expr],
    tile: tuple[Expr, Expr, Expr],
    finish: Epilogue,
    tag: str = "",
) -> Stmt:
    """What lies in the group's memory leaves through the epilogue, RUN neighbours at a time."""
    which, m0, n0 = tile
    at = ir.var(f"out{tag}")
    across = const(shape[1] // RUN)
    row, column = ir.idiv(at, across), ir.mul(ir.irem(at, across), const(RUN))
    m, n = ir.add(m0, row), ir.add(n0, column)
    base = ir.add(ir.mul(row, pitch), column)
    values = [ir.var(f"v{tag}_{u}", stage.dtype) for u in range(RUN)]
    loads: list[Stmt] = [
        ir.Let(v, ir.load(stage, ir.add(base, const(u)))) for u, v in enumerate(values)
    ]
    each = [finish(which, m, ir.add(n, const(u)), v) for u, v in enumerate(values)]
    whole = [element[i] for i in range(len(each[0])) for element in each]
    u = ir.var(f"u{tag}")
    one = finish(which, m, ir.add(n, u), ir.load(stage, ir.add(base, u)))
    down, last = m < ends[0], ir.add(n, const(RUN))
    body: list[Stmt] = [
        ir.If(down & (last <= ends[1]), [*loads, *whole]),
        ir.If(down & (last > ends[1]), [ir.For(u, ZERO, ends[1] - n, "serial", one)]),
    ]
    return ir.For(at, ZERO, const(shape[0] * shape[1] // RUN), "lanes", body)
