"""Flash-Decoding on tensor cores (mma.sync): attention of up to 16 queries of 16-bit floats.

Queries are the heads that share keys, too: keys and values are read once, at the speed of memory,
straight into registers. Products take pairs along the contracted axis in any order on which both
operands agree, so threads pass vectors of keys as they are in memory. The scores of eight queries
are, as they are, the operand of the second product, which is transposed: result' = v' P'. Vectors
of values are paired by keys, and each two of their columns are rows of a product.

A warp has 16 or 32 keys at a time, and loads those of its next iteration where it has used them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import float32
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.gpu.key_vectors import Place, RowVectors
from numus.kernels.attention.gpu.split_block import WARP, ZERO, Early, SplitBlock
from numus.kernels.attention.gpu.wgmma_forward import row_reduce, tree_reduce
from numus.kernels.common.smem_tiles import VECTOR, round_up
from numus.kernels.matmul.gpu.gemv_mma_sync import pair
from numus.kernels.matmul.gpu.problem import multiply_add
from numus.target import Target

TILE = 8  # queries, or keys, of a product
_K_COLUMNS, _V_COLUMNS = 32, 64  # of a head, that the threads of a quad, or of eight, load at once
_QUERY_PAD = 32  # elements after a staged query, against bank conflicts
_SM_REGISTERS = 65536


@dataclass(frozen=True, slots=True)
class SplitMmaTuning:
    """Measured on one H200."""

    min_keys: int = 64
    threads: int = 128
    max_blocks: int = 4  # of an SM
    short_head: int = 64  # columns up to which a warp has 32 keys at a time
    query_registers: int = 32  # of a thread; more queries are loaded where they are used
    other_registers: int = 48
    max_registers: int = 248


TUNING = SplitMmaTuning()


@dataclass(frozen=True)
class MmaTiling:
    """Compile-time sizes."""

    threads: int
    queries: int
    head_dim: int  # rounded up
    value_dim: int
    warp_keys: int  # of an iteration
    extents: tuple[int, int]  # of rows of keys and values, which are part of the code

    @property
    def warps(self) -> int:
        return self.threads // WARP

    @property
    def width(self) -> int:
        return max(self.head_dim, self.value_dim)

    @property
    def step(self) -> int:
        return self.warps * self.warp_keys

    @property
    def halves(self) -> int:
        """Tiles of queries."""
        return -(-self.queries // TILE)

    @property
    def query_registers(self) -> int:
        return self.halves * self.head_dim // 8

    @property
    def holds_queries(self) -> bool:
        return self.query_registers <= TUNING.query_registers

    @property
    def registers(self) -> int:
        """Of a thread."""
        vectors = (self.head_dim + self.value_dim) * self.warp_keys // (2 * WARP)
        queries = self.query_registers if self.holds_queries else 4
        scores = self.warp_keys // TILE * 4
        return vectors + queries + scores + self.halves * self.value_dim // 4

    @property
    def resident_blocks(self) -> int:
        own = min(self.registers + TUNING.other_registers, 255)
        return min(TUNING.max_blocks, _SM_REGISTERS // (round_up(own, 8) * self.threads))


def choose(
    target: Target, queries: int, keys: int, head_dim: int, value_dim: int
) -> MmaTiling | None:
    """None for many queries or few keys, and for heads that are no whole vectors."""
    if not target.vector_access_bytes or target.subgroup_size != WARP:
        return None
    if queries > 2 * TILE or keys < TUNING.min_keys or head_dim % VECTOR or value_dim % VECTOR:
        return None
    dims = round_up(head_dim, _K_COLUMNS), round_up(value_dim, _V_COLUMNS)
    keys_of_warp = 32 if max(dims) <= TUNING.short_head else 16
    tiling = MmaTiling(TUNING.threads, queries, *dims, keys_of_warp, (head_dim, value_dim))
    return tiling if tiling.registers <= TUNING.max_registers else None


class SplitKeysMmaKernel(SplitBlock):
    """Threads are (g, t) in a warp of 8 × 4: scores have queries g, and 8 below, and keys 2t and
    2t + 1 of every eight; results have columns 8g … 8g + 7 and queries 2t, 2t + 1."""

    tiling: MmaTiling

    def _query_buffer(self) -> ir.Buffer:
        assert self.o.k.memory is not None
        dtype, size = self.o.k.memory.buffer.dtype, self.tiling.queries * self.query_pitch
        return ir.Buffer("queries", dtype, "scratch", const(size))

    @property
    def query_pitch(self) -> int:
        return self.tiling.width + _QUERY_PAD

    def _row_vectors(self) -> list[RowVectors]:
        t, o = self.tiling, self.o
        sides = (
            ("k", o.k, t.warp_keys // TILE, t.head_dim, _K_COLUMNS),
            ("v", o.v, t.warp_keys // 4, t.value_dim, _V_COLUMNS),
        )
        found = []
        for extent, (name, matrix, rows, width, step) in zip(t.extents, sides, strict=True):
            assert matrix is not None
            assert matrix.memory is not None
            given = (const(extent), VECTOR, rows, self.width, range(0, width, step), step)
            found.append(RowVectors(name, matrix.memory, matrix.update, *given))
        return found

    # -- loads ------------------------------------------------------------------------------------

    def _key_rows(self, lane: Expr, k0: Expr) -> tuple[list[Expr], Place]:
        """A thread's keys of an iteration, and its place in them."""
        t = self.tiling
        first = k0 + lane // WARP * t.warp_keys + lane % WARP // 4
        keys = [first + j * TILE for j in range(t.warp_keys // TILE)]
        return keys, Place(self.n, lane % 4 * VECTOR, self.sizes.keys - 1)

    def _value_rows(self, lane: Expr, k0: Expr) -> tuple[list[Expr], Place]:
        t = self.tiling
        first = k0 + lane // WARP * t.warp_keys + lane % 4 * 2
        keys = [first + (i + d) for i in range(0, t.warp_keys, TILE) for d in range(2)]
        return keys, Place(self.n, lane % WARP // 4 * VECTOR, self.sizes.keys - 1)

    def _loads(self, lane: Expr, k0: Expr, tag: str) -> list[Stmt]:
        return [*self._load_keys(lane, k0, tag), *self._load_values(lane, k0, tag)]

    def _load_keys(self, lane: Expr, k0: Expr, tag: str) -> list[Stmt]:
        return self.vectors[0].load(*self._key_rows(lane, k0), f"{tag}_k")

    def _load_values(self, lane: Expr, k0: Expr, tag: str) -> list[Stmt]:
        return self.vectors[1].load(*self._value_rows(lane, k0), f"{tag}_v")

    # -- main loop --------------------------------------------------------------------------------

    def _teams(self, vectors: bool) -> list[Stmt]:
        t, lane, k0 = self.tiling, ir.var("lane"), ir.var("key_block")
        halves, zero = range(t.halves), const(0, float32)

        def registers(name: str, count: int) -> list[ir.Register]:
            return [ir.Register(f"{name}{i}", float32, lanes=True) for i in range(count)]

        self.maxima, self.sums = registers("max", t.halves), registers("sum", t.halves)
        self.scores = [registers(f"s{j}_", 4) for j in range(t.warp_keys // TILE)]
        pairs = t.value_dim // 16
        self.columns = [[registers(f"o{h}_{j}_", 4) for j in range(pairs)] for h in halves]
        body: list[Stmt] = [ir.Set(x, const(-math.inf, float32)) for x in self.maxima]
        body += [ir.Set(x, zero) for x in self.sums]
        body += [ir.Set(x, zero) for half in self.columns for mma in half for x in mma]
        self.query_words = [self._query_words(body, lane, "held")] if t.holds_queries else []
        if vectors:
            last = self.begin + (self.end - 1 - self.begin) // t.step * t.step
            if self.early is not Early.LOAD:
                body += self._loads(lane, self.begin, "first")
            following = k0 + t.step
            ahead = [f(lane, following, "next") for f in (self._load_keys, self._load_values)]
            loop = self._iteration(lane, k0, "", ahead)
            body.append(ir.For(k0, self.begin, last, "serial", loop, step=const(t.step)))
            body += self._iteration(lane, last, "last_", [[], []])
        else:
            rows = (self._key_rows(lane, k0), self._value_rows(lane, k0))
            loop = []
            for x, matrix, where in zip(self.vectors, (self.o.k, self.o.v), rows, strict=True):
                assert matrix is not None
                loop += x.read(matrix, *where, f"read_{x.name}")
            loop += self._iteration(lane, k0, "", [[], []], updated=False)
            body.append(ir.For(k0, self.begin, self.end, "serial", loop, step=const(t.step)))
        body += self._store(lane)
        return [ir.For(lane, ZERO, const(t.threads), "lanes", body)]

    def _query_words(self, out: list[Stmt], lane: Expr, tag: str) -> list[list[Expr]]:
        """[half][word]: a thread's words of its queries, in the order of those of keys."""
        t, dtype = self.tiling, self.queries.dtype
        found: list[list[Expr]] = []
        for h in range(t.halves):
            row = ir.minimum(lane % WARP // 4 + h * TILE, const(t.queries - 1))
            words: list[Expr] = []
            for c in range(0, t.head_dim, _K_COLUMNS):
                first = row * self.query_pitch + lane % 4 * VECTOR + c
                names = [ir.var(f"{tag}_query{h}_{c}_{i}", dtype) for i in range(VECTOR)]
                for i, name in enumerate(names):
                    x = ir.load(self.queries, first + i)
                    out.append(ir.Let(name, x, vector=0 if i else VECTOR))
                for i in range(0, VECTOR, 2):
                    word = ir.var(f"{tag}_word{h}_{c}_{i}", dt.uint32)
                    out.append(ir.Let(word, pair(names[i], names[i + 1])))
                    words.append(word)
            found.append(words)
        return found

    def _iteration(
        self, lane: Expr, k0: Expr, tag: str, ahead: list[list[Stmt]], updated: bool = True
    ) -> list[Stmt]:
        """Scores, softmax and products of a warp's keys; loads `ahead` where keys, and values, are
        not needed any more."""
        body: list[Stmt] = []
        if updated:
            rows = (self._key_rows(lane, k0), self._value_rows(lane, k0))
            for x, where in zip(self.vectors, rows, strict=True):
                body += x.replace_updated(*where, tag + x.name)
        body += self._scores(lane, tag)
        body += ahead[0]
        weights = self._softmax(body, lane, k0, tag)
        body += self._products(weights, tag)
        return body + ahead[1]

    def _scores(self, lane: Expr, tag: str) -> list[Stmt]:
        t, kind = self.tiling, self.queries.dtype
        out: list[Stmt] = [ir.Set(x, const(0, float32)) for tile in self.scores for x in tile]
        queries = self.query_words[0] if t.holds_queries else self._query_words(out, lane, tag)
        zero, vectors = const(0, dt.uint32), t.head_dim // _K_COLUMNS
        for b in range(vectors):
            for half in range(0, 4, 2):
                own = [words[4 * b + half : 4 * b + half + 2] for words in queries]
                low, high = own if len(own) > 1 else (own[0], [zero, zero])
                a = [low[0], high[0], low[1], high[1]]
                for j, scores in enumerate(self.scores):
                    words = ir.reads(self.vectors[0].words[j * vectors + b][half : half + 2])
                    out.append(ir.MmaSync(scores, a, words, kind))
        return out

    def _softmax(self, out: list[Stmt], lane: Expr, k0: Expr, tag: str) -> list[list[Expr]]:
        """[half][eight keys]: probabilities of two keys as a word. Results are scaled to the new
        maximum."""
        t, s, o, kind = self.tiling, self.sizes, self.o, self.queries.dtype
        infinite, zero = const(-math.inf, float32), const(0, float32)
        thread = lane % WARP
        first = k0 + lane // WARP * t.warp_keys + thread % 4 * 2
        found: list[list[Expr]] = []
        for h in range(t.halves):

            def name(word: str, h: int = h) -> Expr:
                return ir.var(f"{tag}{word}{h}", float32)

            row = ir.minimum(thread // 4 + h * TILE, const(t.queries - 1))
            limit = ir.minimum(self.end, o.position(row) + 1) if o.causal else self.end
            left = ir.var(f"{tag}left{h}", dt.int32)
            out.append(ir.Let(left, (limit - first).cast(dt.int32)))
            values, keys = list[Expr](), list[Expr]()
            for j, scores in enumerate(self.scores):
                for u in range(2):
                    at = j * TILE + u
                    keys.append(ir.minimum(first + at, s.keys - 1))
                    value = ir.read(scores[2 * h + u]) * o.scale
                    if o.bias is not None:
                        value = value + o.bias(self.n, row, keys[-1])
                    value = select(const(at, dt.int32) < left, value, infinite)
                    values.append(name(f"score{at}_"))
                    out.append(ir.Let(values[-1], value))
            old = ir.read(self.maxima[h])
            new, shift, rescale = name("largest"), name("shift"), name("rescale")
            largest = row_reduce(tree_reduce(list(values), ir.maximum), ir.maximum)
            out += [
                ir.Let(new, ir.maximum(old, largest)),
                ir.Let(shift, select(new.eq(infinite), zero, new)),
                ir.Let(rescale, self.decay(old - shift)),
                ir.Set(self.maxima[h], new),
            ]
            probs = [name(f"prob{i}_") for i in range(len(values))]
            out += [ir.Let(p, self.decay(x - shift)) for p, x in zip(probs, values, strict=True)]
            total = tree_reduce(list(probs), ir.add)
            out.append(ir.Set(self.sums[h], multiply_add(ir.read(self.sums[h]), rescale, total)))
            weights: list[Expr] = list(probs)
            if o.keep is not None:
                weights = [p * o.keep(self.n, row, k) for p, k in zip(probs, keys, strict=True)]
            words = []
            for i in range(0, len(weights), 2):
                words.append(ir.var(f"{tag}weights{h}_{i}", dt.uint32))
                low, high = (x.cast(kind) for x in weights[i : i + 2])
                out.append(ir.Let(words[-1], pair(low, high)))
            found.append(words)
            # a thread has results of other queries: those of lanes 8t and 8t + 4
            factors = [name("factor_even"), name("factor_odd")]
            for u, factor in enumerate(factors):
                source = thread % 4 * 8 + 4 * u
                out.append(ir.Let(factor, ir.lanes_xor(rescale, thread ^ source)))
            for mma in self.columns[h]:
                for i, x in enumerate(mma):
                    out.append(ir.Set(x, ir.read(x) * factors[i % 2]))
        return found

    def _products(self, weights: list[list[Expr]], tag: str) -> list[Stmt]:
        t, kind = self.tiling, self.queries.dtype
        vectors = t.value_dim // _V_COLUMNS
        out: list[Stmt] = []
        for i in range(t.warp_keys // 16):
            for c in range(vectors):
                own = [ir.reads(self.vectors[1].words[(4 * i + e) * vectors + c]) for e in range(4)]
                for j in range(4):
                    a = [
                        *_paired(own[0][j], own[1][j]),
                        *_paired(own[2][j], own[3][j]),
                    ]
                    for h, words in enumerate(weights):
                        b = words[2 * i : 2 * i + 2]
                        out.append(ir.MmaSync(self.columns[h][4 * c + j], a, b, kind))
        return out

    def _store(self, lane: Expr) -> list[Stmt]:
        """The softmax of a warp, to shared memory."""
        t = self.tiling
        warp, thread = divmod(lane, WARP)
        body: list[Stmt] = []
        for h in range(t.halves):
            total = ir.var(f"total{h}", float32)
            body.append(ir.Let(total, row_reduce(ir.read(self.sums[h]), ir.add)))
            r = thread // 4 + h * TILE
            at = (warp * t.queries + r) * 2
            stats: list[Stmt] = [
                ir.Store(self.stats, at, ir.read(self.maxima[h])),
                ir.Store(self.stats, at + 1, total),
            ]
            body.append(ir.If((thread % 4).eq(0) & (r < t.queries), stats))
            for u in range(2):
                r = thread % 4 * 2 + (h * TILE + u)
                first = (warp * t.queries + r) * self.width + thread // 4 * VECTOR
                stores: list[Stmt] = []
                for j, mma in enumerate(self.columns[h]):
                    column = j // 4 * _V_COLUMNS + j % 4 * 2
                    for e in range(2):
                        value = ir.read(mma[2 * e + u])
                        stores.append(ir.Store(self.stage, first + (column + e), value))
                body.append(ir.If(r < t.queries, stores))
        return body


def _paired(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """The lower halves of two words as one, and the upper ones."""
    return (a & 0xFFFF) | (b << 16), (a >> 16) | (b & 0xFFFF0000)
