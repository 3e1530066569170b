"""Sorts, argsorts and top-k of many rows of up to a few thousand elements: bitonic, in registers.

Records hold the key and, for indices, the position, so that the order is that of a stable sort
whatever the network does. Rows are loaded in turns by the threads of a row (any order will do), and
results pass through shared memory: accesses of both are contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.axis import ONE, ZERO, SortProblem, TopkProblem, row_index
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.schedule import Candidate
from numus.ir import Expr, Stmt, const
from numus.kernels.scan.gpu_block import padded, padded_size
from numus.kernels.sort.gpu_bitonic import WARP, RegisterSort
from numus.kernels.sort.keys import Record, RecordLayout, record_layout


@dataclass(frozen=True)
class BitonicTuning:
    """Measured on one H200."""

    few_items: int = 4  # records of a thread in rows of up to
    few_items_max_length: int = 16  # elements: more threads read a row
    items: int = 8
    many_items: int = 16  # of one word, or in long rows: fewer shuffles
    many_items_min_length: int = 64
    wide_many_items_min_length: int = 2049  # of more words
    block_threads: int = 256  # of rows that a warp or less sorts
    max_length: int = 1 << 13


TUNING = BitonicTuning()


def _size(length: int) -> int:
    return 1 << (length - 1).bit_length()


def _layout(p: SortProblem) -> RecordLayout:
    topk = isinstance(p, TopkProblem)
    descending = p.descending if isinstance(p, TopkProblem) else p.val.params[1]
    return record_layout(p.source.dtype, p.length, descending, topk or p.argsort, False)


def _items(layout: RecordLayout, length: int) -> int:
    """Records of a thread."""
    many = TUNING.many_items_min_length
    if layout.itemsize > 4:
        many = TUNING.wide_many_items_min_length
    few = length <= TUNING.few_items_max_length
    items = TUNING.few_items if few else TUNING.items if length < many else TUNING.many_items
    return min(items, _size(length))


def _lanes(p: SortProblem) -> int:
    """Threads of a row."""
    return _size(p.length) // _items(_layout(p), p.length)


def _supports(p: SortProblem) -> bool:
    target = p.target
    if target.subgroup_size != WARP or not 0 < p.length <= TUNING.max_length:
        return False
    words = -(-_layout(p).itemsize // 4)
    fits = _size(p.length) * 4 * (words + 2) <= target.shared_bytes
    return fits and _lanes(p) <= max(target.block_size, target.max_block_size)


def _sort(p: SortProblem) -> Kernels:
    return _lower(p, p.length)


def _topk(p: TopkProblem) -> Kernels:
    return _lower(p, p.count)


BITONIC_SORT = Candidate("bitonic sort in registers", _sort, _supports)
BITONIC_TOPK = Candidate("bitonic sort in registers", _topk, _supports)


def _lower(p: SortProblem, count: int) -> Kernels:
    """The first `count` results of every row."""
    val, lanes, layout = p.val, _lanes(p), _layout(p)
    items = _size(p.length) // lanes
    threads = max(lanes, min(TUNING.block_threads, p.target.block_size))
    e = Emitter(p.layouts, block_size=threads)
    g, rows, length = ir.var("g"), e.dim(p.rows), e.dim(p.length)
    # 32-bit registers hold smaller keys
    fields = tuple(f if f.itemsize >= 4 else dt.uint32 for f in layout.fields)
    network = RegisterSort(threads, lanes, items, fields)
    staged_dtype = dt.uint32 if layout.argsort else layout.key
    staged = ir.Buffer(
        *("staged", staged_dtype, "scratch", const(padded_size(threads * items))),
        warp_private=lanes <= WARP,
    )
    e.scratch += [*network.exchange, staged]

    def coordinates(thread: Expr, name: str) -> tuple[list[Stmt], Expr, Expr, Expr]:
        """The row of a thread, whether it exists, and the thread's number in it."""
        if lanes == threads:
            return [], g, const(True, dt.bool_), thread
        per_block = const(threads // lanes)
        in_block, lane = divmod(thread, const(lanes))
        number = ir.add(ir.mul(g, per_block), in_block)
        row = ir.var(f"{name}_row")
        e.extents[row] = rows
        lets: list[Stmt] = [ir.Let(row, ir.minimum(number, ir.sub(rows, ONE)))]
        return lets, row, number < rows, lane

    def load(thread: Expr, k: int) -> Record:
        _, row, _, lane = coordinates(thread, "load")
        at = ir.add(lane, const(k * lanes))
        value = e.value(p.source, p.index(e, row)(ir.minimum(at, ir.sub(length, ONE))))
        record = [x.cast(f) for x, f in zip(layout.record(value, at), fields, strict=True)]
        return [ir.select(at < length, x, const(-1, x.dtype)) for x in record]

    def stage(thread: Expr, k: int, record: Record) -> list[Stmt]:
        at = ir.add(ir.mul(thread, const(items)), const(k))
        found = layout.result(record) if layout.argsort else record[0]
        return [ir.Store(staged, padded(at), found.cast(staged_dtype))]

    body = network.statements(load, stage)
    first = next(s for s in body if isinstance(s, ir.For))
    first.body[:0] = coordinates(first.var, "load")[0]
    t = ir.var("write_t")
    lets, row, exists, lane = coordinates(t, "write")
    index = row_index(e, row, val.shape, p.axis)
    start = ir.mul(ir.sub(t, lane), const(items))
    limit = e.dim(count)
    out: list[Stmt] = list(lets)
    for k in range(-(-count // lanes)):
        at = ir.add(lane, const(k * lanes))
        x = ir.load(staged, padded(ir.add(start, at)))
        value = x.cast(val.dtype) if layout.argsort else layout.result([x])
        out.append(ir.If(exists & (at < limit), e.store(val, index(at), value)))
    body.append(ir.For(t, ZERO, const(threads), "lanes", out))
    grid = -(-p.rows // (threads // lanes))
    return [e.grid_kernel(f"{val.op}_bitonic", g, body, grid, (val.op,))]
