"""GEMV with packed codes by the rows of a block, for GPUs whose warps are of no known size.

The threads of a block share the words of each row, four adjacent ones as one access where they are
aligned, and use the activations that they read for all rows of the block (from memory, which caches
keep them of: shared memory takes longer); one reduction adds up the sums of all rows.

A code becomes a float by an integer and a float instruction: an exponent over the mantissa in which
it lies makes it 2**e + code, from which 2**e is subtracted. That is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.packed import BYTES, Packing

ZERO, F0 = const(0), const(0.0, dt.float32)
QUAD = 4  # words of an access
MANTISSA, BIAS = 23, 127
SHIFT = 12  # that brings the codes above the mantissa into it


@dataclass(frozen=True)
class BlockGemvTuning:
    """Measured on one H200 through Vulkan: 14336 x 4096 codes of 4 bits take 13.3 us, and those of
    8 bits behind headers 20.2."""

    threads: int = 64
    sums: int = 8  # of a block: rows by vectors
    single_threads: int = 32  # where words are read one by one,
    single_sums: int = 4
    single_words: int = 4  # and how many of a row a thread has in flight

    def shape(self, run: int) -> tuple[int, int, int]:
        """Threads of a block, its sums, and accesses of a row that a thread has in flight."""
        if run > 1:
            return self.threads, self.sums, 1
        return self.single_threads, self.single_sums, self.single_words


TUNING = BlockGemvTuning()


@dataclass(frozen=True)
class Loaded:
    """What a thread has of a row: words of a group, and the group's numbers."""

    words: Sequence[Expr]
    scale: Expr
    zero: Expr | None


