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

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.gpu.key_vectors import TRUE, Place, RowVectors
from numus.kernels.attention.gpu.split_block import WARP, ZERO, Early, SplitBlock
from numus.kernels.attention.gpu.split_combine import Decay
from numus.kernels.attention.gpu.wgmma_forward import tree_reduce
from numus.kernels.common.smem_tiles import Matrix
from numus.kernels.matmul.gpu.problem import MAX_ACCESS_BYTES, multiply_add, next_power_of_two
from numus.target import Target


@dataclass(frozen=True)
class SplitKeysTuning:
    """Measured on one H200."""

    max_queries: int = 8
    min_keys: int = 64
    threads: int = 256
    keys_in_flight: int = 4  # of a team,
    few_queries: int = 4  # with more queries half as many: registers


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
    def width(self) -> int:
        """Columns of a query."""
        return self.team * self.vector

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


class SplitKeysKernel(SplitBlock):
    """Teams of lanes: threads have a vector of a key each."""

    tiling: SplitTiling

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
        assert isinstance(t, SplitTiling)
        first = lane % t.team * t.vector
        body: list[Stmt] = []
        self.rows = [_Softmax(f"q{r}", self.dtype, t.vector, self.decay) for r in range(t.queries)]
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
                limit = ir.minimum(self.end, o.position(const(r)) + 1) if o.causal else self.end
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
