"""Block-wide scan of tiles staged in shared memory (CUB's BlockScan: raking, items per thread).

A thread scans consecutive items serially and `ir.BlockScan` scans the threads' totals. Tiles pass
through shared memory, so that global accesses are coalesced; its addresses are padded by one word
in 32, so that threads with a stride of their items meet no bank conflicts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.scan.cpu import combine, identity

ZERO, ONE = const(0), const(1)

ITEMS_PER_THREAD = 8

Read = Callable[[Expr], Any]  # an element
Write = Callable[[Expr, Any], list[Stmt]]
_BANKS = 32


def padded(at: Expr) -> Expr:
    """A shared-memory address with one word skipped after every 32."""
    return ir.add(at, ir.idiv(at, const(_BANKS)))


def padded_size(size: int) -> int:
    return size + -(-size // _BANKS)


class TileScan:
    """An inclusive scan of a span, tile by tile, by one block."""

    def __init__(self, threads: int, op: str, dtype: DType, items: int = ITEMS_PER_THREAD) -> None:
        self.threads = threads
        self.items = items  # consecutive elements of a thread
        self.op = op
        self.complex = dtype.is_complex
        self.dtype = dt.compute_dtype(dt.real_of(dtype))  # of the accumulator
        self.components = 2 if self.complex else 1
        self.tile_size = threads * items
        self.identity = identity(op, self.dtype, self.components)
        self.staging = [
            ir.Buffer(f"stage{p}", self.dtype, "scratch", const(padded_size(self.tile_size)))
            for p in range(self.components)
        ]
        self.carry = [ir.Register(f"carry{p}", self.dtype) for p in range(self.components)]
        self.large_body = op == "logsumexp"  # a combine too large to unroll over the items

    def split(self, value: Any) -> list[Expr]:
        return list(value) if self.complex else [value.cast(self.dtype)]

    def join(self, components: list[Expr]) -> Any:
        return tuple(components) if self.complex else components[0]

    def _names(self, name: str) -> list[Expr]:
        return [ir.var(f"{name}{p}", self.dtype) for p in range(self.components)]

    def init_carry(self, carry: list[Expr] | None = None) -> list[Stmt]:
        initial = self.identity if carry is None else carry
        return ir.sets(self.carry, initial)

    def reduce(self, start: Expr, stop: Expr, read: Read, results: list[Expr]) -> list[Stmt]:
        """Bind `results` to the total of start … stop; the order of combination is free."""
        j = ir.var("total_j")
        own = [ir.Register(f"sum{p}", self.dtype, lanes=True) for p in range(self.components)]
        new = combine(self.op, ir.reads(own), self.split(read(j)))
        step, _ = ir.assign(own, new, "sum_now")
        left, right = self._names("left"), self._names("right")
        return [
            *ir.sets(own, self.identity),
            ir.For(j, start, stop, "lanes", step),
            ir.BlockReduce(own, left, right, combine(self.op, left, right), results),
        ]

    def scan_tiles(self, start: Expr, stop: Expr, read: Read, write: Write) -> Stmt:
        """The loop over the tiles of start … stop, from the carry on."""
        c = ir.var("scan_c")
        statements, total = self.scan_tile(c, stop, read, write, lambda total: [])
        new = combine(self.op, ir.reads(self.carry), total)
        statements += ir.assign(self.carry, new, "after")[0]
        return ir.For(c, start, stop, "serial", statements, step=const(self.tile_size))

    def scan_tile(
        self,
        start: Expr,
        stop: Expr,
        read: Read,
        write: Write,
        set_carry: Callable[[list[Expr]], list[Stmt]],
    ) -> tuple[list[Stmt], list[Expr]]:
        """The tile at `start` and its total, from which `set_carry` may derive the carry-in."""
        j, lane, out = (ir.var(f"scan_{n}") for n in ("j", "l", "o"))
        count = ir.minimum(const(self.tile_size), ir.sub(stop, start))
        fill = ir.stores(self.staging, padded(j), self.split(read(ir.add(start, j))))
        totals = [ir.Register(f"total{p}", self.dtype, lanes=True) for p in range(self.components)]
        if self.large_body:
            upsweep = self._scan_items_loop(lane, count, totals, self.identity, stored=False)
        else:
            upsweep, sums = self._scan_items(lane, count, "run")
            upsweep += ir.sets(totals, sums)
        left, right, all_ = (self._names(n) for n in ("left", "right", "all"))
        merged = combine(self.op, left, right)
        threads = const(self.threads)
        statements: list[Stmt] = [
            ir.For(j, ZERO, count, "lanes", fill),
            ir.For(lane, ZERO, threads, "lanes", upsweep),
            ir.BlockScan(totals, left, right, merged, self.identity, all_),
        ]
        statements += set_carry(all_)
        mine = ir.var("scan_m")
        exclusive = combine(self.op, ir.reads(self.carry), ir.reads(totals))
        # items are combined again: recomputing a few sums costs less than their registers
        downsweep, before = ir.bind(exclusive, "before")

        def put(i: int, own: list[Expr]) -> list[Stmt]:
            at = padded(ir.add(ir.mul(mine, const(self.items)), const(i)))
            now = combine(self.op, before, own)
            return ir.stores(self.staging, at, now)

        if self.large_body:
            downsweep += self._scan_items_loop(mine, count, totals, before, stored=True)
        else:
            downsweep += self._scan_items(mine, count, "again", put)[0]
        statements.append(ir.For(mine, ZERO, threads, "lanes", downsweep))
        value = self.join([ir.load(b, padded(out)) for b in self.staging])
        statements.append(ir.For(out, ZERO, count, "lanes", write(ir.add(start, out), value)))
        return statements, all_

    def _load_or_identity(self, at: Expr, count: Expr) -> list[Expr]:
        exists = at < count
        pairs = zip(self.staging, self.identity, strict=True)
        return [select(exists, ir.load(b, padded(at)), x) for b, x in pairs]

    def _scan_items_loop(
        self, lane: Expr, count: Expr, state: list[ir.Register], initial: list[Expr], stored: bool
    ) -> list[Stmt]:
        """`_scan_items` as a loop, from `initial` on; running values are `stored` on demand."""
        i = ir.var(f"{lane.attr}_i")
        at = ir.add(ir.mul(lane, const(self.items)), i)
        merged = combine(self.op, ir.reads(state), self._load_or_identity(at, count))
        body, now = ir.assign(state, merged, f"{lane.attr}_now")
        if stored:
            body += ir.stores(self.staging, padded(at), now)
        return [*ir.sets(state, initial), ir.For(i, ZERO, const(self.items), "serial", body)]

    def _scan_items(
        self,
        lane: Expr,
        count: Expr,
        name: str,
        visit: Callable[[int, list[Expr]], list[Stmt]] = lambda i, prefix: [],
    ) -> tuple[list[Stmt], list[Expr]]:
        """A thread's items, unrolled, `visit` called with every prefix; their total."""
        out: list[Stmt] = []
        state: list[Expr] = []
        for i in range(self.items):
            at = ir.add(ir.mul(lane, const(self.items)), const(i))
            new = self._load_or_identity(at, count)
            new = combine(self.op, state, new) if state else new
            lets, state = ir.bind(new, f"{name}{i}")
            out += lets + visit(i, state)
        return out, state
