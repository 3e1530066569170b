"""FlashAttention-2 backward (Dao 2023) on wgmma: scores are recomputed.

    P = exp(S - lse)        dS = P ∘ (M ∘ (g v') - delta)       M: dropout mask
    dv = (P ∘ M)' g         dk = scale dS' q                    dq = scale dS k

One kernel keeps a tile of queries and streams keys: dS, the A operand of dq, stays in registers.
Another keeps a tile of keys and streams the queries, transposed: P' and dS' are the A operands of
dv and dk. No atomics: results are deterministic.
"""

from __future__ import annotations

from collections.abc import Callable

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.gpu import wgmma_forward as forward
from numus.kernels.attention.gpu.block import BackwardBlock, BwdOperands, Sizes, Tiling
from numus.kernels.attention.gpu.wgmma_forward import (
    LOG2E,
    STAGES,
    ZERO_F32,
    accumulators,
    row_half,
)
from numus.kernels.common import smem_tiles
from numus.kernels.common.smem_tiles import ZERO, SmemTile
from numus.target import Target


def _shared_bytes(t: Tiling, score_tiles: int) -> int:
    nbytes = smem_tiles.stage_bytes(t.rows) + STAGES * 2 * 4 * t.block
    for n in (t.head_dim, t.value_dim):
        nbytes += smem_tiles.tile_bytes(t.rows, n) + STAGES * smem_tiles.tile_bytes(t.block, n)
    score_elements = max(t.rows * (t.block + forward.PAD), t.block * (t.rows + forward.PAD))
    return nbytes + score_tiles * 4 * score_elements


def choose(
    target: Target,
    head_dim: int,
    value_dim: int,
    result_columns: int,
    needs_ds: bool,
    score_tiles: int,
) -> Tiling | None:
    """The largest tiles that fit in registers and shared memory, if any. Several small thread
    blocks per SM overlap better than one large one."""
    head_dim, value_dim = smem_tiles.round_up(head_dim, 16), smem_tiles.round_up(value_dim, 16)
    for block in (64, 32):
        tiling = Tiling(128, 64, block, head_dim, value_dim)
        registers = result_columns // 2 + (2 if needs_ds else 1) * block // 2 + block // 4
        smem_bytes = _shared_bytes(tiling, score_tiles)
        if registers <= forward.TUNING.backward and smem_bytes <= target.shared_bytes:
            return tiling
    return None


