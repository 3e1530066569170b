"""Scans and sorts in one pass over memory, on targets whose blocks start in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis_gpu import Layouts, elements_along, key_of, rows_along, value_of
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.grid_sync import clear_flags
from numus.compiler.lower.loops.stages import BLOCKS_PER_UNIT
from numus.ir import Expr, Stmt, const
from numus.kernels.scan.gpu_block import RunningReduction
from numus.kernels.scan.gpu_lookback import Carry
from numus.kernels.sort import gpu_onesweep
from numus.kernels.sort.cpu import key_dtype
from numus.target import Target

ZERO, ONE = const(0), const(1)
_EACH = 48  # elements of 4 bytes that a thread scans


# -- scans ----------------------------------------------------------------------------------------


def scan_in_one_pass(val: Value, layouts: Layouts, target: Target) -> list[LoweredKernel]:
    """A block for each tile of each row; it waits for what came before."""
    op, axis, _ = val.params
    length = val.shape[axis]
    rows = val.size // length
    each = max(1, 4 * _EACH // max(4, dt.compute_dtype(val.dtype).itemsize))
    scan = RunningReduction(target.block_size, op, val.dtype, each)
    tiles = -(-length // scan.chunk)
    places = Carry.places(target.block_size, tiles)
    size = rows * places * Carry.words(scan)
    board = Value.fresh("partial", "partial", (), None, (size,), dt.uint64)
    e = Emitter(layouts, block_size=target.block_size)
    g = ir.var("g")
    many = e.scalar_arg(tiles)
    row, tile = ir.idiv(g, many), ir.irem(g, many)
    index = rows_along(e, row, val.shape, axis)
    end, spot = elements_along(e, val)
    start = ir.mul(tile, const(scan.chunk))
    stop = ir.minimum(ir.add(start, const(scan.chunk)), end)
    carry = Carry(scan, e.buffer(board, "write"), tile, many)
    carry.first = ir.mul(row, e.scalar_arg(places))
    source = val.inputs[0]

    def read(i: Expr) -> Any:
        return e.value(source, index(spot(i)))

    def write(i: Expr, value: Any) -> list[Stmt]:
        result = value if val.dtype.is_complex else value.cast(val.dtype)
        return e.store(val, index(spot(i)), result)

    body, _ = scan.one_chunk(start, stop, read, write, carry.find)
    e.scratch += [*scan.stages, *carry.scratch]
    step = e.grid_kernel(f"scan_{op}_one_pass", g, body, rows * tiles, (val.op,))
    return [clear_flags(board, target), step]


# -- sorts ----------------------------------------------------------------------------------------


def sort_in_one_pass_each(val: Value, layouts: Layouts, target: Target) -> list[LoweredKernel]:
    """Count all digits, then move everything once for each digit."""
    axis, _ = val.params
    length = val.shape[axis]
    rows = val.size // length
    threads = target.block_size
    places = val.op == "argsort"
    key = key_dtype(val.inputs[0].dtype)
    spot = dt.index_dtype(length)
    kinds = (key, spot) if places else (key,)
    tile_size = threads * gpu_onesweep.each(sum(k.itemsize for k in kinds))
    tiles = -(-length // tile_size)
    board = gpu_onesweep.Board(length, tiles, gpu_onesweep.passes(key))
    counts = Value.fresh("partial", "partial", (), None, (rows * board.size,), board.dtype)
    pairs = [
        tuple(
            Value.fresh("partial", "partial", (), None, (rows, length), t)
            for i, t in enumerate(kinds)
        )
        for k in (0, 1)
    ]
    steps = [clear_flags(counts, target), _histogram(val, layouts, target, board, counts)]
    held: tuple[Value, ...] = ()
    for number in range(board.digits):
        last = number == board.digits - 1
        dest = () if last else pairs[number % 2]
        move = _Move(val, layouts, threads, board, counts, kinds, tiles)
        steps.append(move.step(number, held, dest))
        held = dest
    return steps


def _histogram(
    val: Value, layouts: Layouts, target: Target, board: gpu_onesweep.Board, counts: Value
) -> LoweredKernel:
    axis, _ = val.params
    length = val.shape[axis]
    rows = val.size // length
    wanted = max(1, target.num_cores * BLOCKS_PER_UNIT // rows)
    size = max(16 * target.block_size, -(-length // wanted))
    parts = -(-length // size)
    e = Emitter(layouts, block_size=target.block_size)
    g = ir.var("g")
    many, width = e.scalar_arg(parts), e.scalar_arg(size)
    row, part = ir.idiv(g, many), ir.irem(g, many)
    index = rows_along(e, row, val.shape, axis)
    start = ir.mul(part, width)
    span = (start, ir.minimum(ir.add(start, width), e.dim(length)))
    first = ir.mul(row, e.scalar_arg(board.size))
    body, scratch = gpu_onesweep.histogram(
        board,
        e.buffer(counts, "write"),
        first,
        span,
        lambda i: key_of(e, val, index(i)),
        e.scalar_arg(board.lines),
    )
    e.scratch += scratch
    return e.grid_kernel("sort_count", g, body, rows * parts, (val.op,))


class _Move:
    """The pass over all tiles by one digit."""

    def __init__(
        self,
        val: Value,
        layouts: Layouts,
        threads: int,
        board: gpu_onesweep.Board,
        counts: Value,
        kinds: Sequence[dt.DType],
        tiles: int,
    ) -> None:
        self.val, self.layouts, self.threads = val, layouts, threads
        self.board, self.counts, self.kinds, self.tiles = board, counts, kinds, tiles

    def step(self, number: int, held: tuple[Value, ...], dest: tuple[Value, ...]) -> LoweredKernel:
        """From what the last pass left to the next; the last one's dest is the result."""
        val, board = self.val, self.board
        axis, _ = val.params
        length = val.shape[axis]
        rows = val.size // length
        e = Emitter({**self.layouts, **dict.fromkeys(held, (length, 1))}, block_size=self.threads)
        g = ir.var("g")
        many, spans = e.scalar_arg(self.tiles), e.scalar_arg(board.spans)
        row, part = ir.idiv(g, many), ir.irem(g, many)
        at_row = row if rows > 1 else ZERO
        index = rows_along(e, row, val.shape, axis)
        memory = e.buffer(self.counts, "write")
        shift = e.scalar_arg(number * gpu_onesweep.BITS)
        tile = gpu_onesweep.Tile(self.threads, self.kinds, board, memory, shift)
        e.scratch += tile.scratch
        chunk = const(self.threads * tile.each)
        start = ir.mul(part, chunk)
        size = ir.minimum(chunk, ir.sub(e.dim(length), start))
        before = ir.add(ir.mul(row, const(board.digits)), e.scalar_arg(number))
        lines = ir.mul(before, e.scalar_arg(board.lines))

        def read(at: Expr) -> list[Expr]:
            at = ir.add(start, at)
            if held:
                return [e.value(v, (at_row, at)) for v in held]
            key = key_of(e, val, index(at))
            return [key, at.cast(self.kinds[1])] if len(self.kinds) > 1 else [key]

        def out(to: Expr, found: list[Expr]) -> list[Stmt]:
            if dest:
                pairs = zip(dest, found, strict=True)
                return [s for v, x in pairs for s in e.store(v, (at_row, to), x)]
            places = len(self.kinds) > 1
            result = found[1].cast(dt.int64) if places else value_of(val, found[0])
            return e.store(val, index(to), result)

        body = [
            *tile.load(size, read),
            *tile.find(lines, part, many, spans),
            tile.write(size, out),
        ]
        return e.grid_kernel("sort_move", g, body, rows * self.tiles, (val.op,))
