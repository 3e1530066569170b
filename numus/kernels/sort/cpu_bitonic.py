"""Bitonic sorting networks on records that lie as [row][lane] in fast memory.

`sort_columns` sorts every lane's column by itself; `merge_lanes` makes one sorted sequence of all
of them, column after column. A step compares records at a fixed distance and puts the lesser one
first: no branch depends on data, and all lanes do the same. Three steps at a time run on eight rows
held in registers, so that memory is touched a third as often.

The number of rows is a power of two, at least `GROUP`; rows beyond those that hold records hold the
largest record there is, which no step moves forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select

ZERO, ONE = const(0), const(1)

GROUP = 8  # rows in registers at a time
_GROUP_BITS = 3

# A smallest known network for eight: Batcher's odd-even merge sort.
_EIGHT = (
    *((0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (1, 3), (4, 6), (5, 7), (1, 2), (5, 6)),
    *((0, 4), (1, 5), (2, 6), (3, 7), (2, 4), (3, 5), (1, 2), (3, 4), (5, 6)),
)
# The distances 4, 2, 1 (in units of a group's spacing), and 2, 1 and 1 among fewer rows.
_CLEAN = {
    8: tuple((i, i + d) for d in (4, 2, 1) for i in range(8) if not i & d),
    4: tuple((i, i + d) for d in (2, 1) for i in range(4) if not i & d),
    2: ((0, 1),),
}
# The mirrored step of a merge (0 … 3 are in the lower half, 4 … 7 in the upper one), then 2, 1.
_MIRRORED = (
    *((0, 7), (1, 6), (2, 5), (3, 4)),
    *((i, i + d) for d in (2, 1) for i in range(8) if not i & d),
)

Record = list[Expr]


@dataclass(frozen=True, slots=True)
class Tile:
    """Records at [row][lane]: one buffer per field, `1 << row_bits` rows of `lanes`."""

    buffers: tuple[ir.Buffer, ...]
    lanes: int
    lane: Expr
    row_bits: Expr
    rows: Expr  # that hold records; those beyond need no sorting

    @property
    def fields(self) -> tuple[DType, ...]:
        return tuple(b.dtype for b in self.buffers)

    def at(self, row: Expr) -> Expr:
        """Where this lane's record of a row is."""
        return ir.add(ir.mul(row, const(self.lanes)), self.lane)

    def load(self, at: Expr, name: str) -> tuple[list[Stmt], Record]:
        names = [ir.var(f"{name}_{k}", f) for k, f in enumerate(self.fields)]
        lets: list[Stmt] = [
            ir.Let(n, ir.load(b, at)) for n, b in zip(names, self.buffers, strict=True)
        ]
        return lets, names

    def store(self, at: Expr, record: Record) -> list[Stmt]:
        return [ir.Store(b, at, v) for b, v in zip(self.buffers, record, strict=True)]


def ordered(a: Record, b: Record) -> tuple[Record, Record]:
    """The lesser and the greater of two records, by their first field, then by their second."""
    if len(a) == 1 and a[0].dtype.kind == "float":  # by one comparison, so that no zero gets lost
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


def _on_rows(t: Tile, places: Sequence[Expr], pairs: Sequence[tuple[int, int]]) -> list[Stmt]:
    """Load some rows, compare them by pairs, store them."""
    out: list[Stmt] = []
    records: list[Record] = []
    for i, at in enumerate(places):
        lets, record = t.load(at, f"record{i}")
        out += lets
        records.append(record)
    for at, record in zip(places, _compare(records, pairs), strict=True):
        out += t.store(at, record)
    return out


