"""Top-k on GPUs: radix select per row or part of a row, otherwise a sort of whole rows."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import ZERO, TopkProblem, row_index, temporary
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.schedule import Candidate, family
from numus.compiler.lower.sort.gpu import lower_sort_gpu
from numus.compiler.lower.sort.gpu_bitonic import BITONIC_TOPK
from numus.compiler.lower.sort.topk_cpu import sort_topk
from numus.ir import Expr, Stmt, const
from numus.kernels.scan.gpu_block import ITEMS_PER_THREAD
from numus.kernels.sort import gpu_radix_select
from numus.kernels.sort.gpu_onesweep import RADIX
from numus.kernels.sort.keys import encode
from numus.target import Target


@dataclass(frozen=True)
class RadixSelectTuning:
    """Measured on one H200."""

    max_k: int = 1024  # ranked by counting
    part_elements: int = 1 << 14  # of a row that is worth a block, where rows are few
    parts_per_core: int = 4
    min_large_block_elements: int = 1 << 13  # worth the largest blocks
    min_length: int = 1 << 10  # of rows; shorter ones are sorted,
    small_key_min_length: int = 1 << 11  # as are those of 16-bit keys


TUNING = RadixSelectTuning()


def _supports_radix_select(p: TopkProblem) -> bool:
    target = p.target
    # targets with forward progress have atomics as well; a thread per digit
    atomics = target.forward_progress and target.block_size >= RADIX
    # below, a block, or a part of one, sorts a row
    shortest = target.block_size * ITEMS_PER_THREAD
    if target.subgroup_size:
        shortest = TUNING.min_length if p.key.bits > 16 else TUNING.small_key_min_length
    return atomics and p.length > shortest and 0 < p.count <= min(TUNING.max_k, p.length // 4)


def _radix_select(p: TopkProblem) -> Kernels:
    """A block per row, or per part of a row and then per row of their results."""
    length = p.length
    dtypes = (p.key, dt.index_dtype(length))
    given: tuple[Value, ...] = ()
    kernels: Kernels = []
    while True:
        wanted = -(-p.target.num_cores * TUNING.parts_per_core // p.rows)
        parts = max(1, min(wanted, length // max(TUNING.part_elements, 4 * p.count)))
        found: tuple[Value, ...] = ()
        if parts > 1:
            found = tuple(temporary((p.rows, parts * p.count), t) for t in dtypes)
        kernels.append(_select_pass(p, dtypes, length, parts, given, found))
        if parts == 1:
            return kernels
        length, given = parts * p.count, found


lower_topk_gpu = family(
    TopkProblem,
    Candidate("radix select", _radix_select, _supports_radix_select),
    BITONIC_TOPK,
    sort_topk(lower_sort_gpu),
)


def _block_threads(target: Target, elements: int, blocks: int) -> int:
    if elements >= TUNING.min_large_block_elements and blocks <= 2 * target.num_cores:
        return max(target.block_size, target.max_block_size)
    return target.block_size


def _select_pass(
    p: TopkProblem,
    dtypes: tuple[dt.DType, dt.DType],
    length: int,
    parts: int,
    given: tuple[Value, ...],
    found: tuple[Value, ...],
) -> LoweredKernel:
    """From the operand, or `given` keys and indices, to the result, or those `found`."""
    val = p.val
    blocks = p.rows * parts
    threads = _block_threads(p.target, length // parts, blocks)
    e = Emitter({**p.layouts, **dict.fromkeys(given, (length, 1))}, block_size=threads)
    g = ir.var("g")
    row, part = g, ZERO
    extent, count = e.dim(length), e.dim(p.count)
    start, stop = ZERO, extent
    if parts > 1:
        part_count = e.scalar_arg(parts)
        row, part = divmod(g, part_count)
        start, stop = (
            ir.idiv(ir.mul(extent, x), part_count) for x in (part, ir.add(part, const(1)))
        )
    at_row = row if p.rows > 1 else ZERO
    source_index = p.index(e, row)
    result_index = row_index(e, row, val.shape, p.axis)

    def key(i: Expr) -> Expr:
        if given:
            found: Expr = e.value(given[0], (at_row, i))
            return found
        return encode(e.value(p.source, source_index(i)), p.descending, ties=True)

    def index(i: Expr) -> Expr:
        return e.value(given[1], (at_row, i)) if given else i.cast(dtypes[1])

    row_problem = gpu_radix_select.SelectProblem(start, stop, count, key, dtypes[0])
    radix_select = gpu_radix_select.RadixSelect(threads, row_problem)
    e.scratch += radix_select.scratch
    if found:
        first = ir.mul(part, count)

        def put(rank: Expr, key: Expr, i: Expr) -> list[Stmt]:
            at = (at_row, ir.add(first, rank))
            return [*e.store(found[0], at, key), *e.store(found[1], at, index(i))]

        body = radix_select.statements(put)
        return e.grid_kernel("topk_parts", g, body, blocks, (val.op,))
    size = const(1 << (p.count - 1).bit_length())
    top = [ir.Buffer(f"top{i}", t, "scratch", size) for i, t in enumerate(dtypes)]
    e.scratch += top

    def keep(rank: Expr, key: Expr, i: Expr) -> list[Stmt]:
        return [ir.Store(top[0], rank, key), ir.Store(top[1], rank, index(i))]

    def write(rank: Expr, i: Expr) -> list[Stmt]:
        return e.store(val, result_index(rank), ir.load(top[1], i).cast(val.dtype))

    body = radix_select.statements(keep)
    body.append(gpu_radix_select.rank_by_counting(count, top[0], write))
    return e.grid_kernel("topk", g, body, blocks, (val.op,))
