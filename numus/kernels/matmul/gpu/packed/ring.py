"""A ring of tiles of packed codes in shared memory (cp.async): rows by a part of k, and the numbers
of their groups. A block fills its places ahead of all else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import problem
from numus.kernels.matmul.gpu.packed.gemv import QUAD, GroupNumber, PackedMatrix
from numus.kernels.matmul.gpu.packed.mma_sync import THREADS_ALONG_K
from numus.kernels.matmul.gpu.packed.ring_tile import WARP, RingTile
from numus.kernels.matmul.gpu.problem import TRUE
from numus.kernels.matmul.packed import MMA_STEP_CHUNKS, Packing

ZERO = const(0)
BANKS = 32  # of shared memory, of a word each


@dataclass(frozen=True)
class RowCopies:
    """How rows of a matrix in memory are copied: `each` elements at a time, where they are
    `aligned`. Rows begin at multiples of as many."""

    place: Callable[[Expr, Expr], tuple[ir.Buffer, Expr]]  # of an element: row, column
    each: int
    aligned: Expr
    total: int  # elements of a row


@dataclass(frozen=True)
class _Part:
    """A block's part of such rows in the ring."""

    rows: RowCopies
    to: ir.Buffer
    extent: int  # elements of a row
    pitch: int  # between rows


