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
from numus.kernels.attention.gpu import simt_forward
from numus.kernels.attention.gpu.block import BackwardBlock, BwdOperands, Sizes, Tiling
from numus.kernels.attention.gpu.simt_tiles import AccumulatorTile, SmemTile, ThreadGrid, load_tile
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
    for p in simt_forward.tilings(target, dtype, rows, streamed_rows, head_dim, value_dim):
        columns = {"q": p.head_dim, "k": p.head_dim, "v": p.value_dim}
        smem_bytes = sum(
            SmemTile.bytes(dtype, n, p.rows) + SmemTile.bytes(dtype, n, p.block)
            for n in (p.head_dim, p.value_dim)
        )
        for name in wanted:
            smem_bytes += SmemTile.bytes(dtype, p.block, columns[name])
            smem_bytes += SmemTile.bytes(dtype, p.block, p.rows)
        acc = simt_forward.accumulator_registers(
            p, p.block, p.block, *(columns[name] for name in wanted)
        )
        if smem_bytes <= target.shared_bytes and words * acc <= simt_forward.MAX_ACCUMULATORS:
            return p
    return None


class BackwardKernel(BackwardBlock):
    def __init__(self, tiling: Tiling, s: Sizes, dtype: DType, g: Expr, o: BwdOperands) -> None:
        super().__init__(tiling, s, dtype, g, o)
        rows, block, columns = tiling.rows, tiling.block, self.columns
        self.threads = ThreadGrid.of(tiling.threads)

        def tile(name: str, depth: int, width: int) -> SmemTile:
            found = SmemTile(name, dtype, depth, width)
            self.scratch.append(found.buffer)
            return found

        self.transposed = {
            x: tile(f"{x}_transposed", columns[x], rows if x in self.resident else block)
            for x in ("qkvg" if self.needs_ds else "qk")
        }
        # gradient: accumulators, left operand, right operand
        self.results: dict[str, tuple[AccumulatorTile, SmemTile, SmemTile]] = {}
        self.right_operands: dict[str, SmemTile] = {}
        for result, operand in (("q", "k"), ("k", "q"), ("v", "g")):
            if result in o.writes:
                acc = AccumulatorTile(f"d{result}", self.threads, dtype, rows, columns[result])
                left = tile(f"{result}_left", block, rows)
                right = tile(f"{result}_right", block, columns[operand])
                self.results[result], self.right_operands[operand] = (acc, left, right), right
        self.scores = AccumulatorTile("s", self.threads, dtype, rows, block)
        self.dp = AccumulatorTile("d", self.threads, dtype, rows, block)

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
            if name in self.transposed or name in self.right_operands:
                body.append(self._load(name, b, p.block, self.streamed_rows))
        body.append(self.threads.loop("scores", lambda lane: self._scores(lane, b)))
        body += [self._accumulate(result) for result in self.results]
        start = const(0)
        if self.o.causal and not self.by_query:
            start = self.first // p.block * p.block
        out.append(ir.For(b, start, self.streamed_rows, "serial", body, step=const(p.block)))
        return [*out, *(self._epilogue(result) for result in self.results)]

    def _accumulate(self, result: str) -> Stmt:
        """gradient += left @ right."""
        acc, left, right = self.results[result]
        return self.threads.loop(f"add_{result}", lambda lane: [acc.add(lane, left, right)])

    def _epilogue(self, result: str) -> Stmt:
        acc, _, _ = self.results[result]
        columns = self.s.value_dim if result == "v" else self.s.head_dim

        def store(lane: Expr) -> list[Stmt]:
            stores: list[Stmt] = []
            for i, j in acc.elements():
                row, column = self.first + acc.row(lane, i), acc.column(lane, j)
                value = self.scaled(result, acc.read(i, j))
                stored = self.o.writes[result](self.n, row, column, value)
                stores.append(ir.If((row < self.rows) & (column < columns), stored))
            return stores

        return self.threads.loop(f"epilogue_{result}", store)

    def _load(self, name: str, first: Expr, rows: int, limit: Expr) -> Stmt:
        at, shape = (self.n, first, limit), (rows, self.columns[name])
        direct = self.right_operands.get(name) if name in self.streamed else None
        tiles = {"transposed": self.transposed.get(name), "direct": direct}
        matrix = getattr(self.o, name)
        return load_tile(name, self.threads, self.dtype, matrix, at, shape, **tiles)

    def _scores(self, lane: Expr, block: Expr) -> list[Stmt]:
        """P and dS of a block, into shared memory."""
        s, o, dtype = self.s, self.o, self.dtype
        zero = const(0, dtype)
        body: list[Stmt] = []
        operands = zip(self.resident, self.streamed, strict=True)
        for acc, (a, b) in zip((self.scores, self.dp)[: 1 + self.needs_ds], operands, strict=False):
            product = acc.add(lane, self.transposed[a], self.transposed[b])
            body += [*acc.clear(), product]
        queries = self.scores.thread_rows if self.by_query else self.scores.thread_columns
        vectors = {"lse": o.lse, "delta": o.delta} if self.needs_ds else {"lse": o.lse}
        for i in range(queries):
            query, _ = self._indices(lane, block, i, i)
            for name, vector in vectors.items():
                value = vector.read(self.n, query, query < s.queries)
                body.append(ir.Let(ir.var(f"{name}{i}", dtype), value))
        for i, j in self.scores.elements():
            query, key = self._indices(lane, block, i, j)
            index = i if self.by_query else j
            lse, delta = ir.var(f"lse{index}", dtype), ir.var(f"delta{index}", dtype)
            clamped = (ir.minimum(query, s.queries - 1), ir.minimum(key, s.keys - 1))
            visible = (query < s.queries) & (key < s.keys)
            if self.o.causal:
                visible = visible & (key <= query)
            value = self.scores.read(i, j) * o.scale
            if o.bias is not None:
                value = value + o.bias(self.n, *clamped)
            prob, keep = ir.var(f"prob{i}_{j}", dtype), ir.var(f"keep{i}_{j}", dtype)
            body.append(ir.Let(prob, select(visible, exp_decay(value - lse), zero)))
            if o.keep is not None:
                body.append(ir.Let(keep, o.keep(self.n, *clamped)))
            row, column = self.scores.row(lane, i), self.scores.column(lane, j)
            for result, (_, left, _) in self.results.items():
                operand = prob if result == "v" else self.dp.read(i, j)
                operand = operand if o.keep is None else operand * keep
                if result != "v":
                    operand = select(visible, prob * (operand - delta), zero)
                body.append(ir.Store(left.buffer, left.at(column, row), operand))
        return body

    def _indices(self, lane: Expr, b: Expr, i: int, j: int) -> tuple[Expr, Expr]:
        """The query and the key of a score."""
        row, column = self.first + self.scores.row(lane, i), self.scores.column(lane, j)
        return (row, b + column) if self.by_query else (b + column, row)
