"""What threads of a group do in turn, and what groups tell each other: inside lanes loops."""

from __future__ import annotations

from dataclasses import dataclass

from numus.ir.expressions import Buffer, Expr
from numus.ir.statements import Stmt


@dataclass(eq=False, slots=True)
class AtomicAdd(Stmt):
    """Add an integer to an element of memory, whoever else is adding to it at the same time."""

    buffer: Buffer
    index: Expr
    value: Expr


@dataclass(eq=False, slots=True)
class WarpMultisplit(Stmt):
    """Every thread counts itself at a place of `counters`, and learns how many came before it.

    32 neighbouring threads form a team and come in order. The place is `start`, which is the same
    for all of a team and for no other, plus `digit`, which has so many `bits`. Every thread of the
    group has to be there.
    """

    counters: Buffer  # scratch, of 32-bit integers
    start: Expr
    digit: Expr
    bits: int
    result: Expr  # a variable of the counters' dtype


# Only on targets with forward progress (`Target.forward_progress`): blocks of a grid start in order
# and run on, so a block may spin on flags of earlier ones.


@dataclass(eq=False, slots=True)
class SetFlag(Stmt):
    """Put a word, which is not 0, on a board: memory that was all zeros when the kernel started.
    Nothing is said of other memory."""

    flags: Buffer  # of 32- or 64-bit unsigned integers
    index: Expr
    value: Expr


@dataclass(eq=False, slots=True)
class FlagRead:
    """The first `count` of these words of a board, from `index` on, `stride` apart; the results of
    others are 0."""

    index: Expr
    stride: int
    count: Expr
    results: list[Expr]  # variables of the board's dtype


@dataclass(eq=False, slots=True)
class SpinWait(Stmt):
    """Name words of a board as soon as all of them are there. Those who post them are this block,
    before this statement, and earlier ones."""

    flags: Buffer
    reads: list[FlagRead]


def operands_of(s: Stmt) -> list[Expr]:
    """What the statements above are given."""
    if isinstance(s, AtomicAdd):
        return [s.index, s.value]
    if isinstance(s, WarpMultisplit):
        return [s.start, s.digit]
    if isinstance(s, SetFlag):
        return [s.index, s.value]
    return [e for run in s.reads for e in (run.index, run.count)] if isinstance(s, SpinWait) else []
