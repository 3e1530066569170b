"""Blocks of Flash-Decoding (Dao et al. 2023): a range of the keys of a head, all of its queries.

Queries are staged in shared memory; each warp comes to a softmax of its own keys. The softmaxes of
warps are merged through shared memory, and those of blocks through that of a cluster, or by a
second kernel, in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.gpu.block import FwdOperands
from numus.kernels.attention.gpu.key_vectors import TRUE, RowVectors
from numus.kernels.attention.gpu.split_combine import Decay, Partials, SplitSizes, combined
from numus.kernels.attention.gpu.wgmma_forward import tree_reduce
from numus.kernels.math import exp_decay
from numus.kernels.matmul.gpu.problem import multiply_add

ZERO, WARP = const(0), 32
_STATS = 2  # ahead of the columns of a query: the maximum, the sum
_LINE_BYTES = 128
_PREFETCHED_KEYS = 256  # of a block, at most: L2 has to hold those of all blocks


class Early(Enum):
    """What a block does of its keys and values before earlier kernels end."""

    NOTHING = 0
    PREFETCH = 1
    LOAD = 2  # the program is given them


class SplitTile(Protocol):
    """Compile-time sizes."""

    @property
    def threads(self) -> int: ...
    @property
    def warps(self) -> int: ...
    @property
    def queries(self) -> int: ...
    @property
    def width(self) -> int:
        """Columns of a query."""

    @property
    def step(self) -> int:
        """Keys of a main-loop iteration."""

    @property
    def resident_blocks(self) -> int:
        """Of an SM."""


class SplitBlock:
    """The first kernel: a split of the keys, for all queries of a head. The only one where the
    splits of a head are the blocks of a cluster, whose partial results come without `partials`."""

    def __init__(
        self,
        tiling: SplitTile,
        sizes: SplitSizes,
        dtype: DType,
        block: Expr,
        operands: FwdOperands,
        partials: Partials | int,  # in memory, or how many blocks of a cluster have them
        early: Early,
        decay: Decay = exp_decay,
    ) -> None:
        self.tiling, self.sizes, self.dtype = tiling, sizes, dtype
        self.o, self.partials, self.early = operands, partials, early
        self.decay = decay
        self.n, self.split = block // sizes.splits, block % sizes.splits
        t, width = tiling, tiling.width
        self.width = width
        self.queries = self._query_buffer()
        self.stage = ir.Buffer("stage", dtype, "scratch", const(t.warps * t.queries * width))
        self.stats = ir.Buffer("stats", dtype, "scratch", const(2 * t.warps * t.queries))
        self.scratch = [self.queries, self.stage, self.stats]
        if isinstance(partials, int):
            count = t.queries * (width + _STATS)
            self.merged = ir.Buffer("merged", dtype, "scratch", const(count))
            self.scratch.append(self.merged)
            self.gathered = self.merged
            if partials > 1:
                self.gathered = ir.Buffer("gathered", dtype, "scratch", const(partials * count))
                self.scratch.append(self.gathered)
        self.begin = self.split * sizes.chunk
        self.end = ir.minimum(self.begin + sizes.chunk, sizes.keys)
        self.vectors = self._row_vectors()
        self.scratch += [v.new_row for v in self.vectors if v.update is not None]

    def _query_buffer(self) -> ir.Buffer:
        size = self.tiling.queries * self.query_pitch
        return ir.Buffer("queries", self.dtype, "scratch", const(size))

    @property
    def query_pitch(self) -> int:
        return self.tiling.width

    def body(self) -> list[Stmt]:
        ahead: list[Stmt] = []
        body: list[Stmt]
        if self.vectors:
            aligned = self.vectors[0].memory.aligned(self.n) & self.vectors[1].memory.aligned(
                self.n
            )
            body = [ir.If(aligned, self._teams(True)), ir.If(~aligned, self._teams(False))]
            if self.early is Early.LOAD:
                ahead = [ir.If(aligned, [self._of_block(self._first_loads())])]
                ahead.append(ir.DependencyWait(loads_before=True))
        else:
            body = self._teams(False)
        if self.early is not Early.NOTHING and not ahead:
            ahead = self._early_prefetch()
        body = [*ahead, *self._stage(), *body, self._merge_warps()]
        if not isinstance(self.partials, int):
            return body
        if self.partials > 1:
            count = self.tiling.queries * (self.width + _STATS)
            body.append(ir.ClusterGather(self.gathered, self.merged, count))
        return [*body, self._combine(self.partials)]

    def _row_vectors(self) -> list[RowVectors]:
        """Of keys and values, where both are in memory."""
        raise NotImplementedError

    def _teams(self, vectors: bool) -> list[Stmt]:
        """The softmaxes of the warps, to `stage` and `stats`."""
        raise NotImplementedError

    def _loads(self, lane: Expr, k0: Expr, tag: str) -> list[Stmt]:
        """Vectors of the keys and values of an iteration."""
        raise NotImplementedError

    def _of_block(self, body: Callable[[Expr], list[Stmt]]) -> Stmt:
        lane = ir.var("lane")
        return ir.For(lane, ZERO, const(self.tiling.threads), "lanes", body(lane))

    def _early_prefetch(self) -> list[Stmt]:
        """Keys and values are in L2, or on their way, when the kernels before this one end."""
        if not self.early:
            return []
        key, fetches = ir.var("fetched"), list[Stmt]()
        for matrix, extent in ((self.o.k, self.sizes.head_dim), (self.o.v, self.sizes.value_dim)):
            memory = None if matrix is None else matrix.memory
            if memory is None or any(
                x.op == "load" for x in ir.walk(memory.offset(self.n), lambda x: True)
            ):
                return []
            row = ir.minimum(self.begin + key, self.end - 1) * memory.stride
            itemsize = memory.buffer.dtype.itemsize
            for line in range(-(-self.width * itemsize // _LINE_BYTES)):
                column = ir.minimum(const(line * _LINE_BYTES // itemsize), extent - 1)
                at = memory.offset(self.n) + row + column
                fetches.append(ir.Prefetch(memory.buffer, at, write=False, level=2))
        count = ir.minimum(self.sizes.chunk, const(_PREFETCHED_KEYS))
        loop = ir.For(key, ZERO, count, "lanes", fetches)
        return [loop, ir.DependencyWait()]

    def _stage(self) -> list[Stmt]:
        """Queries in shared memory, and rows that are replaced: one barrier for all."""
        t, s, i = self.tiling, self.sizes, ir.var("staged")
        r, column = i // self.width, i % self.width
        at, dtype = ir.minimum(column, s.head_dim - 1), self.queries.dtype
        x = self.o.q.read(self.n, r, at, TRUE).cast(dtype)
        value = select(column < s.head_dim, x, const(0, self.dtype).cast(dtype))
        to = i if self.query_pitch == self.width else r * self.query_pitch + column
        store: list[Stmt] = [ir.Store(self.queries, to, value)]
        updated = [v for v in self.vectors if v.update is not None]
        count = t.queries * self.width
        if not updated:
            return [ir.For(i, ZERO, const(count), "lanes", store)]
        body: list[Stmt] = [ir.If(i < count, store)]
        for v in updated:
            own = v.compute_update(self.n, i - count)
            body.append(ir.If((i >= count) & (i < count + self.width), own))
            count += self.width
        found = [x for v in updated for x in v.find_update()]
        return [
            self._of_block(lambda lane: found),
            ir.For(i, ZERO, const(count), "lanes", body),
        ]

    def _first_loads(self) -> Callable[[Expr], list[Stmt]]:
        """The vectors of the first iteration."""
        return lambda lane: self._loads(lane, self.begin, "first")

    def _merge_warps(self) -> Stmt:
        t, s, p = self.tiling, self.sizes, self.partials
        i = ir.var("i")
        r, column = i // s.value_dim, i % s.value_dim
        all_warps = range(t.warps)
        maxima = [ir.load(self.stats, (r + w * t.queries) * 2) for w in all_warps]
        sums = [ir.load(self.stats, (r + w * t.queries) * 2 + 1) for w in all_warps]
        columns = [
            ir.load(self.stage, (r + w * t.queries) * self.width + column) for w in all_warps
        ]
        names = ("merged_max", "merged_shift")
        largest, shift = (ir.var(name, self.dtype) for name in names)
        infinite, zero = const(-math.inf, self.dtype), const(0, self.dtype)
        body: list[Stmt] = [
            ir.Let(largest, tree_reduce(maxima, ir.maximum)),
            ir.Let(shift, select(largest.eq(infinite), zero, largest)),
        ]
        factors = [ir.var(f"warp_factor{w}", self.dtype) for w in all_warps]
        body += [ir.Let(f, self.decay(m - shift)) for f, m in zip(factors, maxima, strict=True)]
        total, value = zero, zero
        for f, x, c in zip(factors, sums, columns, strict=True):
            total, value = multiply_add(x, f, total), multiply_add(c, f, value)
        if isinstance(p, int):
            at = r * (self.width + _STATS)
            body.append(ir.Store(self.merged, at + _STATS + column, value))
            places = ((self.merged, at), (self.merged, at + 1))
        else:
            at = (self.n * t.queries + r) * s.splits + self.split
            body.append(ir.Store(p.columns, at * s.value_dim + column, value))
            places = ((p.maxima, at), (p.sums, at))
        stats: list[Stmt] = [
            ir.Store(*place, x) for place, x in zip(places, (largest, total), strict=True)
        ]
        body.append(ir.If(column.eq(0), stats))
        return ir.For(i, ZERO, s.value_dim * t.queries, "lanes", body)

    def _combine(self, splits: int) -> Stmt:
        """Results of a head, by the threads of all blocks of its cluster."""
        t, s, i = self.tiling, self.sizes, ir.var("own")
        element = i * splits + self.split
        r, column = element // s.value_dim, element % s.value_dim
        size = self.width + _STATS
        at = [r * size + split * (t.queries * size) for split in range(splits)]
        parts = [
            tuple(ir.load(self.gathered, first + place) for place in (0, 1, column + _STATS))
            for first in at
        ]
        body, result, lse = combined(parts, self.dtype, self.decay)
        body += self.o.write(self.n, r, column, result)
        told = self.o.write_lse(self.n, r, lse)
        if told:
            body.append(ir.If(column.eq(0), told))
        count = s.value_dim * t.queries
        if splits > 1:
            body = [ir.If(element < count, body)]
        return ir.For(i, ZERO, (count + (splits - 1)) // splits, "lanes", body)
