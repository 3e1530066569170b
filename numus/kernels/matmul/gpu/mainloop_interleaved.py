"""Interleaved (software-pipelined) GEMM mainloop: cp.async issued between MMAs.

Copies of later K-tiles are spread among the MMAs, unconditionally, so that neither a burst of
copies nor a branch stalls them; fragments are double-buffered in registers across K-tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.mainloop import OperandTile, SplitKSizes, Tiles

ZERO, ONE = const(0), const(1)


@dataclass(slots=True)
class KSteps:
    """MMA steps of a K-tile, two at least."""

    count: int
    load: Callable[[int, Expr, Expr, str], list[ir.Let]]  # (step, lane, stage, tag): fragments
    multiply: Callable[[int, str], list[Stmt]]  # (step, tag): MMAs


def interleaved(tiles: Tiles, which: Expr, sizes: SplitKSizes, steps: KSteps) -> list[Stmt]:
    """The loop over K-tiles of operands in memory that are not shifted, in two versions: with
    copies of 16 bytes, and of elements where those are not aligned."""
    shape = tiles[0].shape
    batch, start, count = sizes.k_range(which, shape.tile_k)
    ahead, last = shape.stages - 1, steps.count - 1
    names = [let.var for let in steps.load(0, ZERO, ZERO, "")]
    carried = [ir.Register(f"carried{i}", v.dtype, lanes=True) for i, v in enumerate(names)]

    def loop(widths: list[int], tag: str = "") -> list[Stmt]:
        """The barrier is before the last step of a K-tile, during which the first fragments of the
        next one are loaded, carried in registers."""
        q = ir.var(f"k_tile{tag}")

        def stage_of(k_tile: Expr) -> Expr:
            return k_tile % shape.stages

        def all_threads(name: str, body: Callable[[Expr], list[Stmt]]) -> Stmt:
            lane = ir.var(f"{name}{tag}")
            return ir.For(lane, ZERO, const(shape.threads), "lanes", body(lane))

        def copies(lane: Expr, k_tile: Expr) -> list[Stmt]:
            a, b = (
                _copies(tile, lane, batch, k_tile, sizes.k, width)
                for tile, width in zip(tiles, widths, strict=True)
            )
            return [*a, *b]

        def carry(lets: list[ir.Let]) -> list[Stmt]:
            return [ir.Set(x, let.var) for x, let in zip(carried, lets, strict=True)]

        def restore(lets: list[ir.Let]) -> list[Stmt]:
            return [ir.Let(let.var, ir.read(x)) for x, let in zip(carried, lets, strict=True)]

        def first_fragments(lane: Expr) -> list[Stmt]:
            lets = steps.load(0, lane, stage_of(start), "")
            return [*lets, *carry(lets)]

        def all_but_last(lane: Expr) -> list[Stmt]:
            body = restore(steps.load(0, lane, ZERO, ""))
            pending = copies(lane, q + ahead)
            lets: list[ir.Let] = []
            for step in range(last):
                lets = steps.load(step + 1, lane, stage_of(q), "")
                share = pending[len(pending) * step // last : len(pending) * (step + 1) // last]
                body += [*lets, *_interleave(steps.multiply(step, ""), share)]
            return body + carry(lets)

        def last_step(lane: Expr) -> list[Stmt]:
            old = restore(steps.load(last, lane, ZERO, "last_"))
            lets = steps.load(0, lane, stage_of(q + 1), "after_")
            return [*old, *lets, *steps.multiply(last, "last_"), *carry(lets)]

        out: list[Stmt] = []
        for number in range(ahead):
            k_tile = start + number
            out += [all_threads(f"ahead{number}", partial(copies, k_tile=k_tile)), ir.AsyncCommit()]
        body = [
            all_threads("multiply", all_but_last),
            ir.AsyncCommit(),
            ir.AsyncWait(ahead - 1),
            all_threads("multiply_last", last_step),
        ]
        out += [ir.AsyncWait(ahead - 1), all_threads("begin", first_fragments)]
        return [*out, ir.For(q, start, start + count, "serial", body), ir.AsyncWait(0)]

    conditions = [_vector_copyable(tile) for tile in tiles]
    possible = [x for x in conditions if x.op != "const" or x.attr]
    if not possible:
        return loop([1, 1])
    wide = 16 // shape.dtype.itemsize
    widths = [wide if x.op != "const" or x.attr else 1 for x in conditions]
    aligned = possible[0] & possible[-1]
    return [ir.If(aligned, loop(widths, "_vectors")), ir.If(~aligned, loop([1, 1]))]


def _interleave(mmas: list[Stmt], copies: list[Stmt]) -> list[Stmt]:
    """The copies spread evenly among the MMAs."""
    out: list[Stmt] = []
    for i, mma in enumerate(mmas):
        at, then = (len(copies) * j // len(mmas) for j in (i, i + 1))
        out += [*copies[at:then], mma]
    return out


def _vector_copyable(tile: OperandTile) -> Expr:
    """16-byte copies are aligned, and none is partly past the end."""
    o, vector = tile.operand, 16 // tile.shape.dtype.itemsize
    if o.address is None or o.transposed:
        return const(False, dt.bool_)
    if tile.global_k_major:
        return o.aligned
    last = tile.origin + tile.extent
    return o.aligned & ((last <= o.extent) | (o.extent % vector).eq(0))


def _copies(
    tile: OperandTile, lane: Expr, batch: Expr, k_tile: Expr, k_size: Expr, vector: int
) -> list[Stmt]:
    """A thread's copies of a K-tile, without branches: rows past the end repeat the last one, and
    nobody stores their results; past the end of k are zeros."""
    o, s, k_major = tile.operand, tile.shape, tile.global_k_major
    assert o.address is not None
    total = tile.extent * s.tile_k // vector
    stage = k_tile % s.stages
    row_vectors = (s.tile_k if k_major else tile.extent) // vector
    row = lane // row_vectors
    column = lane % row_vectors * vector
    begin = k_tile * s.tile_k
    out: list[Stmt] = []
    for share in range(-(-total // s.threads)):
        below, right = divmod(share * s.threads, row_vectors)
        right = right * vector if s.threads < row_vectors else 0
        fast = column + right
        mn, k = (row, fast) if k_major else (fast, row)
        first = ir.minimum(tile.origin + mn, o.extent - (1 if k_major else vector))
        buffer, index = o.address(batch, first, begin + k)
        far = const(below, dt.int32)  # 32 bits: one multiplication
        if k_major and below:
            far = ir.minimum(far, (o.extent - 1 - first).cast(dt.int32))
        if below:
            ld = o.ld.cast(dt.int32).cast(ir.INDEX)
            index = index + ld * far.cast(ir.INDEX)
        if k_major:
            mn = mn + below
        else:
            k = k + below
        to = tile.index(stage, mn, k)
        left = k_size - (begin + k)
        limit = left if k_major else ir.select(left > 0, const(vector), ZERO)
        copy = ir.AsyncCopy(tile.words, to, buffer, index, limit, vector * s.dtype.itemsize)
        exists = lane + share * s.threads < total
        out.append(copy if (share + 1) * s.threads <= total else ir.If(exists, [copy]))
    return out
