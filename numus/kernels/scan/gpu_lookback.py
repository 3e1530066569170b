"""Decoupled look-back scan (Merrill & Garland 2016), deterministic.

A block publishes its tile's aggregate as flagged status words and spins on those of earlier tiles.
Tiles form spans as long as a block has threads: a block combines all aggregates of its span and one
inclusive prefix of the previous spans, which the last tile of a span publishes. The association
depends on the tile's position alone, not on timing.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.scan.cpu import combine
from numus.kernels.scan.gpu_block import TileScan

ZERO, ONE = const(0), const(1)
_WORD = dt.uint64
_VALID = 1 << 32  # set in every published word; the lower half is the payload
_PAYLOAD = const(_VALID - 1, _WORD)


def _pack(value: Expr) -> list[Expr]:
    """The status words of a number."""
    size, valid = value.dtype.itemsize, const(_VALID, _WORD)
    if value.dtype is dt.bool_:
        return [value.cast(_WORD) | valid]
    bits = value.bitcast(dt.BY_NAME[f"uint{8 * size}"]).cast(_WORD)
    if size < 8:
        return [bits | valid]
    return [(bits & _PAYLOAD) | valid, (bits >> 32) | valid]


def _unpack(words: list[Expr], dtype: DType) -> Expr:
    low = words[0] & _PAYLOAD
    if dtype is dt.bool_:
        return low.cast(dt.bool_)
    if dtype.itemsize == 8:
        return (low | (words[1] << 32)).bitcast(dtype)
    return low.cast(dt.BY_NAME[f"uint{8 * dtype.itemsize}"]).bitcast(dtype)


class LookBack:
    """The exclusive prefix of a tile.

    A row has one status entry per tile (its aggregate), then one per span (the prefix before it).
    """

    def __init__(
        self, scan: TileScan, status: ir.Buffer, first: Expr, tile: Expr, tiles: Expr
    ) -> None:
        """`first` is the row's first status entry."""
        self.scan, self.status, self.first = scan, status, first
        self.tile, self.tiles = tile, tiles
        self.scratch = [
            ir.Buffer(f"before{p}", scan.dtype, "scratch", ONE) for p in range(scan.components)
        ]

    @staticmethod
    def span(threads: int) -> int:
        """Tiles of a span: each thread spins on one of them."""
        return threads

    @classmethod
    def entries(cls, threads: int, tiles: int) -> int:
        """Status entries per row."""
        return tiles + -(-tiles // cls.span(threads))

    @staticmethod
    def words(scan: TileScan) -> int:
        return scan.components * (2 if scan.dtype.itemsize == 8 else 1)

    def _at(self, entry: Expr, word: int) -> Expr:
        count = const(self.words(self.scan))
        return ir.add(ir.mul(ir.add(self.first, entry), count), const(word))

    def _publish(self, entry: Expr, value: list[Expr]) -> list[Stmt]:
        words = [w for x in value for w in _pack(x)]
        return [ir.SetFlag(self.status, self._at(entry, i), w) for i, w in enumerate(words)]

    def _spin(self, name: str, entry: Expr, wanted: Expr) -> tuple[Stmt, list[Expr]]:
        """Wait for a status entry; its value, or the identity where none is wanted."""
        scan, count = self.scan, self.words(self.scan)
        names = [ir.var(f"{name}_w{w}", _WORD) for w in range(count)]
        one = select(wanted, ONE, ZERO)
        words = [ir.FlagRead(self._at(entry, w), 1, one, [names[w]]) for w in range(count)]
        per_component = count // scan.components
        values = [
            select(wanted, _unpack(names[p * per_component :][:per_component], scan.dtype), x)
            for p, x in enumerate(scan.identity)
        ]
        return ir.SpinWait(self.status, words), values

    def set_carry(self, aggregate: list[Expr]) -> list[Stmt]:
        """Publish the tile's aggregate and set the scan's carry to its exclusive prefix. Span
        prefixes form a serial chain: reading one is followed by publishing the next."""
        scan, tile, threads = self.scan, self.tile, self.scan.threads
        span = const(self.span(threads))
        number = ir.idiv(tile, span)
        start = ir.mul(number, span)
        first, second, lane = (ir.var(f"back_{n}") for n in ("first", "second", "lane"))
        own = [ir.Register(f"back{p}", scan.dtype, lanes=True) for p in range(scan.components)]
        at = ir.add(start, lane)
        near, near_values = self._spin("near", at, at < tile)
        in_span, left, right = (
            [ir.var(f"back_{n}{p}", scan.dtype) for p in range(scan.components)]
            for n in ("inside", "left", "right")
        )
        far, before = self._spin("far", ir.add(self.tiles, number), number > 0)
        inclusive = combine(scan.op, combine(scan.op, before, list(in_span)), aggregate)
        ends = ir.irem(tile, span).eq(self.span(threads) - 1) & (ir.add(tile, ONE) < self.tiles)
        publish = self._publish(ir.add(self.tiles, ir.add(number, ONE)), inclusive)
        chain: list[Stmt] = [far, ir.If(ends, publish)]
        chain += ir.stores(self.scratch, ZERO, before)
        exclusive = combine(scan.op, [ir.load(b, ZERO) for b in self.scratch], list(in_span))
        look: list[Stmt] = [near, *ir.sets(own, near_values)]
        return [
            ir.For(first, ZERO, ONE, "lanes", self._publish(tile, aggregate)),
            ir.For(lane, ZERO, const(threads), "lanes", look),
            ir.BlockReduce(own, left, right, combine(scan.op, list(left), list(right)), in_span),
            ir.For(second, ZERO, ONE, "lanes", chain),
            *ir.sets(scan.carry, exclusive),
        ]
