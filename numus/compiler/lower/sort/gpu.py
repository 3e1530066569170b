"""Radix sorts on GPUs: in shared memory, Onesweep, or an LSD sort in three kernels per pass."""

from __future__ import annotations

from collections.abc import Sequence

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.axis import ZERO, SortProblem, temporary
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.grid_sync import clear_flags
from numus.compiler.lower.loops.tuning import TUNING as LOOPS
from numus.compiler.lower.scan.gpu import MIN_BLOCK_THREADS, lower_scan_gpu
from numus.compiler.lower.schedule import Candidate, family
from numus.compiler.lower.sort.gpu_bitonic import BITONIC_SORT
from numus.ir import Expr, Stmt, const
from numus.kernels.scan.gpu_block import ITEMS_PER_THREAD, padded, padded_size
from numus.kernels.sort import gpu_onesweep
from numus.kernels.sort.gpu_block_radix import RADIX, RADIX_BITS, BlockRadixRank

HISTOGRAM_MIN_ITEMS = 16  # per thread


def _shared_bytes(threads: int, problem: SortProblem) -> int:
    """Two buffers of keys and 32-bit indices."""
    return 2 * threads * ITEMS_PER_THREAD * (problem.key.itemsize + 4)


def _double_buffer(problem: SortProblem, dtypes: Sequence[dt.DType]) -> list[tuple[Value, ...]]:
    shape = (problem.rows, problem.length)
    return [tuple(temporary(shape, t) for t in dtypes) for _ in range(2)]


def _item_dtypes(problem: SortProblem) -> tuple[dt.DType, ...]:
    """Of the key and, for argsort, its index."""
    index = dt.index_dtype(problem.length)
    return (problem.key, index) if problem.argsort else (problem.key,)


def _result(problem: SortProblem, item: Sequence[Expr]) -> Expr:
    return item[1].cast(problem.val.dtype) if problem.argsort else problem.sort_value(item[0])


# -- one block per row ----------------------------------------------------------------------------


def _block_threads(problem: SortProblem) -> int:
    threads = problem.target.block_size
    while threads > MIN_BLOCK_THREADS and threads * ITEMS_PER_THREAD // 2 >= problem.length:
        threads //= 2
    return threads


def _fits_block(problem: SortProblem) -> bool:
    threads = _block_threads(problem)
    fits = _shared_bytes(threads, problem) <= problem.target.shared_bytes
    return problem.length <= threads * ITEMS_PER_THREAD and fits


