"""Boards: memory on which blocks of one kernel tell each other something, on targets where that can
be waited for."""

from __future__ import annotations

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.ir import const
from numus.target import Target

ZERO = const(0)
EACH = 8  # elements of a row that a thread has room for, whatever is kept of them


def in_order(target: Target) -> bool:
    """Whether blocks may wait for earlier ones."""
    return target.forward_progress


def emptied(board: Value, target: Target) -> LoweredKernel:
    """A kernel that empties a board."""
    e = Emitter({}, block_size=target.block_size)
    g, i = ir.var("g"), ir.var("i")
    each = target.block_size * 32
    start = ir.mul(g, const(each))
    stop = ir.minimum(ir.add(start, const(each)), e.dim(board.size))
    loop = ir.For(i, start, stop, "lanes", e.store(board, (i,), const(0, board.dtype)))
    return e.grid_kernel("empty_board", g, [loop], -(-board.size // each), ("zeros",))


def most_blocks(target: Target) -> int:
    """How many blocks may wait for each other: as many as run at a time, whatever they need; a
    power of two."""
    return 1 << target.num_cores.bit_length() - 1 if in_order(target) else 1


def room_for_rows(target: Target) -> int:
    """Elements of a row that blocks which wait for each other hold together (`loops/spread.py`)."""
    return most_blocks(target) * target.max_block_size * EACH if in_order(target) else 0