def _sweep(t: Tile, size: int, spacing_bits: Expr, mirrored: bool = False) -> Stmt:
    """The steps of distance size/2 … 1 times the spacing, on groups of `size` rows that far apart.

    Mirrored: the first of them compares each row of a block of eight spacings with its image.
    """
    bits = size.bit_length() - 1
    number, first, last = ir.var("group"), ir.var("first"), ir.var("mirror")
    spacing = ONE << spacing_bits
    block_bits = spacing_bits + bits
    within = number & (spacing - 1)
    block = (number >> spacing_bits) << block_bits
    # what lies between rows of a group is the same for all groups, and so computed once
    apart = [const(j * t.lanes) << spacing_bits for j in range(size)]
    rows = [ir.add(first, apart[j]) for j in range(size)]
    body: list[Stmt] = [ir.Let(first, t.at(ir.add(block, within)))]
    pairs = _CLEAN[size]
    if mirrored:
        half = size // 2
        body.append(ir.Let(last, t.at(ir.add(block, ir.sub(spacing - 1, within)))))
        rows[half:] = [ir.add(last, apart[j]) for j in range(half, size)]
        pairs = _MIRRORED
    body += _on_rows(t, rows, pairs)
    blocks = ir.add(t.rows, (ONE << block_bits) - 1) >> block_bits
    return ir.For(number, ZERO, blocks << spacing_bits, "serial", body)


def _clean(t: Tile, steps: Expr) -> list[Stmt]:
    """The steps of distance 1 << (steps - 1) … 1."""
    left, triple = ir.irem(steps, const(_GROUP_BITS)), ir.var("triple")
    triples = ir.idiv(steps, const(_GROUP_BITS))
    return [
        ir.If(left.eq(2), [_sweep(t, 4, steps - 2)]),
        ir.If(left.eq(1), [_sweep(t, 2, steps - 1)]),
        ir.For(
            triple,
            ZERO,
            triples,
            "serial",
            [_sweep(t, GROUP, ir.mul(triples - 1 - triple, const(_GROUP_BITS)))],
        ),
    ]


def sort_columns(t: Tile) -> list[Stmt]:
    """Every column in order. Runs inside a loop over the lanes."""
    number, stage = ir.var("eight"), ir.var("stage")
    first = t.at(ir.mul(number, const(GROUP)))
    rows = [ir.add(first, const(j * t.lanes)) for j in range(GROUP)]
    eights = ir.add(t.rows, const(GROUP - 1)) >> _GROUP_BITS
    merge: list[Stmt] = [
        _sweep(t, GROUP, stage - _GROUP_BITS, mirrored=True),
        *_clean(t, stage - _GROUP_BITS),
    ]
    return [
        ir.For(number, ZERO, eights, "serial", _on_rows(t, rows, _EIGHT)),
        ir.For(stage, const(_GROUP_BITS + 1), ir.add(t.row_bits, ONE), "serial", merge),
    ]


def merge_lanes(t: Tile) -> list[Stmt]:
    """Sorted columns as one sequence, column after column. Runs inside a loop over the lanes."""
    out: list[Stmt] = []
    row = ir.var("row")
    other = ir.sub((ONE << t.row_bits) - 1, row)
    reach = 1
    while reach < t.lanes:
        first_lets, x = t.load(t.at(row), "upper")
        second_lets, y = t.load(t.at(other), "lower")
        across = 2 * reach - 1
        x, y = _kept(t, x, y, across, reach), _kept(t, y, x, across, reach)
        step = reach // 2
        while step:
            x, y = _kept(t, x, x, step, step), _kept(t, y, y, step, step)
            step //= 2
        body = [*first_lets, *second_lets, *t.store(t.at(row), x), *t.store(t.at(other), y)]
        out.append(ir.For(row, ZERO, (ONE << t.row_bits) >> 1, "serial", body))
        full = Tile(t.buffers, t.lanes, t.lane, t.row_bits, ONE << t.row_bits)
        out += _clean(full, t.row_bits)
        reach *= 2
    return out


def _kept(t: Tile, mine: Record, theirs: Record, across: int, bit: int) -> Record:
    """The lesser of a lane's record and that of the lane at `across` from it, the greater in lanes
    that have `bit`."""
    partner = [ir.lanes_xor(v, across) for v in theirs]
    low, high = ordered(mine, partner)
    upper = (t.lane & bit).ne(0)
    return [select(upper, h, w) for h, w in zip(high, low, strict=True)]
