"""How a block learns what the blocks before it came to, while they are still running.

Blocks put what they came to on a board (`ir.Post`) and wait for what they need of it (`ir.Await`).
Which words a block merges, and in which order, depends on its place alone: results don't depend on
who was quicker. A block waits for all earlier ones of its own span of blocks, and for one word that
tells what came before the span; the last block of a span posts that word for the next.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.scan.cpu import combine
from numus.kernels.scan.gpu_block import RunningReduction

ZERO, ONE = const(0), const(1)
_WORD = dt.uint64
_HERE = 1 << 32  # set in every word that was posted; the lower half is what is told
_LOW = const(_HERE - 1, _WORD)


def words_of(value: Expr) -> list[Expr]:
    """A number as the words of a board."""
    size, here = value.dtype.itemsize, const(_HERE, _WORD)
    if value.dtype is dt.bool_:
        return [value.cast(_WORD) | here]
    bits = value.bitcast(dt.BY_NAME[f"uint{8 * size}"]).cast(_WORD)
    if size < 8:
        return [bits | here]
    return [(bits & _LOW) | here, (bits >> 32) | here]


def number_of(words: list[Expr], dtype: DType) -> Expr:
    """The number that words tell."""
    low = words[0] & _LOW
    if dtype is dt.bool_:
        return low.cast(dt.bool_)
    if dtype.itemsize == 8:
        return (low | (words[1] << 32)).bitcast(dtype)
    return low.cast(dt.BY_NAME[f"uint{8 * dtype.itemsize}"]).bitcast(dtype)


class Carry:
    """What comes before a tile of a row, of which every block scans one.

    The board has `places` for every row: one for each tile, then one for each span.
    """

    def __init__(self, scan: RunningReduction, board: ir.Buffer, tile: Expr, tiles: Expr) -> None:
        self.scan, self.board = scan, board
        self.tile, self.tiles = tile, tiles
        self.first = ZERO  # of the row's places
        self.scratch = [
            ir.Buffer(f"before{p}", scan.real, "scratch", ONE) for p in range(scan.parts)
        ]

    @staticmethod
    def span(threads: int) -> int:
        """Blocks that look back at each other: each thread at one of them."""
        return threads

    @classmethod
    def places(cls, threads: int, tiles: int) -> int:
        return tiles + -(-tiles // cls.span(threads))

    @staticmethod
    def words(scan: RunningReduction) -> int:
        """Words that a place takes."""
        return scan.parts * (2 if scan.real.itemsize == 8 else 1)

    def _at(self, place: Expr, word: int) -> Expr:
        count = const(self.words(self.scan))
        return ir.add(ir.mul(ir.add(self.first, place), count), const(word))

    def _post(self, place: Expr, state: list[Expr]) -> list[Stmt]:
        words = [w for x in state for w in words_of(x)]
        return [ir.SetFlag(self.board, self._at(place, i), w) for i, w in enumerate(words)]

    def _await(self, name: str, place: Expr, there: Expr) -> tuple[Stmt, list[Expr]]:
        """Wait for what stands at a place; what it tells, or nothing where it is not asked for."""
        scan, count = self.scan, self.words(self.scan)
        names = [ir.var(f"{name}_w{w}", _WORD) for w in range(count)]
        one = select(there, ONE, ZERO)
        words = [ir.FlagRead(self._at(place, w), 1, one, [names[w]]) for w in range(count)]
        each = count // scan.parts
        told = [
            select(there, number_of(names[p * each : (p + 1) * each], scan.real), x)
            for p, x in enumerate(scan.start)
        ]
        return ir.SpinWait(self.board, words), told

    def find(self, total: list[Expr]) -> list[Stmt]:
        """Tell what the tile came to, and set the scan's carry to what came before it.

        What comes before a span is passed on from span to span, one after the other: nothing that
        could be done before is done between hearing of it and telling the next.
        """
        scan, tile, threads = self.scan, self.tile, self.scan.threads
        span = const(self.span(threads))
        number = ir.idiv(tile, span)
        start = ir.mul(number, span)
        first, second, lane = (ir.var(f"back_{n}") for n in ("first", "second", "lane"))
        own = [ir.Register(f"back{p}", scan.real, lanes=True) for p in range(scan.parts)]
        at = ir.add(start, lane)
        near, told = self._await("near", at, at < tile)
        inside, left, right = (
            [ir.var(f"back_{n}{p}", scan.real) for p in range(scan.parts)]
            for n in ("inside", "left", "right")
        )
        far, before = self._await("far", ir.add(self.tiles, number), number > 0)
        so_far = combine(scan.op, combine(scan.op, before, list(inside)), total)
        ends = ir.irem(tile, span).eq(self.span(threads) - 1) & (ir.add(tile, ONE) < self.tiles)
        tell = self._post(ir.add(self.tiles, ir.add(number, ONE)), so_far)
        hear: list[Stmt] = [far, ir.If(ends, tell)]
        hear += [ir.Store(b, ZERO, x) for b, x in zip(self.scratch, before, strict=True)]
        carried = combine(scan.op, [ir.load(b, ZERO) for b in self.scratch], list(inside))
        look: list[Stmt] = [near, *(ir.Set(r, x) for r, x in zip(own, told, strict=True))]
        return [
            ir.For(first, ZERO, ONE, "lanes", self._post(tile, total)),
            ir.For(lane, ZERO, const(threads), "lanes", look),
            ir.BlockReduce(own, left, right, combine(scan.op, list(left), list(right)), inside),
            ir.For(second, ZERO, ONE, "lanes", hear),
            *(ir.Set(r, x) for r, x in zip(scan.carry, carried, strict=True)),
        ]
