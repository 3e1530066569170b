"""Scatter of single elements on CPUs, as histograms are: by private tables, or owners of ranges.

A block takes its updates in chunks. Addresses (and updates that are computed) come first, as SIMD
lanes into scratch; then a short serial loop combines. Many updates of few elements go into private
tables, which are added up in order; the smallest tables are several of a block in turns, so that
equal addresses in a row do not wait for each other's store. Otherwise every block owns a range of
the result and appends the updates of its own, branch-free, before it combines them: they stay in
order, whatever the number of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import ZERO, delinearize, temporary
from numus.compiler.lower.elementwise import lower
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.loops.tuning import TUNING as LOOPS
from numus.compiler.lower.scatter.problem import COMBINE, ScatterProblem
from numus.ir import Expr, Stmt, const
from numus.kernels.scan.cpu import identity
from numus.shapes import row_major, size_of


@dataclass(frozen=True)
class ElementTuning:
    """Measured on 2-core x86-64 machines (Cascade Lake)."""

    chunk_updates: int = 1 << 10  # whose addresses are in scratch
    min_updates: int = 1 << 10  # of a kernel with chunks
    min_updates_per_owner: int = 1 << 15
    interleaved_max_bytes: int = 1 << 12  # of a table of which a block has several,
    interleaved_tables: int = 4  # so many


TUNING = ElementTuning()


def supports_elements(problem: ScatterProblem) -> bool:
    """Updates are single real numbers, and many."""
    single = size_of(tuple(problem.val.shape[i] for i in problem.other_axes)) == 1
    real = not problem.val.dtype.is_complex
    return single and real and problem.count >= TUNING.min_updates


class _Chunks:
    """The updates of a block, a chunk at a time."""

    def __init__(self, e: Emitter, problem: ScatterProblem, outside: Expr) -> None:
        self.e, self.problem = e, problem
        val, k = problem.val, ir.var("k")
        self.first, self.count = ir.var("first"), ir.var("count")
        self.k = k
        dtype = dt.int32 if val.size < 1 << 31 else ir.INDEX
        size = const(TUNING.chunk_updates)
        self.slots = ir.Buffer("slots", dtype, "scratch", size)
        e.scratch.append(self.slots)
        number = ir.add(self.first, k)
        e.extents[number] = e.dim(problem.count)
        at = tuple(delinearize(e, number, list(problem.index_shape)))
        known: dict[int, Expr] = dict.fromkeys(problem.other_axes, ZERO)
        in_bounds: Expr = const(True, dt.bool_)
        for indices, axis in zip(val.inputs[2:], problem.axes, strict=True):
            index = known[axis] = e.value(indices, at)
            in_bounds = in_bounds & (index >= 0) & (index < e.dim(val.shape[axis]))
        address = e.address(val, tuple(known[i] for i in sorted(known)), row_major(val.shape))
        address = ir.select(in_bounds, address, outside)
        self.fill: list[Stmt] = [ir.Store(self.slots, k, address.cast(dtype))]
        self.update = e.value(val.inputs[1], (*at, *(ZERO for _ in problem.other_axes)))
        self.values: ir.Buffer | None = None
        if number in (found := set(ir.walk(self.update, lambda x: True))) or k in found:
            self.values = ir.Buffer("values", val.dtype, "scratch", size)
            e.scratch.append(self.values)
            self.fill.append(ir.Store(self.values, k, self.update))

    def slot(self, m: Expr) -> Expr:
        """The address of the m-th update of the chunk."""
        return ir.load(self.slots, m).cast(ir.INDEX)

    def value(self, m: Expr) -> Expr:
        return self.update if self.values is None else ir.load(self.values, m)

    def combined(self, old: Expr, m: Expr) -> Expr:
        val, mode = self.problem.val, self.problem.mode
        if mode == "set":
            return self.value(m)
        pair = [old, self.value(m)]
        found: Expr = lower(COMBINE[mode], pair, [val.dtype] * 2, val.dtype, None)
        return found

    def loops(self, body: list[Stmt], start: Expr, stop: Expr) -> Stmt:
        """Chunks from start to stop: addresses, then what `body` does with them."""
        size = const(TUNING.chunk_updates)
        counted = ir.minimum(size, ir.sub(stop, self.first))
        chunk = [
            ir.Let(self.count, counted),
            ir.For(self.k, ZERO, self.count, "lanes", self.fill),
            *body,
        ]
        return ir.For(self.first, start, stop, "serial", chunk, step=size)


# -- private tables -------------------------------------------------------------------------------


def element_tables(problem: ScatterProblem, tables: int) -> Kernels:
    """Private tables, so many blocks of them, then their reduction."""
    val = problem.val
    small = val.size * val.dtype.itemsize <= TUNING.interleaved_max_bytes
    turns = TUNING.interleaved_tables if small else 1
    memory = temporary((tables * turns, val.size + 1), val.dtype)  # the last: out of bounds
    fill = _fill_tables(problem, memory, tables, turns)
    return [fill, merge_tables(problem, memory, tables * turns)]


def _fill_tables(problem: ScatterProblem, memory: Value, tables: int, turns: int) -> LoweredKernel:
    val, mode, count = problem.val, problem.mode, problem.count
    op = {"add": "sum", "mul": "prod"}.get(mode, mode)
    neutral = identity(op, dt.compute_dtype(val.dtype), 1)[0].cast(val.dtype)
    e = Emitter(problem.layouts)
    g, i, pitch = ir.var("g"), ir.var("clear_i"), e.dim(val.size + 1)
    own, per_table = ir.mul(g, ir.mul(pitch, const(turns))), e.scalar_arg(-(-count // tables))
    table = e.buffer(memory, "write")
    chunks = _Chunks(e, problem, e.dim(val.size))
    whole = ir.mul(ir.idiv(chunks.count, const(turns)), const(turns))

    def combine(m: Expr, turn: int, tag: str) -> list[Stmt]:
        at = ir.var(f"at{tag}{turn}")
        place = ir.add(ir.add(own, ir.mul(pitch, const(turn))), chunks.slot(m))
        new = chunks.combined(ir.load(table, at), m)
        return [ir.Let(at, place), ir.Store(table, at, new)]

    m, rest = ir.var("m"), ir.var("rest")
    in_turns = [s for t in range(turns) for s in combine(ir.add(m, const(t)), t, "")]
    body: list[Stmt] = [ir.For(m, ZERO, whole, "serial", in_turns, step=const(turns))]
    if turns > 1:
        body.append(ir.For(rest, whole, chunks.count, "serial", combine(rest, 0, "rest")))
    clear = ir.Store(table, ir.add(own, i), neutral)
    statements = [
        ir.For(i, ZERO, ir.mul(pitch, const(turns)), "lanes", [clear]),
        chunks.loops(body, *ir.block_range(g, per_table, e.dim(count))),
    ]
    return e.grid_kernel(f"scatter_{mode}_tables", g, statements, tables, (val.op,))


def merge_tables(problem: ScatterProblem, memory: Value, tables: int) -> LoweredKernel:
    """The base combined with tables, in order."""
    val, mode = problem.val, problem.mode
    e = Emitter(problem.layouts)
    g, t, i = ir.var("g"), ir.var("table"), e.variable("i", e.dim(val.size))
    stop = ir.minimum(ir.add(g, const(LOOPS.small_elements)), e.dim(val.size))
    total = ir.Register("total", val.dtype, lanes=True)
    pitch = e.dim(size_of(memory.shape[1:]))
    part = ir.load(e.buffer(memory), ir.add(ir.mul(t, pitch), i))
    at = tuple(delinearize(e, i, list(val.shape)))
    both = lower(COMBINE[mode], [ir.read(total), part], [val.dtype] * 2, val.dtype, None)
    merge = ir.For(t, ZERO, e.scalar_arg(tables), "serial", [ir.Set(total, both)])
    store = e.store(val, at, ir.read(total))
    body = [ir.Set(total, e.value(val.inputs[0], at)), merge, *store]
    loop = ir.For(i, g, stop, "lanes", body)
    size = LOOPS.small_elements
    grid = ir.For(g, ZERO, e.dim(val.size), "grid", [loop], step=const(size))
    return e.finish(f"scatter_{mode}_merge", [grid], -(-val.size // size), (val.op,))


# -- owners of ranges -----------------------------------------------------------------------------


def element_owners(problem: ScatterProblem) -> LoweredKernel:
    """All updates, in order, of a result that has the base already: blocks own ranges of it."""
    val, count = problem.val, problem.count
    e = Emitter(problem.layouts)
    owners = max(1, min(problem.target.num_cores, count // TUNING.min_updates_per_owner))
    g, chunks = ir.var("g"), _Chunks(e, problem, const(-1))
    low, high = ir.block_range(g, e.scalar_arg(-(-val.size // owners)), e.dim(val.size))
    result = e.buffer(val, "write")
    m, n, slot = ir.var("m"), ir.var("n"), ir.var("slot")
    size = const(TUNING.chunk_updates)
    numbers = ir.Buffer("own_numbers", dt.int32, "scratch", size)
    e.scratch.append(numbers)
    found = ir.Register("found", ir.INDEX)
    is_own = (chunks.slot(m) >= low) & (chunks.slot(m) < high)
    append: list[Stmt] = [
        ir.Store(numbers, ir.read(found), m.cast(dt.int32)),
        ir.Set(found, ir.add(ir.read(found), is_own.cast(ir.INDEX))),
    ]
    number = ir.var("number")
    combine: list[Stmt] = [
        ir.Let(number, ir.load(numbers, n).cast(ir.INDEX)),
        ir.Let(slot, chunks.slot(number)),
        ir.Store(result, slot, chunks.combined(ir.load(result, slot), number)),
    ]
    body: list[Stmt] = [
        ir.Set(found, ZERO),
        ir.For(m, ZERO, chunks.count, "serial", append),
        ir.For(n, ZERO, ir.read(found), "serial", combine),
    ]
    loop = chunks.loops(body, ZERO, e.dim(count))
    return e.grid_kernel(f"scatter_{problem.mode}", g, [loop], owners, (val.op,))
