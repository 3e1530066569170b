"""Schedules of contractions as data: tile sizes from a target's facts and a problem's size."""

from __future__ import annotations

from dataclasses import dataclass

from numus.dtypes import DType
from numus.runtime.contract import Facts

WORTH_A_THREAD = 1 << 20  # multiplications that take longer than waking a thread
WORTH_SHARING = 1 << 24  # multiplications next to which one more kernel costs little
MOST_VECTORS = 8  # side by side in a tile of few rows
STRIP_DEPTH = 16  # lines of B that are read side by side where each is read once
DEPTH_LEAST = 128  # steps along k that make reading and writing a tile cheap
TASKS = 4  # for each thread, so that one that is held up leaves its share to others


@dataclass(frozen=True, slots=True)
class Tiles:
    """All but the last three shape the code; those are given at launch."""

    rows: int  # of a register tile
    vectors: int  # columns of a register tile, in vectors
    width: int  # lanes of a vector
    parts: int  # 2 for complex numbers
    cut: str  # which operand is cut into tasks: "rows" of A or "columns" of B
    left: str  # how A is read: "own" (packed by each task), "shared" (packed before) or "direct"
    right: str
    across: bool  # A has its neighbours along m: pack it row by row of k
    even: bool  # whether columns come in whole tiles
    blocked: bool  # whether k is gone through in blocks
    task_rows: int
    task_columns: int
    depth: int  # of a block of k

    @property
    def columns(self) -> int:
        return self.vectors * self.width


def choose(
    facts: Facts,
    dtype: DType,
    parts: int,
    size: tuple[int, int, int, int],
    across: bool = False,
    direct: bool = False,
    strips: bool = False,
) -> Tiles:
    """Tiles for `size` = (batch, m, n, k). `direct`: A may be read in place. `strips`: there are so
    few rows that B is read in place, too.
    """
    batch, m, n, k = size
    width = facts.lanes_bytes // dtype.itemsize
    most_rows, vectors = _register_tile(facts, dtype, parts)
    rows = _even_rows(m, most_rows)
    if strips:
        vectors = max(vectors, min(MOST_VECTORS, (facts.vector_registers - 2) // (rows + 1)))
    columns = vectors * width
    line = max(k, 1) * dtype.itemsize * parts  # bytes of a row of A, of a column of B
    work = batch * m * n * k
    units = min(facts.parallel_units, max(1, work // WORTH_A_THREAD))
    cut = "columns" if n >= m else "rows"
    row_panels, column_panels = -(-m // rows), -(-n // columns)
    share = work >= WORTH_SHARING
    wanted = -(-units * (TASKS if share else 1) // batch)
    piece = n if strips else facts.cache_l2 // 2 // line  # lines that a task packs
    if cut == "columns":
        along = _pieces(column_panels, wanted, max(1, piece // columns))
        across_tasks = min(row_panels, -(-min(wanted, units) // along))
    else:
        across_tasks = _pieces(row_panels, wanted, max(1, piece // rows))
        along = min(column_panels, -(-min(wanted, units) // across_tasks))
    task_rows = -(-row_panels // across_tasks) * rows
    task_columns = -(-column_panels // along) * columns
    left = right = "own"
    several = (along if cut == "columns" else across_tasks) > 1
    if several and share:
        if cut == "columns":
            left = "shared"
        else:
            right = "shared"
    even = n % columns == 0
    inner = (rows if cut == "columns" else columns) * dtype.itemsize * parts
    depth = _depth(k, max(DEPTH_LEAST, facts.cache_l1 // 3 // inner), width)
    if direct:
        left = "direct"
    if strips:  # whole lines of B pass by, some at a time
        right = "direct"
        depth = min(k, STRIP_DEPTH)
    return Tiles(
        *(rows, vectors, width, parts, cut, left, right, across, even, depth < k),
        *(task_rows, task_columns, depth),
    )


def _register_tile(facts: Facts, dtype: DType, parts: int) -> tuple[int, int]:
    """Rows and vectors of a tile: sums, a row of B and an element of A fill the registers."""
    registers = facts.vector_registers
    if dtype.kind != "float":
        registers -= 2  # products on their way to the sums
    vectors = 2
    if facts.lanes_bytes == 16 and facts.vector_registers >= 32:
        vectors = 3  # short vectors: fewer loads of A
        registers -= 2
    if parts == 2:
        vectors = 1
    taken = vectors * parts
    rows = (registers - taken - parts) // taken
    return rows, vectors


def few_rows(facts: Facts, dtype: DType, m: int) -> bool:
    """Whether there are so few rows that packing B would cost more than it gains."""
    return m <= 2 * _register_tile(facts, dtype, 1)[0]


def _even_rows(m: int, most: int) -> int:
    """Rows of a tile, so that few are computed in vain."""
    if m >= 32 * most:
        return most
    if m <= most:
        return m
    return min(range(most, most // 2, -1), key=lambda r: -(-m // r) * (2 * r + 1))


def _depth(k: int, most: int, width: int) -> int:
    """How far to go along k at a time, so that what the inner loop uses again stays in the first
    cache: in even blocks, or all the way where that is not much farther.
    """
    if k <= most + most // 2:
        return k
    return -(-k // -(-k // most) // width) * width


def _pieces(panels: int, wanted: int, most: int) -> int:
    """Into how many pieces of at most so many panels to cut: as many as wanted, if there are."""
    pieces = max(min(panels, wanted), -(-panels // most))
    return -(-panels // -(-panels // pieces))
