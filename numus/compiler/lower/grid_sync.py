"""Boards: memory on which blocks of one kernel tell each other something, on targets where that can
be waited for."""

from __future__ import annotations

from numus import ir
from numus.compiler.graph.builder import Val
from numus.compiler.lower.emitter import Emitter, Step
from numus.ir import const
from numus.runtime.contract import Facts

ZERO = const(0)
EACH = 8  # elements of a row that a thread has room for, whatever is kept of them


def in_order(facts: Facts) -> bool:
    """Whether blocks may wait for earlier ones."""
    return "ordered" in facts.features


def emptied(board: Val, facts: Facts) -> Step:
    """A kernel that empties a board."""
    e = Emitter({}, group=facts.group)
    g, i = ir.var("g"), ir.var("i")
    each = facts.group * 32
    start = ir.mul(g, const(each))
    stop = ir.minimum(ir.add(start, const(each)), e.number(board.size))
    loop = ir.For(i, start, stop, "lanes", e.store(board, (i,), const(0, board.dtype)))
    return e.blocks("empty_board", g, [loop], -(-board.size // each), ("zeros",))


def most_blocks(facts: Facts) -> int:
    """How many blocks may wait for each other: as many as run at a time, whatever they need; a
    power of two."""
    return 1 << facts.parallel_units.bit_length() - 1 if in_order(facts) else 1


def room_for_rows(facts: Facts) -> int:
    """Elements of a row that blocks which wait for each other hold together (`loops/spread.py`)."""
    return most_blocks(facts) * facts.most_threads * EACH if in_order(facts) else 0