@dataclass
class BlockGemv:
    """The rows of a block from `first` on, `count` of which exist. Elements of the operands are
    given by callbacks."""

    packing: Packing
    vectors: int
    rows: int  # of a block
    threads: int
    run: int  # adjacent words of a thread: one access
    words: int  # such accesses of a row, that a thread has in flight
    x: Callable[[int, Expr], Expr]  # vector, element
    word: Callable[[Expr, Expr, int], Expr]  # row, word of it, how many beyond
    scale: Callable[[Expr, Expr], Expr]  # row, group: float32
    zero: Callable[[Expr, Expr], Expr] | None
    first: Expr
    count: Expr
    accesses: Expr  # of a row
    whole: bool  # all iterations are

    def __post_init__(self) -> None:
        self._rows = [ir.minimum(self.first + i, self.count - 1) for i in range(self.rows)]
        self._sums = [
            [ir.Register(f"sum{v}_{i}", dt.float32, lanes=True) for i in range(self.rows)]
            for v in range(self.vectors)
        ]

    def emit(self) -> tuple[list[Stmt], list[list[Expr]]]:
        """Statements, and the results by vector and row."""
        flat = [register for own in self._sums for register in own]
        out = [self._of_block("clear", lambda _: list(ir.sets(flat, [F0] * len(flat))))]
        out.append(self._of_block("own", self._along_k))
        names, left, right = (
            [ir.var(f"{name}{i}", dt.float32) for i in range(len(flat))]
            for name in ("total", "left", "right")
        )
        merged = [a + b for a, b in zip(left, right, strict=True)]
        out.append(ir.BlockReduce(flat, left, right, merged, names))
        return out, [names[i : i + self.rows] for i in range(0, len(names), self.rows)]

    def _of_block(self, name: str, body: Callable[[Expr], list[Stmt]]) -> Stmt:
        lane = ir.var(f"{name}_lane")
        return ir.For(lane, ZERO, const(self.threads), "lanes", body(lane))

    def _along_k(self, lane: Expr) -> list[Stmt]:
        """The loop of a thread over its words."""
        many = self.threads * self.words
        stop = self.accesses if self.whole else self.accesses // many * many
        out = [self._loop("many", (lane, stop, many), self.words)]
        if not self.whole:
            out.append(self._loop("rest", (stop + lane, self.accesses, self.threads), 1))
        return out

    def _loop(self, name: str, bounds: tuple[Expr, Expr, int], words: int) -> Stmt:
        start, stop, step = bounds
        at, body = ir.var(f"{name}_access"), list[Stmt]()
        places = [at + u * self.threads for u in range(words)]
        loaded = [self._load(body, place, f"{name}{u}") for u, place in enumerate(places)]
        for u, (place, own) in enumerate(zip(places, loaded, strict=True)):
            first = place * (self.run * self.packing.values)

            def read(v: int, j: int, first: Expr = first) -> Expr:
                return self.x(v, first + j)

            self._multiply(body, read, own, f"{name}{u}")
        return ir.For(at, start, stop, "serial", body, step=const(step))

    # -- products ---------------------------------------------------------------------------------

    def _load(self, out: list[Stmt], access: Expr, tag: str) -> list[Loaded]:
        """Words of each row, and the numbers of their group."""
        p, chunk = self.packing, access * self.run
        group = _quotient(chunk, p.group) if p.group else ZERO
        at = chunk + group + 1 if p.header else chunk
        found = []
        for i, row in enumerate(self._rows):
            words = [ir.var(f"w{tag}_{i}_{j}", dt.uint32) for j in range(self.run)]
            out += ir.lets(words, [self.word(row, at, j) for j in range(self.run)])
            scale = ir.var(f"s{tag}_{i}", dt.float32)
            out.append(ir.Let(scale, self.scale(row, group)))
            zero = None
            if self.zero is not None:
                zero = ir.var(f"z{tag}_{i}", dt.float32)
                out.append(ir.Let(zero, self.zero(row, group)))
            found.append(Loaded(words, scale, zero))
        return found

    def _multiply(
        self, out: list[Stmt], x: Callable[[int, int], Expr], rows: list[Loaded], tag: str
    ) -> None:
        """Add the products of each row's words with their activations `x(vector, number)`: word by
        word, so that few registers hold activations."""
        p, vectors = self.packing, range(self.vectors)
        sums: list[list[Expr | None]] = [[None] * len(rows) for _ in vectors]
        totals: list[Expr | None] = [None] * self.vectors
        for w in range(self.run):
            xs = [
                [ir.var(f"x{tag}_{v}_{w}_{j}", dt.float32) for j in range(p.values)]
                for v in vectors
            ]
            for v in vectors:
                out += ir.lets(xs[v], [x(v, w * p.values + j) for j in range(p.values)])
                totals[v] = self._named(out, f"t{tag}_{v}_{w}", _plus(totals[v], _sum(xs[v])))
            for i, row in enumerate(rows):
                codes = [_code(p, row.words[w], j) for j in range(p.values)]
                for v in vectors:
                    value = sums[v][i]
                    for code, factor in zip(codes, xs[v], strict=True):
                        value = code * factor if value is None else _fma(code, factor, value)
                    assert value is not None
                    sums[v][i] = self._named(out, f"p{tag}_{v}_{w}_{i}", value)
        for v, own in enumerate(self._sums):
            for register, row, found in zip(own, rows, sums[v], strict=True):
                total, value = totals[v], found
                assert value is not None
                assert total is not None
                if row.zero is not None:
                    value = _fma(-row.zero, total, value)
                elif p.zero:
                    value = _fma(total, const(-float(p.zero), dt.float32), value)
                out.append(ir.Set(register, _fma(value, row.scale, ir.read(register))))

    def _named(self, out: list[Stmt], name: str, value: Expr) -> Expr:
        found = ir.var(name, dt.float32)
        out.append(ir.Let(found, value, relaxed=True))
        return found


def _plus(a: Expr | None, b: Expr) -> Expr:
    return b if a is None else a + b


def _fma(a: Expr, b: Expr, c: Expr) -> Expr:
    return ir.fma(a, b, c, allow_unfused=True)


def _quotient(x: Expr, n: int) -> Expr:
    """Of a number that is not negative."""
    return x >> n.bit_length() - 1 if n & (n - 1) == 0 else x // n


def _code(p: Packing, word: Expr, which: int) -> Expr:
    """A code of a word as a float."""
    word = word ^ (128 * BYTES) if p.signed else word
    at = which * p.bits
    if at + p.bits > MANTISSA:
        word, at = word >> SHIFT, at - SHIFT
    exponent = MANTISSA - at
    bits = (word & ((1 << p.bits) - 1) << at) | (BIAS + exponent) << MANTISSA
    return bits.bitcast(dt.float32) - float(1 << exponent)


def _sum(xs: list[Expr]) -> Expr:
    while len(xs) > 1:
        xs = [a + b for a, b in zip(xs[::2], xs[1::2], strict=False)] + xs[len(xs) & ~1 :]
    return xs[0]
