"""Bitonic sorts of rows in registers (Batcher 1968): few records per thread, a few threads per row.

Record i of a row is item i % items of its thread i // items, where both counts are powers of two.
A step compares every record with the one at index i ^ mask: of the same thread, of another one of
its warp by a butterfly shuffle, or of another warp through shared memory. The first step of a merge
compares mirrored records (a mask of ones), so that the lesser always goes to the smaller index and
records past the end of a row, which none comes after, never move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.sort.cpu_bitonic import ordered
from numus.kernels.sort.keys import Record

ZERO = const(0)
WARP = 32

Load = Callable[[Expr, int], Record]  # the k-th record of a thread, in any order
Visit = Callable[[Expr, int, Record], list[Stmt]]  # of a thread, with its k-th sorted record


def masks(size: int) -> Iterator[int]:
    """The steps of a sort of `size` records: a mirrored comparison and half-cleaners per merge."""
    half = 1
    while half < size:
        yield 2 * half - 1
        distance = half // 2
        while distance:
            yield distance
            distance //= 2
        half *= 2


@dataclass(slots=True)
class RegisterSort:
    """A sort of as many rows as a block of `threads` has groups of `lanes` threads."""

    threads: int
    lanes: int  # threads of a row
    items: int  # records of a thread
    fields: tuple[DType, ...]
    exchange: list[ir.Buffer] = field(default_factory=list)  # records of the block

    def __post_init__(self) -> None:
        if self.lanes > WARP:
            size = const(self.threads * self.items)
            self.exchange = [
                ir.Buffer(f"exchange{i}", t, "scratch", size) for i, t in enumerate(self.fields)
            ]

    def statements(self, load: Load, visit: Visit) -> list[Stmt]:
        """Load and sort the records, and `visit` them in registers."""
        registers = [
            [ir.Register(f"item{k}_{i}", t, lanes=True) for i, t in enumerate(self.fields)]
            for k in range(self.items)
        ]
        thread = ir.var("sort_t")
        body: list[Stmt] = []
        records: list[Record] = []
        for k in range(self.items):
            lets, record = ir.bind(load(thread, k), f"loaded{k}")
            body += lets
            records.append(record)
        body += self._uppers(thread)
        out: list[Stmt] = []
        for step, mask in enumerate(masks(self.lanes * self.items)):
            across, within = divmod(mask, self.items)
            if across >= WARP:
                for own, record in zip(registers, records, strict=True):
                    body += ir.sets(own, record)
                out.append(self._loop(thread, body))
                records = [ir.reads(own) for own in registers]
                out.append(self._publish(step, records))
                thread = ir.var(f"sort_t{step}")
                body = self._uppers(thread)
                others = [self._published(thread, k ^ within, across) for k in range(self.items)]
                records = self._across(body, step, across, records, others)
            elif across:
                others = [
                    [ir.lanes_xor(x, across) for x in records[k ^ within]]
                    for k in range(self.items)
                ]
                records = self._across(body, step, across, records, others)
            else:
                records = self._within(body, step, within, records)
        for k, record in enumerate(records):
            body += visit(thread, k, record)
        return [*out, self._loop(thread, body)]

    def _loop(self, thread: Expr, body: list[Stmt]) -> Stmt:
        return ir.For(thread, ZERO, const(self.threads), "lanes", body)

    def _upper(self, bit: int) -> Expr:
        return ir.var(f"upper{bit}", dt.bool_)

    def _uppers(self, thread: Expr) -> list[Stmt]:
        """Whether a thread is in the upper half of the pairs of a mask, by its highest bit."""
        number = thread.cast(dt.uint32)
        bits = [1 << b for b in range(self.lanes.bit_length() - 1)]
        return [ir.Let(self._upper(b), (number & b).ne(0)) for b in bits]

    def _within(
        self, body: list[Stmt], step: int, mask: int, records: list[Record]
    ) -> list[Record]:
        found = list(records)
        for k in range(self.items):
            other = k ^ mask
            if k < other:
                for at, record in zip((k, other), ordered(found[k], found[other]), strict=True):
                    lets, found[at] = ir.bind(record, f"s{step}_{at}")
                    body += lets
        return found

    def _across(
        self,
        body: list[Stmt],
        step: int,
        mask: int,
        records: list[Record],
        others: list[Record],
    ) -> list[Record]:
        upper = self._upper(1 << (mask.bit_length() - 1))
        lets: list[Stmt] = []
        received = []
        for k, other in enumerate(others):  # all in flight before the first is used
            more, names = ir.bind(other, f"o{step}_{k}")
            lets += more
            received.append(names)
        found = []
        for k, (own, other) in enumerate(zip(records, received, strict=True)):
            less = own[0] < other[0]
            if len(own) > 1:
                less = less | (own[0].eq(other[0]) & (own[1] < other[1]))
            keep = less ^ upper
            more, names = ir.bind(
                [select(keep, x, y) for x, y in zip(own, other, strict=True)], f"s{step}_{k}"
            )
            lets += more
            found.append(names)
        body += lets
        return found

    # -- across warps -----------------------------------------------------------------------------

    def _publish(self, step: int, records: list[Record]) -> Stmt:
        """Write the records to shared memory, thread by thread: no bank conflicts."""
        thread = ir.var(f"publish{step}")
        body: list[Stmt] = []
        for k, record in enumerate(records):
            body += ir.stores(self.exchange, ir.add(thread, const(k * self.threads)), record)
        return self._loop(thread, body)

    def _published(self, thread: Expr, k: int, mask: int) -> Record:
        at = ir.add(thread ^ mask, const(k * self.threads))
        return [ir.load(b, at) for b in self.exchange]
