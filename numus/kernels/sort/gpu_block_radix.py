"""Block radix ranking: stable ranks of a tile by one 4-bit digit (Satish, Harris & Garland 2009).

A thread counts the digits of its items in 4-bit fields; `ir.BlockScan` adds 16-bit counts, two per
register, which gives every item its rank in the tile.
"""

from __future__ import annotations

from collections.abc import Callable

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const, select
from numus.kernels.scan.gpu_block import ITEMS_PER_THREAD

ZERO = const(0)

RADIX_BITS = 4
RADIX = 1 << RADIX_BITS
_COUNT_WORDS = RADIX // 2  # two 16-bit counts each


def _u32(value: int) -> Expr:
    return const(value, dt.uint32)


def _digit(key: Expr, shift: Expr) -> Expr:
    bits = ir.binary("lshr", key, shift.cast(key.dtype)) & const(RADIX - 1, key.dtype)
    return bits.cast(dt.uint32)


class BlockRadixRank:
    """Ranks of a tile's items by the digit of their keys that starts at a bit, ties in order."""

    def __init__(self, threads: int, tag: str) -> None:
        self.threads = threads
        self.tag = tag
        assert ITEMS_PER_THREAD < 1 << 4
        assert threads * ITEMS_PER_THREAD < 1 << 16
        self.counts, self.fields, self.local_ranks = (
            [ir.Register(f"{tag}{name}{i}", dt.uint32, lanes=True) for i in range(count)]
            for name, count in (("n", _COUNT_WORDS), ("f", 2), ("b", ITEMS_PER_THREAD))
        )
        self.totals = [ir.var(f"{tag}t{r}", dt.uint32) for r in range(_COUNT_WORDS)]

    def count(self, size: Expr, key: Callable[[Expr], Expr], shift: Expr) -> list[Stmt]:
        """Count the digits of the tile's first `size` items."""
        lane = ir.var(f"{self.tag}count")
        body: list[Stmt] = [ir.Set(f, _u32(0)) for f in self.fields]
        for i in range(ITEMS_PER_THREAD):
            at = ir.add(ir.mul(lane, const(ITEMS_PER_THREAD)), const(i))
            d = ir.var(f"{self.tag}d{i}", dt.uint32)
            one = ir.var(f"{self.tag}one{i}", dt.uint32)
            field = (d & _u32(7)) << _u32(2)
            low = d < _u32(8)
            word = select(low, ir.read(self.fields[0]), ir.read(self.fields[1]))
            body += [
                ir.Let(d, _digit(key(at), shift)),
                ir.Set(self.local_ranks[i], ir.binary("lshr", word, field) & _u32(15)),
                ir.Let(one, select(at < size, _u32(1) << field, _u32(0))),
                ir.Set(self.fields[0], ir.read(self.fields[0]) + select(low, one, _u32(0))),
                ir.Set(self.fields[1], ir.read(self.fields[1]) + select(low, _u32(0), one)),
            ]
        for r, register in enumerate(self.counts):
            word = ir.read(self.fields[2 * r // 8])
            first, second = (_u32(4 * ((2 * r + k) % 8)) for k in (0, 1))
            a = ir.binary("lshr", word, first) & _u32(15)
            b = ir.binary("lshr", word, second) & _u32(15)
            body.append(ir.Set(register, a | (b << _u32(16))))
        left, right = (
            [ir.var(f"{self.tag}{n}{r}", dt.uint32) for r in range(_COUNT_WORDS)] for n in "xy"
        )
        merged = [x + y for x, y in zip(left, right, strict=True)]
        return [
            ir.For(lane, ZERO, const(self.threads), "lanes", body),
            ir.BlockScan(self.counts, left, right, merged, [_u32(0)] * _COUNT_WORDS, self.totals),
        ]

    def total(self, digit: int) -> Expr:
        """Items of the tile that have a digit."""
        word = self.totals[digit // 2]
        half = ir.binary("lshr", word, _u32(16)) if digit % 2 else word & _u32(0xFFFF)
        return half.cast(dt.int64)

    def starts(self) -> tuple[list[Stmt], list[Expr]]:
        """The first rank of each digit in the sorted tile, two per word."""
        lets: list[Stmt] = []
        words = []
        at: Expr = _u32(0)
        for r, word in enumerate(self.totals):
            second = at + (word & _u32(0xFFFF))
            name = ir.var(f"{self.tag}s{r}", dt.uint32)
            lets.append(ir.Let(name, at | (second << _u32(16))))
            words.append(name)
            after = ir.var(f"{self.tag}e{r}", dt.uint32)
            lets.append(ir.Let(after, second + ir.binary("lshr", word, _u32(16))))
            at = after
        return lets, words

    def scatter(
        self,
        size: Expr,
        key: Callable[[Expr], Expr],
        shift: Expr,
        starts: list[Expr],
        move: Callable[[Expr, Expr], list[Stmt]],
    ) -> Stmt:
        """`move(item, rank)` for each item."""
        lane = ir.var(f"{self.tag}place")
        sums = [ir.var(f"{self.tag}p{r}", dt.uint32) for r in range(_COUNT_WORDS)]
        totals = [ir.read(c) + w for c, w in zip(self.counts, starts, strict=True)]
        body = ir.lets(sums, totals)
        for i in range(ITEMS_PER_THREAD):
            at = ir.add(ir.mul(lane, const(ITEMS_PER_THREAD)), const(i))
            d = ir.var(f"{self.tag}q{i}", dt.uint32)
            body.append(ir.Let(d, _digit(key(at), shift)))
            chosen: list[Expr] = list(sums)
            for bit in (2, 4, 8):  # a binary tree of selects: registers have no index
                odd = (d & _u32(bit)).ne(_u32(0))
                chosen = [select(odd, y, x) for x, y in zip(chosen[::2], chosen[1::2], strict=True)]
            high = ir.binary("lshr", chosen[0], _u32(16))
            half = select((d & _u32(1)).ne(_u32(0)), high, chosen[0])
            rank = (half & _u32(0xFFFF)) + ir.read(self.local_ranks[i])
            name = ir.var(f"{self.tag}r{i}")
            body.append(ir.Let(name, rank.cast(dt.int64)))
            body.append(ir.If(at < size, move(at, name)))
        return ir.For(lane, ZERO, const(self.threads), "lanes", body)
