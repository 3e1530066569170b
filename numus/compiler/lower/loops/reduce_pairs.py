"""Broadcast reductions: register tiles over pairs of rows and terms.

Where no operand varies along both the rows and the terms (distances of all pairs of points, forces
between bodies, sums of kernel functions), memory has little to do. A thread keeps the operands of
some rows in registers, and all threads of a warp read the operands of the same term, one load for
all. Short axes of a row are unrolled in the thread as well, so that what their elements have in
common (the distance of two bodies, of a force along three axes) is computed once. Terms are split
until there are enough threads; a second kernel combines the partial results.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from numus import ir
from numus.compiler.fusion.group import index_of
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.loops import nest as loop_nest
from numus.compiler.lower.loops.nest import ZERO, Loop, Position, ceil_div, delinearize, linearize
from numus.compiler.lower.loops.problem import LoopProblem
from numus.compiler.lower.loops.reduce_combine import CombineKernel, RowSplit
from numus.compiler.lower.loops.row_emitter import full_spans, store_per_row
from numus.compiler.lower.loops.tuning import TUNING
from numus.compiler.lower.reducers import reducer
from numus.ir import Expr, Stmt, const


@dataclass(frozen=True, slots=True)
class PairTiling:
    """The distribution of rows over threads."""

    lane: Loop  # along which threads are
    unrolled: list[Loop]  # short ones, of which a thread has all iterations
    others: list[Loop]  # a block has one iteration of each
    rows: int  # of a thread, along the lanes


def lower_pairs(p: LoopProblem) -> Kernels | None:
    """A kernel of partial results and one that combines them; None where operands are no pairs."""
    tiling = _tiling(p)
    if tiling is None:
        return None
    threads = TUNING.pair_threads
    lane_blocks = ceil_div(tiling.lane.extent, threads * tiling.rows)
    blocks = lane_blocks * loop_nest.iterations(tiling.others)
    split = RowSplit.of(p, _terms_of_split(p, blocks))
    e, g = p.work.emitter(), ir.var("g")
    e.block_size = threads
    part, rest = divmod(g, e.scalar_arg(blocks))
    line, block = divmod(rest, e.scalar_arg(lane_blocks))
    spans = full_spans(p, e)
    spans[0] = split.span(e, part, e.scalar_arg(split.size))
    tile = _Tile(p, e, tiling, delinearize(e, line, tiling.others), block)
    body = tile.reduce(spans)
    for position in range(len(tile.positions)):
        body += tile.save(position, split, part) if split.count > 1 else tile.results(position)
    loop = ir.For(tile.thread, ZERO, const(threads), "lanes", body)
    step = e.grid_kernel("pair_reduction", g, [loop], blocks * split.count, p.work.notes)
    return [step] if split.count == 1 else [step, CombineKernel(p, split).lower()]


def supports_pairs(p: LoopProblem) -> bool:
    """One pass over many terms that are not in memory."""
    work, nest = p.work, p.nest
    if not p.target.vector_access_bytes or not work.splittable or work.sqdevs:
        return False
    if any(work.is_full(m) for m in work.stored) or not nest.rows:
        return False
    many = nest.row_count * nest.row_size >= TUNING.pair_min_elements
    return many and nest.row_size >= 2 * TUNING.pair_min_terms


def _tiling(p: LoopProblem) -> PairTiling | None:
    """Lanes along the longest loop that no operand of a term varies with."""
    nest = p.nest
    e = p.work.emitter()
    names = {d: e.variable(f"p{i}", e.dim(d.extent)) for i, d in enumerate(nest.loops)}
    for v in p.work.counts:
        e.bind(v, ir.scalar(f"k{v.id}", v.dtype))
    index = nest.index(dict(names))
    roots = [e.value(r.inputs[0], index_of(r.inputs[0].shape, index)) for r in p.work.reductions]
    if any(isinstance(root, tuple) for root in roots):  # complex
        return None
    varying = [
        {x for x in ir.walk(load, lambda x: True) if x.op == "var"}
        for load in dict.fromkeys(x for root in roots for x in ir.walk(root, lambda x: True))
        if load.op == "load"
    ]
    terms = {names[d] for d in nest.inner}
    candidates = [
        d
        for d in nest.rows
        if d.extent >= TUNING.pair_threads
        and not any(names[d] in found and found & terms for found in varying)
    ]
    lane = max(candidates, key=lambda d: d.extent, default=None)
    if lane is None:
        return None
    unrolled: list[Loop] = []
    for d in sorted((d for d in nest.rows if d is not lane), key=lambda d: d.extent):
        if loop_nest.iterations([*unrolled, d]) <= TUNING.pair_max_unrolled:
            unrolled.append(d)
    others = [d for d in nest.rows if d is not lane and d not in unrolled]
    own = sum(names[lane] in found for found in varying)  # operands of a row
    own += loop_nest.iterations(unrolled) * len(p.work.reductions)
    words = max(1, max(root.dtype.itemsize for root in roots) // 4)
    # threads with as few terms as a split may have
    all_threads = loop_nest.iterations([lane, *others]) * nest.row_size // TUNING.pair_min_terms
    wanted = p.target.num_cores * TUNING.pair_threads_per_sm // 2
    fits = [n for n in (4, 2) if n * own * words <= TUNING.pair_max_registers]
    rows = next((n for n in fits if all_threads >= n * wanted), 1)
    return PairTiling(lane, [d for d in nest.rows if d in unrolled], others, rows)


def _terms_of_split(p: LoopProblem, blocks: int) -> int:
    """Iterations of the outermost loop over terms in one split: enough splits to fill the device,
    sums short enough to be accurate."""
    outermost = p.nest.inner[0].extent
    inner = p.nest.row_size // outermost
    threads = p.target.num_cores * TUNING.pair_threads_per_sm
    splits = ceil_div(threads, blocks * TUNING.pair_threads)
    fewest = ceil_div(TUNING.pair_min_terms, inner)
    most = max(1, TUNING.serial_elements // inner)
    return min(max(ceil_div(outermost, splits), fewest), most)


class _Tile:
    """The rows of one thread being emitted."""

    def __init__(
        self, p: LoopProblem, e: Emitter, tiling: PairTiling, others: Position, block: Expr
    ) -> None:
        self.p, self.e = p, e
        self.thread = ir.var("t")
        extent = e.dim(tiling.lane.extent)
        last = ir.sub(extent, const(1))
        first = ir.mul(block, const(TUNING.pair_threads * tiling.rows))
        self.positions: list[Position] = []
        steps = [range(d.extent) for d in tiling.unrolled]
        for k in range(tiling.rows):
            number = ir.add(ir.add(first, self.thread), const(k * TUNING.pair_threads))
            # threads past the end compute the last row once more
            row = ir.minimum(number, last)
            e.extents[row] = extent
            for digits in itertools.product(*steps):
                short = {d: const(n) for d, n in zip(tiling.unrolled, digits, strict=True)}
                self.positions.append({**others, tiling.lane: row, **short})
        self.registers = [
            {r: self._accumulators(r, n) for r in p.work.reductions}
            for n in range(len(self.positions))
        ]

    def _accumulators(self, r: Value, position: int) -> list[ir.Register]:
        names = enumerate(reducer(r).dtypes)
        return [ir.Register(f"a{r.id}_{position}_{i}", t, True) for i, t in names]

    def reduce(self, spans: list[tuple[Expr, Expr]]) -> list[Stmt]:
        """The loop over terms, for all positions at once."""
        e, inner = self.e, self.p.nest.inner
        variables = [e.variable(f"x{i}", e.dim(d.extent)) for i, d in enumerate(inner)]
        within = dict(zip(inner, variables, strict=True))
        number = linearize(e, inner, within)
        size = loop_nest.ONE
        for start, stop in spans:
            size = ir.mul(size, ir.sub(stop, start))
        for v in self.p.work.counts:
            e.bind(v, size.cast(v.dtype))
        out: list[Stmt] = []
        body: list[Stmt] = []
        for position, at in enumerate(self.positions):
            index = self.p.nest.index({**at, **within})
            for r, registers in self.registers[position].items():
                how, source = reducer(r), r.inputs[0]
                out += ir.sets(registers, how.initial())
                value = e.value(source, index_of(source.shape, index))
                new = how.step(ir.reads(registers), value, number)
                if len(new) == 1:
                    body += ir.sets(registers, new)
                else:
                    body += ir.assign(registers, new, f"t{r.id}_{position}")[0]
        for x, span in reversed(list(zip(variables, spans, strict=True))):
            body = [ir.For(x, *span, "serial", body)]
        return out + body

    def save(self, position: int, split: RowSplit, part: Expr) -> list[Stmt]:
        """Store partial results."""
        number = linearize(self.e, self.p.nest.rows, self.positions[position])
        out: list[Stmt] = []
        for r, registers in self.registers[position].items():
            for v, register in zip(split.partials[r], registers, strict=True):
                out += self.e.store(v, (part, number), ir.read(register))
        return out

    def results(self, position: int) -> list[Stmt]:
        """Store the values of a row."""
        e = self.e
        for r, registers in self.registers[position].items():
            e.rebind(r, reducer(r).finish(ir.reads(registers)))
        for m, r in self.p.work.aliases.items():
            e.bindings[m] = e.bindings[r]
        return store_per_row(self.p, e, self.positions[position])
