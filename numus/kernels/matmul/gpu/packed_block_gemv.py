"""GEMV with packed codes by the rows of a block, for GPUs whose warps are of no known size.

Threads take adjacent words of a row, so that accesses coalesce without vector loads, and have
several words of several rows in flight. The activations of a word are loaded once for all rows of
the block, whose sums are added up by one reduction. Codes become floats as in `packed_gemv.py`,
without a conversion: their bits are the leading ones of a mantissa, 1 + code / 2**bits, and the
ones are taken away again by the sum of the activations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.packed import BYTES, Packing

ZERO = const(0)
MANTISSA = 23
ONE_BITS = 0x3F800000


@dataclass(frozen=True)
class BlockGemvTuning:
    """To be measured on one H200 through Vulkan."""

    threads: int = 64
    sums: int = 8  # of a block: rows by vectors
    words: int = 2  # of a row, that a thread has in flight


TUNING = BlockGemvTuning()


@dataclass(frozen=True)
class BlockGemv:
    """The rows of a block from `first` on. Elements of the operands are given by callbacks."""

    packing: Packing
    vectors: int
    rows: int  # of a block
    threads: int
    words: int  # of a row, that a thread has in flight
    x: Callable[[int, Expr], Expr]  # vector, element
    word: Callable[[Expr, Expr], Expr]  # row, word of it
    scale: Callable[[Expr, Expr], Expr]  # row, group: float32
    zero: Callable[[Expr, Expr], Expr] | None

    def emit(
        self, first: Expr, count: Expr, chunks: Expr, whole: bool
    ) -> tuple[list[Stmt], list[list[Expr]]]:
        """Statements, and the results by vector and row. `count` rows exist; `whole`: all
        iterations are."""
        sums = [
            [ir.Register(f"sum{v}_{i}", dt.float32, lanes=True) for i in range(self.rows)]
            for v in range(self.vectors)
        ]
        rows = [ir.minimum(first + i, count - 1) for i in range(self.rows)]
        flat = [register for own in sums for register in own]
        lane, many = ir.var("lane"), self.threads * self.words
        stop = chunks if whole else chunks // many * many
        body: list[Stmt] = list(ir.sets(flat, [const(0.0, dt.float32)] * len(flat)))
        body.append(self._loop(sums, rows, "many", (lane, stop, many), self.words))
        if not whole:
            rest = (stop + lane, chunks, self.threads)
            body.append(self._loop(sums, rows, "rest", rest, 1))
        names, left, right = (
            [ir.var(f"{name}{i}", dt.float32) for i in range(len(flat))]
            for name in ("total", "left", "right")
        )
        merged = [a + b for a, b in zip(left, right, strict=True)]
        out: list[Stmt] = [ir.For(lane, ZERO, const(self.threads), "lanes", body)]
        out.append(ir.BlockReduce(flat, left, right, merged, names))
        at = range(0, len(names), self.rows)
        return out, [names[i : i + self.rows] for i in at]

    def _loop(
        self,
        sums: list[list[ir.Register]],
        rows: list[Expr],
        name: str,
        bounds: tuple[Expr, Expr, int],
        words: int,
    ) -> Stmt:
        start, stop, step = bounds
        at = ir.var(f"{name}_chunk")
        chunks = [at + u * self.threads for u in range(words)]
        body: list[Stmt] = []
        loaded = [self._load(body, rows, chunk, f"{name}{u}") for u, chunk in enumerate(chunks)]
        for u, (chunk, own) in enumerate(zip(chunks, loaded, strict=True)):
            self._multiply(body, sums, chunk, own, f"{name}{u}")
        return ir.For(at, start, stop, "serial", body, step=const(step))

    def _load(
        self, out: list[Stmt], rows: list[Expr], chunk: Expr, tag: str
    ) -> list[tuple[Expr, Expr, Expr | None]]:
        """A word of each row, its scale and zero point."""
        p = self.packing
        group = _quotient(chunk, p.group) if p.group else ZERO
        at = chunk + group + 1 if p.header else chunk
        found = []
        for i, row in enumerate(rows):
            word, scale = ir.var(f"w{tag}_{i}", dt.uint32), ir.var(f"s{tag}_{i}", dt.float32)
            value = self.word(row, at)
            out.append(ir.Let(word, value ^ (128 * BYTES) if p.signed else value))
            out.append(ir.Let(scale, self.scale(row, group)))
            zero = None
            if self.zero is not None:
                zero = ir.var(f"z{tag}_{i}", dt.float32)
                out.append(ir.Let(zero, self.zero(row, group)))
            found.append((word, scale, zero))
        return found

    def _multiply(
        self,
        out: list[Stmt],
        sums: list[list[ir.Register]],
        chunk: Expr,
        loaded: list[tuple[Expr, Expr, Expr | None]],
        tag: str,
    ) -> None:
        """Add the products of a word of each row."""
        p, steps = self.packing, float(1 << self.packing.bits)
        codes = [[_code_as_float(p, word, j) for j in range(p.values)] for word, _, _ in loaded]
        for v, own in enumerate(sums):
            xs = [ir.var(f"x{tag}_{v}_{j}", dt.float32) for j in range(p.values)]
            out += ir.lets(xs, [self.x(v, chunk * p.values + j) for j in range(p.values)])
            total = ir.var(f"t{tag}_{v}", dt.float32)
            out.append(ir.Let(total, _sum(xs), relaxed=True))
            ones = ir.var(f"o{tag}_{v}", dt.float32)
            fixed = 0 if self.zero is not None else p.zero
            out.append(ir.Let(ones, total * -(steps + fixed), relaxed=True))
            for register, row, (_, scale, zero) in zip(own, codes, loaded, strict=True):
                part = row[0] * xs[0]
                for code, x in zip(row[1:], xs[1:], strict=True):
                    part = ir.fma(code, x, part, allow_unfused=True)
                value = ir.fma(part, steps, ones, allow_unfused=True)
                if zero is not None:
                    value = ir.fma(-zero, total, value, allow_unfused=True)
                out.append(
                    ir.Set(register, ir.fma(value, scale, ir.read(register), allow_unfused=True))
                )


def _quotient(x: Expr, n: int) -> Expr:
    """Of a number that is not negative."""
    return x >> n.bit_length() - 1 if n & (n - 1) == 0 else x // n


def _code_as_float(p: Packing, word: Expr, which: int) -> Expr:
    """1 + code / 2**bits of a value of a word."""
    end = (which + 1) * p.bits
    moved = word >> (end - MANTISSA) if end > MANTISSA else word << (MANTISSA - end)
    mask = ((1 << p.bits) - 1) << (MANTISSA - p.bits)
    return ((moved & mask) | ONE_BITS).bitcast(dt.float32)


def _sum(xs: list[Expr]) -> Expr:
    while len(xs) > 1:
        xs = [a + b for a, b in zip(xs[::2], xs[1::2], strict=False)] + xs[len(xs) & ~1 :]
    return xs[0]
