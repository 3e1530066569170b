"""Scatter-add of floats on GPUs by integer atomics: exact sums in windows of fixed-point numbers.

A superaccumulator (Kulisch 1986; Neal 2015) per destination: floats whose exponents share a window
are added as 64-bit integers, each update by one atomic, so that sums depend on no order. The
windows are added up in float64, once. Few destinations have tables in shared memory, of 32-bit
halves, for every block of updates. Tables of windows that no update falls into are neither cleared
nor read.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.axis import ONE, ZERO, delinearize, temporary
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.grid_sync import CLEARED_PER_THREAD, clear_flags
from numus.compiler.lower.scatter.gpu_problem import GpuScatterProblem, linear_destination
from numus.compiler.lower.schedule import Candidate
from numus.ir import Expr, Stmt, const, select


@dataclass(frozen=True)
class ExactTuning:
    """Measured on one H200."""

    min_updates: int = 1 << 12  # fewer are sorted by one block
    max_elements: int = 1 << 21  # of the result: its windows take 136 bytes each
    max_columns: int = 15  # of a destination: longer rows are summed by warps
    surveyed_bytes: int = 4 << 20  # of all windows, from which on only those used are touched
    shared_bytes: int = 100 << 10  # of a block's tables, so that two share a multiprocessor
    block_updates: int = 1 << 13  # of a block with tables of its own
    blocks_per_core: int = 16
    vector: int = 4  # consecutive updates of a thread


TUNING = ExactTuning()
EXPONENTS, FRACTION_BITS, BIAS = 256, 23, 150  # of float32: a value is fraction * 2**(e - BIAS)
HALF_BITS = 16
VECTOR = 2  # elements of a table that a thread stores at once


@dataclass(frozen=True)
class Windows:
    """Windows of 2**bits exponents each. A sum of n fractions of 24 bits takes 24 + 2**bits - 1 +
    log2(n) bits, and one for its sign. The last window counts infinities: in its lower half +inf,
    in the upper one -inf, in both NaN."""

    bits: int

    @property
    def count(self) -> int:
        return EXPONENTS >> self.bits

    def scale(self, window: int) -> float:
        return 2.0 ** ((window << self.bits) - BIAS)

    def split(self, x: Expr) -> tuple[Expr, Expr]:
        """The window of a float32, and the integer (uint64) that it is there."""
        word = x.bitcast(dt.uint32)
        exponent = ir.binary("lshr", word, const(FRACTION_BITS, dt.uint32))
        exponent = exponent & const(EXPONENTS - 1, dt.uint32)
        fraction = word & const((1 << FRACTION_BITS) - 1, dt.uint32)
        is_normal = exponent.ne(0)
        implied = select(is_normal, const(1 << FRACTION_BITS, dt.uint32), const(0, dt.uint32))
        exponent_from_1 = select(is_normal, exponent, const(1, dt.uint32))
        window = ir.binary("lshr", exponent_from_1, const(self.bits, dt.uint32))
        shift = (exponent_from_1 & const((1 << self.bits) - 1, dt.uint32)).cast(dt.uint64)
        magnitude = ir.binary("shl", (fraction | implied).cast(dt.uint64), shift)
        is_negative = ir.binary("lshr", word, const(31, dt.uint32)).ne(0)
        zero = const(0, dt.uint64)
        number = select(is_negative, zero - magnitude, magnitude)
        above, below = const(1, dt.uint64), const(1 << 32, dt.uint64)
        infinity = select(is_negative, below, above)
        special = select(fraction.eq(0), infinity, above | below)
        is_special = exponent.eq(EXPONENTS - 1)
        window = select(is_special, const(self.count, dt.uint32), window)
        return window.cast(dt.int64), select(is_special, special, number)


def _supports(problem: GpuScatterProblem) -> bool:
    """float32 and what it holds, on targets with forward progress, which have atomics as well."""
    dtype = problem.val.dtype
    is_sum = problem.mode == "add" and dt.compute_dtype(dtype) is dt.float32
    return (
        (is_sum and problem.target.forward_progress)
        and TUNING.min_updates <= problem.count < 1 << 32
        and problem.columns <= TUNING.max_columns
        and problem.val.size <= TUNING.max_elements
    )


def _lower(problem: GpuScatterProblem) -> Kernels:
    return _Exact(problem).kernels()


EXACT_SUMS = Candidate("exact sums by integer atomics", _lower, _supports)


class _Exact:
    def __init__(self, problem: GpuScatterProblem) -> None:
        self.problem, self.val, self.target = problem, problem.val, problem.target
        self.updates = problem.count * problem.columns
        self.size = problem.val.size
        narrow = Windows(3)
        words = 2 * (narrow.count + 1) * (self.size + 1)
        self.is_private = 4 * words <= min(TUNING.shared_bytes, self.target.shared_bytes)
        is_narrow = self.is_private or self.updates > 1 << 24
        self.windows = narrow if is_narrow else Windows(4)
        lines = self.windows.count + 1
        # elements of each window, one of them for updates out of bounds; in whole vectors
        self.stride = self.size + 1
        if not self.is_private:
            self.stride = -(-self.stride // VECTOR) * VECTOR
        self.table = temporary((lines * self.stride,), dt.uint64)
        is_large = self.table.size * 8 >= TUNING.surveyed_bytes
        self.is_surveyed = is_large and not self.is_private
        self.used = temporary((lines,), dt.uint32)  # blocks that have updates in each window

    def kernels(self) -> Kernels:
        if self.is_private:
            cleared = clear_flags(self.table, self.target)
            return [cleared, self._add_privately(), self._finish()]
        if not self.is_surveyed:
            return [clear_flags(self.table, self.target), self._add(), self._finish()]
        cleared = clear_flags(self.used, self.target)
        return [cleared, self._survey(), self._clear(), self._add(), self._finish()]

    def _emitter(self) -> Emitter:
        layouts = {**self.problem.layouts, self.table: (1,), self.used: (1,)}
        return Emitter(layouts, block_size=self.target.block_size)

    def _update(self, e: Emitter, u: Expr) -> tuple[Expr, Expr, Expr]:
        """The element that an update goes to (the result's size: none), its window and integer."""
        problem, columns = self.problem, self.problem.columns
        number, column = (u, ZERO) if columns == 1 else divmod(u, e.dim(columns))
        at = tuple(delinearize(e, number, list(problem.index_shape)))
        rest = delinearize(e, column, [self.val.shape[a] for a in problem.other_axes])
        value = e.value(self.val.inputs[1], (*at, *rest)).cast(dt.float32)
        destination = linear_destination(e, problem, at)
        if columns > 1:
            inside = destination < e.dim(problem.destination_count)
            element = ir.add(ir.mul(destination, e.dim(columns)), column)
            destination = select(inside, element, e.dim(self.size))
        return (destination, *self.windows.split(value))

    def _parts(self, least: int) -> int:
        """Updates of a block, in whole vectors of threads."""
        wanted = self.target.num_cores * TUNING.blocks_per_core
        per_round = self.target.block_size * TUNING.vector
        part = max(least, -(-self.updates // wanted))
        return -(-part // per_round) * per_round

    def _window_size(self, e: Emitter) -> Expr:
        """Elements of the table from one window to the next, provably whole vectors."""
        if self.is_private:
            return ir.add(e.dim(self.size), ONE)
        return ir.mul(e.dim(self.stride // VECTOR), const(VECTOR))

    def _survey(self) -> LoweredKernel:
        """Count, for each window, the blocks with updates in it; those of zero are in none."""
        e = self._emitter()
        g, u, w = ir.var("g"), ir.var("u"), ir.var("window")
        part = self._parts(1)
        found = ir.Register("found", dt.uint64, lanes=True)
        _, window, number = self._update(e, u)
        bit = ir.binary("shl", const(1, dt.uint64), window.cast(dt.uint64))
        bit = select(number.ne(0), bit, const(0, dt.uint64))
        left, right = (ir.var(n, dt.uint64) for n in ("left", "right"))
        every = ir.var("every", dt.uint64)
        mine = ir.binary("lshr", every, w.cast(dt.uint64)) & const(1, dt.uint64)
        span = ir.block_range(g, e.scalar_arg(part), e.dim(self.updates))
        add = ir.AtomicAdd(e.buffer(self.used, "write"), w, const(1, dt.uint32))
        body: list[Stmt] = [
            ir.Set(found, const(0, dt.uint64)),
            ir.For(u, *span, "lanes", [ir.Set(found, ir.read(found) | bit)], width=self._width),
            ir.BlockReduce([found], [left], [right], [left | right], [every]),
            # few windows are used: atomics on one line take turns
            ir.For(w, ZERO, const(self.windows.count + 1), "lanes", [ir.If(mine.ne(0), [add])]),
        ]
        return self._kernel(e, "scatter_survey", g, body, -(-self.updates // part))

    @property
    def _width(self) -> int:
        return TUNING.vector if self.problem.columns == 1 else 1

    def _clear(self) -> LoweredKernel:
        e = self._emitter()
        g, i = ir.var("g"), ir.var("i")
        per_block = self.target.block_size * CLEARED_PER_THREAD
        parts = -(-self.stride // per_block)
        window, part = divmod(g, e.scalar_arg(parts))
        extent = self._window_size(e)
        span = ir.block_range(part, const(per_block), extent)
        at = ir.add(ir.mul(window, extent), i)
        zeros = ir.Store(e.buffer(self.table, "write"), at, const(0, dt.uint64))
        used = e.value(self.used, (window,)).ne(0)
        body: list[Stmt] = [ir.If(used, [ir.For(i, *span, "lanes", [zeros], width=VECTOR)])]
        return self._kernel(e, "scatter_clear", g, body, parts * (self.windows.count + 1))

    def _add(self) -> LoweredKernel:
        e = self._emitter()
        g, u = ir.var("g"), ir.var("u")
        part = self.target.block_size * TUNING.vector
        element, window, number = self._update(e, u)
        at = ir.add(ir.mul(window, self._window_size(e)), element)
        span = ir.block_range(g, const(part), e.dim(self.updates))
        add = ir.AtomicAdd(e.buffer(self.table, "write"), at, number)
        body: list[Stmt] = [ir.For(u, *span, "lanes", [add], width=self._width)]
        return self._kernel(e, "scatter_exact", g, body, -(-self.updates // part))

    def _add_privately(self) -> LoweredKernel:
        """Sums of at most 2**15 halves fit 32 bits."""
        e = self._emitter()
        g, u, z, i = ir.var("g"), ir.var("u"), ir.var("zero"), ir.var("i")
        lines = self.windows.count + 1
        words = lines * (self.size + 1)
        halves = [ir.Buffer(n, dt.uint32, "scratch", const(words)) for n in ("low", "high")]
        e.scratch += halves
        element, window, number = self._update(e, u)
        at = ir.add(ir.mul(window, const(self.size + 1)), element)
        is_special = window.eq(self.windows.count)  # whose halves are of 32 bits
        name = ir.var("number", dt.uint64)
        bits = select(is_special, const(32, dt.uint64), const(HALF_BITS, dt.uint64))
        mask = ir.binary("shl", const(1, dt.uint64), bits) - const(1, dt.uint64)
        low = (name & mask).cast(dt.uint32)
        high = ir.binary("ashr", name.bitcast(dt.int64), bits.cast(dt.int64)).cast(dt.uint32)
        place = ir.var("place")
        add: list[Stmt] = [ir.Let(name, number), ir.Let(place, at)]
        add += [ir.AtomicAdd(h, place, x) for h, x in zip(halves, (low, high), strict=True)]
        sums = [ir.var(f"sum{k}", dt.uint32) for k in (0, 1)]
        upper = sums[1].bitcast(dt.int32).cast(dt.int64).bitcast(dt.uint64)
        special = i >= const(self.windows.count * (self.size + 1))
        by = select(special, const(32, dt.uint64), const(HALF_BITS, dt.uint64))
        total = ir.binary("shl", upper, by) + sums[0].cast(dt.uint64)
        flush = ir.AtomicAdd(e.buffer(self.table, "write"), i, total)
        part = min(self._parts(TUNING.block_updates), 1 << 15)
        span = ir.block_range(g, e.scalar_arg(part), e.dim(self.updates))
        body: list[Stmt] = [
            ir.For(
                *(z, ZERO, const(words), "lanes"),
                [ir.Store(h, z, const(0, dt.uint32)) for h in halves],
            ),
            ir.For(u, *span, "lanes", add),
            ir.For(
                *(i, ZERO, const(words), "lanes"),
                [
                    *ir.lets(sums, [ir.load(h, i) for h in halves]),
                    ir.If((sums[0] | sums[1]).ne(0), [flush]),
                ],
            ),
        ]
        return self._kernel(e, "scatter_exact_private", g, body, -(-self.updates // part))

    def _finish(self) -> LoweredKernel:
        """The result: the base and the windows, from the highest on."""
        val, threads, columns = self.val, self.target.block_size, self.problem.columns
        e = self._emitter()
        g, i = ir.var("g"), ir.var("i")
        destination, column = (i, ZERO) if columns == 1 else divmod(i, e.dim(columns))
        index = self.problem.index(e, destination, column)
        extent = self._window_size(e)
        # all loads first: those of windows that are not used are masked
        top = self.windows.count
        windows = range(top, -1, -1)
        sums = [ir.var(f"sum{w}", dt.uint64) for w in windows]
        uses = [ir.var(f"used{w}", dt.uint32) for w in windows]
        body: list[Stmt] = []
        if self.is_surveyed:
            body += ir.lets(uses, [e.value(self.used, (const(w),)) for w in windows])
        for w, name, used in zip(windows, sums, uses, strict=True):
            at = (ir.add(ir.mul(const(w), extent), i),)
            mask = used.ne(0) if self.is_surveyed else None
            body.append(ir.Let(name, e.value(self.table, at, mask)))
        infinite, none = (const(x, dt.float64) for x in (float("inf"), 0.0))
        above = (sums[0] & const((1 << 32) - 1, dt.uint64)).ne(0)
        below = ir.binary("lshr", sums[0], const(32, dt.uint64)).ne(0)
        total = select(above, infinite, none) + select(below, -infinite, none)
        for w, number in zip(windows[1:], sums[1:], strict=True):
            scale = const(self.windows.scale(w), dt.float64)
            total = total + number.bitcast(dt.int64).cast(dt.float64) * scale
        found = ir.var("total", dt.float64)
        body.append(ir.Let(found, total))
        base = e.value(val.inputs[0], index)
        both = (base.cast(dt.float64) + found).cast(val.dtype)
        result = select(found.eq(0.0), base, both)  # -0.0 stays what it is
        body += e.store(val, index, result)
        span = ir.block_range(g, const(threads), e.dim(self.size))
        loop = ir.For(i, *span, "lanes", body)
        return self._kernel(e, "scatter_exact_sums", g, [loop], -(-self.size // threads))

    def _kernel(self, e: Emitter, name: str, g: Expr, body: list[Stmt], grid: int) -> LoweredKernel:
        return e.grid_kernel(name, g, body, grid, (self.val.op,))