def _block_sort(problem: SortProblem) -> Kernels:
    """A block per row, which fits its shared memory."""
    val, key, threads = problem.val, problem.key, _block_threads(problem)
    e = Emitter(problem.layouts, block_size=threads)
    size = const(padded_size(threads * ITEMS_PER_THREAD))
    keys = [ir.Buffer(f"keys{k}", key, "scratch", size) for k in (0, 1)]
    indices = [
        ir.Buffer(f"indices{k}", dt.int32, "scratch", size) for k in (0, 1) if problem.argsort
    ]
    e.scratch += [*keys, *indices]
    g, i, shift = ir.var("g"), ir.var("fill"), ir.var("shift")
    index = problem.index(e, g)
    length = e.dim(problem.length)
    fill: list[Stmt] = [ir.Store(keys[0], padded(i), problem.sort_key(e, index(i)))]
    if indices:
        fill.append(ir.Store(indices[0], padded(i), i.cast(dt.int32)))
    body: list[Stmt] = [ir.For(i, ZERO, length, "lanes", fill)]
    passes: list[Stmt] = []
    for half in (0, 1):
        source, dest = half, 1 - half
        ranks = BlockRadixRank(threads, f"h{half}")
        bit = ir.add(shift, const(half * RADIX_BITS))

        def read(at: Expr, source: int = source) -> Expr:
            return ir.load(keys[source], padded(at))

        def move(at: Expr, rank: Expr, source: int = source, dest: int = dest) -> list[Stmt]:
            pairs = (keys, indices) if indices else (keys,)
            to, frm = padded(rank), padded(at)
            return [ir.Store(b[dest], to, ir.load(b[source], frm)) for b in pairs]

        lets, starts = ranks.starts()
        passes += ranks.count(length, read, bit)
        passes += lets
        passes.append(ranks.scatter(length, read, bit, starts, move))
    step = 2 * RADIX_BITS
    bits = -(-problem.key_bits // step) * step
    body.append(ir.For(shift, ZERO, const(bits), "serial", passes, step=const(step)))
    o = ir.var("o")
    result = _result(problem, [ir.load(b[0], padded(o)) for b in (keys, indices) if b])
    body.append(ir.For(o, ZERO, length, "lanes", e.store(val, index(o), result)))
    return [e.grid_kernel(val.op, g, body, problem.rows, (val.op,))]


# -- Onesweep -------------------------------------------------------------------------------------


def _supports_onesweep(problem: SortProblem) -> bool:
    target = problem.target
    return target.forward_progress and target.block_size >= gpu_onesweep.RADIX


def _onesweep(problem: SortProblem) -> Kernels:
    """Onesweep (Adinets & Merrill 2022): a histogram of all digits, then one kernel per pass."""
    threads = problem.target.block_size
    dtypes = _item_dtypes(problem)
    items = gpu_onesweep.items_per_thread(sum(k.itemsize for k in dtypes))
    tiles = -(-problem.length // (threads * items))
    layout = gpu_onesweep.StatusWords(problem.length, tiles, gpu_onesweep.passes(problem.key_bits))
    status = temporary((problem.rows * layout.size,), layout.dtype)
    buffers = _double_buffer(problem, dtypes)
    kernels = [clear_flags(status, problem.target), _histogram(problem, layout, status)]
    source: tuple[Value, ...] = ()
    for number in range(layout.passes):
        dest = () if number == layout.passes - 1 else buffers[number % 2]
        kernels.append(_onesweep_pass(problem, layout, status, dtypes, number, source, dest))
        source = dest
    return kernels


def _histogram(
    problem: SortProblem, layout: gpu_onesweep.StatusWords, status: Value
) -> LoweredKernel:
    val, target, length, rows = problem.val, problem.target, problem.length, problem.rows
    wanted = max(1, target.num_cores * LOOPS.blocks_per_sm // rows)
    size = max(HISTOGRAM_MIN_ITEMS * target.block_size, -(-length // wanted))
    parts = -(-length // size)
    e = Emitter(problem.layouts, block_size=target.block_size)
    g = ir.var("g")
    row, part = divmod(g, e.scalar_arg(parts))
    width, index = e.scalar_arg(size), problem.index(e, row)
    span = ir.block_range(part, width, e.dim(length))
    first = ir.mul(row, e.scalar_arg(layout.size))
    words = e.buffer(status, "write")
    body, scratch = gpu_onesweep.histogram(
        *(layout, words, first, span),
        lambda i: problem.sort_key(e, index(i)),
        e.scalar_arg(layout.lines),
    )
    e.scratch += scratch
    return e.grid_kernel("sort_histogram", g, body, rows * parts, (val.op,))


def _onesweep_pass(
    problem: SortProblem,
    layout: gpu_onesweep.StatusWords,
    status: Value,
    dtypes: Sequence[dt.DType],
    number: int,
    source: tuple[Value, ...],
    dest: tuple[Value, ...],
) -> LoweredKernel:
    """From `source` (at first the operand) to `dest` (at last the result) by one digit."""
    val, length, rows = problem.val, problem.length, problem.rows
    threads = problem.target.block_size
    e = Emitter({**problem.layouts, **dict.fromkeys(source, (length, 1))}, block_size=threads)
    g = ir.var("g")
    tiles, spans = e.scalar_arg(layout.tiles), e.scalar_arg(layout.spans)
    row, part = divmod(g, tiles)
    at_row = row if rows > 1 else ZERO
    index = problem.index(e, row)
    words = e.buffer(status, "write")
    shift = e.scalar_arg(number * gpu_onesweep.RADIX_BITS)
    tile = gpu_onesweep.Tile(threads, dtypes, layout, words, shift)
    e.scratch += tile.scratch
    tile_size = const(threads * tile.items)
    start = ir.mul(part, tile_size)
    size = ir.minimum(tile_size, ir.sub(e.dim(length), start))
    earlier = ir.add(ir.mul(row, const(layout.passes)), e.scalar_arg(number))
    lines = ir.mul(earlier, e.scalar_arg(layout.lines))

    def read(at: Expr) -> list[Expr]:
        at = ir.add(start, at)
        if source:
            return [e.value(v, (at_row, at)) for v in source]
        key = problem.sort_key(e, index(at))
        return [key, at.cast(dtypes[1])] if problem.argsort else [key]

    def write(to: Expr, item: list[Expr]) -> list[Stmt]:
        if dest:
            pairs = zip(dest, item, strict=True)
            return [s for v, x in pairs for s in e.store(v, (at_row, to), x)]
        return e.store(val, index(to), _result(problem, item))

    body = [
        *tile.load(size, read),
        *tile.find_offsets(lines, part, tiles, spans),
        tile.write(size, write),
    ]
    return e.grid_kernel("sort_onesweep", g, body, rows * layout.tiles, (val.op,))


# -- three kernels per pass -----------------------------------------------------------------------


def _multi_pass(problem: SortProblem) -> Kernels:
    """LSD radix sort by histogram, scan and scatter kernels: no forward progress needed."""
    target, length, rows = problem.target, problem.length, problem.rows
    threads = target.block_size
    while threads > MIN_BLOCK_THREADS and _shared_bytes(threads, problem) > target.shared_bytes:
        threads //= 2
    parts = -(-length // (threads * ITEMS_PER_THREAD))
    counts = temporary((rows, RADIX * parts), dt.int32)
    ends = Value.fresh("scan", "scan", (counts,), ("sum", 1, False), counts.shape, dt.int32)
    buffers = _double_buffer(problem, _item_dtypes(problem))
    layouts = {**problem.layouts, counts: (RADIX * parts, 1)}
    kernels: Kernels = []
    source: tuple[Value, ...] = ()
    for number in range(-(-problem.key_bits // RADIX_BITS)):
        dest = buffers[number % 2]
        radix_pass = _RadixPass(problem, threads, parts, source, number * RADIX_BITS)
        kernels.append(radix_pass.histogram(counts))
        kernels += lower_scan_gpu(FusionGroup.of_stored(ends, 0), layouts, target)
        kernels.append(radix_pass.scatter(counts, ends, dest))
        source = dest
    return [*kernels, _decode(problem, source[-1])]


def _decode(problem: SortProblem, last: Value) -> LoweredKernel:
    """Results from the keys or indices of the last pass."""
    val, length, rows = problem.val, problem.length, problem.rows
    threads = problem.target.block_size
    e = Emitter({**problem.layouts, last: (length, 1)}, block_size=threads)
    g, o = ir.var("g"), ir.var("o")
    size = threads * ITEMS_PER_THREAD
    blocks = -(-length // size)
    row, part = divmod(g, e.scalar_arg(blocks))
    index = problem.index(e, row)
    span = ir.block_range(part, const(size), e.dim(length))
    found = e.value(last, (row if rows > 1 else ZERO, o))
    result = _result(problem, [found] * 2)
    loop = ir.For(o, *span, "lanes", e.store(val, index(o), result))
    return e.grid_kernel(f"{val.op}_decode", g, [loop], rows * blocks, (val.op,))


class _RadixPass:
    """One digit of all parts of all rows; `source` is empty in the first pass."""

    def __init__(
        self, problem: SortProblem, threads: int, parts: int, source: tuple[Value, ...], shift: int
    ) -> None:
        self.problem, self.threads = problem, threads
        self.parts, self.source, self.shift = parts, source, shift

    def _begin(self, layouts: Layouts, tag: str) -> None:
        """A new emitter with the loop that fills shared memory with a part's keys."""
        p = self.problem
        source = dict.fromkeys(self.source, (p.length, 1))
        e = self.e = Emitter({**p.layouts, **source, **layouts}, block_size=self.threads)
        self.g = ir.var("g")
        self.count = e.scalar_arg(self.parts)
        self.bit = e.scalar_arg(self.shift)
        self.row, self.part = divmod(self.g, self.count)
        self.at_row = self.row if p.rows > 1 else ZERO
        tile_size = const(self.threads * ITEMS_PER_THREAD)
        self.first = ir.mul(self.part, tile_size)
        self.size = ir.minimum(tile_size, ir.sub(e.dim(p.length), self.first))
        self.ranks = BlockRadixRank(self.threads, tag)
        size = const(padded_size(self.threads * ITEMS_PER_THREAD))
        self.keys = ir.Buffer("keys", p.key, "scratch", size)
        e.scratch.append(self.keys)
        index = p.index(e, self.row)
        i = ir.var("fill")
        at = ir.add(self.first, i)
        if not self.source:
            key = p.sort_key(e, index(at))
        else:
            key = e.value(self.source[0], (self.at_row, at))
        self.fill = ir.For(i, ZERO, self.size, "lanes", [ir.Store(self.keys, padded(i), key)])

    def _read(self, at: Expr) -> Expr:
        return ir.load(self.keys, padded(at))

    def _kernel(self, name: str, body: list[Stmt]) -> LoweredKernel:
        grid = self.problem.rows * self.parts
        return self.e.grid_kernel(name, self.g, body, grid, (self.problem.val.op,))

    def histogram(self, counts: Value) -> LoweredKernel:
        self._begin({}, "c")
        body = [self.fill, *self.ranks.count(self.size, self._read, self.bit)]
        for d in range(RADIX):
            total = self.ranks.total(d).cast(dt.int32)
            at = ir.add(ir.mul(const(d), self.count), self.part)
            body += self.e.store(counts, (self.at_row, at), total)
        return self._kernel("sort_histogram", body)

    def scatter(self, counts: Value, ends: Value, dest: tuple[Value, ...]) -> LoweredKernel:
        """Sort a part in shared memory and move it; `ends` are the scanned counts."""
        strides = (RADIX * self.parts, 1)
        self._begin({counts: strides, ends: strides}, "m")
        e, ranks = self.e, self.ranks
        size = const(self.threads * ITEMS_PER_THREAD)
        sorted_keys = ir.Buffer("sorted_keys", self.keys.dtype, "scratch", size)
        sorted_items = ir.Buffer("sorted_items", dt.int32, "scratch", size)
        starts = ir.Buffer("starts", dt.int64, "scratch", const(RADIX))
        argsort = self.problem.argsort
        e.scratch += [sorted_keys, *([sorted_items] if argsort else []), starts]
        lets, words = ranks.starts()

        def move(at: Expr, rank: Expr) -> list[Stmt]:
            stores: list[Stmt] = [ir.Store(sorted_keys, rank, self._read(at))]
            if argsort:
                stores.append(ir.Store(sorted_items, rank, at.cast(dt.int32)))
            return stores

        body = [self.fill, *ranks.count(self.size, self._read, self.bit), *lets]
        body.append(ranks.scatter(self.size, self._read, self.bit, words, move))
        # the offset from an item's rank in the sorted part to its rank in the row, per digit
        d = ir.var("digit")
        own = ZERO
        for k in range(RADIX):
            word = words[k // 2]
            half = ir.binary("lshr", word, const(16, dt.uint32)) if k % 2 else word
            begin = (half & const(0xFFFF, dt.uint32)).cast(dt.int64)
            own = ir.select(d.eq(k), begin, own) if k else begin
        at = (self.at_row, ir.add(ir.mul(d, self.count), self.part))
        first = ir.sub(e.value(ends, at).cast(dt.int64), e.value(counts, at).cast(dt.int64))
        offset = ir.Store(starts, d, ir.sub(first, own))
        body.append(ir.For(d, ZERO, const(RADIX), "lanes", [offset]))
        o = ir.var("o")
        key = ir.load(sorted_keys, o)
        digit = ir.binary("lshr", key, self.bit.cast(key.dtype)) & const(RADIX - 1, key.dtype)
        to = ir.var("there")
        out: list[Stmt] = [ir.Let(to, ir.add(ir.load(starts, digit.cast(dt.int64)), o))]
        out += e.store(dest[0], (self.at_row, to), key)
        if argsort:
            item: Expr = ir.add(self.first, ir.load(sorted_items, o).cast(dt.int64))
            if self.source:
                item = e.value(self.source[1], (self.at_row, item))
            out += e.store(dest[1], (self.at_row, to), item.cast(dest[1].dtype))
        body.append(ir.For(o, ZERO, self.size, "lanes", out))
        return self._kernel("sort_scatter", body)


lower_sort_gpu = family(
    SortProblem,
    BITONIC_SORT,
    Candidate("block radix sort", _block_sort, _fits_block),
    Candidate("onesweep", _onesweep, _supports_onesweep),
    Candidate("multi-pass radix sort", _multi_pass),
)
