"""Shifted-data variance (Chan, Golub & LeVeque 1983): one pass around an estimated mean.

Threads whose rows do not fit on chip read a sample first. The deviations from its mean are summed
with their squares in one pass, and the squares around the true mean follow from the two sums.
"""

from __future__ import annotations

from numus import ir
from numus.compiler.lower.loops.problem import LoopProblem
from numus.compiler.lower.loops.tuning import TUNING
from numus.ir import Expr, const


def supports_sampling(p: LoopProblem) -> bool:
    """Lanes are threads, and float64 combines the means of splits without loss."""
    return bool(p.work.threads) and "float64" in p.target.dtypes


def sample_iterations(p: LoopProblem, total: int, inner: int = 1) -> int:
    """Iterations that are the sample, of the outermost loop; 0 where the mean comes from a pass of
    its own.

    A sample unlike the rest multiplies the rounding error by the ratio of their sizes at most,
    because its own deviations are part of the sum.
    """
    if not p.work.sqdevs or not supports_sampling(p):
        return 0
    if not p.across_rows:  # as much as a block reads at a time
        sample = max(1, p.work.block_elements() // inner)
    else:
        step = TUNING.elements_per_thread
        sample = max(step, total // TUNING.sample_fraction // step * step)
    return sample if 2 * sample <= total else 0


def sample_span(span: tuple[Expr, Expr], sample: int) -> tuple[Expr, Expr] | None:
    """The first iterations of a span; None where there is no sample."""
    start, stop = span
    return (start, ir.minimum(ir.add(start, const(sample)), stop)) if sample else None
