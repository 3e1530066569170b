"""Bitonic sorting networks (Batcher 1968) on records at [row][lane] in scratch memory.

`sort_columns` sorts every lane's column; `merge_lanes` merges the columns into one sequence, column
after column. Branch-free; three steps at a time run on eight rows in registers, for a third of the
memory traffic. The number of rows is a power of two, at least `UNROLL_ROWS`; rows past those in use
hold the largest record, which no step moves forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, Stmt, const, select
from numus.kernels.sort.keys import Record

ZERO, ONE = const(0), const(1)

UNROLL_ROWS = 8  # in registers at a time
_UNROLL_BITS = 3

# Half-cleaners of distances size/2 … 1, in units of the spacing of the rows.
_MERGE = {
    8: tuple((i, i + d) for d in (4, 2, 1) for i in range(8) if not i & d),
    4: tuple((i, i + d) for d in (2, 1) for i in range(4) if not i & d),
    2: ((0, 1),),
}
# A merge that starts with the mirrored comparison of two sorted halves.
_MIRRORED_MERGE = (
    *((0, 7), (1, 6), (2, 5), (3, 4)),
    *((i, i + d) for d in (2, 1) for i in range(8) if not i & d),
)


@dataclass(frozen=True, slots=True)
class Tile:
    """Records at [row][lane]: one buffer per field, `1 << row_bits` rows of `lanes`."""

    buffers: tuple[ir.Buffer, ...]
    lanes: int
    lane: Expr
    row_bits: Expr
    rows: Expr  # in use

    def at(self, row: Expr) -> Expr:
        """The address of this lane's record of a row."""
        return ir.add(ir.mul(row, const(self.lanes)), self.lane)

    def load(self, at: Expr, name: str) -> tuple[list[Stmt], Record]:
        return ir.bind([ir.load(b, at) for b in self.buffers], name)

    def store(self, at: Expr, record: Record) -> list[Stmt]:
        return ir.stores(self.buffers, at, record)


def ordered(a: Record, b: Record) -> tuple[Record, Record]:
    """The lesser and the greater record, compared by their fields in order."""
    if len(a) == 1 and a[0].dtype.kind == "float":  # one comparison, so that signed zeros survive
        less = a[0] < b[0]
        return [select(less, a[0], b[0])], [select(less, b[0], a[0])]
    if len(a) == 1:
        return [ir.minimum(a[0], b[0])], [ir.maximum(a[0], b[0])]
    less = (a[0] < b[0]) | (a[0].eq(b[0]) & (a[1] < b[1]))
    low = [select(less, x, y) for x, y in zip(a, b, strict=True)]
    return low, [select(less, y, x) for x, y in zip(a, b, strict=True)]


def _compare(records: Sequence[Record], pairs: Sequence[tuple[int, int]]) -> list[Record]:
    records = list(records)
    for i, j in pairs:
        records[i], records[j] = ordered(records[i], records[j])
    return records


def _on_rows(t: Tile, at_rows: Sequence[Expr], pairs: Sequence[tuple[int, int]]) -> list[Stmt]:
    """Load rows, apply comparators, store them."""
    out: list[Stmt] = []
    records: list[Record] = []
    for i, at in enumerate(at_rows):
        lets, record = t.load(at, f"record{i}")
        out += lets
        records.append(record)
    for at, record in zip(at_rows, _compare(records, pairs), strict=True):
        out += t.store(at, record)
    return out


def _sweep(t: Tile, size: int, spacing_bits: Expr, mirrored: bool = False) -> Stmt:
    """Half-cleaners of distances size/2 … 1 times the spacing, on `size` rows in registers.

    Mirrored: the first step compares each row of a block with its mirror image.
    """
    bits = size.bit_length() - 1
    group, first, last = ir.var("group"), ir.var("first"), ir.var("mirror")
    spacing = ONE << spacing_bits
    block_bits = spacing_bits + bits
    within = group & (spacing - 1)
    block = (group >> spacing_bits) << block_bits
    # loop-invariant: hoisted out of the loop over groups
    offsets = [const(j * t.lanes) << spacing_bits for j in range(size)]
    rows = [ir.add(first, offsets[j]) for j in range(size)]
    body: list[Stmt] = [ir.Let(first, t.at(ir.add(block, within)))]
    pairs = _MERGE[size]
    if mirrored:
        half = size // 2
        body.append(ir.Let(last, t.at(ir.add(block, ir.sub(spacing - 1, within)))))
        rows[half:] = [ir.add(last, offsets[j]) for j in range(half, size)]
        pairs = _MIRRORED_MERGE
    body += _on_rows(t, rows, pairs)
    blocks = ir.add(t.rows, (ONE << block_bits) - 1) >> block_bits
    return ir.For(group, ZERO, blocks << spacing_bits, "serial", body)


