"""FlashAttention-2 backward (Dao 2023), SIMT, any dtype: scores are recomputed.

    P = exp(S - lse)        dS = P ∘ (M ∘ (g v') - delta)       M: dropout mask
    dv = (P ∘ M)' g         dk = scale dS' q                    dq = scale dS k

One kernel keeps a block of queries and streams the keys for dq; another keeps a block of keys and
streams the queries, transposed, for dk and dv. No atomics: every accumulator is one thread's.
"""

from __future__ import annotations

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.gpu.simt_forward import (
    MAX_ACCUMULATORS,
    Tiling,
    accumulator_registers,
    tilings,
)
from numus.kernels.attention.gpu.simt_tiles import (
    ZERO,
    AccumulatorTile,
    SmemTile,
    ThreadGrid,
    load_tile,
)
from numus.kernels.attention.gpu.wgmma_backward import Operands, Sizes
from numus.kernels.math import exp_decay
from numus.target import Target


def choose(
    target: Target,
    dtype: DType,
    rows: int,
    streamed_rows: int,
    head_dim: int,
    value_dim: int,
    wanted: list[str],
) -> Tiling | None:
    """The largest tiles that fit in registers and shared memory, if any."""
    words = dtype.itemsize // 4
    for p in tilings(target, dtype, rows, streamed_rows, head_dim, value_dim):
        columns = {"q": p.head_dim, "k": p.head_dim, "v": p.value_dim}
        smem_bytes = sum(
            SmemTile.bytes(dtype, n, p.rows) + SmemTile.bytes(dtype, n, p.block)
            for n in (p.head_dim, p.value_dim)
        )
        for name in wanted:
            smem_bytes += SmemTile.bytes(dtype, p.block, columns[name])
            smem_bytes += SmemTile.bytes(dtype, p.block, p.rows)
        acc = accumulator_registers(p, p.block, p.block, *(columns[name] for name in wanted))
        if smem_bytes <= target.shared_bytes and words * acc <= MAX_ACCUMULATORS:
            return p
    return None


