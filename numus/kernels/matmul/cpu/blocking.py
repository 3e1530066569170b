"""Schedules of contractions as data: tile sizes from a target's target and a problem's size."""

from __future__ import annotations

from dataclasses import dataclass

from numus.dtypes import DType
from numus.target import Target

WORTH_A_THREAD = 1 << 20  # multiplications that take longer than waking a thread
WORTH_SHARING = 1 << 26  # multiplications next to which one more kernel costs little,
COMPUTED = 8  # or so many times fewer where it keeps tasks from computing the same
TASKS = 8  # for each thread, so that one that is held up leaves its share to others,
FINE = 16  # and more where nothing is packed twice for them
DEPTH_LEAST = 128  # steps along k that make reading and writing a tile cheap
FEW_ROWS = 3  # for which packing B costs more than it gains
MOST_VECTORS = 8  # side by side in a tile of so few rows
STRIP_DEPTH = 16  # lines of B that are read side by side where each is read once
MOST_ROWS = 8  # of a tile
MANY = 32  # tiles, or vectors, of which some computed in vain don't count
LATENCY = 8  # sums that are on their way at a time
LINE = 64  # bytes of a line of the caches


@dataclass(frozen=True, slots=True)
class Tiles:
    """All but the last three shape the code; those are given at launch."""

    rows: int  # of a register tile
    vectors: int  # columns of a register tile, in vectors
    width: int  # lanes of a vector
    parts: int  # 2 for complex numbers
    fused: bool  # whether a product and its sum are one operation
    masked: bool  # whether parts of vectors are stored in one operation
    left: str  # how A is read: "own" (packed by each task), "shared" (packed before) or "direct"
    right: str
    across: bool  # A has its neighbours along m: pack it row by row of k
    ahead: bool  # whether A, read in place, has its rows one behind the other: fetch the next ones
    even: bool  # whether columns come in whole tiles
    blocked: bool  # whether k is gone through in blocks
    task_rows: int
    task_columns: int
    depth: int  # of a block of k

    @property
    def columns(self) -> int:
        return self.vectors * self.width


