"""Radix select: the k least keys of a row by one block (Alabi et al. 2012), stable.

The k-th key is found digit by digit from the highest, by histograms of the keys that share its
prefix. Then all smaller keys, and the first of the equal ones, are compacted in order of their
index, and the k results ranked by counting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.sort.gpu_onesweep import COPIES, RADIX, RADIX_BITS, digit_of, passes

ZERO, ONE = const(0), const(1)

ITEMS_IN_FLIGHT = 8  # loads of a thread
_HALF_BITS = 16  # of a word that holds two counts

Take = Callable[[Expr, Expr, Expr], list[Stmt]]  # of a rank, its key and index


def _u32(value: int) -> Expr:
    return const(value, dt.uint32)


@dataclass(frozen=True, slots=True)
class SelectProblem:
    """The problem: the `count` least of elements `start` … `stop` of a row."""

    start: Expr
    stop: Expr
    count: Expr  # at most stop - start
    key: Callable[[Expr], Expr]
    dtype: DType  # of keys


class RadixSelect:
    """A selection by one block."""

    def __init__(self, threads: int, row: SelectProblem) -> None:
        self.threads, self.row = threads, row
        self.counters = ir.Buffer("counters", dt.uint32, "scratch", const(RADIX * COPIES))
        self.found = ir.Buffer("found", dt.int64, "scratch", const(2))
        self.prefix = ir.Register("prefix", row.dtype)  # the known digits of the k-th key
        self.mask = ir.Register("mask", row.dtype)  # mask of the known digits
        # the rank of the k-th key among those that share the prefix
        self.rank_in_prefix = ir.Register("rank_in_prefix", ir.INDEX)

    @property
    def scratch(self) -> list[ir.Buffer]:
        return [self.counters, self.found]

    def statements(self, take: Take) -> list[Stmt]:
        """`take` each of the k least; equal keys in order of their index."""
        zero = const(0, self.row.dtype)
        p = ir.var("digit_p")
        shift = ir.mul(ir.sub(const(passes(self.row.dtype.bits) - 1), p), const(RADIX_BITS))
        return [
            ir.Set(self.prefix, zero),
            ir.Set(self.mask, zero),
            ir.Set(self.rank_in_prefix, self.row.count),
            ir.For(p, ZERO, const(passes(self.row.dtype.bits)), "serial", self._digit(shift)),
            *self._compact(take),
        ]

    def _chunks(self, name: str, body: Callable[[Expr], list[Stmt]]) -> Stmt:
        """The loop over the row by chunks of a block's loads in flight."""
        c = ir.var(name)
        step = const(self.threads * ITEMS_IN_FLIGHT)
        return ir.For(c, self.row.start, self.row.stop, "serial", body(c), step=step)

    def _keys(self, tag: str, positions: list[Expr]) -> tuple[list[Stmt], list[Expr]]:
        """Load keys, clamped to the last element."""
        last = ir.sub(self.row.stop, ONE)
        return ir.bind([self.row.key(ir.minimum(at, last)) for at in positions], tag)

    def _digit(self, shift: Expr) -> list[Stmt]:
        """Find one more digit of the k-th key."""
        dtype = self.row.dtype
        z, t, d = (ir.var(f"digit_{n}") for n in "ztd")
        copy = ir.binary("and", t, const(COPIES - 1))

        def count(c: Expr) -> list[Stmt]:
            positions = [
                ir.add(ir.add(c, const(u * self.threads)), t) for u in range(ITEMS_IN_FLIGHT)
            ]
            body, keys = self._keys("counted", positions)
            for at, key in zip(positions, keys, strict=True):
                different = (key ^ ir.read(self.prefix)) & ir.read(self.mask)
                bin_ = ir.add(ir.mul(digit_of(key, shift).cast(dt.int64), const(COPIES)), copy)
                add = ir.AtomicAdd(self.counters, bin_, _u32(1))
                body.append(ir.If(different.eq(0) & (at < self.row.stop), [add]))
            return [ir.For(t, ZERO, const(self.threads), "lanes", body)]

        own, before = (ir.Register(f"digit_{n}", dt.uint32, lanes=True) for n in ("own", "before"))
        total = _u32(0)
        for k in range(COPIES):
            total = total + ir.load(self.counters, ir.add(ir.mul(d, const(COPIES)), const(k)))
        name = ir.var("digit_total", dt.uint32)
        left, right, all_ = ([ir.var(f"digit_{n}", dt.uint32)] for n in ("left", "right", "all"))
        e = ir.var("digit_e")
        first, count_ = (ir.read(r).cast(dt.int64) for r in (before, own))
        rank_in_prefix = ir.read(self.rank_in_prefix)
        has_kth = (first < rank_in_prefix) & (rank_in_prefix <= ir.add(first, count_))
        publish: list[Stmt] = [ir.Store(self.found, ZERO, e), ir.Store(self.found, ONE, first)]
        sum_copies = [ir.Let(name, total), *ir.sets([own, before], [name, name])]
        digit = ir.load(self.found, ZERO).cast(dtype)
        by = shift.cast(dtype)
        return [
            ir.For(z, ZERO, const(RADIX * COPIES), "lanes", [ir.Store(self.counters, z, _u32(0))]),
            self._chunks("count_c", count),
            ir.Set(own, _u32(0)),
            ir.Set(before, _u32(0)),
            ir.For(d, ZERO, const(RADIX), "lanes", sum_copies),
            ir.BlockScan([before], left, right, [left[0] + right[0]], [_u32(0)], all_),
            ir.For(e, ZERO, const(RADIX), "lanes", [ir.If(has_kth, publish)]),
            ir.Set(self.prefix, ir.read(self.prefix) | (digit << by)),
            ir.Set(self.mask, ir.read(self.mask) | (const(RADIX - 1, dtype) << by)),
            ir.Set(self.rank_in_prefix, ir.sub(rank_in_prefix, ir.load(self.found, ONE))),
        ]

    def _compact(self, take: Take) -> list[Stmt]:
        """Compact the keys below the k-th in order of index, then the first that equal it."""
        row, m, s = self.row, ir.var("mark_t"), ir.var("pick_t")
        last, rank_in_prefix = ir.read(self.prefix), ir.read(self.rank_in_prefix)
        less = ir.sub(row.count, rank_in_prefix)
        loaded = [ir.Register(f"loaded{u}", row.dtype, lanes=True) for u in range(ITEMS_IN_FLIGHT)]
        own = ir.Register("own_counts", dt.uint32, lanes=True)
        exclusive = ir.Register("exclusive", dt.uint32, lanes=True)
        less_rank, equal_rank = (
            ir.Register(n, ir.INDEX, lanes=True) for n in ("less_rank", "equal_rank")
        )
        before, equal = ir.Register("before", ir.INDEX), ir.Register("equal", ir.INDEX)
        left, right, all_ = ([ir.var(f"pick_{n}", dt.uint32)] for n in ("left", "right", "all"))

        def halves(word: Expr) -> tuple[Expr, Expr]:
            low = word & _u32((1 << _HALF_BITS) - 1)
            return low.cast(dt.int64), ir.binary("lshr", word, _u32(_HALF_BITS)).cast(dt.int64)

        def chunk(c: Expr) -> list[Stmt]:
            def positions(t: Expr) -> list[Expr]:
                mine = ir.add(c, ir.mul(t, const(ITEMS_IN_FLIGHT)))
                return [ir.add(mine, const(u)) for u in range(ITEMS_IN_FLIGHT)]

            mark, keys = self._keys("marked", positions(m))
            counts: Expr = _u32(0)
            for at, key, register in zip(positions(m), keys, loaded, strict=True):
                equal_one = select(key.eq(last), _u32(1 << _HALF_BITS), _u32(0))
                kind = select(key < last, _u32(1), equal_one)
                counts = counts + select(at < row.stop, kind, _u32(0))
                mark.append(ir.Set(register, key))
            mark += [ir.Set(own, counts), ir.Set(exclusive, counts)]
            low, high = halves(ir.read(exclusive))
            emit: list[Stmt] = [
                ir.Set(less_rank, ir.add(ir.read(before), low)),
                ir.Set(equal_rank, ir.add(ir.read(equal), high)),
            ]
            for at, register in zip(positions(s), loaded, strict=True):
                key, exists = ir.read(register), at < row.stop
                take_less = take(ir.read(less_rank), key, at)
                next_less = ir.Set(less_rank, ir.add(ir.read(less_rank), ONE))
                rank = ir.add(less, ir.read(equal_rank))
                take_equal = ir.If(ir.read(equal_rank) < rank_in_prefix, take(rank, key, at))
                next_equal = ir.Set(equal_rank, ir.add(ir.read(equal_rank), ONE))
                emit += [
                    ir.If(exists & (key < last), [*take_less, next_less]),
                    ir.If(exists & key.eq(last), [take_equal, next_equal]),
                ]
            more, more_equal = halves(all_[0])
            some = ir.read(own).ne(_u32(0))
            return [
                ir.For(m, ZERO, const(self.threads), "lanes", mark),
                ir.BlockScan([exclusive], left, right, [left[0] + right[0]], [_u32(0)], all_),
                ir.For(s, ZERO, const(self.threads), "lanes", [ir.If(some, emit)]),
                ir.Set(before, ir.add(ir.read(before), more)),
                ir.Set(equal, ir.add(ir.read(equal), more_equal)),
            ]

        return [ir.Set(before, ZERO), ir.Set(equal, ZERO), self._chunks("pick_c", chunk)]


def rank_by_counting(
    count: Expr, keys: ir.Buffer, write: Callable[[Expr, Expr], list[Stmt]]
) -> Stmt:
    """`write(rank, i)` for each key in shared memory, ties in order."""
    i, j = ir.var("rank_i"), ir.var("rank_j")
    rank = ir.Register("rank", ir.INDEX, lanes=True)
    mine, other = ir.load(keys, i), ir.load(keys, j)
    comes = (other < mine) | (other.eq(mine) & (j < i))
    step = ir.Set(rank, ir.add(ir.read(rank), select(comes, ONE, ZERO)))
    body: list[Stmt] = [ir.Set(rank, ZERO), ir.For(j, ZERO, count, "serial", [step])]
    return ir.For(i, ZERO, count, "lanes", [*body, *write(ir.read(rank), i)])