def attention_backward(
    tiling: Tiling, sizes: Sizes, dtype: DType, g: Expr, operands: Operands, causal: bool
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Body of thread block g, and its scratch: dq, or dk and dv."""
    block = _Block(tiling, sizes, dtype, g, operands, causal)
    return block.body(), block.scratch


class _Block:
    """A resident block of queries (or keys), and the streamed blocks of the others."""

    def __init__(
        self, tiling: Tiling, sizes: Sizes, dtype: DType, g: Expr, o: Operands, causal: bool
    ) -> None:
        self.tiling, self.s, self.o, self.causal, self.dtype = tiling, sizes, o, causal, dtype
        self.threads = ThreadGrid.of(tiling.threads)
        self.by_query = "q" in o.writes
        self.n = g // sizes.tasks
        # longest blocks first: under a causal mask, later queries and earlier keys
        index = g % sizes.tasks
        if self.by_query:
            index = sizes.tasks - 1 - index
        self.first = index * tiling.rows
        self.rows, self.streamed_rows = sizes.queries, sizes.keys
        if not self.by_query:
            self.rows, self.streamed_rows = sizes.keys, sizes.queries
        elif causal:
            last = ir.minimum(self.first + tiling.rows, sizes.queries)
            self.streamed_rows = ir.minimum(sizes.keys, last)
        self.resident, self.streamed = (
            (("q", "g"), ("k", "v")) if self.by_query else (("k", "v"), ("q", "g"))
        )
        self.columns = {
            "q": tiling.head_dim,
            "k": tiling.head_dim,
            "v": tiling.value_dim,
            "g": tiling.value_dim,
        }
        self.needs_ds = o.needs_ds
        self.scratch: list[ir.Buffer] = []

        def tile(name: str, depth: int, width: int) -> SmemTile:
            found = SmemTile(name, dtype, depth, width)
            self.scratch.append(found.buffer)
            return found

        needed = "qkvg" if self.needs_ds else "qkg"
        self.transposed = {
            x: tile(
                f"{x}_transposed",
                self.columns[x],
                tiling.rows if x in self.resident else tiling.block,
            )
            for x in needed
            if self.needs_ds or x != "g"
        }
        # gradient: accumulators, left operand, right operand
        self.results: dict[str, tuple[AccumulatorTile, SmemTile, SmemTile]] = {}
        for result, operand in (("q", "k"), ("k", "q"), ("v", "g")):
            if result in o.writes:
                acc = AccumulatorTile(
                    f"d{result}", self.threads, dtype, tiling.rows, self.columns[result]
                )
                left = tile(f"{result}_left", tiling.block, tiling.rows)
                right = tile(f"{result}_right", tiling.block, self.columns[operand])
                self.results[result] = (acc, left, right)
        self.scores = AccumulatorTile("s", self.threads, dtype, tiling.rows, tiling.block)
        self.dp = AccumulatorTile("d", self.threads, dtype, tiling.rows, tiling.block)

    def body(self) -> list[Stmt]:
        p = self.tiling
        out: list[Stmt] = []
        for acc, _, _ in self.results.values():
            out += acc.clear()
        for name in self.resident:
            if name in self.transposed:
                out.append(self._load(name, self.first, p.rows, self.rows))
        b = ir.var("block")
        body: list[Stmt] = []
        for name in self.streamed:
            if name in self.transposed or name in self._right_operands():
                body.append(self._load(name, b, p.block, self.streamed_rows))
        body.append(self.threads.loop("scores", lambda lane: self._scores(lane, b)))
        body += [self._accumulate(result) for result in self.results]
        start = ZERO
        if self.causal and not self.by_query:
            start = self.first // p.block * p.block
        out.append(ir.For(b, start, self.streamed_rows, "serial", body, step=const(p.block)))
        return [*out, *(self._epilogue(result) for result in self.results)]

    def _accumulate(self, result: str) -> Stmt:
        """gradient += left @ right."""
        acc, left, right = self.results[result]
        return self.threads.loop(f"add_{result}", lambda lane: [acc.add(lane, left, right)])

    def _epilogue(self, result: str) -> Stmt:
        s, o = self.s, self.o
        acc, _, _ = self.results[result]
        write = o.writes[result]
        columns = s.value_dim if result == "v" else s.head_dim

        def store(lane: Expr) -> list[Stmt]:
            stores: list[Stmt] = []
            for i, j in acc.elements():
                row, column = self.first + acc.row(lane, i), acc.column(lane, j)
                value = acc.read(i, j)
                stored = write(self.n, row, column, value if result == "v" else value * o.scale)
                stores.append(ir.If((row < self.rows) & (column < columns), stored))
            return stores

        return self.threads.loop(f"epilogue_{result}", store)

    def _right_operands(self) -> dict[str, SmemTile]:
        """Right operands of the gradients, by operand name."""
        of = {"q": "k", "k": "q", "v": "g"}
        return {of[result]: right for result, (_, _, right) in self.results.items()}

    def _load(self, name: str, first: Expr, rows: int, limit: Expr) -> Stmt:
        matrix = getattr(self.o, name)
        at, shape = (self.n, first, limit), (rows, self.columns[name])
        return load_tile(
            *(name, self.threads, self.dtype, matrix, at, shape),
            transposed=self.transposed.get(name),
            direct=self._right_operands().get(name) if name in self.streamed else None,
        )

    def _scores(self, lane: Expr, b: Expr) -> list[Stmt]:
        """P and dS of a block, into shared memory."""
        s, o, dtype = self.s, self.o, self.dtype
        zero = const(0, dtype)
        resident, resident_g = (self.transposed.get(x) for x in self.resident)
        streamed, streamed_g = (self.transposed.get(x) for x in self.streamed)
        assert resident is not None
        assert streamed is not None
        body: list[Stmt] = [*self.scores.clear(), self.scores.add(lane, resident, streamed)]
        if self.needs_ds:
            assert resident_g is not None
            assert streamed_g is not None
            body += [*self.dp.clear(), self.dp.add(lane, resident_g, streamed_g)]
        queries = self.scores.thread_rows if self.by_query else self.scores.thread_columns
        lses: list[Expr] = []
        deltas: list[Expr] = []
        for i in range(queries):
            query, _ = self._indices(lane, b, i, i)
            for name, vector, found in (("lse", o.lse, lses), ("delta", o.delta, deltas)):
                if name == "lse" or self.needs_ds:
                    found.append(ir.var(f"{name}{i}", dtype))
                    body.append(ir.Let(found[i], vector.read(self.n, query, query < s.queries)))
        for i, j in self.scores.elements():
            query, key = self._indices(lane, b, i, j)
            index = i if self.by_query else j
            clamped = (ir.minimum(query, s.queries - 1), ir.minimum(key, s.keys - 1))
            visible = (query < s.queries) & (key < s.keys)
            if self.causal:
                visible = visible & (key <= query)
            value = self.scores.read(i, j) * o.scale
            if o.bias is not None:
                value = value + o.bias(self.n, *clamped)
            prob, keep = ir.var(f"prob{i}_{j}", dtype), ir.var(f"keep{i}_{j}", dtype)
            body.append(ir.Let(prob, select(visible, exp_decay(value - lses[index]), zero)))
            if o.keep is not None:
                body.append(ir.Let(keep, o.keep(self.n, *clamped)))
            row, column = self.scores.row(lane, i), self.scores.column(lane, j)
            for result, (_, left, _) in self.results.items():
                if result == "v":
                    operand = prob if o.keep is None else prob * keep
                else:
                    dp = self.dp.read(i, j)
                    dp = dp if o.keep is None else dp * keep
                    operand = select(visible, prob * (dp - deltas[index]), zero)
                body.append(ir.Store(left.buffer, left.at(column, row), operand))
        return body

    def _indices(self, lane: Expr, b: Expr, i: int, j: int) -> tuple[Expr, Expr]:
        """The query and the key of a score."""
        row, column = self.first + self.scores.row(lane, i), self.scores.column(lane, j)
        return (row, b + column) if self.by_query else (b + column, row)
