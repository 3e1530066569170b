"""Flash-Decoding (Dao et al. 2023): attention of a few queries, split along the keys.

A block has a range of the keys of one head, and all queries. The lanes of a warp form teams, one
for each key at a time, whose threads have a vector of the head each; keys and values go from memory
straight into registers. Every team runs an online softmax of its own. Teams are merged by shuffles,
warps through shared memory, and the blocks of a head through that of a cluster, or by a second
kernel, all in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from numus import ir
from numus.dtypes import DType, bool_
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.gpu.block import FwdOperands
from numus.kernels.attention.gpu.key_vectors import Place, RowVectors
from numus.kernels.attention.gpu.split_combine import Decay, Partials, SplitSizes, combined
from numus.kernels.attention.gpu.wgmma_forward import tree_reduce
from numus.kernels.common.smem_tiles import Matrix
from numus.kernels.math import exp_decay
from numus.kernels.matmul.gpu.problem import MAX_ACCESS_BYTES, multiply_add, next_power_of_two
from numus.target import Target

ZERO, TRUE, WARP = const(0), const(True, bool_), 32
_STATS = 2  # ahead of the columns of a query: the maximum, the sum


@dataclass(frozen=True)
class SplitKeysTuning:
    """Measured on one H200."""

    max_queries: int = 8
    min_keys: int = 64
    threads: int = 256
    keys_in_flight: int = 4  # of a team,
    few_queries: int = 4  # with more queries half as many: registers
    max_splits: int = 32  # of a head, which the second kernel reads
    combine_threads: int = 64
    line_bytes: int = 128


TUNING = SplitKeysTuning()


@dataclass(frozen=True)
class SplitTiling:
    """Compile-time sizes."""

    threads: int
    queries: int
    vector: int  # elements of a thread
    team: int  # threads that share a key
    unroll: int  # keys of a team in flight

    @property
    def teams(self) -> int:
        return self.threads // self.team

    @property
    def warps(self) -> int:
        return self.threads // WARP

    @property
    def resident_blocks(self) -> int:
        """Of an SM: registers hold the softmax of every query."""
        return 2 if self.queries <= TUNING.few_queries else 1

    @property
    def step(self) -> int:
        """Keys of a main-loop iteration."""
        return self.teams * self.unroll


def choose(
    target: Target, itemsize: int, queries: int, keys: int, head_dim: int, value_dim: int
) -> SplitTiling | None:
    """None for many queries or few keys, and for heads that a warp cannot hold as vectors."""
    few = queries <= TUNING.max_queries and keys >= TUNING.min_keys
    if not (few and target.vector_access_bytes and target.subgroup_size == WARP):
        return None
    vector = MAX_ACCESS_BYTES // itemsize
    team = next_power_of_two(-(-max(head_dim, value_dim) // vector))
    if team > WARP or head_dim % vector or value_dim % vector:
        return None
    unroll = TUNING.keys_in_flight // (1 if queries <= TUNING.few_queries else 2)
    return SplitTiling(TUNING.threads, queries, vector, team, unroll)


def split_count(target: Target, tiling: SplitTiling, batch: int, keys: int) -> int:
    """Blocks of a head: enough for all SMs, each with work for all of its teams."""
    wanted = min(TUNING.max_splits, -(-target.num_cores // batch))
    return max(1, min(wanted, -(-keys // tiling.step)))


class _Softmax:
    """A running maximum, the sum of exponentials below it, and the columns they weigh."""

    def __init__(self, name: str, dtype: DType, columns: int, decay: Decay) -> None:
        self.name, self.dtype, self.decay = name, dtype, decay
        self.maximum, self.sum = (
            ir.Register(f"{name}_{word}", dtype, lanes=True) for word in ("max", "sum")
        )
        self.columns = [ir.Register(f"{name}_{i}", dtype, lanes=True) for i in range(columns)]

    @property
    def state(self) -> list[Expr]:
        return [ir.read(r) for r in (self.maximum, self.sum, *self.columns)]

    def clear(self) -> list[Stmt]:
        zero = const(0, self.dtype)
        return [
            ir.Set(self.maximum, const(-math.inf, self.dtype)),
            *(ir.Set(r, zero) for r in (self.sum, *self.columns)),
        ]

    def rescaled(self, largest: Expr, tag: str) -> tuple[list[Stmt], Expr, Expr]:
        """Statements, what to subtract from scores for a new maximum, and the factor of the old
        sums."""
        infinite = const(-math.inf, self.dtype)
        names = (f"{self.name}_{word}{tag}" for word in ("largest", "shift", "rescale"))
        new, shift, rescale = (ir.var(name, self.dtype) for name in names)
        old = ir.read(self.maximum)
        lets: list[Stmt] = [
            ir.Let(new, ir.maximum(old, largest)),
            ir.Let(shift, select(new.eq(infinite), const(0, self.dtype), new)),
            ir.Let(rescale, self.decay(old - shift)),
            ir.Set(self.maximum, new),
        ]
        return lets, shift, rescale

    def add(
        self,
        scores: list[Expr],
        weigh: Callable[[int, Expr], Expr],
        rows: list[list[Expr]],
        tag: str,
    ) -> list[Stmt]:
        """Keys with these scores, whose probabilities (after `weigh`) multiply rows of values."""
        body, shift, rescale = self.rescaled(tree_reduce(scores, ir.maximum), tag)
        probs = [ir.var(f"{self.name}_{tag}prob{u}", self.dtype) for u in range(len(scores))]
        body += [ir.Let(p, self.decay(s - shift)) for p, s in zip(probs, scores, strict=True)]
        total = tree_reduce(list(probs), ir.add)
        body.append(ir.Set(self.sum, multiply_add(ir.read(self.sum), rescale, total)))
        weights = [weigh(u, p) for u, p in enumerate(probs)]
        for i, register in enumerate(self.columns):
            new = ir.read(register) * rescale
            for weight, row in zip(weights, rows, strict=True):
                new = multiply_add(weight, row[i], new)
            body.append(ir.Set(register, new))
        return body

    def merge(self, other: list[Expr], tag: str) -> list[Stmt]:
        """The softmax of other keys, in the order of `state`."""
        names = [ir.var(f"{self.name}_other{tag}_{i}", self.dtype) for i in range(len(other))]
        body: list[Stmt] = [ir.Let(name, x) for name, x in zip(names, other, strict=True)]
        lets, shift, rescale = self.rescaled(names[0], tag)
        factor = ir.var(f"{self.name}_factor{tag}", self.dtype)
        body += [*lets, ir.Let(factor, self.decay(names[0] - shift))]
        for register, x in zip((self.sum, *self.columns), names[1:], strict=True):
            body.append(ir.Set(register, multiply_add(x, factor, ir.read(register) * rescale)))
        return body


class Early(Enum):
    """What a block does of its keys and values before earlier kernels end."""

    NOTHING = 0
    PREFETCH = 1
    LOAD = 2  # the program is given them


class SplitKeysKernel:
    """The first kernel: a split of the keys, for all queries of a head. The only one where the
    splits of a head are the blocks of a cluster, whose partial results come without `partials`."""

    def __init__(
        self,
        tiling: SplitTiling,
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
        t = tiling
        width = t.team * t.vector
        self.width = width
        self.queries = ir.Buffer("queries", dtype, "scratch", const(t.queries * width))
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
        self.rows = [_Softmax(f"q{r}", dtype, t.vector, decay) for r in range(t.queries)]
        self.begin = self.split * sizes.chunk
        self.end = ir.minimum(self.begin + sizes.chunk, sizes.keys)
        self.vectors = self._row_vectors()
        self.scratch += [v.new_row for v in self.vectors if v.update is not None]

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
        t, s = self.tiling, self.sizes
        found = []
        for name, matrix, extent in (("k", self.o.k, s.head_dim), ("v", self.o.v, s.value_dim)):
            if matrix is None or matrix.memory is None:
                return []
            given = (matrix.memory, matrix.update, extent, t.vector, t.unroll, self.width)
            found.append(RowVectors(name, *given))
        return found

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
            for line in range(-(-self.width * itemsize // TUNING.line_bytes)):
                column = ir.minimum(const(line * TUNING.line_bytes // itemsize), extent - 1)
                at = memory.offset(self.n) + row + column
                fetches.append(ir.Prefetch(memory.buffer, at, write=False, level=2))
        loop = ir.For(key, ZERO, self.sizes.chunk, "lanes", fetches)
        return [loop, ir.DependencyWait()]

    def _stage(self) -> list[Stmt]:
        """Queries in shared memory, and rows that are replaced: one barrier for all."""
        t, s, i = self.tiling, self.sizes, ir.var("staged")
        r, column = i // self.width, i % self.width
        at = ir.minimum(column, s.head_dim - 1)
        x = self.o.q.read(self.n, r, at, TRUE).cast(self.dtype)
        value = select(column < s.head_dim, x, const(0, self.dtype))
        store: list[Stmt] = [ir.Store(self.queries, i, value)]
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

    def _loads(self, lane: Expr, k0: Expr, tag: str) -> list[Stmt]:
        keys, place = self._keys_of(lane, k0), self._place(lane)
        return [x for v in self.vectors for x in v.load(keys, place, f"{tag}_{v.name}")]

    def _keys_of(self, lane: Expr, k0: Expr) -> list[Expr]:
        """The keys of a thread's team in an iteration."""
        t = self.tiling
        return [k0 + (u * t.teams) + lane // t.team for u in range(t.unroll)]

    def _place(self, lane: Expr) -> Place:
        t = self.tiling
        return Place(self.n, lane % t.team * t.vector, self.sizes.keys - 1)

    def _teams(self, vectors: bool) -> list[Stmt]:
        t, lane = self.tiling, ir.var("lane")
        first = lane % t.team * t.vector
        body: list[Stmt] = []
        for row in self.rows:
            body += row.clear()
        if vectors:
            body += self._pipeline(lane)
        else:
            k0 = ir.var("key_block")
            keys = self._keys_of(lane, k0)
            loop = self._element_rows(keys, first)
            body.append(ir.For(k0, self.begin, self.end, "serial", loop, step=const(t.step)))
        mask = t.team
        while mask < WARP:
            for row in self.rows:
                body += row.merge([ir.lanes_xor(x, mask) for x in row.state], str(mask))
            mask *= 2
        warp, is_first = lane // WARP, (lane % WARP) < t.team
        store: list[Stmt] = []
        for r, row in enumerate(self.rows):
            maximum, total, *columns = row.state
            at = warp * t.queries + r
            store += [
                ir.Store(self.stage, at * self.width + first + i, x) for i, x in enumerate(columns)
            ]
            store += [
                ir.Store(self.stats, at * 2, maximum),
                ir.Store(self.stats, at * 2 + 1, total),
            ]
        body.append(ir.If(is_first, store))
        return [ir.For(lane, ZERO, const(t.threads), "lanes", body)]

    def _pipeline(self, lane: Expr) -> list[Stmt]:
        """The keys of a block, the vectors of an iteration while those before are used."""
        t, k0 = self.tiling, ir.var("key_block")
        last = self.begin + (self.end - 1 - self.begin) // t.step * t.step

        def use(at: Expr, tag: str) -> list[Stmt]:
            keys, place = self._keys_of(lane, at), self._place(lane)
            body = [x for v in self.vectors for x in v.replace_updated(keys, place, tag + v.name)]
            ks, vs = ([v.elements(u, self.dtype) for u in range(t.unroll)] for v in self.vectors)
            return body + self._attend(keys, place.first, ks, vs, tag)

        body = [] if self.early is Early.LOAD else self._loads(lane, self.begin, "first")
        loop = [*use(k0, ""), *self._loads(lane, k0 + t.step, "next")]
        body.append(ir.For(k0, self.begin, last, "serial", loop, step=const(t.step)))
        return body + use(last, "last_")

    def _element_rows(self, keys: list[Expr], first: Expr) -> list[Stmt]:
        """An iteration whose keys and values are loaded element by element."""
        s, o, body = self.sizes, self.o, list[Stmt]()
        assert o.v is not None
        load, inside = self._load, [ir.minimum(key, s.keys - 1) for key in keys]
        ks = [load(body, o.k, at, first, s.head_dim, f"k{u}") for u, at in enumerate(inside)]
        vs = [load(body, o.v, at, first, s.value_dim, f"v{u}") for u, at in enumerate(inside)]
        return body + self._attend(keys, first, ks, vs, "")

    def _attend(
        self,
        keys: list[Expr],
        first: Expr,
        ks: list[list[Expr]],
        vs: list[list[Expr]],
        tag: str,
    ) -> list[Stmt]:
        """One iteration: the scores of some keys by every team, and their values."""
        t, s, o = self.tiling, self.sizes, self.o
        body: list[Stmt] = []
        inside = [ir.minimum(key, s.keys - 1) for key in keys]
        infinite = const(-math.inf, self.dtype)
        for r, row in enumerate(self.rows):
            query = self._query(body, r, first, tag)
            scores: list[Expr] = []
            for u, key in enumerate(keys):
                total = query[0] * ks[u][0]
                for i in range(1, t.vector):
                    total = multiply_add(query[i], ks[u][i], total)
                mask = 1
                while mask < t.team:
                    total = total + ir.lanes_xor(total, mask)
                    mask *= 2
                value = total * o.scale
                if o.bias is not None:
                    value = value + o.bias(self.n, const(r), inside[u])
                limit = ir.minimum(self.end, const(r + 1)) if o.causal else self.end
                name = ir.var(f"{tag}score{r}_{u}", self.dtype)
                body.append(ir.Let(name, select(key < limit, value, infinite)))
                scores.append(name)

            def weigh(u: int, prob: Expr, r: int = r) -> Expr:
                return prob if o.keep is None else prob * o.keep(self.n, const(r), inside[u])

            body += row.add(scores, weigh, vs, tag)
        return body

    def _query(self, out: list[Stmt], r: int, first: Expr, tag: str) -> list[Expr]:
        """A thread's vector of a query, from shared memory."""
        width = MAX_ACCESS_BYTES // self.dtype.itemsize
        names = [ir.var(f"{tag}query{r}_{i}", self.dtype) for i in range(self.tiling.vector)]
        for i, name in enumerate(names):
            x = ir.load(self.queries, first + (r * self.width + i))
            out.append(ir.Let(name, x, vector=0 if i % width else min(width, len(names))))
        return list(names)

    def _load(
        self, out: list[Stmt], matrix: Matrix, row: Expr, first: Expr, extent: Expr, tag: str
    ) -> list[Expr]:
        """A thread's vector of a row, or the last one again."""
        count = self.tiling.vector
        at = ir.minimum(first, extent - count)
        lets = [
            ir.Let(
                ir.var(f"{tag}_{i}", self.dtype),
                matrix.read(self.n, row, at + i, TRUE).cast(self.dtype),
            )
            for i in range(count)
        ]
        out += lets
        return [let.var for let in lets]

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