def _half_cleaners(t: Tile, steps: Expr) -> list[Stmt]:
    """Half-cleaners of distances 1 << (steps - 1) … 1."""
    left, sweep = ir.irem(steps, const(_UNROLL_BITS)), ir.var("sweep")
    sweeps = ir.idiv(steps, const(_UNROLL_BITS))
    eights = _sweep(t, UNROLL_ROWS, ir.mul(sweeps - 1 - sweep, const(_UNROLL_BITS)))
    return [
        ir.If(left.eq(2), [_sweep(t, 4, steps - 2)]),
        ir.If(left.eq(1), [_sweep(t, 2, steps - 1)]),
        ir.For(sweep, ZERO, sweeps, "serial", [eights]),
    ]


def sort_columns(t: Tile) -> list[Stmt]:
    """Sort every column; inside a loop over the lanes."""
    group, stage = ir.var("eight"), ir.var("stage")
    first = t.at(ir.mul(group, const(UNROLL_ROWS)))
    rows = [ir.add(first, const(j * t.lanes)) for j in range(UNROLL_ROWS)]
    eights = ir.add(t.rows, const(UNROLL_ROWS - 1)) >> _UNROLL_BITS
    merge: list[Stmt] = [
        _sweep(t, UNROLL_ROWS, stage - _UNROLL_BITS, mirrored=True),
        *_half_cleaners(t, stage - _UNROLL_BITS),
    ]
    return [
        ir.For(group, ZERO, eights, "serial", _on_rows(t, rows, odd_even_merge_sort(UNROLL_ROWS))),
        ir.For(stage, const(_UNROLL_BITS + 1), ir.add(t.row_bits, ONE), "serial", merge),
    ]


def merge_lanes(t: Tile) -> list[Stmt]:
    """Merge sorted columns into one sequence; inside a loop over the lanes."""
    out: list[Stmt] = []
    row = ir.var("row")
    other = ir.sub((ONE << t.row_bits) - 1, row)
    width = 1
    while width < t.lanes:
        first_lets, x = t.load(t.at(row), "upper")
        second_lets, y = t.load(t.at(other), "lower")
        x, y = _merge_in_lanes(t.lane, x, y, width)
        body = [*first_lets, *second_lets, *t.store(t.at(row), x), *t.store(t.at(other), y)]
        out.append(ir.For(row, ZERO, (ONE << t.row_bits) >> 1, "serial", body))
        full = Tile(t.buffers, t.lanes, t.lane, t.row_bits, ONE << t.row_bits)
        out += _half_cleaners(full, t.row_bits)
        width *= 2
    return out


def _merge_in_lanes(lane: Expr, x: Record, y: Record, width: int) -> tuple[Record, Record]:
    """Rows of a tile and their mirror images, merged across groups of 2 * `width` lanes."""
    mask = 2 * width - 1
    x, y = _exchange(lane, x, y, mask, width), _exchange(lane, y, x, mask, width)
    step = width // 2
    while step:
        x, y = _exchange(lane, x, x, step, step), _exchange(lane, y, y, step, step)
        step //= 2
    return x, y


def _exchange(lane: Expr, mine: Record, other_row: Record, mask: int, bit: int) -> Record:
    """Compare-exchange with lane ^ mask: the lesser record, the greater in lanes with `bit` set."""
    partner = [ir.lanes_xor(v, mask) for v in other_row]
    low, high = ordered(mine, partner)
    upper = (lane & bit).ne(0)
    return [select(upper, h, w) for h, w in zip(high, low, strict=True)]


# -- in registers ---------------------------------------------------------------------------------


def odd_even_merge_sort(count: int) -> list[tuple[int, int]]:
    """The comparators of Batcher's network for a power of two of records."""
    found: list[tuple[int, int]] = []
    size = 1
    while size < count:
        step = size
        while step:
            for first in range(step % size, count - step, 2 * step):
                for i in range(first, first + step):
                    if i // (2 * size) == (i + step) // (2 * size):
                        found.append((i, i + step))
            step //= 2
        size *= 2
    return found


def sort_vectors(records: Sequence[Record], lane: Expr, lanes: int) -> list[Record]:
    """Sort a power of two of vectors into one sequence, column after column; inside a loop over the
    lanes."""
    rows = len(records)
    found = _compare(records, odd_even_merge_sort(rows))
    width = 1
    while width < lanes:
        for i in range((rows + 1) // 2):
            j = rows - 1 - i
            found[i], found[j] = _merge_in_lanes(lane, found[i], found[j], width)
        distance = rows // 2
        while distance:
            pairs = [(i, i + distance) for i in range(rows) if not i & distance]
            found = _compare(found, pairs)
            distance //= 2
        width *= 2
    return found
