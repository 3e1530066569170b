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
from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.problem import Epilogue, TileSizes

ZERO, ONE = const(0), const(1)

SPARE = 4  # words between lines along k: they shift the banks


def zero(dtype: DType) -> Expr:
    return const(0.0, float32).cast(dtype) if dtype.is_narrow_float else const(0, dtype)


def word_of(dtype: DType) -> DType:
    """What a thread reads at a time."""
    return dtype if dtype.itemsize >= 4 else dt.uint32


Plain = Callable[[Expr, Expr, Expr], tuple[ir.Buffer, Expr]]  # where (batch, line, k) lies


@dataclass(slots=True)
class Operand:
    """`read(batch, line, k, mask)` is an element; lines are rows of A or columns of B."""

    read: Callable[[Expr, Expr, Expr, Expr], Expr]
    extent: Expr  # how many lines there are
    along: bool  # whether lines of neighbours run along k in the group's memory
    plain: Plain | None  # where it can be copied
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
    clamped: bool = False  # whether lines beyond the last are copies of it rather than zeros

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

    def inside(self, number: Expr, k_size: Expr, hop: Expr | None) -> Expr:
        """Whether nothing of a slice, so many lines away, is cut off."""
        o = self.operand
        k_size = k_size if o.ends is None else o.ends(number)
        last = ir.add(self.first, const(self.lines))
        begin = ir.mul(number, const(self.shape.elements))
        end = ir.add(begin, const(self.shape.elements))
        if self.shape.clamped:
            return end <= k_size
        whole = (last <= o.extent) & (end <= k_size)
        if hop is None:
            return whole
        begin, end = (self.first, last) if self.by_k else (begin, end)
        return whole & (ir.add(begin, hop) >= 0) & (ir.add(end, hop) <= o.lines)

    def ways(self, number: Expr, k_size: Expr, hop: Expr | None) -> dict[str, Expr]:
        """How slice `number` is brought, and on which conditions: copied in `runs` of 16 bytes or
        as single `ones`, with `cut` where the operand ends, or `read`."""
        o = self.operand
        inside = self.inside(number, k_size, hop)
        if o.plain is None:
            return {"read": const(True, dt.bool_)}
        if o.turned:
            return {"ones": inside, "ones cut": ~inside}
        if self.shape.clamped:  # but for runs in which the last line has others behind it
            run = const(16 // self.shape.dtype.itemsize)
            last = ir.add(self.first, const(self.lines))
            whole = inside & ((last <= o.extent) | ir.irem(o.extent, run).eq(0))
            runs = {"runs": o.aligned & whole, "runs cut": o.aligned & ~whole}
            return runs | {"ones": ~o.aligned & inside, "ones cut": ~o.aligned & ~inside}
        other = "ones cut" if self.shape.dtype.itemsize >= 4 else "read"
        return {"runs": o.aligned & inside, "runs cut": o.aligned & ~inside, other: ~o.aligned}

    def bring(
        self,
        lane: Expr,
        batch: Expr,
        number: Expr,
        k_size: Expr,
        how: str,
        away: tuple[Expr, Expr] | None = None,
    ) -> list[Stmt]:
        """A thread's share of slice `number`, which lies `away` from its place."""
        o, s = self.operand, self.shape
        k_size = k_size if o.ends is None else o.ends(number)
        out: list[Stmt] = []
        run = 1 if how.startswith("ones") else 16 // s.dtype.itemsize
        by_k = self.by_k
        total = self.lines * s.elements // run
        stage = ir.irem(number, const(s.stages))
        fast = (s.elements if by_k else self.lines) // run
        down, quick = ir.idiv(lane, const(fast)), ir.mul(ir.irem(lane, const(fast)), const(run))
        begin = ir.mul(number, const(s.elements))

        def lines_and_k(slow: Expr, right: int = 0) -> tuple[Expr, Expr]:
            along = ir.add(quick, const(right))
            return (slow, along) if by_k else (along, slow)

        def source(below: int, right: int) -> tuple[ir.Buffer, Expr]:
            """From the first place by a number that is the same for all threads."""
            assert o.plain is not None
            if s.clamped:
                return clamped_source(o.plain, below, right)
            line, deep = lines_and_k(down)
            buffer, first = o.plain(batch, ir.add(self.first, line), ir.add(begin, deep))
            return buffer, ir.add(ir.add(first, const(right)), ir.mul(o.pitch, const(below)))

        def clamped_source(plain: Plain, below: int, right: int) -> tuple[ir.Buffer, Expr]:
            """The same, but no further than the last line; in 32 bits, which is one product."""
            line, deep = lines_and_k(down, right)
            line, far = ir.add(self.first, line), const(below, dt.int32)
            if not how.endswith("cut"):
                line = ir.minimum(line, o.extent - (1 if by_k else run))
                if by_k:
                    far = ir.minimum(far, (o.extent - 1 - line).cast(dt.int32))
            buffer, first = plain(batch, line, ir.add(begin, deep))
            pitch = o.pitch.cast(dt.int32).cast(ir.INDEX)
            return buffer, ir.add(first, ir.mul(pitch, far.cast(ir.INDEX)))

        for share in range(-(-total // s.threads)):
            # of memory's lines: neighbours stay where they are, but where a line has more of them
            # than there are threads
            below, right = divmod(share * s.threads, fast)
            right = right * run if s.threads < fast else 0
            line, deep = lines_and_k(ir.add(down, const(below)), right)
            word = ir.idiv(deep, const(s.per_word)) if s.per_word > 1 else deep
            to = self.place(stage, line, word)
            k, here = ir.add(begin, deep), ir.add(self.first, line)
            one: list[Stmt] = []
            if how != "read":
                buffer, index = source(below, right)
                left, other = (
                    (k_size - k, here < o.extent) if by_k else (o.extent - here, k < k_size)
                )
                if away is not None:
                    hop, more = away
                    index, at = ir.add(index, more), ir.add(here if by_k else k, hop)
                    other = other & (at >= 0) & (at < o.lines)
                limit = ir.select(other, left, ZERO) if how.endswith("cut") else const(run)
                nbytes = run * s.dtype.itemsize
                one.append(ir.AsyncCopy(self.words, to, buffer, index, limit, nbytes))
            else:
                for u in range(run):
                    i = ir.add(here, const(0 if by_k else u))
                    p = ir.add(k, const(u if by_k else 0))
                    inside = (i < o.extent) & (p < k_size)
                    value = ir.select(inside, o.read(batch, i, p, inside), zero(s.dtype))
                    target = ir.add(ir.mul(to, const(s.per_word)), const(u))
                    one.append(ir.Store(self.elements, target, value))
            exists = (share + 1) * s.threads <= total
            there = ir.add(lane, const(share * s.threads)) < const(total)
            out += one if exists else [ir.If(there, one)]
        return out


def sides(
    shape: Shape,
    operands: tuple[Operand, Operand],
    firsts: tuple[Expr, Expr],
    lines: tuple[int, int],
) -> tuple[Side, Side, int]:
    """Both operands in one piece of the group's memory, and how many words that has."""
    word = word_of(shape.dtype)
    words = ir.Buffer("slices", word, "scratch")
    elements = ir.Buffer("elements", shape.dtype, "scratch", aliases=words)
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


def pipeline(
    pair: tuple[Side, Side],
    which: Expr,
    sizes: Sizes,
    multiply: Callable[[Expr, Expr], list[Stmt]],
) -> list[Stmt]:
    """The loop over all slices of a piece. `multiply(lane, stage)` is what a thread does with
    one."""
    shape = pair[0].shape
    batch, start, count = sizes.piece(which, shape.elements)
    end = ir.add(start, count)
    k_size = sizes.k
    ahead = shape.stages - 1

    def bring(name: str, number: Expr) -> list[Stmt]:
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
                body = side.bring(lane, batch, number, k_size, how, away)
                loop: list[Stmt] = [ir.For(lane, ZERO, const(shape.threads), "lanes", body)]
                steps += loop if condition.op == "const" else [ir.If(condition, loop)]
        return steps

    out: list[Stmt] = []
    for number in range(ahead):
        here = ir.add(start, const(number))
        first = ir.If(here < end, bring(f"ahead{number}", here))
        out += [first, ir.AsyncCommit()]
    q, lane = ir.var("slice"), ir.var("multiply")
    next_ = ir.add(q, const(ahead))
    work = multiply(lane, ir.irem(q, const(shape.stages)))
    body: list[Stmt] = [
        ir.AsyncWait(ahead - 1),
        ir.If(next_ < end, bring("next", next_)),
        ir.AsyncCommit(),
        ir.For(lane, ZERO, const(shape.threads), "lanes", work),
    ]
    return [*out, ir.For(q, start, end, "serial", body), ir.AsyncWait(0)]


def corner(
    s: Sizes, g: Expr, rows: int, columns: int, *, quick: bool = False
) -> tuple[tuple[Expr, Expr, Expr], list[Stmt]]:
    """Which piece of which matrix of a batch group g has (as one number), and the first row and
    column of its tile: names, and statements that give them values. Groups that run together have a
    square of tiles. It is found `quick`er in 32 bits, which are enough to count groups."""
    counts = (g, s.row_tiles, s.column_tiles, s.together)
    g, down, across, together = (e.cast(dt.uint32) for e in counts) if quick else counts
    tiles = ir.mul(down, across)
    inner = ir.irem(g, tiles)
    band = ir.mul(together, across)
    top = ir.mul(ir.idiv(inner, band), together)
    within = ir.irem(inner, band)
    height = ir.minimum(together, down - top)
    places = (ir.idiv(g, tiles), ir.add(top, ir.irem(within, height)), ir.idiv(within, height))
    which, row, column = (e.cast(ir.INDEX) for e in places)
    values = (which, ir.mul(row, const(rows)), ir.mul(column, const(columns)))
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


RUN = 8  # neighbours of the result that a thread stores at a time


def runs_out(
    stage: ir.Buffer,
    shape: tuple[int, int],
    pitch: Expr,
    ends: tuple[Expr, Expr],
    tile: tuple[Expr, Expr, Expr],
    finish: Epilogue,
    tag: str = "",
    run: int = RUN,
) -> Stmt:
    """What lies in the group's memory leaves through the epilogue, so many neighbours at a time."""
    which, m0, n0 = tile
    at = ir.var(f"out{tag}")
    across = const(shape[1] // run)
    row, column = ir.idiv(at, across), ir.mul(ir.irem(at, across), const(run))
    base = ir.add(ir.mul(row, pitch), column)
    place = (which, ir.add(m0, row), ir.add(n0, column))
    body = run_out(stage, base, place, ends, finish, tag, run)
    return ir.For(at, ZERO, const(shape[0] * shape[1] // run), "lanes", body)


def run_out(
    stage: ir.Buffer,
    base: Expr,
    place: tuple[Expr, Expr, Expr],
    ends: tuple[Expr, Expr],
    finish: Epilogue,
    tag: str,
    run: int = RUN,
) -> list[Stmt]:
    """So many neighbours from `base` on, of a row and from a column on, as far as they exist."""
    which, m, n = place
    values = [ir.var(f"v{tag}_{u}", stage.dtype) for u in range(run)]
    loads: list[Stmt] = [
        ir.Let(v, ir.load(stage, ir.add(base, const(u)))) for u, v in enumerate(values)
    ]
    each = [finish(which, m, ir.add(n, const(u)), v) for u, v in enumerate(values)]
    whole = [element[i] for i in range(len(each[0])) for element in each]
    u = ir.var(f"u{tag}")
    one = finish(which, m, ir.add(n, u), ir.load(stage, ir.add(base, u)))
    down, last = m < ends[0], ir.add(n, const(run))
    return [
        ir.If(down & (last <= ends[1]), [*loads, *whole]),
        ir.If(down & (last > ends[1]), [ir.For(u, ZERO, ends[1] - n, "serial", one)]),
    ]
