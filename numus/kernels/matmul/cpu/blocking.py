"""Blocking parameters of the CPU GEMM (BLIS): register tile, block of k, tasks, packed operands."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from numus.dtypes import DType
from numus.ir.symbolic_size import decide
from numus.target import Target

CACHE_LINE_BYTES = 64

# Elements of k in one running sum. Sums of floats are added up by such blocks, which depend on
# neither tiles nor caches nor threads: an element of C has the same bits whatever the blocking.
SUM_BLOCK = 256
MAX_RUNNING_SUM = 384  # so much in one block, where a second one would be short
SKINNY_BLOCK_K = 16  # rows of B that are read together, each of them once; added up to SUM_BLOCKs


@dataclass(frozen=True, slots=True)
class BlockingTuning:
    """Measured on Neoverse N1 and x86-64 machines of 2 cores; work in multiplications."""

    thread_work: int = 1 << 17  # takes longer than handing a task to a thread that is awake
    shared_packing_work: int = 1 << 26  # next to which one more kernel costs little,
    computed_packing_factor: int = 8  # divided by this where tasks would compute the same
    tasks_per_thread: int = 8  # so that a delayed thread leaves its share to others
    tasks_per_thread_unpacked: int = 16  # where no task packs anything again
    skinny_max_rows: int = 3  # for which packing B costs more than it gains
    skinny_max_vectors: int = 8  # of a register tile
    max_tile_rows: int = 8
    tall_tiles_max_rows: int = 256  # of C, where A must be packed for tall tiles
    many_tiles: int = 32  # tiles, or vectors, of which a partial one does not count
    fma_latency: int = 8  # accumulators that hide it
    by_rows_max_k: int = 128  # where storing C counts, tasks are rows of it
    packing_work: int = 40  # packing an element


TUNING = BlockingTuning()
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Blocking:
    """All but the last three shape the code; those are launch arguments."""

    rows: int  # of a register tile
    vectors: int  # columns of a register tile, in vectors
    width: int  # lanes of a vector
    parts: int  # 2 for complex numbers
    fma: bool
    masked_stores: bool
    a_access: str  # "own" (packed by each task), "shared" (packed before) or "direct"
    b_access: str
    a_mn_major: bool
    prefetches_a: bool  # rows of A read in place, one after the other in memory, into L2
    prefetches_b: bool  # packed rows of B, of a panel that L1 does not hold, into L1
    whole_columns: bool  # n is a multiple of the tile's columns
    k_blocked: bool  # in cache blocks, between which partial sums of all tiles are in memory
    sum_blocked: bool  # k is longer than MAX_RUNNING_SUM
    skinny: bool  # cache blocks of k are shorter than a SUM_BLOCK
    task_rows: int
    task_columns: int
    block_k: int

    @property
    def columns(self) -> int:
        return self.vectors * self.width


def choose_blocking(
    target: Target,
    dtype: DType,
    parts: int,
    size: tuple[int, int, int, int],
    a_mn_major: bool = False,
    direct: tuple[bool, bool] = (False, False),
    a_stride: int = 0,
    skinny: bool = False,
    computed: tuple[bool, bool] = (False, False),
    low_memory: bool = False,
    captured: tuple[bool, bool] = (False, False),
) -> Blocking:
    """Blocking for `size` = (batch, m, n, k).

    `direct`: A and B can be read in place, rows of A `a_stride` bytes apart. `skinny`: so few rows
    that B is, whatever its layout. `computed`: A and B are expressions, which cost more to pack.
    `low_memory`: at most one operand is packed beforehand. `captured`: A and B are packed once for
    many runs, so that packing costs nothing.
    """
    batch, m, n, k = size
    width = target.vector_bytes // dtype.itemsize
    if skinny:
        fitting = (target.vector_registers - 2) // (m + 1)
        rows, vectors = m, min(TUNING.skinny_max_vectors, fitting)
    else:
        # in tall tiles less of B comes from L2 for each multiplication
        conflicts = _conflicts_in_l1(target, TUNING.max_tile_rows, a_stride)
        tall = captured[1] and (m < TUNING.tall_tiles_max_rows or not conflicts)
        rows, vectors = decide(_register_tile, target, dtype, parts, m, n, tall)
    a_direct = direct[0] and (a_mn_major or not _conflicts_in_l1(target, rows, a_stride))
    a_direct = a_direct and not captured[0]
    columns = vectors * width
    b_direct = direct[1] and (skinny or n >= columns)  # partial tiles are packed
    b_direct = b_direct and not captured[1]
    panels_m, panels_n = -(-m // rows), -(-n // columns)
    # a block of B stays in L2, as deep as it can be
    item = dtype.itemsize * parts
    room = target.l2_bytes // 2
    block_k = min(k, SKINNY_BLOCK_K) if skinny else _block_k(k, room // (columns * item))
    max_panels_n = panels_n if skinny else max(1, room // (columns * max(block_k, 1) * item))
    max_panels_m = panels_m if a_direct else max(1, room // (rows * max(k, 1) * item))
    work = batch * m * n * k
    share_a, share_b = (
        work >= TUNING.shared_packing_work // (TUNING.computed_packing_factor if x else 1)
        for x in computed
    )
    share_a, share_b = share_a or captured[0], share_b or captured[1]
    max_tasks = max(1, work // TUNING.thread_work)
    threads = min(target.num_cores, max_tasks)
    per_thread = (TUNING.tasks_per_thread, TUNING.tasks_per_thread_unpacked)
    wanted, wanted_unpacked = (-(-min(threads * x, max_tasks) // batch) for x in per_thread)
    # rows can be split where that packs nothing twice
    free = share_b or (b_direct and not skinny)
    tasks_m, tasks_n = 1, -(-panels_n // max_panels_n)
    enough = wanted if free and not low_memory else -(-threads // batch)
    by_rows = False
    if tasks_n == 1:
        # strips of columns would find each row of C on about a page of its own, for little work
        by_rows = n * item >= PAGE_BYTES * 3 // 4 and k <= TUNING.by_rows_max_k
        by_rows = by_rows and (panels_m >= wanted_unpacked if free else a_direct and m >= n)
        if not (by_rows or free) and a_direct:
            tasks = _tasks(panels_n, wanted_unpacked, max_panels_n)
            sizes = (m, n, rows, -(-panels_n // tasks) * columns)
            by_rows = decide(_rows_are_even, -(-threads // batch), *sizes)
    if panels_n >= enough and (a_direct or n >= m) and not by_rows:
        tasks_n = _tasks(panels_n, wanted_unpacked, max_panels_n)
    elif free:
        tasks_m = _tasks(panels_m, -(-wanted_unpacked // tasks_n), max_panels_m)
    else:  # a share for each thread
        shares = -(-threads // (batch * tasks_n))
        tasks_m = max(min(shares, panels_m), -(-panels_m // max_panels_m))
    in_order = a_stride == k * item and block_k == k and not (a_mn_major or skinny)
    large = batch * m * k * item >= target.l2_bytes // 4  # less stays cached without prefetches
    share_a = share_a and tasks_n > 1 and not (low_memory and tasks_m > 1)
    share_a, share_b = share_a or captured[0], captured[1] or (share_b and tasks_m > 1)
    return Blocking(
        *(rows, vectors, width, parts),
        fma=uses_fma(target, dtype),
        masked_stores=dtype.itemsize >= target.masked_store_min_bytes,
        a_access="direct" if a_direct else "shared" if share_a else "own",
        b_access="direct" if b_direct else "shared" if share_b else "own",
        a_mn_major=a_mn_major,
        prefetches_a=a_direct and in_order and large,
        prefetches_b=not b_direct and min(k, block_k) * columns * item >= target.l1_bytes,
        whole_columns=n % columns == 0,
        k_blocked=block_k < k,
        sum_blocked=dtype.kind == "float" and k > MAX_RUNNING_SUM,
        skinny=skinny,
        task_rows=-(-panels_m // tasks_m) * rows,
        task_columns=-(-panels_n // tasks_n) * columns,
        block_k=block_k,
    )


def uses_fma(target: Target, dtype: DType) -> bool:
    """A multiply-add is one instruction: emulated, it takes much longer."""
    return dtype.kind == "float" and target.fma


@functools.lru_cache(1024)  # asked for by every guard of a template
def _register_tile(
    target: Target, dtype: DType, parts: int, m: int, n: int, tall: bool
) -> tuple[int, int]:
    """Rows and vectors: accumulators, a row of B and an element of A fill the registers."""
    width = target.vector_bytes // dtype.itemsize
    candidates = _register_tiles(target, dtype, parts, -(-n // width))
    if tall:
        candidates = sorted(candidates, key=lambda tile: -tile[0])
    rows, vectors = candidates[0]
    min_tiles = TUNING.many_tiles
    if m >= min_tiles * rows:
        m = min_tiles * rows  # one code for all large sizes
    if n >= min_tiles * width:
        candidates = candidates[:1]

    def cost(tile: tuple[int, int]) -> int:
        """Of a step of k, in quarters of a multiplication, which a load takes."""
        rows, vectors = tile
        whole, rest = divmod(-(-n // width), vectors)
        panels = [vectors] * whole
        if rest:
            last = vectors
            while last // 2 >= rest:
                last //= 2
            panels.append(last)
        steps = (max(TUNING.fma_latency, rows * v) * 4 + rows + v for v in panels)
        return -(-m // rows) * sum(steps)

    tiles = ((r, v) for limit, v in candidates for r in range(min(m, limit), limit // 2, -1))
    return min(tiles, key=cost, default=(m, vectors))


def _register_tiles(target: Target, dtype: DType, parts: int, wanted: int) -> list[tuple[int, int]]:
    """(rows, vectors) that fit into the registers, best first, for `wanted` vectors of columns.

    More vectors mean fewer loads, but a vector of B is used once per row. Rows are limited to those
    that can be read in place if all of them are in one set of L1.
    """
    registers = target.vector_registers
    if dtype.kind != "float":
        registers -= 2  # products before they are added
    vectors = [2]
    if target.vector_registers >= 32:
        vectors = [4, 3]
        if target.vector_bytes == 16:  # FMAs by lane: elements of A stay in vectors
            vectors = [3]
            registers -= 2
    if wanted * parts < min(vectors):
        vectors = [wanted * parts]
    found = []
    for v in vectors:
        taken = max(1, v // parts) * parts
        rows = (registers - taken - parts) // taken
        found.append((min(rows, TUNING.max_tile_rows), taken // parts))
    return found


def _rows_are_even(threads: int, m: int, n: int, rows: int, columns: int) -> bool:
    """Parts of rows keep threads busy where strips of so many columns do not, for more than it
    costs that each thread packs all of B."""
    each, more = divmod(-(-n // columns) - 1, threads)  # whole strips of a thread; the last is less
    last = n - (each * threads + more) * columns
    longest = max(each * columns + last, (each + (more > 0)) * columns)
    share = -(-m // (rows * threads)) * rows
    packing = TUNING.packing_work * (threads - 1) * n
    return share * n * threads + packing < longest * threads * m


def _conflicts_in_l1(target: Target, rows: int, stride: int) -> bool:
    """Rows with such a stride, in bytes, evict each other from L1. (With what else is read they
    may, too: L2 is as quick as packing them for each strip of columns.)"""
    period = target.l1_bytes // target.l1_ways
    distance = min(stride % period, -stride % period)
    return distance < CACHE_LINE_BYTES and rows > target.l1_ways


def _block_k(k: int, limit: int) -> int:
    """Even blocks of k in whole SUM_BLOCKs, or all of it where that is not much more."""
    limit = max(limit, SUM_BLOCK)
    if k <= limit + limit // 2:
        return k
    return -(-k // -(-k // limit) // SUM_BLOCK) * SUM_BLOCK


def _tasks(panels: int, wanted: int, limit: int) -> int:
    """Tasks of at most `limit` panels: as many as wanted, or a few more."""
    return -(-panels // max(1, min(panels // wanted, limit)))