class Ring:
    """Rows of a block, from `first_row` on, by the part of k that its `rank` has."""

    def __init__(
        self,
        packing: Packing,
        tile: RingTile,
        matrix: PackedMatrix,
        codes: RowCopies,
        numbers: list[RowCopies | None],  # None: loaded where they are used
        chunks: int,  # of a row
        place: tuple[Expr, Expr, Expr],  # rank, first row, rows
    ) -> None:
        self.packing, self.tile, self.matrix, self.chunks = packing, tile, matrix, chunks
        self.rank, self.first_row, self.rows = place
        self.whole = chunks == tile.span * tile.splits
        self.block_groups = -(-tile.span // packing.group) if packing.group else 1
        # threads of a phase of an access, eight of two rows, have other banks
        padding = (BANKS // 2 - tile.span) % BANKS
        self.codes = self._part("ring", dt.uint32, codes, tile.span, padding)
        self.numbers = [
            self._part(f"numbers{i}", number.stored(ZERO, ZERO).dtype, own, self.block_groups)
            if own is not None
            else None
            for i, (number, own) in enumerate(zip(matrix.numbers, numbers, strict=True))
        ]
        self.parts = [self.codes, *(x for x in self.numbers if x is not None)]

    def _part(
        self, name: str, dtype: DType, rows: RowCopies, extent: int, padding: int = 0
    ) -> _Part:
        pitch = -(-(extent + padding) // rows.each) * rows.each
        size = self.tile.stages * self.tile.tile_rows * pitch
        buffer = ir.Buffer(name, dtype, "scratch", const(size), stored_once=True)
        return _Part(rows, buffer, extent, pitch)

    @property
    def scratch(self) -> list[ir.Buffer]:
        return [part.to for part in self.parts]

    # -- copies -----------------------------------------------------------------------------------

    def first_loads(self) -> list[Stmt]:
        s = ir.var("first_tile")
        body = [*self.fill(s, s, "first"), ir.AsyncCommit()]
        return [ir.For(s, ZERO, const(self.tile.stages), "serial", body)]

    def fill(self, tile: Expr, slot: Expr, tag: str) -> list[Stmt]:
        """Copy a tile to a place of the ring: asynchronously, or else element by element."""
        aligned = TRUE
        for part in self.parts:
            aligned = aligned & part.rows.aligned
        out = problem.when(aligned, partial(self._copies, tile, slot, tag))
        return out + problem.when(~aligned, partial(self._elements, tile, slot, tag))

    def _copies(self, tile: Expr, slot: Expr, tag: str) -> list[Stmt]:
        """Adjacent threads along a row, each a copy at a time."""
        t, lane, out = self.tile, ir.var(f"{tag}_copy"), list[Stmt]()
        for part in self.parts:
            each, to = part.rows.each, part.to
            of_row = -(-part.extent // each)
            along = min(WARP, 1 << of_row.bit_length() - 1)  # threads of a row
            nbytes = each * to.dtype.itemsize
            for down in range(0, t.tile_rows, t.threads // along):
                own = lane // along + down
                rows = own < t.tile_rows if down + t.threads // along > t.tile_rows else TRUE
                for right in range(0, of_row, along):
                    column = (lane % along + right) * each
                    exists = rows
                    if right + along > of_row:
                        exists = exists & (column < part.extent)
                    source, index, target, inside = self._ends(part, own, column, tile, slot)
                    copy = ir.AsyncCopy(to, target, source, index, const(each), nbytes)
                    out += problem.when(exists & inside, partial(list[Stmt], [copy]))
        return [ir.For(lane, ZERO, const(t.threads), "lanes", out)]

    def _elements(self, tile: Expr, slot: Expr, tag: str) -> list[Stmt]:
        out: list[Stmt] = []
        for i, part in enumerate(self.parts):
            lane, to = ir.var(f"{tag}_element{i}"), part.to
            place = lane // part.extent, lane % part.extent
            source, index, target, inside = self._ends(part, *place, tile, slot)
            value = ir.load(source, index)
            value = value if source.dtype is to.dtype else value.bitcast(to.dtype)
            store = ir.Store(to, target, value)
            body = problem.when(inside, partial(list[Stmt], [store]))
            count = const(self.tile.tile_rows * part.extent)
            out.append(ir.For(lane, ZERO, count, "lanes", body))
        return out

    def _ends(
        self, part: _Part, own: Expr, column: Expr, tile: Expr, slot: Expr
    ) -> tuple[ir.Buffer, Expr, Expr, Expr]:
        """Of a tile's row and a column in the block's part of it: where it is from, and to, and
        whether there is such a column. Rows past the end are the last one again."""
        t, at = self.tile, self.rank * part.extent + column
        row = ir.minimum(self.first_row + tile * t.tile_rows + own, self.rows - 1)
        source, index = part.rows.place(row, at)
        target = (slot * t.tile_rows + own) * part.pitch + column
        inside = TRUE if part.extent * t.splits == part.rows.total else at < part.rows.total
        return source, index, target, inside

    # -- what a thread reads ----------------------------------------------------------------------

    def chunk(self, thread: Expr, step: Expr) -> Expr:
        """The first chunk of a thread's four in a step of its block."""
        return step * MMA_STEP_CHUNKS + thread % THREADS_ALONG_K * QUAD

    def words(
        self, out: list[Stmt], slot: Expr, row: Expr, thread: Expr, step: Expr, tag: str
    ) -> list[Expr]:
        """A thread's four words of a step, in a row of a tile."""
        at = (slot * self.tile.tile_rows + row) * self.codes.pitch + self.chunk(thread, step)
        names = [ir.var(f"word{tag}_{q}", dt.uint32) for q in range(QUAD)]
        for q, name in enumerate(names):
            load = ir.load(self.codes.to, at + q)
            out.append(ir.Let(name, load, vector=0 if q else QUAD))
        return list(names)

    def stored_numbers(
        self, out: list[Stmt], tile: Expr, slot: Expr, row: Expr, group: Expr, tag: str
    ) -> list[Expr]:
        """The numbers of a group of the block as they are in memory."""
        names: list[Expr] = []
        for k, (number, part) in enumerate(zip(self.matrix.numbers, self.numbers, strict=True)):
            value = self._stored(number, part, tile, slot, row, group)
            name = ir.var(f"number{tag}_{k}", value.dtype)
            out.append(ir.Let(name, value))
            names.append(name)
        return names

    def _stored(
        self,
        number: GroupNumber,
        part: _Part | None,
        tile: Expr,
        slot: Expr,
        row: Expr,
        group: Expr,
    ) -> Expr:
        in_tile = tile * self.tile.tile_rows + row
        if part is not None:
            return ir.load(part.to, (slot * self.tile.tile_rows + row) * part.pitch + group)
        n = ir.minimum(self.first_row + in_tile, self.rows - 1)
        return number.stored(n, self.rank * self.block_groups + group)

    def group(self, step: Expr) -> Expr:
        """That of a step, in the block; past the end, the last one."""
        p = self.packing
        if not p.group:
            return ZERO
        found = step * MMA_STEP_CHUNKS // p.group
        if self.whole:
            return found
        last = -(-self.chunks // p.group) - 1 - self.rank * self.block_groups
        return ir.maximum(ir.minimum(found, last), ZERO)