def choose(
    target: Target,
    dtype: DType,
    parts: int,
    size: tuple[int, int, int, int],
    across: bool = False,
    direct: tuple[bool, bool] = (False, False),
    stride: int = 0,
    strips: bool = False,
    computed: tuple[bool, bool] = (False, False),
    frugal: bool = False,
) -> Tiles:
    """Tiles for `size` = (batch, m, n, k). `direct`: whether A and B may be read in place, A with
    its rows `stride` bytes apart. `strips`: there are so few rows that B is, wherever it lies.
    `computed`: whether A and B are not in memory yet, so that packing them takes longer. `frugal`:
    at most one of them is packed beforehand, and the tasks each pack their part of the other.
    """
    batch, m, n, k = size
    width = target.vector_bytes // dtype.itemsize
    if strips:
        rows, vectors = m, min(MOST_VECTORS, (target.vector_registers - 2) // (m + 1))
    else:
        rows, vectors = _register_tile(target, dtype, parts, m, n)
    in_place = direct[0] and (across or not _collide(target, rows, stride))
    columns = vectors * width
    right_in_place = direct[1] and (strips or n >= columns)  # whole tiles of B: edges are packed
    row_panels, column_panels = -(-m // rows), -(-n // columns)
    # what tiles use again and again stays in the second cache: a piece of B, as deep as it can be
    item = dtype.itemsize * parts
    room = target.l2_bytes // 2
    depth = min(k, STRIP_DEPTH) if strips else _depth(k, room // (columns * item), width)
    widest = column_panels if strips else max(1, room // (columns * max(depth, 1) * item))
    tallest = row_panels if in_place else max(1, room // (rows * max(k, 1) * item))
    work = batch * m * n * k
    share_left, share_right = (work >= WORTH_SHARING // (COMPUTED if x else 1) for x in computed)
    units = min(target.num_cores, max(1, work // WORTH_A_THREAD))
    most = max(1, work // WORTH_A_THREAD)
    wanted, fine = (-(-min(units * x, most) // batch) for x in (TASKS, FINE))
    # rows may be cut where nothing is packed twice for it
    free = share_right or (right_in_place and not strips)
    row_tasks, column_tasks = 1, -(-column_panels // widest)
    enough = wanted if free and not frugal else -(-units // batch)
    if column_panels >= enough and (in_place or n >= m):
        column_tasks = _pieces(column_panels, fine, widest)
    else:
        needed = fine if free else -(-units // batch)
        row_tasks = _pieces(row_panels, -(-needed // column_tasks), tallest)
    in_order = stride == k * item and depth == k and not (across or strips)
    far = batch * m * k * item >= target.l2_bytes // 4  # what is smaller stays near by itself
    share_left = share_left and column_tasks > 1 and not (frugal and row_tasks > 1)
    left = "direct" if in_place else "shared" if share_left else "own"
    right = "direct" if right_in_place else "shared" if share_right and row_tasks > 1 else "own"
    return Tiles(
        *(rows, vectors, width, parts),
        fused=fuses(target, dtype),
        masked=dtype.itemsize >= target.masked_store_min_bytes,
        left=left,
        right=right,
        across=across,
        ahead=in_place and in_order and far,
        even=n % columns == 0,
        blocked=depth < k,
        task_rows=-(-row_panels // row_tasks) * rows,
        task_columns=-(-column_panels // column_tasks) * columns,
        depth=depth,
    )


def fuses(target: Target, dtype: DType) -> bool:
    """Whether the target multiplies and adds at once: computed otherwise, it takes much longer."""
    return dtype.kind == "float" and target.fma


def _register_tile(target: Target, dtype: DType, parts: int, m: int, n: int) -> tuple[int, int]:
    """Rows and vectors of a tile: sums, a row of B and an element of A fill the registers."""
    width = target.vector_bytes // dtype.itemsize
    candidates = _register_tiles(target, dtype, parts, -(-n // width))
    rows, vectors = candidates[0]
    if m >= MANY * rows:
        m = MANY * rows  # one code for all large sizes
    if n >= MANY * width:
        candidates = candidates[:1]

    def cost(tile: tuple[int, int]) -> int:
        """Of a step along k, in quarters of a multiplication: a load takes a part of its time."""
        rows, vectors = tile
        whole, rest = divmod(-(-n // width), vectors)
        panels = [vectors] * whole
        if rest:
            last = vectors
            while last // 2 >= rest:
                last //= 2
            panels.append(last)
        steps = (max(LATENCY, rows * v) * 4 + rows + v for v in panels)
        return -(-m // rows) * sum(steps)

    tiles = ((r, v) for most, v in candidates for r in range(min(m, most), most // 2, -1))
    return min(tiles, key=cost, default=(m, vectors))


def _register_tiles(target: Target, dtype: DType, parts: int, wanted: int) -> list[tuple[int, int]]:
    """Tiles that fit into the registers, the best one first, for so many vectors of columns.

    The more vectors, the fewer loads; but of B, each is used only once for every row. And there are
    at most as many rows as can be read in place if all lie in one set of the first cache. A result
    of fewer columns than that is as wide as its tiles.
    """
    registers = target.vector_registers
    if dtype.kind != "float":
        registers -= 2  # products on their way to the sums
    vectors = [2]
    if target.vector_registers >= 32:
        vectors = [4, 3]
        if target.vector_bytes == 16:  # elements of A are parts of vectors, and stay for longer
            vectors = [3]
            registers -= 2
    if wanted * parts < min(vectors):
        vectors = [wanted * parts]
    found = []
    for v in vectors:
        taken = max(1, v // parts) * parts
        rows = (registers - taken - parts) // taken
        found.append((min(rows, MOST_ROWS), taken // parts))
    return found


def _collide(target: Target, rows: int, stride: int) -> bool:
    """Whether so many rows, so many bytes apart, push each other out of the first cache."""
    period = target.l1_bytes // target.l1_ways
    apart = min(stride % period, -stride % period)
    return apart < LINE and rows > target.l1_ways * 3 // 4


def _depth(k: int, most: int, width: int) -> int:
    """How far to go along k at a time: in even blocks, or all the way where that is not much
    farther.
    """
    most = max(most, DEPTH_LEAST)
    if k <= most + most // 2:
        return k
    return -(-k // -(-k // most) // width) * width


def _pieces(panels: int, wanted: int, most: int) -> int:
    """Into how many pieces of at most so many panels to cut: as many as wanted, or a few more."""
    return -(-panels // max(1, min(panels // wanted, most)))
