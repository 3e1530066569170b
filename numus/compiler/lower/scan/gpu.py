"""Scans, sorts and scatters where lanes are threads of a group."""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis_gpu import (
    Layouts,
    elements_along,
    key_of,
    outside,
    rows_along,
    value_of,
    wants_places,
)
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops.stages import BLOCKS_PER_UNIT
from numus.compiler.lower.scan.gpu_columns import in_columns, scan_columns
from numus.compiler.lower.scan.gpu_lookback import scan_in_one_pass, sort_in_one_pass_each
from numus.compiler.lower.scan.gpu_subwarp import in_teams, scan_in_teams
from numus.ir import Expr, Stmt, const, select
from numus.kernels.scan.gpu_block import (
    DIGIT,
    DIGITS,
    EACH,
    Ranks,
    RunningReduction,
    apart,
    spread_out,
)
from numus.kernels.sort.cpu import key_dtype
from numus.kernels.sort.gpu_onesweep import DIGITS as DIGITS_IN_ONE
from numus.target import Target

ZERO, ONE = const(0), const(1)
LEAST_THREADS = 32  # of a group

# -- scans ----------------------------------------------------------------------------------------


def lower_group_scan(group: FusionGroup, layouts: Layouts, target: Target) -> list[LoweredKernel]:
    """A thread for each row where neighbours belong to different ones; else a group for each row,
    or for each of its parts."""
    (val,) = group.members
    op, axis, _ = val.params
    length = val.shape[axis]
    rows = val.size // length
    layouts = outside(layouts, val)
    if in_columns(val, target):
        return scan_columns(val, layouts, target)
    if in_teams(val, target):
        return scan_in_teams(val, layouts, target)
    chunk = target.block_size * EACH
    wanted = -(-target.num_cores * BLOCKS_PER_UNIT // rows)
    size = max(4 * chunk, -(-length // wanted))
    size = -(-size // chunk) * chunk
    parts = -(-length // size)
    if parts > 1 and target.forward_progress:
        return scan_in_one_pass(val, layouts, target)
    if parts == 1:
        return [_scan_parts(val, layouts, target, 1, length, None)]
    real = dt.compute_dtype(dt.real_of(val.dtype))
    count = 2 if val.dtype.is_complex else 1
    sums = [Value.fresh("partial", "partial", (), None, (rows, parts), real) for p in range(count)]
    step = _part_totals(val, layouts, target, size, sums)
    layouts = {**layouts, **dict.fromkeys(sums, (parts, 1))}
    befores = [
        Value.fresh("partial", "partial", (), None, (rows, parts), real) for p in range(count)
    ]
    merge = _scan_totals(op, val.dtype, layouts, target, sums, befores)
    layouts = {**layouts, **dict.fromkeys(befores, (parts, 1))}
    return [step, merge, _scan_parts(val, layouts, target, parts, size, befores)]


def _part_totals(
    val: Value, layouts: Layouts, target: Target, size: int, sums: list[Value]
) -> LoweredKernel:
    """What each part of a row comes to."""
    op, axis, _ = val.params
    e = Emitter(layouts, block_size=target.block_size)
    scan = RunningReduction(target.block_size, op, val.dtype)
    g = ir.var("g")
    parts, width = e.scalar_arg(sums[0].shape[1]), e.scalar_arg(size)
    row, part = ir.idiv(g, parts), ir.irem(g, parts)
    index = rows_along(e, row, val.shape, axis)
    length, spot = elements_along(e, val)
    start = ir.mul(part, width)
    stop = ir.minimum(ir.add(start, width), length)
    source = val.inputs[0]
    names = [ir.var(f"all{i}", v.dtype) for i, v in enumerate(sums)]
    body = scan.total(start, stop, lambda i: e.value(source, index(spot(i))), names)
    for v, name in zip(sums, names, strict=True):
        body += e.store(v, (row, part), name)
    grid = sums[0].shape[0] * sums[0].shape[1]
    return e.grid_kernel(f"scan_{op}_totals", g, body, grid, (val.op,))


def _scan_totals(
    op: str,
    dtype: dt.DType,
    layouts: Layouts,
    target: Target,
    sums: list[Value],
    befores: list[Value],
) -> LoweredKernel:
    """What comes before each part: a group for each row."""
    e = Emitter(layouts, block_size=target.block_size)
    scan = RunningReduction(target.block_size, op, dtype)
    rows, parts = sums[0].shape
    g = ir.var("g")
    row = g if rows > 1 else ZERO

    def read(i: Expr) -> Any:
        return scan.join([e.value(v, (row, i)) for v in sums])

    def write(i: Expr, value: Any) -> list[Stmt]:
        # the next part's: what this one and those before it come to
        out: list[Stmt] = []
        for v, x in zip(befores, scan.split(value), strict=True):
            out += e.store(v, (row, ir.add(i, ONE)), x)
        return out

    count = e.dim(parts)
    body: list[Stmt] = [*scan.begin()]
    for v, x in zip(befores, scan.start, strict=True):
        body += e.store(v, (row, ZERO), x)
    body.append(scan.body(ZERO, ir.sub(count, ONE), read, write))
    e.scratch += scan.stages
    return e.grid_kernel(f"scan_{op}_between", g, body, rows, ("combine",))


def _scan_parts(
    val: Value, layouts: Layouts, target: Target, parts: int, size: int, befores: list[Value] | None
) -> LoweredKernel:
    """The scan itself, of whole rows or of parts that know what came before them."""
    op, axis, _ = val.params
    rows = val.size // val.shape[axis]
    threads = target.block_size  # no more than have something to do
    while threads > LEAST_THREADS and threads * EACH // 2 >= size:
        threads //= 2
    e = Emitter(layouts, block_size=threads)
    scan = RunningReduction(threads, op, val.dtype)
    g = ir.var("g")
    length, spot = elements_along(e, val)
    source = val.inputs[0]
    if befores is None:
        row, start, stop, carry = g, ZERO, length, None
    else:
        many, width = e.scalar_arg(parts), e.scalar_arg(size)
        row, part = ir.idiv(g, many), ir.irem(g, many)
        start = ir.mul(part, width)
        stop = ir.minimum(ir.add(start, width), length)
        carry = [e.value(v, (row if rows > 1 else ZERO, part)) for v in befores]
    index = rows_along(e, row, val.shape, axis)

    def write(i: Expr, value: Any) -> list[Stmt]:
        result = value if val.dtype.is_complex else value.cast(val.dtype)
        return e.store(val, index(spot(i)), result)

    def read(i: Expr) -> Any:
        return e.value(source, index(spot(i)))

    body = [*scan.begin(carry), scan.body(start, stop, read, write)]
    e.scratch += scan.stages
    return e.grid_kernel(f"scan_{op}", g, body, rows * parts, (val.op,))


# -- sorts ----------------------------------------------------------------------------------------


def lower_group_sort(group: FusionGroup, layouts: Layouts, target: Target) -> list[LoweredKernel]:
    """A stable radix sort of every row: by one group where it fits into its memory, else all of
    them pass by pass."""
    (val,) = group.members
    axis, _ = val.params
    length = val.shape[axis]
    layouts = outside(layouts, val)
    key = key_dtype(val.inputs[0].dtype)
    threads = target.block_size
    while threads > LEAST_THREADS and threads * EACH // 2 >= length:
        threads //= 2
    memory = 2 * threads * EACH * (key.itemsize + 4)
    if length <= threads * EACH and memory <= target.shared_bytes:
        return [_sort_in_group(val, layouts, threads, key)]
    if target.forward_progress and target.block_size >= DIGITS_IN_ONE:
        return sort_in_one_pass_each(val, layouts, target)
    return _sort_in_passes(val, layouts, target, key)


def _sort_in_group(val: Value, layouts: Layouts, threads: int, key: dt.DType) -> LoweredKernel:
    axis, _ = val.params
    e = Emitter(layouts, block_size=threads)
    chunk = const(apart(threads * EACH))
    keys = [ir.Buffer(f"keys{k}", key, "scratch", chunk) for k in (0, 1)]
    places = [
        ir.Buffer(f"places{k}", dt.int32, "scratch", chunk) for k in (0, 1) if wants_places(val)
    ]
    e.scratch += [*keys, *places]
    g, i, shift = ir.var("g"), ir.var("fill"), ir.var("shift")
    index = rows_along(e, g, val.shape, axis)
    length = e.dim(val.shape[axis])
    fill: list[Stmt] = [ir.Store(keys[0], spread_out(i), key_of(e, val, index(i)))]
    if places:
        fill.append(ir.Store(places[0], spread_out(i), i.cast(dt.int32)))
    body: list[Stmt] = [ir.For(i, ZERO, length, "lanes", fill)]
    passes: list[Stmt] = []
    for half in (0, 1):
        source, dest = half, 1 - half
        ranks = Ranks(threads, f"h{half}")
        start = ir.add(shift, const(half * DIGIT))

        def read(at: Expr, source: int = source) -> Expr:
            return ir.load(keys[source], spread_out(at))

        def move(at: Expr, rank: Expr, source: int = source, dest: int = dest) -> list[Stmt]:
            pairs = (keys, places) if places else (keys,)
            to, frm = spread_out(rank), spread_out(at)
            return [ir.Store(b[dest], to, ir.load(b[source], frm)) for b in pairs]

        lets, words = ranks.starts()
        passes += ranks.count(length, read, start)
        passes += lets
        passes.append(ranks.place(length, read, start, words, move))
    body.append(ir.For(shift, ZERO, const(key.bits), "serial", passes, step=const(2 * DIGIT)))
    o = ir.var("o")
    if places:
        result = ir.load(places[0], spread_out(o)).cast(dt.int64)
    else:
        result = value_of(val, ir.load(keys[0], spread_out(o)))
    body.append(ir.For(o, ZERO, length, "lanes", e.store(val, index(o), result)))
    return e.grid_kernel(val.op, g, body, val.size // val.shape[axis], (val.op,))


def _sort_in_passes(
    val: Value, layouts: Layouts, target: Target, key: dt.DType
) -> list[LoweredKernel]:
    """For every digit: count it in all parts, add up the counts, and move."""
    axis, _ = val.params
    length = val.shape[axis]
    rows = val.size // length
    threads = target.block_size
    while threads > 32 and 2 * threads * EACH * (key.itemsize + 4) > target.shared_bytes:
        threads //= 2
    parts = -(-length // (threads * EACH))
    spot = dt.index_dtype(length)
    steps: list[LoweredKernel] = []
    table = Value.fresh("partial", "partial", (), None, (rows, DIGITS * parts), dt.int32)
    ends = Value.fresh("scan", "scan", (table,), ("sum", 1, False), table.shape, dt.int32)
    held: tuple[Value, ...] = ()
    kinds = (key, spot) if wants_places(val) else (key,)
    pairs = [
        tuple(
            Value.fresh("partial", "partial", (), None, (rows, length), t)
            for i, t in enumerate(kinds)
        )
        for k in (0, 1)
    ]
    for number in range(-(-key.bits // DIGIT)):
        counting = Counting(val, layouts, threads, parts, held, number * DIGIT)
        steps.append(counting.count(table))
        totals = {**layouts, table: (DIGITS * parts, 1)}
        grouped = FusionGroup.of_stored(ends, 0)
        steps += lower_group_scan(grouped, totals, target)
        dest = pairs[number % 2]
        steps.append(counting.move(table, ends, dest))
        held = dest
    last = held[-1]
    e = Emitter({**layouts, last: (length, 1)}, block_size=target.block_size)
    g, o = ir.var("g"), ir.var("o")
    each = target.block_size * EACH
    blocks = -(-length // each)
    many = e.scalar_arg(blocks)
    row = ir.idiv(g, many)
    index = rows_along(e, row, val.shape, axis)
    start = ir.mul(ir.irem(g, many), const(each))
    stop = ir.minimum(ir.add(start, const(each)), e.dim(length))
    found = e.value(last, (row if rows > 1 else ZERO, o))
    result = found.cast(dt.int64) if wants_places(val) else value_of(val, found)
    loop = ir.For(o, start, stop, "lanes", e.store(val, index(o), result))
    return [*steps, e.grid_kernel(f"{val.op}_out", g, [loop], rows * blocks, (val.op,))]


class Counting:
    """One pass over all parts of all rows by one digit; `held` is what the last pass left."""

    def __init__(
        self,
        val: Value,
        layouts: Layouts,
        threads: int,
        parts: int,
        held: tuple[Value, ...],
        shift: int,
    ) -> None:
        self.val, self.layouts, self.threads = val, layouts, threads
        self.parts, self.held, self.shift = parts, held, shift
        self.axis = val.params[0]
        self.length = val.shape[self.axis]
        self.rows = val.size // self.length

    def _begin(self, more: Layouts, tag: str) -> None:
        held = dict.fromkeys(self.held, (self.length, 1))
        e = self.e = Emitter({**self.layouts, **held, **more}, block_size=self.threads)
        self.g = ir.var("g")
        self.many = e.scalar_arg(self.parts)
        self.bit = e.scalar_arg(self.shift)
        self.row, self.part = ir.idiv(self.g, self.many), ir.irem(self.g, self.many)
        self.at_row = self.row if self.rows > 1 else ZERO
        chunk = const(self.threads * EACH)
        self.first = ir.mul(self.part, chunk)
        self.size = ir.minimum(chunk, ir.sub(e.dim(self.length), self.first))
        self.ranks = Ranks(self.threads, tag)
        kind = key_dtype(self.val.inputs[0].dtype)
        self.keys = ir.Buffer("keys", kind, "scratch", const(apart(self.threads * EACH)))
        e.scratch.append(self.keys)
        index = rows_along(e, self.row, self.val.shape, self.axis)
        i = ir.var("fill")
        at = ir.add(self.first, i)
        if not self.held:
            key = key_of(e, self.val, index(at))
        else:
            key = e.value(self.held[0], (self.at_row, at))
        self.fill = ir.For(i, ZERO, self.size, "lanes", [ir.Store(self.keys, spread_out(i), key)])

    def _read(self, at: Expr) -> Expr:
        return ir.load(self.keys, spread_out(at))

    def _spot(self, d: int) -> Expr:
        return ir.add(ir.mul(const(d), self.many), self.part)

    def count(self, table: Value) -> LoweredKernel:
        self._begin({}, "c")
        body = [self.fill, *self.ranks.count(self.size, self._read, self.bit)]
        for d in range(DIGITS):
            total = self.ranks.total(d).cast(dt.int32)
            body += self.e.store(table, (self.at_row, self._spot(d)), total)
        grid = self.rows * self.parts
        return self.e.grid_kernel("sort_count", self.g, body, grid, (self.val.op,))

    def move(self, table: Value, ends: Value, dest: tuple[Value, ...]) -> LoweredKernel:
        width = (DIGITS * self.parts, 1)
        self._begin({table: width, ends: width}, "m")
        e, ranks = self.e, self.ranks
        chunk = const(self.threads * EACH)
        sorted_keys = ir.Buffer("sorted_keys", self.keys.dtype, "scratch", chunk)
        sorted_places = ir.Buffer("sorted_places", dt.int32, "scratch", chunk)
        starts = ir.Buffer("starts", dt.int64, "scratch", const(DIGITS))
        places = wants_places(self.val)
        e.scratch += [sorted_keys, *([sorted_places] if places else []), starts]
        lets, words = ranks.starts()

        def move(at: Expr, rank: Expr) -> list[Stmt]:
            stores: list[Stmt] = [ir.Store(sorted_keys, rank, self._read(at))]
            if places:
                stores.append(ir.Store(sorted_places, rank, at.cast(dt.int32)))
            return stores

        body = [self.fill, *ranks.count(self.size, self._read, self.bit), *lets]
        body.append(ranks.place(self.size, self._read, self.bit, words, move))
        # where a digit's elements go, less where they begin in the ordered chunk
        d = ir.var("digit")
        own = ZERO
        for k in range(DIGITS):
            word = words[k // 2]
            half = ir.binary("lshr", word, const(16, dt.uint32)) if k % 2 else word
            begin = (half & const(0xFFFF, dt.uint32)).cast(dt.int64)
            own = select(d.eq(k), begin, own) if k else begin
        spot = (self.at_row, ir.add(ir.mul(d, self.many), self.part))
        goes = ir.sub(e.value(ends, spot).cast(dt.int64), e.value(table, spot).cast(dt.int64))
        body.append(
            ir.For(d, ZERO, const(DIGITS), "lanes", [ir.Store(starts, d, ir.sub(goes, own))])
        )
        o = ir.var("o")
        key = ir.load(sorted_keys, o)
        digit = ir.binary("lshr", key, self.bit.cast(key.dtype)) & const(DIGITS - 1, key.dtype)
        to = ir.add(ir.load(starts, digit.cast(dt.int64)), o)
        there = ir.var("there")
        out: list[Stmt] = [ir.Let(there, to)]
        out += e.store(dest[0], (self.at_row, there), key)
        if places:
            place: Expr = ir.add(self.first, ir.load(sorted_places, o).cast(dt.int64))
            if self.held:
                place = e.value(self.held[1], (self.at_row, place))
            out += e.store(dest[1], (self.at_row, there), place.cast(dest[1].dtype))
        body.append(ir.For(o, ZERO, self.size, "lanes", out))
        grid = self.rows * self.parts
        return e.grid_kernel("sort_move", self.g, body, grid, (self.val.op,))