class BackwardKernel(BackwardBlock):
    """Accumulators are resident × streamed; score tiles are queries × keys."""

    def __init__(self, tiling: Tiling, s: Sizes, dtype: DType, g: Expr, o: BwdOperands) -> None:
        super().__init__(tiling, s, dtype, g, o)
        self.factor = ir.var("factor", float32)
        self.tiles: dict[str, SmemTile] = {}
        for name in "qkvg" if self.needs_ds else "qkg":
            rows, stages = (tiling.rows, 1) if name in self.resident else (tiling.block, STAGES)
            shape = (rows, self.columns[name], stages)
            self.tiles[name] = SmemTile(f"tile_{name}", getattr(o, name), dtype, *shape)
        self.stage = smem_tiles.stage_buffer(tiling.rows)
        self.scores = accumulators("s", tiling.block)
        self.dp = accumulators("d", tiling.block) if self.needs_ds else []
        sides = (tiling.rows, tiling.block) if self.by_query else (tiling.block, tiling.rows)
        self.score_tiles = forward.score_tiles(o, *sides)
        self.gradients = {x: accumulators(f"d{x}", self.columns[x]) for x in "qkv" if x in o.writes}
        # lse and delta: in registers for resident queries, in shared memory for streamed ones
        vectors = {"lse": o.lse, "delta": o.delta}
        self.registers = {
            x: [ir.Register(f"{x}{h}", float32, lanes=True) for h in range(2)] for x in vectors
        }
        self.vectors = {
            x: smem_tiles.SmemVector(f"rows_{x}", vector, tiling.block, STAGES)
            for x, vector in vectors.items()
            if not self.by_query and (x == "lse" or self.needs_ds)
        }
        self.scratch = [*(x.buffer for x in self.tiles.values()), self.stage]
        self.scratch += [x.buffer for x in self.score_tiles.values()]
        self.scratch += [x.buffer for x in self.vectors.values()]

    def body(self) -> list[Stmt]:
        p, o = self.tiling, self.o
        out: list[Stmt] = [ir.Let(self.factor, o.scale * const(LOG2E, float32))]
        for name in self.resident:
            if name in self.tiles:
                out += self.tiles[name].load("all", p.threads, self.n, self.first, self.end)
        out += [ir.Set(x, ZERO_F32) for acc in self.gradients.values() for x in acc]
        if self.by_query:
            out.append(self._load_registers())
        start, block = ZERO, const(p.block)
        stop = (self.streamed_rows + (p.block - 1)) // block
        if self.o.causal and not self.by_query:
            start = self.first // block
        j = ir.var("block")
        out += [
            ir.If(start < stop, self._load("first", start)),
            ir.AsyncCommit(),
            ir.For(j, start, stop, "serial", self._block(j, stop)),
        ]
        for name in reversed(self.gradients):
            out += self._epilogue(name, self.tiling.threads)
        return out

    def _load_registers(self) -> Stmt:
        lane = ir.var("query_thread")
        loads: list[Stmt] = []
        for name, vector in (("lse", self.o.lse), ("delta", self.o.delta)):
            for h in range(2):
                query = self.first + ir.accumulator_element(lane, 2 * h)[0]
                value = vector.read(self.n, query, query < self.s.queries)
                loads.append(ir.Set(self.registers[name][h], value))
        return self._lanes(lane, loads)

    def _lanes(self, lane: Expr, body: list[Stmt]) -> Stmt:
        return ir.For(lane, ZERO, const(self.tiling.threads), "lanes", body)

    # -- main loop --------------------------------------------------------------------------------

    def _load(self, tag: str, j: Expr) -> list[Stmt]:
        """cp.async of the j-th streamed block."""
        first, stage = j * self.tiling.block, j % STAGES
        sources = [*(self.tiles.get(name) for name in self.streamed), *self.vectors.values()]
        out: list[Stmt] = []
        for source in sources:
            if source is not None:
                where = (self.n, first, self.streamed_rows, stage)
                out += source.load(tag, self.tiling.threads, *where)
        return out

    def _block(self, j: Expr, stop: Expr) -> list[Stmt]:
        p = self.tiling
        stage, first = j % STAGES, j * p.block
        following = j + 1
        out: list[Stmt] = [
            ir.AsyncWait(0, fence=True),
            ir.If(following < stop, self._load("next", following)),
            ir.AsyncCommit(),
        ]
        gemms = [(self.scores, p.head_dim), (self.dp, p.value_dim)][: 1 + self.needs_ds]
        operands = zip(self.resident, self.streamed, strict=True)
        for (acc, depth), (a, b) in zip(gemms, operands, strict=False):
            left, right = self.tiles[a].k_major(), self.tiles[b].k_major(stage)
            out.append(ir.Wgmma(acc, left, right, p.block, depth, zero_init=True))
        start = (self.first, first) if self.by_query else (first, self.first)
        out += [x.load("load", self.s, self.n, *start) for x in self.score_tiles.values()]
        out.append(ir.WgmmaWait(self.scores, len(gemms) - 1))
        masked = self._needs_mask(first)
        out += [
            ir.If(masked, [self._probabilities("masked", first, stage)]),
            ir.If(~masked, [self._probabilities("unmasked", first, stage)]),
        ]
        if self.needs_ds:
            out += [ir.WgmmaWait(self.dp, 0), self._score_gradients(stage)]
        elif "keep" in self.score_tiles:
            out.append(self._dropout())
        return [*out, *self._accumulate(stage)]

    def _accumulate(self, stage: Expr) -> list[Stmt]:
        """dv += P' g, dk += dS' q, dq += dS k."""
        out: list[Stmt] = []
        for name, acc in reversed(self.gradients.items()):
            left = self.scores if name == "v" else self.dp
            right = self.tiles[{"q": "k", "k": "q", "v": "g"}[name]].mn_major(stage)
            out.append(ir.Wgmma(acc, left, right, 2 * len(acc), self.tiling.block))
        waits = [x for acc in reversed(self.gradients.values()) for x in acc]
        return [*out, ir.WgmmaWait(waits, 0)]

    def _needs_mask(self, first: Expr) -> Expr:
        """True where the block that begins at `first` has masked scores."""
        p = self.tiling
        end = first + p.block
        if self.by_query:
            outside, diagonal = end > self.s.keys, end > self.first + 1
        else:
            outside = end > self.s.queries
            diagonal = first < self.first + (p.rows - 1)
        return outside | diagonal if self.o.causal else outside

    def _visible(self, lane: Expr, first: Expr) -> Callable[[int], Expr]:
        """Predicate of accumulators whose query attends to their key."""
        if self.by_query:
            return forward.VisibilityMask(lane, self.first, first, self.s.keys, self.o.causal).of
        query = first + ir.accumulator_element(lane, 0)[1]
        limit = (self.s.queries - query).cast(dt.int32)
        keys = [ir.accumulator_element(lane, 2 * h)[0] for h in range(2)]
        starts = [(self.first + key - query).cast(dt.int32) for key in keys]

        def visible(i: int) -> Expr:
            at = const(i // 4 * 8 + i % 2, dt.int32)
            return (at < limit) & (at >= starts[row_half(i)]) if self.o.causal else at < limit

        return visible

    def _per_query(self, name: str, lane: Expr, number: int, stage: Expr) -> Expr:
        """lse, or delta, of the query of an accumulator."""
        if self.by_query:
            return ir.read(self.registers[name][row_half(number)])
        return self.vectors[name].at(ir.accumulator_element(lane, number)[1], stage)

    def _score(self, tile: forward.ScoreTile, lane: Expr, number: int) -> Expr:
        """The element of a score tile for an accumulator."""
        row, column = ir.accumulator_element(lane, number)
        return tile.of(row, column) if self.by_query else tile.of(column, row)

    def _probabilities(self, tag: str, first: Expr, stage: Expr) -> Stmt:
        """P = exp(S - lse)."""
        lane = ir.var(f"{tag}_thread")
        bias, visible = self.score_tiles.get("bias"), self._visible(lane, first)
        body: list[Stmt] = []
        for i, register in enumerate(self.scores):
            lse = self._per_query("lse", lane, i, stage) * const(LOG2E, float32)
            value = ir.fma(ir.read(register), self.factor, -lse)
            if bias is not None:
                value = value + self._score(bias, lane, i)
            value = ir.exp2(value)
            if tag == "masked":
                value = select(visible(i), value, ZERO_F32)
            body.append(ir.Set(register, value))
        return self._lanes(lane, body)

    def _score_gradients(self, stage: Expr) -> Stmt:
        """dS = P ∘ (M ∘ dP - delta), and P = P ∘ M."""
        lane = ir.var("dp_thread")
        keep = self.score_tiles.get("keep")
        body: list[Stmt] = []
        for i, (prob, register) in enumerate(zip(self.scores, self.dp, strict=True)):
            value, mask = ir.read(register), ir.var(f"keep{i}", float32)
            if keep is not None:
                body.append(ir.Let(mask, self._score(keep, lane, i)))
                value = value * mask
            value = value - self._per_query("delta", lane, i, stage)
            # 0 stays 0, even where keys or values are not finite
            ds = ir.read(prob) * value
            body.append(ir.Set(register, select(ir.read(prob).eq(ZERO_F32), ZERO_F32, ds)))
            if keep is not None:
                body.append(ir.Set(prob, ir.read(prob) * mask))
        return self._lanes(lane, body)

    def _dropout(self) -> Stmt:
        lane, keep = ir.var("dropout_thread"), self.score_tiles["keep"]
        masked = [ir.read(x) * self._score(keep, lane, i) for i, x in enumerate(self.scores)]
        body: list[Stmt] = [ir.Set(x, v) for x, v in zip(self.scores, masked, strict=True)]
        return self._lanes(lane, body)

    def _epilogue(self, name: str, threads: int) -> list[Stmt]:
        acc, columns = self.gradients[name], self.s.value_dim if name == "v" else self.s.head_dim
        return smem_tiles.store_accumulators(
            *(f"d{name}", threads, self.stage, 2 * len(acc)),
            lambda number, lane: self.scaled(name, ir.read(acc[number])),
            lambda row, column, x: self.o.writes[name](self.n, self.first + row, column, x),
            lambda row, column: (self.first + row < self.rows) & (column < columns),
        )
