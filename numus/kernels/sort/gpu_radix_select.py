"""The first few of a row in some order, by a group of threads, without sorting it.

Keys are unsigned integers, the least comes first. The last of the wanted ones is found digit by
digit, from the highest on: a histogram of those that begin as it does tells its next digit. Then
everything before it is picked in order of its place, and of those that are equal to it as many as
are missing, the first ones. What was picked is put in order by counting who comes before whom.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.sort.gpu_onesweep import BITS, DIGITS, digit_of, passes

ZERO, ONE = const(0), const(1)

AT_A_TIME = 8  # elements that a thread has under way
_COPIES = 4  # of the counters of a histogram: threads that meet in one of them wait
_HALF = 16  # bits of a word that counts two things

Take = Callable[[Expr, Expr, Expr], list[Stmt]]  # given a rank, the key, and where it was


def _u32(value: int) -> Expr:
    return const(value, dt.uint32)


@dataclass(frozen=True, slots=True)
class Row:
    """What is selected from: elements `start` … `stop` of a row, of which `count` are wanted."""

    start: Expr
    stop: Expr
    count: Expr  # no more than there are
    key: Callable[[Expr], Expr]
    dtype: DType  # of keys


class Selection:
    """The selection from one row, in the kernel of one group."""

    def __init__(self, threads: int, row: Row) -> None:
        self.threads, self.row = threads, row
        self.counters = ir.Buffer("counters", dt.uint32, "scratch", const(DIGITS * _COPIES))
        self.found = ir.Buffer("found", dt.int64, "scratch", const(2))
        self.prefix = ir.Register("prefix", row.dtype)  # what is known of the last one's key:
        self.known = ir.Register("known", row.dtype)  # its highest bits
        self.missing = ir.Register("missing", ir.INDEX)  # how many of those that begin like it

    @property
    def scratch(self) -> list[ir.Buffer]:
        return [self.counters, self.found]

    def statements(self, take: Take) -> list[Stmt]:
        """Find them, and take each, in no order but that equal ones come in order."""
        zero = const(0, self.row.dtype)
        p = ir.var("digit_p")
        shift = ir.mul(ir.sub(const(passes(self.row.dtype) - 1), p), const(BITS))
        return [
            ir.Set(self.prefix, zero),
            ir.Set(self.known, zero),
            ir.Set(self.missing, self.row.count),
            ir.For(p, ZERO, const(passes(self.row.dtype)), "serial", self._digit(shift)),
            *self._pick(take),
        ]

    def _chunks(self, name: str, body: Callable[[Expr], list[Stmt]]) -> Stmt:
        """A loop over the row, by as many elements as a group has under way."""
        c = ir.var(name)
        step = const(self.threads * AT_A_TIME)
        return ir.For(c, self.row.start, self.row.stop, "serial", body(c), step=step)

    def _keys(self, tag: str, places: list[Expr]) -> tuple[list[Stmt], list[Expr]]:
        """Begin to read keys; past the end, that of the last element."""
        last = ir.sub(self.row.stop, ONE)
        names: list[Expr] = [ir.var(f"{tag}{u}", self.row.dtype) for u in range(len(places))]
        keys = [self.row.key(ir.minimum(at, last)) for at in places]
        return [ir.Let(n, x) for n, x in zip(names, keys, strict=True)], names

    def _digit(self, shift: Expr) -> list[Stmt]:
        """One more digit of the last one's key."""
        dtype = self.row.dtype
        z, t, d = (ir.var(f"digit_{n}") for n in "ztd")
        copy = ir.binary("and", t, const(_COPIES - 1))

        def count(c: Expr) -> list[Stmt]:
            places = [ir.add(ir.add(c, const(u * self.threads)), t) for u in range(AT_A_TIME)]
            body, keys = self._keys("counted", places)
            for at, key in zip(places, keys, strict=True):
                alike = ((key ^ ir.read(self.prefix)) & ir.read(self.known)).eq(const(0, dtype))
                bin_ = ir.add(ir.mul(digit_of(key, shift).cast(dt.int64), const(_COPIES)), copy)
                add = ir.AtomicAdd(self.counters, bin_, _u32(1))
                body.append(ir.If(alike & (at < self.row.stop), [add]))
            return [ir.For(t, ZERO, const(self.threads), "lanes", body)]

        own, before = (ir.Register(f"digit_{n}", dt.uint32, lanes=True) for n in ("own", "before"))
        total = _u32(0)
        for k in range(_COPIES):
            total = total + ir.load(self.counters, ir.add(ir.mul(d, const(_COPIES)), const(k)))
        name = ir.var("digit_total", dt.uint32)
        left, right, all_ = ([ir.var(f"digit_{n}", dt.uint32)] for n in ("left", "right", "all"))
        e = ir.var("digit_e")
        first, count_ = (ir.read(r).cast(dt.int64) for r in (before, own))
        missing = ir.read(self.missing)
        is_it = (first < missing) & (missing <= ir.add(first, count_))
        tell: list[Stmt] = [ir.Store(self.found, ZERO, e), ir.Store(self.found, ONE, first)]
        digit = ir.load(self.found, ZERO).cast(dtype)
        by = shift.cast(dtype)
        return [
            ir.For(
                z, ZERO, const(DIGITS * _COPIES), "lanes", [ir.Store(self.counters, z, _u32(0))]
            ),
            self._chunks("count_c", count),
            ir.Set(own, _u32(0)),
            ir.Set(before, _u32(0)),
            ir.For(
                *(d, ZERO, const(DIGITS), "lanes"),
                [ir.Let(name, total), ir.Set(own, name), ir.Set(before, name)],
            ),
            ir.BlockScan([before], left, right, [left[0] + right[0]], [_u32(0)], all_),
            ir.For(e, ZERO, const(DIGITS), "lanes", [ir.If(is_it, tell)]),
            ir.Set(self.prefix, ir.read(self.prefix) | (digit << by)),
            ir.Set(self.known, ir.read(self.known) | (const(DIGITS - 1, dtype) << by)),
            ir.Set(self.missing, ir.sub(missing, ir.load(self.found, ONE))),
        ]

    def _pick(self, take: Take) -> list[Stmt]:
        """All before the last one, in order of their places, then those that are equal to it."""
        row, m, s = self.row, ir.var("mark_t"), ir.var("pick_t")
        last, missing = ir.read(self.prefix), ir.read(self.missing)
        less = ir.sub(row.count, missing)
        held = [ir.Register(f"held{u}", row.dtype, lanes=True) for u in range(AT_A_TIME)]
        own = ir.Register("own_counts", dt.uint32, lanes=True)
        ahead = ir.Register("ahead", dt.uint32, lanes=True)
        near, like = (ir.Register(n, ir.INDEX, lanes=True) for n in ("near", "like"))
        before, equal = ir.Register("before", ir.INDEX), ir.Register("equal", ir.INDEX)
        left, right, all_ = ([ir.var(f"pick_{n}", dt.uint32)] for n in ("left", "right", "all"))

        def halves(word: Expr) -> tuple[Expr, Expr]:
            low = word & _u32((1 << _HALF) - 1)
            return low.cast(dt.int64), ir.binary("lshr", word, _u32(_HALF)).cast(dt.int64)

        def chunk(c: Expr) -> list[Stmt]:
            def places(t: Expr) -> list[Expr]:
                mine = ir.add(c, ir.mul(t, const(AT_A_TIME)))
                return [ir.add(mine, const(u)) for u in range(AT_A_TIME)]

            mark, keys = self._keys("marked", places(m))
            counts: Expr = _u32(0)
            for at, key, register in zip(places(m), keys, held, strict=True):
                kind = select(key < last, _u32(1), select(key.eq(last), _u32(1 << _HALF), _u32(0)))
                counts = counts + select(at < row.stop, kind, _u32(0))
                mark.append(ir.Set(register, key))
            mark += [ir.Set(own, counts), ir.Set(ahead, counts)]
            pick: list[Stmt] = []
            low, high = halves(ir.read(ahead))
            pick += [
                ir.Set(near, ir.add(ir.read(before), low)),
                ir.Set(like, ir.add(ir.read(equal), high)),
            ]
            for at, register in zip(places(s), held, strict=True):
                key, inside = ir.read(register), at < row.stop
                pick += [
                    ir.If(
                        inside & (key < last),
                        [
                            *take(ir.read(near), key, at),
                            ir.Set(near, ir.add(ir.read(near), ONE)),
                        ],
                    ),
                    ir.If(
                        inside & key.eq(last),
                        [
                            ir.If(
                                ir.read(like) < missing,
                                take(ir.add(less, ir.read(like)), key, at),
                            ),
                            ir.Set(like, ir.add(ir.read(like), ONE)),
                        ],
                    ),
                ]
            more, more_equal = halves(all_[0])
            some = ir.read(own).ne(_u32(0))
            return [
                ir.For(m, ZERO, const(self.threads), "lanes", mark),
                ir.BlockScan([ahead], left, right, [left[0] + right[0]], [_u32(0)], all_),
                ir.For(s, ZERO, const(self.threads), "lanes", [ir.If(some, pick)]),
                ir.Set(before, ir.add(ir.read(before), more)),
                ir.Set(equal, ir.add(ir.read(equal), more_equal)),
            ]

        return [ir.Set(before, ZERO), ir.Set(equal, ZERO), self._chunks("pick_c", chunk)]


def in_order(count: Expr, keys: ir.Buffer, write: Callable[[Expr, Expr], list[Stmt]]) -> Stmt:
    """`write(rank, place)` for each of the keys in scratch memory, equal ones in order."""
    i, j = ir.var("rank_i"), ir.var("rank_j")
    rank = ir.Register("rank", ir.INDEX, lanes=True)
    mine, other = ir.load(keys, i), ir.load(keys, j)
    comes = (other < mine) | (other.eq(mine) & (j < i))
    step = ir.Set(rank, ir.add(ir.read(rank), select(comes, ONE, ZERO)))
    body: list[Stmt] = [ir.Set(rank, ZERO), ir.For(j, ZERO, count, "serial", [step])]
    return ir.For(i, ZERO, count, "lanes", [*body, *write(ir.read(rank), i)])
