"""Squared deviations around the mean of a sample, where that of all would be one more walk.

Threads that walk rows, or parts of them, which they have no room for read a few elements first.
What deviates from the mean of these is summed up with its squares in one walk; what squares around
the mean of all come to follows from the two sums.
"""

from __future__ import annotations

from numus import ir
from numus.compiler.lower.loops.nest import Dim
from numus.compiler.lower.loops.stages import PER_THREAD, Work
from numus.ir import Expr, const

SHARE = 16  # which part of what is walked is a sample


def samples(work: Work) -> bool:
    """Whether lanes are threads, and there is a dtype to compare means of parts in without loss."""
    return bool(work.threads) and "float64" in work.target.dtypes


def sample_of(work: Work, lane: Dim | None, steps: int, below: int = 1) -> int:
    """How many steps of so many tell what squared deviations are taken around, so that all of them
    are walked once; 0 where a mean of all of them is known first, and memory read again.

    What is lost where those few are unlike the rest is as many times a rounding error as there are
    more of the rest: what they are is part of the deviations, too.
    """
    if not work.squares or not samples(work):
        return 0
    if lane is None or lane.reduced:  # what a group reads at a time
        sample = max(1, work.share() // below)
    else:
        sample = max(PER_THREAD, steps // SHARE // PER_THREAD * PER_THREAD)
    return sample if 2 * sample <= steps else 0


def first_of(span: tuple[Expr, Expr], sample: int) -> tuple[Expr, Expr] | None:
    """The first steps of so many; None where there is no sample."""
    start, stop = span
    return (start, ir.minimum(ir.add(start, const(sample)), stop)) if sample else None
